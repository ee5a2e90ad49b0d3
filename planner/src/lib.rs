//! Plans a Pegasus workflow into a submit directory for pegasus-mpi-cluster.

pub mod catalog;
pub mod model;
pub mod profiles;
