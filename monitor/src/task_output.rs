//! The output of an attempt of a task: which files hold it, and what is the task's own in them.
//!
//! An attempt has its own two files, an entry in a pack (see [`pmc_packed`]), or, without
//! `--per-task-stdio`, a part of the files of its worker. Beside what its processes print, the file for
//! standard output holds the executor's record of the attempt and, if kickstart has captured the streams,
//! kickstart's records. [`Splitter`] takes them apart.

mod files;
mod splitter;

pub use files::{AttemptFiles, Part, parts};
pub use splitter::{Piece, Splitter};
