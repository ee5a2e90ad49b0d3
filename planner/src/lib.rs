//! Plans a Pegasus workflow into a submit directory for pegasus-mpi-cluster.

mod budget;
pub mod catalog;
mod classad;
pub mod cli;
mod data_mode;
pub mod diagnostic;
pub mod error;
mod exec;
pub mod expand;
mod file_state;
pub mod fingerprint;
mod graph;
mod hook;
mod ids;
pub mod input;
pub mod keys;
pub mod model;
mod output;
mod pattern;
pub mod plan;
pub mod profiles;
mod program;
pub mod properties;
mod refine;
pub mod report;
pub mod request;
pub mod saved_request;
mod syntax;
mod task_request;
mod tasks;
pub mod warnings;

pub use output::common::records::COMPATIBLE_VERSION;
pub use program::{main, run};
