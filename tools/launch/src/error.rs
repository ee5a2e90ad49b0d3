//! Why a launch is not possible.

use std::io;
use std::path::PathBuf;

/// Why no rank has run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LaunchError {
    #[error("{} has {given} ranks, and the task has {there} on {hosts} hosts", .what)]
    TooManyRanks {
        what: String,
        given: u64,
        there: u64,
        hosts: usize,
    },
    #[error("it needs {given} nodes, and there are {there}")]
    TooManyNodes { given: usize, there: usize },
    #[error("{ranks} ranks are less than {nodes} nodes")]
    EmptyNodes { nodes: usize, ranks: u64 },
    #[error("{path}, line {line}: {why}", path = .path.display())]
    LoadFile { path: PathBuf, line: usize, why: String },
    #[error("{path}: {why}", path = .path.display())]
    File { path: PathBuf, why: String },
    #[error("{0}")]
    Usage(String),
    #[error("{0} is no host of this task: it has {1}")]
    UnknownHost(String, String),
    #[error("{0}")]
    Failed(String),
    #[error("{}", pmc_dag::reason(.0))]
    System(#[from] io::Error),
}

impl LaunchError {
    /// True if the user must say something else.
    pub(crate) fn is_usage(&self) -> bool {
        matches!(self, Self::Usage(_) | Self::LoadFile { .. })
    }
}
