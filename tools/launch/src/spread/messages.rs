//! What front end and proxies say to each other about files that are sent.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

/// Who has it gets files of the launch. `Debug` does not show it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Secret(#[serde(with = "serde_bytes")] pub(crate) Vec<u8>);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// A path as it is: those of the operating system are no UTF-8.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RawPath(#[serde(with = "serde_bytes")] pub(crate) Vec<u8>);

/// What a host is to have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Offer {
    pub(crate) secret: Secret,
    /// Where the front end wants it to be.
    pub(crate) folder: Option<RawPath>,
    /// A host that sees a file takes that.
    pub(crate) takes_seen: bool,
    /// All files of the launch: their numbers are those of this list.
    pub(crate) files: Vec<OfferedFile>,
    /// The programs of the host.
    pub(crate) programs: Vec<Needs>,
}

/// A file, as the front end has read it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OfferedFile {
    /// In hexadecimal.
    pub(crate) sha256: String,
    pub(crate) bytes: u64,
    /// Where the front end has it.
    pub(crate) path: RawPath,
    /// Its inode, and seconds and nanoseconds of its last change.
    pub(crate) seen: (u64, i64, i64),
}

/// What the ranks of a program need.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Needs {
    /// Number of the program.
    pub(crate) program: u32,
    pub(crate) parts: Vec<Part>,
}

/// A file, as ranks find it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Part {
    pub(crate) kind: Kind,
    /// Its name, without any directory.
    pub(crate) name: RawPath,
    /// Number of the file.
    pub(crate) file: u32,
}

/// What ranks do with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    Program,
    Library,
    Other,
}

impl Kind {
    /// The directory for such files, below that of the program.
    pub(crate) fn folder(self) -> &'static str {
        match self {
            Self::Program => "bin",
            Self::Library => "lib",
            Self::Other => "files",
        }
    }
}

/// What a host has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Room {
    /// Where it gives on what it gets.
    pub(crate) port: u16,
    /// Its addresses, with that port.
    pub(crate) addresses: Vec<String>,
    /// Numbers of the files that it lacks.
    pub(crate) missing: Vec<u32>,
    /// There is no room for them.
    pub(crate) lack: Option<Lack>,
}

/// Why there is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Lack {
    /// Bytes of what it lacks.
    pub(crate) needs: u64,
    /// Most free bytes of a directory that it could use.
    pub(crate) has: u64,
}

/// From where a host gets what it lacks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sources {
    pub(crate) files: Vec<Source>,
    /// Addresses of hosts, by their numbers.
    pub(crate) hosts: BTreeMap<u32, Vec<String>>,
    /// Addresses of the front end.
    pub(crate) front: Vec<String>,
    /// Programs that all hosts take from a directory that they share.
    pub(crate) instead: Vec<(u32, RawPath)>,
}

/// From where a host gets a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Source {
    /// Number of the file.
    pub(crate) file: u32,
    /// Numbers of hosts. The front end comes after them.
    pub(crate) givers: Vec<u32>,
}

impl Offer {
    /// Numbers of the files that the host needs.
    pub(crate) fn needed(&self) -> BTreeSet<u32> {
        let parts = self.programs.iter().flat_map(|needs| &needs.parts);
        parts.map(|part| part.file).collect()
    }
}
