//! Operations on local files, each usable on its own and from several threads at once.
//!
//! The final name always shows complete content. Files, links and directories are written under a temporary
//! name in the directory of the destination, and then renamed.

mod copy;
mod data;
#[cfg(feature = "remote")]
mod incoming;
mod link;
mod place;
mod remove;
mod tree;

pub(crate) use copy::hash_path;
#[cfg(feature = "remote")]
pub(crate) use copy::open_source;
pub use copy::{Copied, CopyOptions, copy_path};
pub use data::Method;
#[cfg(feature = "remote")]
pub(crate) use incoming::{Incoming, IncomingDirectory};
pub use link::{move_path, symlink};
pub use remove::remove;

use std::path::Path;

use pmc_files::Folder;

use crate::error::TransferError;

/// Prefix of the names of incomplete files.
pub const TEMPORARY_PREFIX: &str = ".pegasus-transfer-";

/// Creates a directory and its missing parents. An existing directory is no error.
pub fn make_directory(path: &Path) -> Result<(), TransferError> {
    match Folder::make(path).map(drop) {
        Err(error) if error.kind() == std::io::ErrorKind::NotADirectory && !path.is_dir() => {
            Err(TransferError::NotADirectory(path.to_owned()))
        }
        result => result.map_err(|error| TransferError::io("create the directory", path, error)),
    }
}
