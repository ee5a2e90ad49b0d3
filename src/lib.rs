//! The executor: runs a workflow DAG with one master and many workers.

pub mod app;
#[cfg(feature = "mpi")]
mod app_mpi;
pub mod cli;
#[cfg_attr(not(feature = "stampede"), path = "database_disabled.rs")]
mod database;
pub mod driver;
pub mod durability;
pub mod exit;
pub mod forwarding;
pub mod host;
pub mod interrupt;
pub mod launch;
pub mod logging;
pub mod logs;
pub mod merge;
pub mod options;
pub mod protocol;
pub mod run;
pub mod scheduler;
pub mod signals;
pub mod transport;
pub mod worker;
