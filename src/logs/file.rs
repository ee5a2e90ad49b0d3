//! A log file that is written in batches.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use pmc_dag::reason;
use pmc_files::OFlags;
use pmc_system::disk;
use pmc_system::planted::{Planted, is_planted};

/// A file could not be opened or written.
#[derive(Debug, thiserror::Error)]
#[error("{action} {}: {}", path.display(), reason(source))]
pub struct LogError {
    /// What failed, for example "Error writing resource log".
    pub action: &'static str,
    /// The file.
    pub path: PathBuf,
    /// Why it failed.
    pub source: io::Error,
}

/// A log file, opened for appending. [`LogFile::flush`] writes the lines collected in [`LogFile::lines`].
#[derive(Debug)]
pub(super) struct LogFile {
    /// Message when the file cannot be written.
    write_error: &'static str,
    pub(super) path: PathBuf,
    file: File,
    pub(super) lines: Vec<u8>,
}

impl LogFile {
    pub(super) fn open(write_error: &'static str, path: &Path) -> Result<Self, LogError> {
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE;
        let file = pmc_files::open_output(path, flags, 0o666);
        let file = file.map_err(|source| LogError {
            action: "Unable to open",
            path: path.to_owned(),
            source,
        })?;
        // A killed run may have left an incomplete line.
        let lines = if ends_within_a_line(path) {
            vec![b'\n']
        } else {
            Vec::new()
        };
        Ok(Self {
            write_error,
            path: path.to_owned(),
            file,
            lines,
        })
    }

    /// Writes the lines. What could not be written stays: the last lines of the run may still be written, and
    /// must not continue a torn line, nor follow a gap.
    pub(super) fn flush(&mut self) -> Result<(), LogError> {
        let mut written = 0;
        let result = loop {
            if written == self.lines.len() {
                break Ok(());
            }
            match disk::write(&self.file, &self.lines[written..]) {
                Ok(0) => break Err(io::ErrorKind::WriteZero.into()),
                Ok(more) => written += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break Err(error),
            }
        };
        if result.is_ok() || is_planted(Planted::TornLogs) {
            self.lines.clear();
        } else {
            self.lines.drain(..written);
        }
        result.map_err(|source| LogError {
            action: self.write_error,
            path: self.path.clone(),
            source,
        })
    }
}

/// True if the last byte is not a line feed. A file that cannot be read, such as a device, has no lines.
fn ends_within_a_line(path: &Path) -> bool {
    let last = || {
        let file = pmc_files::open(path).ok()?;
        let data = file.metadata().ok().filter(|data| data.is_file())?;
        let mut last = [0];
        file.read_exact_at(&mut last, data.len().checked_sub(1)?).ok()?;
        Some(last[0])
    };
    last().is_some_and(|last| last != b'\n')
}
