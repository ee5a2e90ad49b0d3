//! Reads the lines of a growing log and knows where it is.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use crate::fixed_hash::fnv1a;
use crate::store::Position;

/// Read at a time.
const CHUNK: usize = 1 << 18;
/// A line is not longer; what is, is no line of a log.
const LINE: usize = 1 << 20;
/// Bytes of the log that a fingerprint covers.
const FINGERPRINT: u64 = 4096;

/// A log that is being read.
#[derive(Debug)]
pub struct LogReader {
    file: File,
    path: PathBuf,
    /// Bytes read that are no complete line yet, behind those consumed.
    buffer: Vec<u8>,
    consumed: usize,
    /// Bytes and lines given out.
    bytes: u64,
    lines: u64,
}

impl LogReader {
    /// Opens a log at its beginning.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self {
            file: File::open(path)?,
            path: path.to_owned(),
            buffer: Vec::new(),
            consumed: 0,
            bytes: 0,
            lines: 0,
        })
    }

    /// Goes to where an earlier reader was. False if this is another log than it read, and the reader
    /// stays at the beginning.
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

    /// Where the reader is; the length of the other log is not filled in.
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

    /// Number of the line given last, counted from 1.
    #[must_use]
    pub fn line_number(&self) -> u64 {
        self.lines
    }

    /// The next complete line with its line feed, `None` at the end of what is there.
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
            if self.buffer.len() > LINE {
                return Ok(Some(self.give_rest()));
            }
            searched = self.buffer.len();
            let mut chunk = (&mut self.file).take(CHUNK as u64);
            if chunk.read_to_end(&mut self.buffer)? == 0 {
                return Ok(None);
            }
        }
    }

    /// What stands behind the last line feed, if the writer will not go on.
    pub fn last_line(&mut self) -> Option<&[u8]> {
        self.buffer.drain(..self.consumed);
        self.consumed = 0;
        if self.buffer.is_empty() {
            return None;
        }
        Some(self.give_rest())
    }

    fn give_rest(&mut self) -> &[u8] {
        self.consumed = self.buffer.len();
        self.bytes += self.consumed as u64;
        self.lines += 1;
        &self.buffer
    }

    /// Whether the path now names another file, or this one became shorter.
    ///
    /// # Errors
    /// The path cannot be looked at.
    pub fn was_replaced(&self) -> io::Result<bool> {
        let (now, mine) = (std::fs::metadata(&self.path)?, self.file.metadata()?);
        let same = (now.dev(), now.ino()) == (mine.dev(), mine.ino());
        Ok(!same || now.len() < self.bytes)
    }

    /// Of the beginning of the log and of what stands before `end`.
    fn fingerprints(&self, end: u64) -> io::Result<(i64, i64)> {
        let first = end.min(FINGERPRINT);
        Ok((self.fingerprint(0, first)?, self.fingerprint(end - first, end)?))
    }

    fn fingerprint(&self, from: u64, to: u64) -> io::Result<i64> {
        let mut bytes = [0; FINGERPRINT as usize];
        // At most the size of the array, by its callers.
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
    fn lines_of_a_growing_file() {
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
    fn another_log_is_noticed() {
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
    fn a_line_without_end() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&vec![b'x'; 3 * LINE]).unwrap();
        let mut reader = LogReader::open(file.path()).unwrap();
        assert!(reader.next_line().unwrap().is_some_and(|line| line.len() > LINE));
        assert!(reader.buffer.len() < 2 * LINE);
    }
}
