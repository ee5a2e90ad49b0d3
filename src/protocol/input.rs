//! Messages about the standard input of a task that tools push.

use serde::{Deserialize, Serialize};

use super::SubmitId;

/// Where the standard input of a task comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stdin {
    /// From tools.
    Push,
    /// From a file.
    File(#[serde(with = "serde_bytes")] Vec<u8>),
}

/// Input for a task. Its worker takes as much as the pipe of the task has room for, and forgets the rest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Input {
    /// Number of the request.
    pub number: u64,
    /// Attempt of the task.
    pub submit: SubmitId,
    /// The bytes.
    #[serde(with = "serde_bytes")]
    pub bytes: Vec<u8>,
    /// The input ends after them.
    pub is_end: bool,
}

/// The answer to an [`Input`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputTaken {
    /// Number of the request.
    pub number: u64,
    /// What became of it.
    pub answer: InputAnswer,
}

/// What became of input for a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum InputAnswer {
    /// The pipe has taken this number of bytes. If these are all, it has taken the end, too.
    Taken(u64),
    /// The attempt takes no input from tools.
    NotPushed,
    /// Its input had an end before.
    Complete,
    /// The task has closed its standard input.
    Closed,
    /// The attempt does not run.
    Ended,
}
