//! Replicas: where logical files are.

use crate::model::Metadata;

/// Entries in document order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReplicaCatalog {
    /// One per logical file or pattern.
    pub entries: Vec<ReplicaEntry>,
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
