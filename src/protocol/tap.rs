//! Messages about the output of a task that kickstart captures: while the task runs, no other process sees
//! it.

use std::fs::File;

use pmc_control::Position;
use serde::{Deserialize, Serialize};

use super::SubmitId;

/// The open files that capture standard output and standard error of a task, as far as there are any.
pub type Captures = [Option<File>; 2];

/// Asks a worker for what comes after a position in each stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tap {
    /// Number of the request.
    pub number: u64,
    /// Attempt of the task.
    pub submit: SubmitId,
    /// What the tool has of standard output and standard error.
    pub after: [Position; 2],
    /// What is read are the streams of the attempt itself, which are in files without names if they go to a
    /// pack at the end; otherwise, what kickstart captures.
    pub is_own: bool,
    /// The worker may wait for output. Without it, it answers at once, also that nothing has come.
    pub may_wait: bool,
}

/// The answer to a [`Tap`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tapped {
    /// Number of the request.
    pub number: u64,
    /// What comes next in standard output and standard error.
    pub chunks: [Chunk; 2],
}

/// Bytes of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chunk {
    /// Position of the first one.
    pub position: Position,
    /// The bytes; none if nothing has come.
    #[serde(with = "serde_bytes")]
    pub bytes: Vec<u8>,
}
