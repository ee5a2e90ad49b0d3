//! A log file that is written in batches.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use pmc_dag::reason;

/// A file could not be opened or written.
#[derive(Debug, thiserror::Error)]
#[error("Error {action} {what} {}: {}", path.display(), reason(source))]
pub struct LogError {
    /// What was tried: opening or writing.
    pub action: &'static str,
    /// Which file, in words.
    pub what: &'static str,
    /// Its path.
    pub path: PathBuf,
    /// Why it failed.
    pub source: io::Error,
}

/// A log file, opened for appending. Lines are collected in [`LogFile::lines`] and written, all
/// at once, by [`LogFile::flush`].
#[derive(Debug)]
pub(super) struct LogFile {
    what: &'static str,
    path: PathBuf,
    file: File,
    pub(super) lines: Vec<u8>,
}

impl LogFile {
    pub(super) fn open(what: &'static str, path: &Path) -> Result<Self, LogError> {
        let file = OpenOptions::new().append(true).create(true).open(path);
        let file = file.map_err(|source| LogError {
            action: "opening",
            what,
            path: path.to_owned(),
            source,
        })?;
        Ok(Self {
            what,
            path: path.to_owned(),
            file,
            lines: Vec::new(),
        })
    }

    pub(super) fn flush(&mut self) -> Result<(), LogError> {
        if self.lines.is_empty() {
            return Ok(());
        }
        let result = self.file.write_all(&self.lines);
        self.lines.clear();
        result.map_err(|source| LogError {
            action: "writing",
            what: self.what,
            path: self.path.clone(),
            source,
        })
    }
}
