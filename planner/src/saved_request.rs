//! The request of a plan, from which it can be made again in memory: a comment in the properties of the
//! submit directory. The same inputs give the same plan.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader};
use std::path::{Path, PathBuf};

use pmc_files::{Folder, Owner};

use crate::request::{ChosenSites, Request};

/// Name of the copied properties. The number is fixed, so that two plans of one workflow are equal.
pub(crate) const PROPERTIES: &str = "pegasus.1.properties";

/// Maximum size in bytes of the properties.
const MAX_PROPERTIES: u64 = 16 << 20;
/// Start of the comment.
const HEAD: &str = "#Planned with ";

/// Working directory, user, identifier and command line of a plan, and what another program has decided.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SavedRequest {
    /// Working directory.
    pub directory: PathBuf,
    /// Login name, which is part of paths.
    pub user: String,
    /// Identifier of the workflow, which names and seeds may depend on.
    pub uuid: String,
    /// Command line without the name of the program.
    pub arguments: Vec<String>,
    /// What the program of the site selector NonJavaCallout has chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chosen_sites: Option<ChosenSites>,
}

/// Why a plan cannot be made again.
#[derive(Debug, thiserror::Error)]
pub enum SavedRequestError {
    /// The file cannot be read.
    #[error("{} is not a submit directory of pmc-plan: cannot read {PROPERTIES} in it: {}", dir.display(), pmc_dag::reason(.source))]
    Unreadable {
        /// Directory.
        dir: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file has no request.
    #[error(
        "{} does not say how it was planned; ask with the planning command line instead: pmc-plan --explain JOB …",
        path.display()
    )]
    Absent {
        /// File.
        path: PathBuf,
    },
}

impl SavedRequest {
    pub(crate) fn new(request: &Request, chosen_sites: Option<ChosenSites>) -> Self {
        SavedRequest {
            directory: request.environment.working_dir.clone(),
            user: request.environment.user.clone(),
            uuid: request.environment.uuid.clone(),
            arguments: request.line.clone(),
            chosen_sites,
        }
    }

    /// Returns the comment line.
    pub(crate) fn comment(&self) -> String {
        // Lists of strings and numbers always have a text; line breaks in it are escaped.
        format!("{HEAD}{}\n", serde_json::to_string(self).unwrap_or_default())
    }

    /// Reads the request from a submit directory.
    ///
    /// # Errors
    /// A directory without properties or without a request.
    pub fn read(dir: &Path) -> Result<Self, SavedRequestError> {
        let path = dir.join(PROPERTIES);
        let text = pmc_files::read_to_string(&path, MAX_PROPERTIES).map_err(|source| {
            SavedRequestError::Unreadable {
                dir: dir.to_owned(),
                source,
            }
        })?;
        text.lines()
            .filter_map(|line| serde_json::from_str(line.strip_prefix(HEAD)?).ok())
            .next()
            .ok_or(SavedRequestError::Absent { path })
    }
}

/// Returns who may have written the recipe in a submit directory.
///
/// # Errors
/// The directory or the file cannot be opened.
pub fn owner(dir: &Path) -> io::Result<Owner> {
    let (_, file) = pmc_files::open_with_owner(&dir.join(PROPERTIES))?;
    Ok(Folder::open(dir)?.owner()?.max(file))
}

/// Returns the submit directory of a run: the directory itself, or the one that `pmc run` makes in the
/// directory of a run or of all runs of a workflow.
pub fn submit_dir(dir: &Path) -> PathBuf {
    let places = [dir.to_owned(), dir.join("submit"), dir.join("latest/submit")];
    let found = places.iter().find(|dir| dir.join(PROPERTIES).is_file());
    found.map_or_else(|| dir.to_owned(), Clone::clone)
}

/// Returns the input files that differ from their copies in the submit directory.
pub fn changed(dir: &Path, request: &Request) -> Vec<PathBuf> {
    let same = |a: &Path, b: &Path| match (pmc_files::open(a), pmc_files::open(b)) {
        (Ok(a), Ok(b)) => have_same_content(a, b).unwrap_or(false),
        // Without a copy, assume no change.
        (_, Err(_)) => true,
        (Err(_), Ok(_)) => false,
    };
    let mut files = vec![(request.workflow.clone(), dir.to_owned())];
    let catalogs = dir.join("catalogs");
    let beside = request.workflow.parent().unwrap_or(Path::new("/"));
    for name in ["sites.yml", "transformations.yml", "replicas.yml"] {
        let places = [request.environment.working_dir.join(name), beside.join(name)];
        let found = places.into_iter().find(|path| path.is_file());
        files.extend(found.map(|path| (path, catalogs.clone())));
    }
    for path in request.cache_files.iter().chain(&request.inherited_files) {
        files.push((path.clone(), catalogs.clone()));
    }
    files
        .into_iter()
        .filter(|(path, copies)| {
            let copy = path.file_name().map(|name| copies.join(name));
            copy.is_some_and(|copy| !same(path, &copy))
        })
        .map(|(path, _)| path)
        .collect()
}

fn have_same_content(a: File, b: File) -> io::Result<bool> {
    let (mut a, mut b) = (BufReader::new(a), BufReader::new(b));
    loop {
        let (left, right) = (a.fill_buf()?, b.fill_buf()?);
        let length = left.len().min(right.len());
        if length == 0 || left[..length] != right[..length] {
            return Ok(left.is_empty() && right.is_empty());
        }
        a.consume(length);
        b.consume(length);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{Seek as _, Write as _};

    use super::*;

    #[test]
    fn a_saved_request_is_read_back() -> Result<(), Box<dyn std::error::Error>> {
        let saved = SavedRequest {
            directory: "/w/a b".into(),
            user: "tester".into(),
            uuid: "u".into(),
            arguments: vec!["--sites".into(), "a\nb 'c' \"d\"".into()],
            chosen_sites: Some(ChosenSites {
                names: vec!["a".into(), "b".into()],
                jobs: vec![Some(1), None, Some(0)],
            }),
        };
        let comment = saved.comment();
        assert_eq!(comment.lines().count(), 1);
        let dir = tempfile::tempdir()?;
        assert!(matches!(
            SavedRequest::read(dir.path()),
            Err(SavedRequestError::Unreadable { .. })
        ));
        fs::write(dir.path().join(PROPERTIES), "#other\nx=1\n")?;
        assert!(matches!(
            SavedRequest::read(dir.path()),
            Err(SavedRequestError::Absent { .. })
        ));
        fs::write(dir.path().join(PROPERTIES), format!("#other\n{comment}x=1\n"))?;
        assert_eq!(SavedRequest::read(dir.path())?, saved);
        Ok(())
    }

    #[test]
    fn files_are_compared_to_their_ends() -> Result<(), Box<dyn std::error::Error>> {
        let same = |a: &[u8], b: &[u8]| -> io::Result<bool> {
            let mut files = [tempfile::tempfile()?, tempfile::tempfile()?];
            for (file, content) in files.iter_mut().zip([a, b]) {
                file.write_all(content)?;
                file.rewind()?;
            }
            let [a, b] = files;
            have_same_content(a, b)
        };
        let long = vec![b'x'; 100_000];
        let other = [&long[..99_999], b"y"].concat();
        assert!(same(b"", b"")? && same(&long, &long)?);
        assert!(!same(&long, &other)? && !same(&long, &long[..99_999])? && !same(b"", b"x")?);
        Ok(())
    }
}
