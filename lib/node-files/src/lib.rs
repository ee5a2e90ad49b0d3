//! Files of a node that have keys: inputs and images that several jobs need, and what other nodes of a run
//! give. All of them are the same thing: a key, bytes, a lock, and who has it.
//!
//! * [`store`]: a directory of such files. A user of a file holds it, and nobody removes it meanwhile.
//! * [`offer`]: what a node can give to others.
//! * [`directory`]: which nodes of a run have which files, and who waits for one. No clock, no socket.

pub mod directory;
pub mod offer;
pub mod store;

use std::fs::{self, DirBuilder, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Attempts to make a directory that others remove when they need it no more.
const MAKE_ATTEMPTS: usize = 1000;

/// Maximum length of a key.
const MAX_KEY: usize = 64;

/// A file of a node, as other processes of the node find it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeFile {
    /// What distinguishes it from all others: letters and digits.
    pub key: String,
    /// A shared lock of this file keeps the entry. It has the [`identity`] of the file.
    pub lock: PathBuf,
    /// The file.
    pub file: PathBuf,
    /// Its logical name.
    pub name: String,
    /// Its size.
    pub bytes: u64,
}

/// Returns what changes with each change of a file: its inode, size, and times. The lock file of an entry has
/// this text of its file. A user or giver of the file compares it: any task of the node could have changed
/// the file. The time of the status cannot be set to an earlier one.
#[must_use]
pub fn identity(status: &Metadata) -> String {
    format!(
        "{} {} {}.{:09} {}.{:09}",
        status.ino(),
        status.size(),
        status.mtime(),
        status.mtime_nsec(),
        status.ctime(),
        status.ctime_nsec()
    )
}

/// Returns whether a text may be a key: nobody can make others open a path with it.
#[must_use]
pub fn is_key(text: &str) -> bool {
    (1..=MAX_KEY).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// Returns the key of a file with a checksum, `None` if the text is no SHA-256 in hexadecimal.
#[must_use]
pub fn key_of(sha256: &str) -> Option<String> {
    let is_one = sha256.len() == 64 && sha256.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_one.then(|| sha256.to_ascii_lowercase())
}

/// Makes a directory that only this user can use, or checks that it is one.
///
/// # Errors
/// It cannot be made, or another user can add files to it.
pub fn make_private(directory: &Path) -> io::Result<()> {
    for _ in 0..MAKE_ATTEMPTS {
        match DirBuilder::new().mode(0o700).create(directory) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => return made,
        }
        if is_private(directory) {
            return Ok(());
        }
        // Who used it last may have removed it just now.
        match fs::symlink_metadata(directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            _ => break,
        }
    }
    let message = format!("{} is not a directory of this user alone", directory.display());
    Err(io::Error::other(message))
}

/// Returns whether a path is a directory of this user, to which no other user can add files.
#[must_use]
pub fn is_private(directory: &Path) -> bool {
    fs::symlink_metadata(directory).is_ok_and(|status| {
        status.is_dir() && status.uid() == nix::unistd::getuid().as_raw() && status.mode() & 0o022 == 0
    })
}

/// Removes a directory with its content, also where somebody has taken away the owner's rights.
///
/// # Errors
/// It cannot be removed, or is not there.
pub fn remove_tree(directory: &Path) -> io::Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            open_directories(directory)?;
            fs::remove_dir_all(directory)
        }
        removed => removed,
    }
}

/// Gives the owner all rights to a directory and those in it.
fn open_directories(directory: &Path) -> io::Result<()> {
    let mut open = vec![directory.to_owned()];
    while let Some(directory) = open.pop() {
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o700))?;
        for entry in fs::read_dir(&directory)?.flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                open.push(entry.path());
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The last job of a node removes the directory while the next one finds it.
    #[test]
    fn a_private_directory_that_others_remove_is_made_again() {
        let top = tempfile::tempdir().unwrap();
        let directory = &top.path().join("locks");
        std::thread::scope(|scope| {
            let users = (0..4).map(|_| {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        make_private(directory).unwrap();
                        // Another one may have been faster.
                        let _ = fs::remove_dir(directory);
                    }
                })
            });
            users
                .collect::<Vec<_>>()
                .into_iter()
                .for_each(|user| user.join().unwrap());
        });
        fs::write(directory, "").unwrap();
        assert!(make_private(directory).is_err());
    }
}
