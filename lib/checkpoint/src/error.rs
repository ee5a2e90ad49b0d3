//! What can be wrong with a store.

use std::io;
use std::path::{Path, PathBuf};

use crate::{InvalidName, InvalidSidecar};

/// What is wrong with a store, or a file of it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The system refuses something.
    #[error("{}: {source}", path.display())]
    System {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The directory belongs to another user.
    #[error("{} belongs to another user", .0.display())]
    OtherUser(PathBuf),
    /// The file `id` is none.
    #[error("{} has no 32 hexadecimal digits", .0.display())]
    Id(PathBuf),
    /// A sidecar cannot be used.
    #[error("{}: {source}", path.display())]
    Sidecar {
        /// The sidecar.
        path: PathBuf,
        /// Why.
        source: InvalidSidecar,
    },
    /// The task cannot have a directory.
    #[error(transparent)]
    Name(#[from] InvalidName),
}

/// Adds the path of a file to what the system says of it.
pub(crate) fn at(path: &Path) -> impl Fn(io::Error) -> StoreError {
    move |source| StoreError::System {
        path: path.to_owned(),
        source,
    }
}
