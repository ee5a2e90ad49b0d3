//! The executor: runs a workflow DAG with one master and many workers.

pub mod master;
pub mod message;
pub mod transport;
