//! Downloads: local files that a remote handler or an external program writes under a temporary name.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use rustix::io::Errno;

use super::place::Place;
use crate::error::TransferError;

/// An open file without its final name. Dropping it before [`publish`](Self::publish) removes it.
pub(crate) struct Incoming {
    place: Place,
    /// Temporary name; empty if the file has none or is published.
    name: OsString,
    pub(crate) file: File,
}

impl Incoming {
    /// Creates an empty file for `destination`, and the missing directories above it.
    pub(crate) fn create(destination: &Path) -> Result<Self, TransferError> {
        check(destination)?;
        let place = Place::of_file(destination)?;
        let (temporary, file) = place.create_file(Mode::from_raw_mode(0o666))?;
        let name = temporary.keep();
        Ok(Self { place, name, file })
    }

    /// Returns the final path.
    pub(crate) fn path(&self) -> &Path {
        self.place.path()
    }

    /// Gives the file its final name, and returns its path.
    pub(crate) fn publish(mut self) -> Result<PathBuf, TransferError> {
        let path = self.place.path().to_owned();
        let file = self
            .file
            .try_clone()
            .map_err(|error| TransferError::io("finish writing", &path, error))?;
        let name = std::mem::take(&mut self.name);
        self.place.adopt(name).finish(file)?;
        Ok(path)
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if !self.name.is_empty() {
            drop(self.place.adopt(std::mem::take(&mut self.name)));
        }
    }
}

/// A temporary directory beside a destination, for external programs that write files. Dropping it removes it
/// with its content.
pub(crate) struct IncomingDirectory {
    place: Place,
    name: OsString,
}

impl IncomingDirectory {
    /// Creates a directory beside `destination`, and the missing directories above it.
    pub(crate) fn create(destination: &Path) -> Result<Self, TransferError> {
        check(destination)?;
        let place = Place::of_file(destination)?;
        let name = place.create_directory(Mode::from_raw_mode(0o700))?.keep();
        Ok(Self { place, name })
    }

    /// Returns the path of a file in the directory.
    pub(crate) fn file(&self, name: &Path) -> PathBuf {
        self.place.path().with_file_name(&self.name).join(name)
    }

    /// Moves a file of the directory to `destination`, which must be beside this directory. Returns its path
    /// and its size in bytes.
    pub(crate) fn publish(&self, file: &Path, destination: &Path) -> Result<(PathBuf, u64), TransferError> {
        check(destination)?;
        let place = Place::of_file(destination)?;
        let path = place.path().to_owned();
        let from = self.file(file);
        let meta = fs::metadata(&from).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => TransferError::remote(
                "nothing arrived, although no error was reported",
                crate::error::Retry::Soon,
            ),
            _ => TransferError::io("examine", &from, error),
        })?;
        place
            .take(self.place.directory(), &Path::new(&self.name).join(file))
            .map_err(|error| TransferError::io("rename the finished copy to", &path, error))?;
        Ok((path, meta.len()))
    }
}

impl Drop for IncomingDirectory {
    fn drop(&mut self) {
        drop(self.place.adopt_directory(std::mem::take(&mut self.name)));
    }
}

/// Checks that a destination is a file, or nothing yet.
fn check(destination: &Path) -> Result<(), TransferError> {
    match fs::metadata(destination) {
        Ok(meta) if meta.is_dir() => Err(TransferError::io(
            "write to",
            destination,
            io::Error::from(Errno::ISDIR),
        )),
        Ok(meta) if !meta.is_file() => Err(TransferError::SpecialFile(destination.to_owned())),
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            match fs::symlink_metadata(destination).is_ok() {
                true => Err(TransferError::DanglingDestination(destination.to_owned())),
                false => Ok(()),
            }
        }
        Err(error) => Err(TransferError::io("examine", destination, error)),
    }
}
