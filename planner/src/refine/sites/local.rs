//! Directories of the site `local` that no site catalog gives it.

use std::path::{Path, PathBuf};

use crate::catalog::site::{Directory, DirectoryKind, FileServer, Operation, Site, SiteCatalog};
use crate::properties::Properties;
use crate::request::Request;

/// Property with the directory that [`directory`] returns.
pub(crate) const DIRECTORY: &str = "pmc.local.directory";

/// What the catalogs leave to the planner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Made {
    /// The directory of type `sharedScratch`.
    pub(crate) scratch: bool,
    /// The directory of outputs: the catalogs give neither `localStorage` nor `sharedStorage`.
    pub(crate) storage: bool,
}

/// Returns the directory in which those of the site `local` are made that no catalog describes.
pub(crate) fn directory(request: &Request, properties: &Properties) -> PathBuf {
    let named = properties.get(DIRECTORY).map(str::trim);
    if let Some(directory) = named.filter(|directory| !directory.is_empty()) {
        return request.environment.working_dir.join(directory);
    }
    let base = if request.dir_given {
        request.dir.parent().unwrap_or(&request.dir)
    } else {
        &request.environment.working_dir
    };
    base.to_owned()
}

/// Adds the site `local`, or the directories that the catalogs do not give it.
pub(crate) fn complete(catalog: &mut SiteCatalog, base: &Path) -> Made {
    let local = catalog.sites.entry("local".into()).or_insert_with(|| Site {
        name: "local".into(),
        ..Site::default()
    });
    let storage = [DirectoryKind::LocalStorage, DirectoryKind::SharedStorage];
    let made = Made {
        scratch: !local.directories.contains_key(&DirectoryKind::SharedScratch),
        storage: !storage.iter().any(|kind| local.directories.contains_key(kind)),
    };
    let all = [
        (made.scratch, DirectoryKind::SharedScratch, "wf-scratch/LOCAL"),
        (made.storage, DirectoryKind::SharedStorage, "wf-output"),
    ];
    for (_, kind, name) in all.into_iter().filter(|(is_made, ..)| *is_made) {
        let path = base.join(name).display().to_string();
        let server = FileServer {
            url: format!("file://{path}"),
            operation: Operation::All,
        };
        let servers = vec![server];
        local.directories.insert(kind, Directory { path, servers });
    }
    made
}
