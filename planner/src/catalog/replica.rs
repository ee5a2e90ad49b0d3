//! Replicas: where logical files are.

use std::path::Path;

use crate::catalog::Loaded;
use crate::error::{InputError, InputErrors};
use crate::expand::ExpandEnv;
use crate::model::Metadata;
use crate::properties::Properties;

/// Entries in document order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReplicaCatalog {
    /// One per logical file or pattern.
    pub entries: Vec<ReplicaEntry>,
    /// What is odd in the file but no error.
    pub warnings: Vec<InputError>,
}

/// Locations of one logical file (or of all that match a pattern).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReplicaEntry {
    /// Logical file name, or a pattern that must match the whole of it.
    pub lfn: String,
    /// `lfn` is a pattern; `[0]`, `[1]`, … in the locations stand for its groups.
    pub regex: bool,
    /// Locations in document order.
    pub replicas: Vec<Replica>,
    /// Metadata, checksums included (`checksum.type`, `checksum.value`).
    pub metadata: Metadata,
}

/// One location of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replica {
    /// URL or bare path, as written.
    pub pfn: String,
    /// Site that it is on.
    pub site: Option<String>,
}

/// How the files of a directory become replicas.
#[derive(Clone, Debug)]
pub struct DirectoryOptions {
    /// Site of the entries (`pegasus.catalog.replica.directory.site`).
    pub site: String,
    /// Put before the absolute path (`pegasus.catalog.replica.directory.url.prefix`).
    pub url_prefix: String,
    /// The logical name is the base name, not the relative path (`….directory.flat.lfn`).
    pub flat_lfn: bool,
}

impl Default for DirectoryOptions {
    fn default() -> Self {
        DirectoryOptions {
            site: "local".into(),
            url_prefix: "file://".into(),
            flat_lfn: false,
        }
    }
}

/// What a catalog knows of one logical file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Found<'a> {
    /// Locations in document order, group references filled in.
    pub replicas: Vec<Replica>,
    /// Metadata.
    pub metadata: Option<&'a Metadata>,
}

impl ReplicaCatalog {
    /// What is known of a logical file: exact entries, else the first pattern that matches all of it.
    pub fn lookup(&self, lfn: &str) -> Option<Found<'_>> {
        let _ = lfn;
        None
    }
    /// Whether [`ReplicaCatalog::lookup`] finds something.
    pub fn knows(&self, lfn: &str) -> bool {
        self.lookup(lfn).is_some()
    }
    /// Adds an entry behind the others; locations of a name that is there already are added to it.
    pub fn push(&mut self, entry: ReplicaEntry) {
        self.entries.push(entry);
    }
}

/// Reads the file that the properties name or that lies in `working_dir` under a default name
/// (`replicas.yml`, `rc.txt`), or the directory they name; without one, an empty catalog.
///
/// # Errors
/// A named file that cannot be read; all problems of the file.
pub fn load_from_properties(
    properties: &Properties,
    working_dir: &Path,
    env: &ExpandEnv,
) -> Result<Loaded<ReplicaCatalog>, InputErrors> {
    let _ = (properties, working_dir, env);
    Ok(Loaded::default())
}

/// Reads a replica catalog; `kind` is the value of `pegasus.catalog.replica`, without it the type is
/// guessed. Cache files are of kind `SimpleFile`.
///
/// # Errors
/// All problems of the file.
pub fn load(path: &Path, kind: Option<&str>, env: &ExpandEnv) -> Result<ReplicaCatalog, InputErrors> {
    let _ = (path, kind, env);
    Ok(ReplicaCatalog::default())
}

/// Every file below a directory, by its relative path.
///
/// # Errors
/// A directory that cannot be read.
pub fn from_directory(directory: &Path, options: &DirectoryOptions) -> Result<ReplicaCatalog, InputErrors> {
    let _ = (directory, options);
    Ok(ReplicaCatalog::default())
}
