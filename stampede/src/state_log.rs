//! `jobstate.log` as Pegasus' monitoring writes it: the states of the jobs as text.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// Appends lines to the file; they are buffered.
#[derive(Debug)]
pub struct StateLog {
    file: File,
    path: PathBuf,
    lines: Vec<u8>,
    length: u64,
}

impl StateLog {
    /// Opens the file to continue after its first `length` bytes. Later bytes, from before an interruption, are
    /// removed and will be written again.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn open(path: &Path, length: Option<u64>) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        let now = file.metadata()?.len();
        let length = match length {
            Some(length) if length < now => {
                file.set_len(length)?;
                length
            }
            _ => now,
        };
        Ok(Self {
            file,
            path: path.to_owned(),
            lines: Vec::new(),
            length,
        })
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Adds a state of a job. `value` is a status or the HTCondor id of the attempt.
    pub fn job(&mut self, time: i64, job: &str, state: &str, value: &str, site: &str, seq: i64) {
        let site = if site.is_empty() { "-" } else { site };
        self.line(format_args!("{time} {job} {state} {value} {site} - {seq}"));
    }

    /// Adds a state of the run or the loader.
    pub fn internal(&mut self, time: i64, state: &str, value: &str) {
        let blank = if value.is_empty() { "" } else { " " };
        self.line(format_args!("{time} INTERNAL *** {state}{blank}{value} ***"));
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        writeln!(self.lines, "{line}").expect("writing to memory does not fail");
    }

    /// Writes the buffered lines. Returns the length of the file.
    ///
    /// # Errors
    /// The file cannot be written; the lines stay in the buffer.
    pub fn flush(&mut self) -> io::Result<u64> {
        self.file.write_all(&self.lines)?;
        self.length += self.lines.len() as u64;
        self.lines.clear();
        Ok(self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_after_the_position_are_written_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("jobstate.log");
        let mut log = StateLog::open(&path, None).unwrap();
        log.internal(5, "DAGMAN_STARTED", "0.0");
        let length = log.flush().unwrap();
        log.job(6, "a", "SUBMIT", "1.0", "", 1);
        log.flush().unwrap();
        let mut log = StateLog::open(&path, Some(length)).unwrap();
        log.job(7, "b", "JOB_SUCCESS", "0", "local", 1);
        log.internal(8, "MONITORD_STARTED", "");
        log.flush().unwrap();
        let expected = "5 INTERNAL *** DAGMAN_STARTED 0.0 ***\n7 b JOB_SUCCESS 0 local - 1\n\
                        8 INTERNAL *** MONITORD_STARTED ***\n";
        assert_eq!(std::fs::read_to_string(&path).unwrap(), expected);
    }
}
