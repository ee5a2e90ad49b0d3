//! Lines of a file that may still grow.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Size of a read in bytes.
const CHUNK: usize = 1 << 20;
/// Maximum length of a line in bytes, so that a file without line feeds does not fill the memory.
const MAX_LINE: usize = 64 << 20;

/// Reads the lines of a file, and later the lines that were added.
#[derive(Debug)]
pub struct LineReader {
    file: File,
    path: PathBuf,
    buffer: Vec<u8>,
    /// Bytes of `buffer` that came from the file.
    filled: usize,
    /// Position of the next line in the file.
    position: u64,
}

impl LineReader {
    /// Opens a file at its beginning.
    ///
    /// # Errors
    /// It cannot be opened, or is not a regular file.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self {
            file: pmc_files::open(path)?,
            path: path.to_owned(),
            buffer: vec![0; CHUNK],
            filled: 0,
            position: 0,
        })
    }

    /// Reads all new complete lines. Calls `take` with the position of each line in the file and its text
    /// without the line feed.
    ///
    /// # Errors
    /// The file cannot be read, or a line is longer than 64 MiB.
    pub fn read(&mut self, mut take: impl FnMut(u64, &[u8])) -> io::Result<()> {
        let mut searched = self.filled;
        loop {
            if self.filled == self.buffer.len() {
                // A line longer than the buffer.
                if self.filled >= MAX_LINE {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, "a line is too long"));
                }
                self.buffer.resize(self.buffer.len() * 2, 0);
            }
            let count = match self.file.read(&mut self.buffer[self.filled..]) {
                Ok(0) => return Ok(()),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            self.filled += count;
            let mut start = 0;
            for at in memchr::memchr_iter(b'\n', &self.buffer[searched..self.filled]) {
                let end = searched + at;
                take(self.position, &self.buffer[start..end]);
                self.position += (end + 1 - start) as u64;
                start = end + 1;
            }
            self.buffer.copy_within(start..self.filled, 0);
            self.filled -= start;
            searched = self.filled;
        }
    }

    /// Returns the incomplete last line and its position.
    #[must_use]
    pub fn rest(&self) -> Option<(u64, &[u8])> {
        (self.filled > 0).then(|| (self.position, &self.buffer[..self.filled]))
    }

    /// Returns whether another file has replaced this one, or the file was truncated.
    #[must_use]
    pub fn was_replaced(&self) -> bool {
        let (Ok(now), Ok(mine)) = (std::fs::metadata(&self.path), self.file.metadata()) else {
            return false;
        };
        (now.dev(), now.ino()) != (mine.dev(), mine.ino()) || now.len() < self.position
    }
}

/// Splits a text at its first blank.
#[must_use]
pub(crate) fn word(text: &[u8]) -> (&[u8], &[u8]) {
    match memchr::memchr(b' ', text) {
        Some(end) => (&text[..end], text[end + 1..].trim_ascii_start()),
        None => (text, b""),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn lines(reader: &mut LineReader) -> Vec<(u64, String)> {
        let mut lines = Vec::new();
        reader
            .read(|at, line| lines.push((at, String::from_utf8_lossy(line).into_owned())))
            .unwrap();
        lines
    }

    #[test]
    fn a_growing_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut file = File::create(&path).unwrap();
        file.write_all(b"one\ntw").unwrap();
        let mut reader = LineReader::open(&path).unwrap();
        assert_eq!(lines(&mut reader), [(0, "one".to_owned())]);
        assert_eq!(reader.rest(), Some((4, &b"tw"[..])));
        let long = "x".repeat(3 * CHUNK);
        write!(file, "o\n\n{long}\nend").unwrap();
        let expected = [(4, "two".to_owned()), (8, String::new()), (9, long)];
        assert_eq!(lines(&mut reader), expected);
        assert!(!reader.was_replaced());
        File::create(&path).unwrap();
        assert!(reader.was_replaced());
    }
}
