//! `jobstate.log` as Pegasus' monitoring writes it: the states of the jobs as text.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use pmc_files::OFlags;

/// Appends lines to the file; they are buffered.
#[derive(Debug)]
pub struct StateLog {
    file: File,
    path: PathBuf,
    lines: Vec<u8>,
    length: u64,
}

/// A line about a job.
#[derive(Clone, Copy, Debug)]
pub struct JobLine<'a> {
    /// Job.
    pub job: &'a str,
    /// State.
    pub state: &'a str,
    /// Status, or the HTCondor id of the attempt.
    pub value: &'a str,
    /// Site, or nothing.
    pub site: &'a str,
    /// Sequence number of the attempt.
    pub seq: i64,
}

impl StateLog {
    /// Opens the file to continue after its first `length` bytes. Later bytes, from before an interruption,
    /// are removed and will be written again.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn open(path: &Path, length: Option<u64>) -> io::Result<Self> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND;
        let file = pmc_files::open_for_writing(path, flags, 0o666)?;
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

    /// Adds a state of a job. `time` is in seconds since the epoch.
    pub fn job(&mut self, time: i64, line: &JobLine<'_>) {
        let JobLine {
            job,
            state,
            value,
            site,
            seq,
        } = line;
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
        let submit = JobLine {
            job: "a",
            state: "SUBMIT",
            value: "1.0",
            site: "",
            seq: 1,
        };
        log.job(6, &submit);
        log.flush().unwrap();
        let mut log = StateLog::open(&path, Some(length)).unwrap();
        let success = JobLine {
            job: "b",
            state: "JOB_SUCCESS",
            value: "0",
            site: "local",
            seq: 1,
        };
        log.job(7, &success);
        log.internal(8, "MONITORD_STARTED", "");
        log.flush().unwrap();
        let expected = "5 INTERNAL *** DAGMAN_STARTED 0.0 ***\n7 b JOB_SUCCESS 0 local - 1\n\
                        8 INTERNAL *** MONITORD_STARTED ***\n";
        assert_eq!(std::fs::read_to_string(&path).unwrap(), expected);
    }
}
