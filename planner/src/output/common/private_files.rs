//! Files that only the owner of the plan may read, if they may hold secrets.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use crate::error::PlanError;
use crate::tasks::secrets::Secrets;

/// Permissions of a file that may hold secrets.
const PRIVATE: u32 = 0o600;
/// Bytes of a file that are searched at once.
const BLOCK: usize = 1 << 20;
/// Bytes that two blocks share, so that what they cut is found.
const OVERLAP: usize = 4 << 10;

impl Secrets {
    /// Writes the scripts into a directory.
    ///
    /// # Errors
    /// A failed write.
    pub(crate) fn write(&self, dir: &Path) -> Result<(), PlanError> {
        for (path, script) in self.scripts() {
            let path = dir.join(Path::new(&path).file_name().unwrap_or_default());
            put_private(&path, script)?;
        }
        Ok(())
    }

    /// Creates a file for lists of URLs.
    ///
    /// # Errors
    /// It cannot be created.
    pub(crate) fn create_list(&self, path: &Path) -> io::Result<File> {
        create(path, self.are_in_urls())
    }

    /// Writes a text. Only its owner may read it if it may hold secrets.
    ///
    /// # Errors
    /// A failed write.
    pub(crate) fn put(&self, path: &Path, text: &str) -> Result<(), PlanError> {
        let is_private = self.are_in(text.as_bytes());
        put_with(path, text, is_private)
    }

    /// Copies a file. Only its owner may read the copy if it may hold secrets.
    ///
    /// # Errors
    /// A file that cannot be read or written.
    pub(crate) fn copy(&self, from: &Path, to: &Path) -> io::Result<()> {
        // Opened once: in the directory of another user, something else may take its place.
        let mut file = pmc_files::open_input(from)?;
        let is_private = self.are_in_file(&file)?;
        file.rewind()?;
        let data = file.metadata()?;
        let mut copy = create(to, true)?;
        io::copy(&mut file.take(data.len()), &mut copy)?;
        let mode = if is_private {
            PRIVATE
        } else {
            data.permissions().mode()
        };
        copy.set_permissions(Permissions::from_mode(mode))
    }

    fn are_in_file(&self, file: &File) -> io::Result<bool> {
        let mut block = Vec::with_capacity(BLOCK + OVERLAP);
        while file.take(BLOCK as u64).read_to_end(&mut block)? > 0 {
            if self.are_in(&block) {
                return Ok(true);
            }
            block.drain(..block.len().saturating_sub(OVERLAP));
        }
        Ok(false)
    }
}

/// Writes a text.
///
/// # Errors
/// A failed write.
pub(crate) fn put(path: &Path, text: &str) -> Result<(), PlanError> {
    std::fs::write(path, text).map_err(|e| PlanError::io("write", path, e))
}

/// Writes a text that only its owner may read.
///
/// # Errors
/// A failed write.
pub(crate) fn put_private(path: &Path, text: &str) -> Result<(), PlanError> {
    put_with(path, text, true)
}

fn put_with(path: &Path, text: &str, is_private: bool) -> Result<(), PlanError> {
    let written = create(path, is_private).and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|e| PlanError::io("write", path, e))
}

fn create(path: &Path, is_private: bool) -> io::Result<File> {
    let mode = if is_private { PRIVATE } else { 0o666 };
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(mode);
    options.open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_owner_may_read_private_files() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("s");
        put_private(&path, "x").expect("writable");
        let mode = path.metadata().expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
