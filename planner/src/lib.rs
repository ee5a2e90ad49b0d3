//! Plans a Pegasus workflow into a submit directory for pegasus-mpi-cluster.

pub mod catalog;
pub mod cli;
pub mod error;
pub mod expand;
pub mod input;
pub mod model;
mod output;
pub mod plan;
pub mod profiles;
pub mod properties;
mod refine;
pub mod scheduler;
pub mod submit;
