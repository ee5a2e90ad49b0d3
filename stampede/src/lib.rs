//! Loads a run into the STAMPEDE database of Pegasus 5.1, which `pegasus-statistics`,
//! `pegasus-analyzer` and the dashboard read.
//!
//! Rows come from the log of the executor (`.dagman.out`), the planner's events (`.static.bp`) and the
//! output files of the jobs. [`session`] loads a whole directory; [`loader`] takes states one by one
//! from whoever knows them.

#[cfg(feature = "program")]
mod cli;
pub mod client;
pub mod dashboard;
pub mod destination;
pub mod error;
pub mod facts;
pub mod file_system;
pub mod fixed_hash;
pub mod loader;
pub mod log_reader;
pub mod markers;
pub mod outcome_hints;
pub mod outputs;
pub mod pgpass;
#[cfg(feature = "program")]
mod program;
pub mod rows;
pub mod run;
pub mod schema;
pub mod session;
pub mod state_log;
pub mod static_part;
pub mod store;
pub mod text;

#[cfg(feature = "program")]
pub use program::main;
