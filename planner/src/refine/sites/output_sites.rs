//! Storage directories of output sites.

use super::{join, split_url};
use crate::catalog::site::{DirectoryKind, Operation, Site};
use crate::refine::output_mapper::StorageMapper;
use crate::refine::settings::Settings;
use crate::request::Request;

/// A site that receives outputs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OutputSite {
    /// Name.
    pub(crate) name: String,
    /// URL to write to, without the name of the file.
    pub(crate) put: String,
    /// URL to read from.
    pub(crate) get: String,
    /// Directory, where it is on a file system that is visible.
    pub(crate) path: Option<String>,
}

/// An output site to whose directory nothing goes.
fn without_directory(site: &Site) -> OutputSite {
    OutputSite {
        name: site.name.clone(),
        path: None,
        get: String::new(),
        put: String::new(),
    }
}

/// Storage of an output site; `dir` is that of `--output-dir`, `deep` the directory of the run with
/// `pegasus.dir.storage.deep`.
pub(super) fn output_site(
    site: &Site,
    dir: Option<&str>,
    request: &Request,
    settings: &Settings,
    deep: &str,
) -> Option<OutputSite> {
    let is_nested = request.output_map.is_some();
    if is_nested && request.output_sites.is_empty() && dir.is_none() {
        return Some(without_directory(site));
    }
    let mapper = &settings.storage_mapper;
    if let StorageMapper::Fixed(fixed) = mapper {
        return Some(OutputSite {
            name: site.name.clone(),
            path: fixed.strip_prefix("file://").map(str::to_owned),
            get: fixed.clone(),
            put: fixed.clone(),
        });
    }
    let storage = site
        .directories
        .get(&DirectoryKind::LocalStorage)
        .or_else(|| site.directories.get(&DirectoryKind::SharedStorage));
    let storage = match (mapper, storage) {
        // The catalog of the mapper has whole URLs. In a sub-workflow, it need not have all.
        (StorageMapper::Replica { .. }, None) => return Some(without_directory(site)),
        (StorageMapper::Replica { .. }, _) if !is_nested => return Some(without_directory(site)),
        (_, storage) => storage?,
    };
    let local = site.name == "local";
    // `--output-dir`: absolute replaces, relative is below the working directory on `local`, else below
    // the storage directory.
    let placed = dir.map(|dir| {
        if dir.starts_with('/') {
            (true, dir.trim_end_matches('/').to_owned())
        } else if local {
            let cleaned = dir.trim_start_matches("./").trim_end_matches('/');
            (
                true,
                request
                    .environment
                    .working_dir
                    .join(cleaned)
                    .display()
                    .to_string(),
            )
        } else {
            (false, dir.trim_end_matches('/').to_owned())
        }
    });
    let place = |mount: &str| {
        let mut path = match &placed {
            Some((true, path)) => path.clone(),
            Some((false, below)) => join(mount, below),
            None => mount.trim_end_matches('/').to_owned(),
        };
        if settings.storage_deep {
            path = join(&path, deep);
        }
        path
    };
    let url = |operation| match storage.url(operation) {
        Some(url) => {
            let (prefix, mount) = split_url(url);
            format!("{prefix}{}", place(mount))
        }
        None => format!("file://{}", place(&storage.path)),
    };
    let put = url(Operation::Put);
    Some(OutputSite {
        name: site.name.clone(),
        path: put.strip_prefix("file://").map(str::to_owned),
        get: url(Operation::Get),
        put,
    })
}
