//! Plans a Pegasus workflow into a submit directory for pegasus-mpi-cluster.

pub mod catalog;
pub mod cli;
pub mod error;
pub mod expand;
mod explain;
pub mod input;
pub mod model;
mod output;
mod pattern;
pub mod picture;
pub mod plan;
pub mod profiles;
pub mod properties;
pub mod recipe;
mod refine;
pub mod scheduler;
pub mod submit;
pub mod summary;
