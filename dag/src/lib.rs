//! The DAG file of pegasus-mpi-cluster.

/// Number of a task, in the order of the TASK lines of the DAG file, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskId(pub u32);
