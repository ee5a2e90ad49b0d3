//! Loads a run into the STAMPEDE database of Pegasus 5.1, which `pegasus-statistics`,
//! `pegasus-analyzer` and the dashboard read.
//!
//! Rows come from the log of the executor (`.dagman.out`), the planner's events (`.static.bp`) and the
//! output files of the jobs. [`session`] loads a submit directory; [`loader`] turns single states into rows.
//!
//! Dependencies point one way: [`rows`], [`schema`] ← [`store`] ← [`loader`] ← [`session`].

#[cfg(feature = "program")]
pub mod cli;
pub mod client;
pub mod dashboard;
pub mod destination;
pub mod error;
pub mod facts;
pub mod file_system;
pub mod fixed_hash;
mod job_command;
pub mod loader;
pub mod log_reader;
pub mod markers;
pub mod notifications;
pub mod outputs;
pub mod pgpass;
#[cfg(feature = "program")]
mod program;
pub mod rows;
pub mod run;
pub mod schema;
#[cfg(feature = "postgresql")]
pub mod server;
pub mod session;
pub mod state_log;
pub mod static_part;
pub mod store;
pub mod submit_description;
pub mod text;

#[cfg(feature = "program")]
pub use program::main;
