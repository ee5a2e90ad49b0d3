//! Reads the lines of a growing log and keeps the position.

use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use pmc_files::LineReader;

use crate::fixed_hash::fnv1a;
use crate::store::Position;

/// Bytes of the log that a fingerprint covers.
const FINGERPRINT: u64 = 4096;

/// A log that is being read.
#[derive(Debug)]
pub struct LogReader {
    lines: LineReader,
    /// Number of lines returned.
    count: u64,
}

impl LogReader {
    /// Opens a log at its beginning.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self {
            lines: LineReader::open(path)?,
            count: 0,
        })
    }

    /// Goes to the position of an earlier reader. Returns false, and stays at the beginning, if that reader
    /// had another log.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn resume(&mut self, position: Position) -> io::Result<bool> {
        if position.log_bytes == 0 {
            return Ok(true);
        }
        if self.lines.file().metadata()?.len() < position.log_bytes
            || self.fingerprints(position.log_bytes)? != (position.log_head, position.log_tail)
        {
            return Ok(false);
        }
        self.lines.seek(position.log_bytes)?;
        self.count = position.log_lines;
        Ok(true)
    }

    /// Returns the position. The length of the log of states is not filled in.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn position(&self) -> io::Result<Position> {
        let log_bytes = self.lines.position();
        let (log_head, log_tail) = self.fingerprints(log_bytes)?;
        Ok(Position {
            log_bytes,
            log_lines: self.count,
            log_head,
            log_tail,
            jobstate_bytes: 0,
        })
    }

    /// Returns the number of the last line, counted from 1.
    #[must_use]
    pub fn line_number(&self) -> u64 {
        self.count
    }

    /// Returns the next complete line with its line feed, `None` if there is none yet.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn next_line(&mut self) -> io::Result<Option<&[u8]>> {
        let line = self.lines.next_line()?;
        self.count += u64::from(line.is_some());
        Ok(line)
    }

    /// Returns the text after the last line feed. Call it when nothing more will be written.
    pub fn last_line(&mut self) -> Option<&[u8]> {
        let line = self.lines.take_rest();
        self.count += u64::from(line.is_some());
        line
    }

    /// Returns whether the path names another file now, or the log became shorter.
    #[must_use]
    pub fn was_replaced(&self) -> bool {
        self.lines.was_replaced()
    }

    /// Returns fingerprints of the beginning of the log and of the bytes before `end`.
    fn fingerprints(&self, end: u64) -> io::Result<(i64, i64)> {
        let first = end.min(FINGERPRINT);
        Ok((self.fingerprint(0, first)?, self.fingerprint(end - first, end)?))
    }

    fn fingerprint(&self, from: u64, to: u64) -> io::Result<i64> {
        let mut bytes = [0; FINGERPRINT as usize];
        // Callers ask for at most the size of the array.
        let part = usize::try_from(to - from).unwrap_or(usize::MAX).min(bytes.len());
        self.lines.file().read_exact_at(&mut bytes[..part], from)?;
        Ok(fnv1a(&[&bytes[..part]]).cast_signed())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn only_complete_lines_are_returned() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let mut reader = LogReader::open(file.path()).unwrap();
        assert_eq!(reader.next_line().unwrap(), None);
        file.write_all(b"one\ntw").unwrap();
        assert_eq!(reader.next_line().unwrap(), Some(&b"one\n"[..]));
        assert_eq!(reader.next_line().unwrap(), None);
        let position = reader.position().unwrap();
        assert_eq!((position.log_bytes, position.log_lines), (4, 1));
        file.write_all(b"o\nthree").unwrap();
        assert_eq!(reader.next_line().unwrap(), Some(&b"two\n"[..]));
        assert_eq!(reader.next_line().unwrap(), None);
        assert_eq!(reader.last_line(), Some(&b"three"[..]));
        assert_eq!(reader.last_line(), None);

        let mut again = LogReader::open(file.path()).unwrap();
        assert!(again.resume(position).unwrap());
        assert_eq!(again.next_line().unwrap(), Some(&b"two\n"[..]));
    }

    #[test]
    fn a_replaced_log_is_noticed() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"one\ntwo\n").unwrap();
        let mut reader = LogReader::open(file.path()).unwrap();
        reader.next_line().unwrap();
        let position = reader.position().unwrap();
        assert!(!reader.was_replaced());
        for other in [&b"uno\ntwo\nthree\n"[..], b"on"] {
            std::fs::write(file.path(), other).unwrap();
            let mut reader = LogReader::open(file.path()).unwrap();
            assert!(!reader.resume(position).unwrap());
            assert_eq!(reader.position().unwrap().log_bytes, 0);
        }
        assert!(reader.was_replaced());
    }
}
