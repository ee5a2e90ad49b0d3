//! What the functions of Appendix A do: files have numbers, and errors become messages.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use pmc_files::Destination;

use crate::connection::{ClientError, Connection, Reading, Writing};

/// Permissions of a copy.
const MODE: u32 = 0o600;

/// Where copies go that a program keeps for itself: `$TMPDIR`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeepDirectory(pub Option<PathBuf>);

/// A file that the program has open.
#[derive(Debug)]
enum Open {
    Write(Writing),
    Read(Reading),
}

/// The state of the library in a process.
#[derive(Debug)]
pub struct Library {
    connection: Connection,
    rank: u32,
    keep: KeepDirectory,
    open: BTreeMap<i32, Open>,
    last: i32,
}

/// A call that did not do what it should; the text is for the user.
type Failed = String;

impl Library {
    /// The state after `tcs_init_`.
    #[must_use]
    pub fn new(connection: Connection, rank: u32, keep: KeepDirectory) -> Self {
        Self {
            connection,
            rank,
            keep,
            open: BTreeMap::new(),
            last: 0,
        }
    }

    /// Returns the number of the series from which the program goes on; 0 if there is none.
    #[must_use]
    pub fn restarted(&self) -> i32 {
        let given = self.connection.given().unwrap_or(0);
        i32::try_from(given).unwrap_or(i32::MAX)
    }

    fn add(&mut self, open: Open) -> i32 {
        self.last = self.last.checked_add(1).unwrap_or(1);
        while self.open.contains_key(&self.last) {
            self.last = self.last.checked_add(1).unwrap_or(1);
        }
        self.open.insert(self.last, open);
        self.last
    }

    fn has_open(&self, prefix: &str) -> bool {
        let of = |open: &Open| match open {
            Open::Write(file) => file.prefix() == prefix,
            Open::Read(file) => file.prefix() == prefix,
        };
        self.open.values().any(of)
    }

    /// Opens a file. Returns its number.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open(&mut self, prefix: &str, writes: bool) -> Result<i32, Failed> {
        if self.has_open(prefix) {
            return Err(format!("a file with the prefix {prefix} is open already"));
        }
        let text = |error: ClientError| error.to_string();
        let open = match writes {
            true => Open::Write(self.connection.create(prefix).map_err(text)?),
            false => Open::Read(self.connection.open_given(prefix).map_err(text)?),
        };
        Ok(self.add(open))
    }

    /// Writes bytes into the file with this number.
    ///
    /// # Errors
    /// No such file is open for writing, or they cannot be written as a whole.
    pub fn write(&mut self, number: i32, bytes: &[u8]) -> Result<(), Failed> {
        match self.open.get_mut(&number) {
            Some(Open::Write(file)) => file.append(bytes).map_err(|error| error.to_string()),
            _ => Err(format!("no file with the number {number} is open for writing")),
        }
    }

    /// Reads bytes from the file with this number.
    ///
    /// # Errors
    /// No file with this number is open for reading, or it has fewer bytes left.
    pub fn read(&mut self, number: i32, bytes: &mut [u8]) -> Result<(), Failed> {
        match self.open.get_mut(&number) {
            Some(Open::Read(file)) => file.fill(bytes).map_err(|error| error.to_string()),
            _ => Err(format!("no file with the number {number} is open for reading")),
        }
    }

    /// Closes the file with this number. `keeps`: a file that was written is copied into the directory for
    /// temporary files, too.
    ///
    /// # Errors
    /// No such file is open; or it does not count, or was not copied.
    pub fn close(&mut self, number: i32, keeps: bool) -> Result<(), Failed> {
        let text = |error: ClientError| error.to_string();
        match self.open.remove(&number) {
            Some(Open::Write(mut file)) => {
                let kept = if keeps { self.keep(&mut file) } else { Ok(()) };
                self.connection.close(file).map_err(text)?;
                kept
            }
            Some(Open::Read(file)) => self.connection.end_reading(file).map_err(text),
            None => Err(format!("no file with the number {number} is open")),
        }
    }

    /// Copies a file into the directory for temporary files, as `PREFIX.RANK.SERIES`.
    fn keep(&self, file: &mut Writing) -> Result<(), Failed> {
        let begin = std::time::Instant::now();
        let directory = self.keep.0.as_deref();
        let directory = directory.ok_or("TMPDIR is not set, so the file is not kept there")?;
        let path = directory.join(format!("{}.{}.{}", file.prefix(), self.rank, file.series()));
        let copied = create(&path).and_then(|mut copy| file.copy_to(&mut copy));
        file.add_close_time(begin.elapsed().as_secs_f64());
        copied
            .map(drop)
            .map_err(|error| format!("{} cannot be written: {error}", path.display()))
    }

    /// Says something about the progress of the program.
    ///
    /// # Errors
    /// The run does not take it.
    pub fn message(&self, text: &[u8]) -> Result<(), Failed> {
        let text = String::from_utf8_lossy(text).into_owned();
        self.connection.message(text).map_err(|error| error.to_string())
    }

    /// Waits until what was saved is safe, but not for long.
    ///
    /// # Errors
    /// The run does not answer.
    pub fn finish(&self) -> Result<(), Failed> {
        self.connection.finish().map_err(|error| error.to_string())
    }

    /// Returns whether the run was asked to drain.
    ///
    /// # Errors
    /// The run does not say.
    pub fn is_draining(&self) -> Result<bool, Failed> {
        self.connection.is_draining().map_err(|error| error.to_string())
    }

    /// Returns whether the program is to save its state now.
    ///
    /// # Errors
    /// The run does not say.
    pub fn is_due(&self) -> Result<bool, Failed> {
        self.connection.is_due().map_err(|error| error.to_string())
    }
}

/// Creates a copy, in a directory where others may put links, such as `/tmp`.
fn create(path: &Path) -> io::Result<File> {
    Destination::named(path)?.create_anew(MODE)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write as _;

    use super::*;

    #[test]
    fn a_copy_takes_the_place_of_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let (copy, other) = (folder.path().join("p.0.1"), folder.path().join("other"));
        fs::write(&other, "kept").unwrap();
        std::os::unix::fs::symlink(&other, &copy).unwrap();
        create(&copy).unwrap().write_all(b"new").unwrap();
        assert_eq!(fs::read_to_string(&other).unwrap(), "kept");
        assert_eq!(fs::read_to_string(&copy).unwrap(), "new");
    }
}
