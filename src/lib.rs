//! The executor: runs a workflow DAG with one master and many workers.

pub mod app;
#[cfg(feature = "mpi")]
mod app_mpi;
pub mod cli;
#[cfg(feature = "stampede")]
mod database;
pub mod driver;
pub mod exit;
pub mod forward_journal;
pub mod forwarding;
pub mod host;
pub mod interrupt;
pub mod launch;
pub mod lock;
pub mod logging;
pub mod logs;
pub mod master;
pub mod merge;
pub mod message;
pub mod options;
pub mod run;
pub mod shared_files;
pub mod signals;
pub mod sync;
pub mod transport;
pub mod worker;
