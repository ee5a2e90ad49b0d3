//! Reads the lines of a growing log and keeps the position.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use crate::fixed_hash::fnv1a;
use crate::store::Position;

/// Bytes read at once.
const CHUNK: usize = 1 << 18;
/// Maximum length of a line of a log.
const MAX_LINE: usize = 1 << 20;
/// Bytes of the log that a fingerprint covers.
const FINGERPRINT: u64 = 4096;

/// A log that is being read.
#[derive(Debug)]
pub struct LogReader {
    file: File,
    path: PathBuf,
    /// Bytes read; those before `consumed` were returned.
    buffer: Vec<u8>,
    consumed: usize,
    /// Bytes and lines returned.
    bytes: u64,
    lines: u64,
}

impl LogReader {
    /// Opens a log at its beginning.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self {
            file: pmc_files::open(path)?,
            path: path.to_owned(),
            buffer: Vec::new(),
            consumed: 0,
            bytes: 0,
            lines: 0,
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
        if self.file.metadata()?.len() < position.log_bytes
            || self.fingerprints(position.log_bytes)? != (position.log_head, position.log_tail)
        {
            return Ok(false);
        }
        self.file.seek(SeekFrom::Start(position.log_bytes))?;
        (self.bytes, self.lines) = (position.log_bytes, position.log_lines);
        self.buffer.clear();
        self.consumed = 0;
        Ok(true)
    }

    /// Returns the position. The length of the log of states is not filled in.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn position(&self) -> io::Result<Position> {
        let (log_head, log_tail) = self.fingerprints(self.bytes)?;
        Ok(Position {
            log_bytes: self.bytes,
            log_lines: self.lines,
            log_head,
            log_tail,
            jobstate_bytes: 0,
        })
    }

    /// Returns the number of the last line, counted from 1.
    #[must_use]
    pub fn line_number(&self) -> u64 {
        self.lines
    }

    /// Returns the next complete line with its line feed, `None` if there is none yet.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn next_line(&mut self) -> io::Result<Option<&[u8]>> {
        let mut searched = self.consumed;
        loop {
            if let Some(end) = memchr::memchr(b'\n', &self.buffer[searched..]) {
                let start = self.consumed;
                self.consumed = searched + end + 1;
                self.bytes += (self.consumed - start) as u64;
                self.lines += 1;
                return Ok(Some(&self.buffer[start..self.consumed]));
            }
            self.buffer.drain(..self.consumed);
            self.consumed = 0;
            if self.buffer.len() > MAX_LINE {
                return Ok(Some(self.take_rest()));
            }
            searched = self.buffer.len();
            let mut chunk = (&mut self.file).take(CHUNK as u64);
            if chunk.read_to_end(&mut self.buffer)? == 0 {
                return Ok(None);
            }
        }
    }

    /// Returns the text after the last line feed. Call it when nothing more will be written.
    pub fn last_line(&mut self) -> Option<&[u8]> {
        self.buffer.drain(..self.consumed);
        self.consumed = 0;
        if self.buffer.is_empty() {
            return None;
        }
        Some(self.take_rest())
    }

    fn take_rest(&mut self) -> &[u8] {
        self.consumed = self.buffer.len();
        self.bytes += self.consumed as u64;
        self.lines += 1;
        &self.buffer
    }

    /// Returns whether the path names another file now, or the log became shorter.
    ///
    /// # Errors
    /// The status of a file cannot be read.
    pub fn was_replaced(&self) -> io::Result<bool> {
        let (now, own) = (std::fs::metadata(&self.path)?, self.file.metadata()?);
        let is_same = (now.dev(), now.ino()) == (own.dev(), own.ino());
        Ok(!is_same || now.len() < self.bytes)
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
        self.file.read_exact_at(&mut bytes[..part], from)?;
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
        assert!(!reader.was_replaced().unwrap());
        for other in [&b"uno\ntwo\nthree\n"[..], b"on"] {
            std::fs::write(file.path(), other).unwrap();
            let mut reader = LogReader::open(file.path()).unwrap();
            assert!(!reader.resume(position).unwrap());
            assert_eq!(reader.position().unwrap().log_bytes, 0);
        }
        assert!(reader.was_replaced().unwrap());
    }

    #[test]
    fn a_long_line_is_split() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&vec![b'x'; 3 * MAX_LINE]).unwrap();
        let mut reader = LogReader::open(file.path()).unwrap();
        assert!(
            reader
                .next_line()
                .unwrap()
                .is_some_and(|line| line.len() > MAX_LINE)
        );
        assert!(reader.buffer.len() < 2 * MAX_LINE);
    }
}
