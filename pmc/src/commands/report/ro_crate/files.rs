//! The files of a run: where they are, and copies of them in the crate.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use pmc_plan::model::Workflow;

use super::encode;
use crate::kinds::Kind;
use crate::submit::{Submit, TransferredFile, local_path};

/// Maximum size of a file that is copied into the crate, in bytes.
const MAX_COPY: u64 = 100 << 20;
/// Folders of the crate.
const INPUTS: &str = "inputs";
const OUTPUTS: &str = "outputs";

/// An input or output of the workflow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataFile {
    /// Logical name.
    pub name: String,
    /// Relative path in the crate, or URL.
    pub id: String,
    /// Size in bytes.
    pub size: u64,
}

impl DataFile {
    /// Returns the identifier of the parameter of the workflow that this file is a value of.
    pub fn parameter_id(&self) -> String {
        format!("#parameter-{}", encode(&self.name))
    }
}

/// All files that the jobs use.
#[derive(Debug, Default)]
pub struct Files {
    /// Files that no job writes.
    pub inputs: Vec<DataFile>,
    /// Files that are copied to an output site.
    pub outputs: Vec<DataFile>,
    /// Identifiers by logical name.
    ids: BTreeMap<String, String>,
}

impl Files {
    /// Copies inputs and outputs that `user` may read into the directory of a crate.
    pub fn copy(submit: &Submit, workflow: &Workflow, dir: &Path, user: u32) -> io::Result<Self> {
        let mut read = BTreeSet::new();
        let mut written = BTreeSet::new();
        for usage in workflow.jobs.iter().flat_map(|job| &job.uses) {
            let name = workflow.files.name(usage.file);
            if usage.link.reads() {
                read.insert(name);
            }
            if usage.link.writes() {
                written.insert(name);
            }
        }
        let jobs = submit.jobs();
        let staged_in = places(submit.transferred(&jobs, Kind::StageIn), |file| file.sources);
        let staged_out = places(submit.transferred(&jobs, Kind::StageOut), |file| {
            file.destinations
        });
        let mut files = Files::default();
        for name in read.iter().chain(&written) {
            files
                .ids
                .insert((*name).to_owned(), format!("#file-{}", encode(name)));
        }
        for name in read.difference(&written) {
            let file = staged_in
                .get(*name)
                .map(|url| place(name, url, user, (&dir.join(INPUTS), INPUTS)));
            files.inputs.extend(file.transpose()?.flatten());
        }
        for name in &written {
            let file = staged_out
                .get(*name)
                .map(|url| place(name, url, user, (&dir.join(OUTPUTS), OUTPUTS)));
            files.outputs.extend(file.transpose()?.flatten());
        }
        for file in files.inputs.iter().chain(&files.outputs) {
            files.ids.insert(file.name.clone(), file.id.clone());
        }
        Ok(files)
    }

    /// Returns the identifier of a file.
    pub fn id(&self, lfn: &str) -> Option<&str> {
        self.ids.get(lfn).map(String::as_str)
    }

    /// Returns inputs and outputs, each with the identifier of its parameter of the workflow.
    pub fn parameters(&self) -> impl Iterator<Item = (&DataFile, String)> {
        let files = self.inputs.iter().chain(&self.outputs);
        files.map(|file| (file, file.parameter_id()))
    }

    /// Returns name and identifier of each file that is neither input nor output.
    pub fn intermediate(&self) -> impl Iterator<Item = (&str, &str)> {
        let ids = self.ids.iter().map(|(name, id)| (name.as_str(), id.as_str()));
        ids.filter(|(_, id)| id.starts_with("#file-"))
    }
}

/// Returns the first URL of each file by its logical name.
fn places(
    files: Vec<TransferredFile>,
    urls: impl Fn(TransferredFile) -> Vec<String>,
) -> BTreeMap<String, String> {
    let mut places = BTreeMap::new();
    for mut file in files {
        let name = std::mem::take(&mut file.lfn);
        if let Some(url) = urls(file).into_iter().next() {
            places.entry(name).or_insert(url);
        }
    }
    places
}

/// Copies a file into a folder of the crate, or describes it by its URL. A file that is gone is left out, and
/// one that the user of the run may not read: the run must not choose which files of others are copied.
fn place(
    name: &str,
    url: &str,
    user: u32,
    (folder, folder_name): (&Path, &str),
) -> io::Result<Option<DataFile>> {
    let named = |id: String, size: u64| DataFile {
        name: name.to_owned(),
        id,
        size,
    };
    let Some(path) = local_path(url) else {
        // A crate is made to be published.
        return Ok(Some(named(pmc_secrets::urls_without_secrets(url), 0)));
    };
    let Ok(file) = pmc_files::open_for(&path, user) else {
        return Ok(None);
    };
    let size = file.metadata()?.len();
    if size > MAX_COPY {
        return Ok(Some(named(
            format!("file://{}", encode(&path.display().to_string())),
            size,
        )));
    }
    // A logical name may not lead out of the crate.
    let inside: PathBuf = Path::new(name)
        .components()
        .filter(|part| matches!(part, Component::Normal(_)))
        .collect();
    let target = folder.join(&inside);
    if let Some(parent) = target.parent() {
        fs::create_dir_all(parent)?;
    }
    crate::commands::report::copy(&file, &target)?;
    let id = encode(&format!("{folder_name}/{}", inside.display()));
    Ok(Some(named(id, size)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_copied_inside_the_crate() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let source = dir.path().join("source");
        fs::write(&source, "four").expect("file");
        let folder = dir.path().join("inputs");
        let user = nix::unistd::geteuid().as_raw();
        let copied = |name: &str, url: &str| place(name, url, user, (&folder, "inputs")).expect("a place");
        let url = format!("file://{}", source.display());
        let file = copied("../a b", &url).expect("the file is there");
        assert_eq!((file.id.as_str(), file.size), ("inputs/a%20b", 4));
        assert_eq!(fs::read_to_string(folder.join("a b")).expect("a copy"), "four");
        assert_eq!(copied("gone", "/nonexistent/gone"), None);
        let remote = copied("far", "https://host/far").expect("it is elsewhere");
        assert_eq!(remote.id, "https://host/far");
    }
}
