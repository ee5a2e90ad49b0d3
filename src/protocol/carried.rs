//! What goes to and comes from attempts on hosts that do not see the directory of the DAG file.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::ForwardedData;
use crate::payload::Payload;

/// What an attempt of a job with a directory of its own needs of that directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Carried {
    /// The description of the job, for `pegasus-lite`.
    #[serde(with = "serde_bytes")]
    pub description: Vec<u8>,
    /// Files that it names.
    pub files: Vec<CarriedFile>,
}

/// A file as it was when the attempt was assigned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CarriedFile {
    /// Its path in the description.
    pub path: PathBuf,
    /// Its content.
    #[serde(with = "serde_bytes")]
    pub data: Vec<u8>,
}

/// What an attempt has written that belongs into that directory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Returned {
    /// Standard output, with the record of the attempt.
    pub out: Payload,
    /// Standard error.
    pub err: Payload,
    /// Files that its description names, each whole.
    pub files: Vec<ForwardedData>,
}

impl Default for Returned {
    fn default() -> Self {
        Self {
            out: Payload::Bytes(Vec::new()),
            err: Payload::Bytes(Vec::new()),
            files: Vec::new(),
        }
    }
}
