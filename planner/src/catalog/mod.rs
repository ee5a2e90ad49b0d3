//! The three catalogs: sites, transformations, replicas.

pub mod replica;
pub mod site;
pub mod transformation;

use std::path::PathBuf;

/// A catalog and the file that it came from.
#[derive(Clone, Debug, Default)]
pub struct Loaded<T> {
    /// The catalog.
    pub catalog: T,
    /// Its file, to be copied into the submit directory.
    pub path: Option<PathBuf>,
}
