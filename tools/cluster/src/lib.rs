//! Runs a list of commands as one job, with a record of each for monitoring: `pegasus-cluster`.
//!
//! [`options`] parses the command line, [`list`] reads commands line by line, [`run()`] executes them with
//! one thread per concurrent command, and [`report`] writes output, records and progress. No shell is
//! involved. [`pmc_dag::list`] describes the quoting.

pub mod children;
pub mod list;
pub mod options;
mod program;
pub mod report;
mod run;

pub use program::main;
pub use run::{RunError, exit, run};
