//! The output of attempts of tasks, wherever it is: in two files of each attempt, or in packs.
//!
//! A pack is an append-only file with the output of many attempts. Each worker of a run has one, in the
//! folder [`FOLDER`] beside the DAG file: `x.dag.3` for worker 3 of `x.dag`, with the index
//! `x.dag.3.index`. A run of a million tasks thus makes a few files instead of two million.
//!
//! An entry of a pack is a line, then standard output, then standard error of the attempt:
//!
//! ```text
//! pmc-pack OFFSET NUMBER SUBMIT START OUT_BYTES OUT_CRC ERR_BYTES ERR_CRC TASK LINE_CRC
//! ```
//!
//! `OFFSET` is where the line begins. `NUMBER` is the one that the names of the files would have: how often
//! the task was submitted before. `SUBMIT` is the submit number, `START` in milliseconds since the epoch.
//! The checksums are CRC-32, in hexadecimal digits; the last one is that of the line before it. In the name
//! of the task, bytes of blanks, control characters and `%` are written as `%` and two hexadecimal digits.
//!
//! The index has the same line for each entry, written after the entry. So a line of the index means that
//! the entry is complete, and a reader needs the index only. What a killed writer has left unfinished is in
//! no index: readers skip it, and the next writer goes on after it.

mod entry;
mod output;
mod packs;
mod writer;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

pub use entry::Attempt;
pub use output::{Channel, TaskOutput, relative_file};
pub use packs::{Packed, PacksError, Stream};
pub use writer::Pack;

/// Name of the folder with the packs, beside the DAG file.
pub const FOLDER: &str = "packed-output";

/// End of the name of an index.
const INDEX: &str = ".index";

/// Returns the folder with the packs of the DAGs in a folder.
#[must_use]
pub fn folder(beside: &Path) -> PathBuf {
    beside.join(FOLDER)
}

/// Returns whether a DAG in a folder has packs.
#[must_use]
pub fn has_packs(beside: &Path, dag: &OsStr) -> bool {
    let mut start = dag.to_owned();
    start.push(".");
    let Ok(entries) = folder(beside).read_dir() else {
        return false;
    };
    let mut names = entries.flatten().map(|entry| entry.file_name());
    names.any(|name| {
        name.as_encoded_bytes().starts_with(start.as_encoded_bytes())
            && name.as_encoded_bytes().ends_with(INDEX.as_bytes())
    })
}

#[cfg(test)]
mod tests;
