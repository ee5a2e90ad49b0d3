//! Lines of a file that may still grow.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Bytes read at once.
const CHUNK: usize = 1 << 18;
/// Maximum length of a line in bytes, so that a file without line feeds does not fill the memory.
const MAX_LINE: usize = 64 << 20;

/// Reads the lines of a file, and later the lines that were added.
#[derive(Debug)]
pub struct LineReader {
    file: File,
    path: PathBuf,
    /// Bytes read; those before `consumed` were returned.
    buffer: Vec<u8>,
    consumed: usize,
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
            file: crate::open(path)?,
            path: path.to_owned(),
            buffer: Vec::new(),
            consumed: 0,
            position: 0,
        })
    }

    /// Opens a file of at most `max` bytes at its beginning. Its size is known before it is read, so that a
    /// sparse file of another user takes no time.
    ///
    /// # Errors
    /// As [`LineReader::open`], or the file is larger.
    pub fn open_at_most(path: &Path, max: u64) -> io::Result<Self> {
        let reader = Self::open(path)?;
        match reader.file.metadata()?.len() > max {
            true => Err(crate::too_large(max)),
            false => Ok(reader),
        }
    }

    /// Goes to a position in the file, where a line begins.
    ///
    /// # Errors
    /// The file cannot be positioned.
    pub fn seek(&mut self, position: u64) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(position))?;
        self.position = position;
        self.buffer.clear();
        self.consumed = 0;
        Ok(())
    }

    /// Returns the next complete line with its line feed, `None` if there is none yet.
    ///
    /// # Errors
    /// The file cannot be read, or a line is longer than 64 MiB.
    pub fn next_line(&mut self) -> io::Result<Option<&[u8]>> {
        let mut searched = self.consumed;
        loop {
            if let Some(end) = memchr::memchr(b'\n', &self.buffer[searched..]) {
                return Ok(Some(self.take(searched + end + 1)));
            }
            self.buffer.drain(..self.consumed);
            self.consumed = 0;
            if self.buffer.len() > MAX_LINE {
                return Err(crate::refused("has a line that is too long"));
            }
            searched = self.buffer.len();
            let mut chunk = (&mut self.file).take(CHUNK as u64);
            if chunk.read_to_end(&mut self.buffer)? == 0 {
                return Ok(None);
            }
        }
    }

    /// Calls `take` for all new complete lines, with the position of each in the file and its text without
    /// the line feed.
    ///
    /// # Errors
    /// As [`LineReader::next_line`].
    pub fn read(&mut self, mut take: impl FnMut(u64, &[u8])) -> io::Result<()> {
        loop {
            let position = self.position;
            match self.next_line()? {
                Some(line) => take(position, line.strip_suffix(b"\n").unwrap_or(line)),
                None => return Ok(()),
            }
        }
    }

    /// Returns the text after the last line feed, if there is some.
    #[must_use]
    pub fn rest(&self) -> Option<&[u8]> {
        Some(&self.buffer[self.consumed..]).filter(|rest| !rest.is_empty())
    }

    /// Returns the same as the next line. Call it when nothing more will be written.
    pub fn take_rest(&mut self) -> Option<&[u8]> {
        self.rest()?;
        Some(self.take(self.buffer.len()))
    }

    /// Consumes the buffer up to `end`.
    fn take(&mut self, end: usize) -> &[u8] {
        let line = &self.buffer[self.consumed..end];
        self.consumed = end;
        self.position += line.len() as u64;
        line
    }

    /// Returns the position of the next line in the file.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Returns the file, for reading elsewhere.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Returns whether another file has replaced this one, or the file was truncated.
    #[must_use]
    pub fn was_replaced(&self) -> bool {
        let (Ok(now), Ok(own)) = (fs::metadata(&self.path), self.file.metadata()) else {
            return false;
        };
        (now.dev(), now.ino()) != (own.dev(), own.ino()) || now.len() < self.position
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
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let mut reader = LineReader::open(file.path()).unwrap();
        assert_eq!(lines(&mut reader), []);
        file.write_all(b"one\ntw").unwrap();
        assert_eq!(lines(&mut reader), [(0, "one".to_owned())]);
        assert_eq!((reader.rest(), reader.position()), (Some(&b"tw"[..]), 4));
        let long = "x".repeat(3 * CHUNK);
        write!(file, "o\n\n{long}\nend").unwrap();
        let expected = [(4, "two".to_owned()), (8, String::new()), (9, long)];
        assert_eq!(lines(&mut reader), expected);
        assert_eq!(reader.take_rest(), Some(&b"end"[..]));
        assert_eq!(reader.rest(), None);
        assert_eq!(reader.take_rest(), None);
        reader.seek(4).unwrap();
        assert_eq!(reader.next_line().unwrap(), Some(&b"two\n"[..]));
        assert!(!reader.was_replaced());
        fs::write(file.path(), "on").unwrap();
        assert!(reader.was_replaced());
    }

    #[test]
    fn a_file_that_is_too_large_is_refused_before_it_is_read() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(3 << 20).unwrap();
        assert!(LineReader::open_at_most(file.path(), 3 << 20).is_ok());
        file.as_file().set_len(1 << 40).unwrap();
        let refused = LineReader::open_at_most(file.path(), 3 << 20).unwrap_err();
        assert_eq!(refused.to_string(), "larger than 3 MiB, the most that is read");
    }

    #[test]
    fn a_line_without_end_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 40).unwrap();
        let mut reader = LineReader::open(file.path()).unwrap();
        assert!(reader.next_line().is_err() && reader.next_line().is_err());
        assert!(reader.buffer.len() <= MAX_LINE + CHUNK);
    }
}
