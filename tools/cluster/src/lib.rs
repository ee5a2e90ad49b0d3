//! Runs a list of commands as one job, with a record of each for monitoring: `pegasus-cluster`.
//!
//! [`options`] says what was asked for, [`list`] reads the commands line by line, [`run()`] goes through them
//! with one thread for each command that runs at a time, [`report`] writes output, records and progress.
//! No shell is involved. Commands are quoted as [`pmc_dag::list`] says.

pub mod app;
pub mod children;
pub mod list;
pub mod options;
pub mod report;
mod run;

pub use run::{RunError, exit, run};
