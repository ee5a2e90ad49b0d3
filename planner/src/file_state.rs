//! What the refinement finds out about files, beside which jobs use them.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::catalog::transformation::Container;
use crate::ids::{FileId, SiteId};

/// What is known of a file.
#[derive(Clone, Debug, Default)]
pub(crate) struct FileState {
    /// An output that stays in a work directory, since no job copies it.
    pub(crate) stays: bool,
    /// An optional input that a catalog has: it is staged, or bypasses the staging site, like others.
    pub(crate) is_found: bool,
    /// The container of which it is the image.
    pub(crate) image: Option<Arc<Container>>,
}

/// What is known of a file at a site.
#[derive(Clone, Debug, Default)]
pub(crate) struct FileAtSite {
    /// It is in the work directory already. The plan must not remove it.
    pub(crate) is_in_place: bool,
    /// It is a link in the work directory.
    pub(crate) is_link: bool,
    /// It comes to jobs of the site past their staging site.
    pub(crate) bypassed: Option<Box<Bypassed>>,
}

/// An input that jobs with directories of their own fetch from its own locations.
#[derive(Clone, Debug)]
pub(crate) struct Bypassed {
    /// URLs with their priorities, best first.
    pub(crate) sources: Vec<(Box<str>, Option<u32>)>,
    /// A symbolic link suffices.
    pub(crate) link: bool,
    /// All jobs bypass the staging site, not only those that ask for it.
    pub(crate) by_all: bool,
    /// SHA-256 from the catalog.
    pub(crate) sha256: Option<Box<str>>,
}

/// The states of all files. Of most files nothing is known, and they take no room.
#[derive(Debug, Default)]
pub(crate) struct FileStates {
    of_file: FxHashMap<FileId, FileState>,
    at_site: FxHashMap<(FileId, SiteId), FileAtSite>,
}

impl FileStates {
    /// Returns what is known of a file.
    pub(crate) fn of(&self, file: FileId) -> &FileState {
        static UNKNOWN: FileState = FileState {
            stays: false,
            is_found: false,
            image: None,
        };
        self.of_file.get(&file).unwrap_or(&UNKNOWN)
    }
    /// Returns what is known of a file at a site.
    pub(crate) fn at(&self, file: FileId, site: SiteId) -> &FileAtSite {
        static UNKNOWN: FileAtSite = FileAtSite {
            is_in_place: false,
            is_link: false,
            bypassed: None,
        };
        self.at_site.get(&(file, site)).unwrap_or(&UNKNOWN)
    }
    /// Returns the container of which a file is the image.
    pub(crate) fn image(&self, file: FileId) -> Option<&Arc<Container>> {
        self.of(file).image.as_ref()
    }
    /// Returns the state of a file, to change it.
    pub(crate) fn change(&mut self, file: FileId) -> &mut FileState {
        self.of_file.entry(file).or_default()
    }
    /// Returns the state of a file at a site, to change it.
    pub(crate) fn change_at(&mut self, file: FileId, site: SiteId) -> &mut FileAtSite {
        self.at_site.entry((file, site)).or_default()
    }
}
