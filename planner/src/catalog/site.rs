//! Sites: what the planner knows of the places where jobs run and files live.

use std::collections::BTreeMap;

use crate::profiles::Profiles;

/// Sites by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SiteCatalog {
    /// In name order.
    pub sites: BTreeMap<String, Site>,
}

/// Architecture and operating system; compared exactly between sites and transformations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SysInfo {
    /// Architecture, default `x86_64`.
    pub arch: String,
    /// Operating system in lower case, default `linux`.
    pub os: String,
    /// Release of the operating system.
    pub os_release: Option<String>,
    /// Version of the operating system.
    pub os_version: Option<String>,
    /// C library (XML catalogs).
    pub glibc: Option<String>,
}

impl Default for SysInfo {
    fn default() -> Self {
        SysInfo {
            arch: "x86_64".into(),
            os: "linux".into(),
            os_release: None,
            os_version: None,
            glibc: None,
        }
    }
}

/// One site.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Site {
    /// Name (handle).
    pub name: String,
    /// Architecture and operating system.
    pub sysinfo: SysInfo,
    /// Directories by kind, one of each at most.
    pub directories: BTreeMap<DirectoryKind, Directory>,
    /// Idle nodes of the compute gateway, where given (HEFT).
    pub idle_nodes: Option<u32>,
    /// Total nodes of the compute gateway, where given (HEFT).
    pub total_nodes: Option<u32>,
    /// Profiles of the site.
    pub profiles: Profiles,
}

/// What a directory of a site is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DirectoryKind {
    /// Work directories of workflows, seen from all nodes.
    SharedScratch,
    /// Outputs, seen from all nodes.
    SharedStorage,
    /// Work directories on one node.
    LocalScratch,
    /// Outputs on the storage host.
    LocalStorage,
}

/// A directory of a site.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Directory {
    /// Path as seen on the site.
    pub path: String,
    /// Servers that give access from outside.
    pub servers: Vec<FileServer>,
}

/// A URL that leads to a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileServer {
    /// URL prefix and mount point as one text.
    pub url: String,
    /// What it may be used for.
    pub operation: Operation,
}

/// What a file server may be used for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Operation {
    /// Reading and writing.
    #[default]
    All,
    /// Reading.
    Get,
    /// Writing.
    Put,
}
