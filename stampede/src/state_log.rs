//! `jobstate.log` of the monitoring: the states of the jobs as text.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// The file, and lines that are not in it yet.
#[derive(Debug)]
pub struct StateLog {
    file: Option<File>,
    path: PathBuf,
    lines: Vec<u8>,
    length: u64,
    /// The time of the last line of a job, as text.
    time: (i64, Vec<u8>),
}

impl StateLog {
    /// Opens the file to go on after its first `length` bytes. What follows them was written before an
    /// interruption, and is written again.
    ///
    /// # Errors
    /// It cannot be written.
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
            file: Some(file),
            path: path.to_owned(),
            lines: Vec::new(),
            length,
            time: (0, b"0".to_vec()),
        })
    }

    /// A log that is not written.
    #[must_use]
    pub fn none() -> Self {
        Self {
            file: None,
            path: PathBuf::new(),
            lines: Vec::new(),
            length: 0,
            time: (0, b"0".to_vec()),
        }
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A state of a job. `value` is a status or the number of the execution.
    pub fn job(&mut self, time: i64, job: &str, state: &str, value: &str, site: &str, seq: i64) {
        if self.file.is_none() {
            return;
        }
        // By hand, for there are four of them a task.
        if self.time.0 != time {
            self.time.0 = time;
            self.time.1.clear();
            number(&mut self.time.1, time);
        }
        self.lines.extend_from_slice(&self.time.1);
        let site = if site.is_empty() { "-" } else { site };
        for word in [job, state, value, site, "- "] {
            self.lines.push(b' ');
            self.lines.extend_from_slice(word.as_bytes());
        }
        number(&mut self.lines, seq);
        self.lines.push(b'\n');
    }

    /// A state of the run or of the loader.
    pub fn internal(&mut self, time: i64, state: &str, value: &str) {
        let blank = if value.is_empty() { "" } else { " " };
        self.line(format_args!("{time} INTERNAL *** {state}{blank}{value} ***"));
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        if self.file.is_some() {
            writeln!(self.lines, "{line}").expect("writing to memory does not fail");
        }
    }

    /// Writes the lines to the file; its length afterwards.
    ///
    /// # Errors
    /// The disk is full, for instance; the lines are kept.
    pub fn flush(&mut self) -> io::Result<u64> {
        if let Some(file) = &mut self.file
            && !self.lines.is_empty()
        {
            file.write_all(&self.lines)?;
            self.length += self.lines.len() as u64;
            self.lines.clear();
        }
        Ok(self.length)
    }
}

fn number(to: &mut Vec<u8>, value: i64) {
    // As many digits as there can be.
    let (mut digits, mut first) = ([0; 20], 20);
    let mut rest = value.unsigned_abs();
    loop {
        first -= 1;
        // A digit is less than 10.
        digits[first] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if value < 0 {
        to.push(b'-');
    }
    to.extend_from_slice(&digits[first..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        for value in [0, 9, 10, -1, 1_772_600_767, i64::MAX, i64::MIN] {
            let mut text = Vec::new();
            number(&mut text, value);
            assert_eq!(text, value.to_string().as_bytes());
        }
    }

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
