//! The files of a submit directory.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use monitord_compat::braindump_reader::Braindump;

/// Maximum size in bytes of a braindump.
const MAX_BRAINDUMP: u64 = 16 << 20;
/// Bytes of a file that show whether it is a DAGMan file.
const BEGINNING: u64 = 1 << 16;

/// A submit directory, complete or not.
#[derive(Clone, Debug)]
pub struct RunDir {
    /// Path of the directory.
    pub dir: PathBuf,
    /// Path of the DAG, which may not exist yet.
    pub dag: PathBuf,
    /// Name of the workflow.
    pub label: String,
    /// Values of `braindump.yml`; empty if it cannot be read.
    pub braindump: BTreeMap<String, String>,
}

/// Why a directory is not usable.
#[derive(Debug, thiserror::Error)]
pub enum DirError {
    /// It does not exist or cannot be read.
    #[error("{}: {}", path.display(), pmc_dag::reason(source))]
    Read {
        /// Directory or file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It has no files of a workflow.
    #[error("{}: not a submit directory: no braindump.yml and no DAG", path.display())]
    NotARun {
        /// The directory.
        path: PathBuf,
    },
    /// There are several DAGs and no `braindump.yml` that names one.
    #[error("{}: {} DAGs and no braindump.yml that names one: give the path of one of them", path.display(), count)]
    Ambiguous {
        /// The directory.
        path: PathBuf,
        /// Number of DAGs.
        count: usize,
    },
}

impl RunDir {
    /// Finds the files of a submit directory, which may have been moved since planning. `braindump.yml` names
    /// the DAG. If it does not, there must be one file that ends in `.dag` and is no DAGMan file, which is a
    /// workflow. The path may also be that of a DAG: one of several in a directory.
    ///
    /// # Errors
    /// It is not a submit directory.
    pub fn open(dir: &Path) -> Result<Self, DirError> {
        let read = |path: &Path| {
            let path = path.to_owned();
            move |source| DirError::Read { path, source }
        };
        let dir = pmc_files::real_path(dir).map_err(read(dir))?;
        if dir.extension() == Some(OsStr::new("dag")) && dir.is_file() {
            return Ok(Self::of_dag(dir));
        }
        let braindump = braindump(&dir);
        let named = braindump
            .get("dag")
            .and_then(|dag| Path::new(dag).file_name())
            .map(|name| dir.join(name));
        let dag = match named {
            Some(dag) => dag,
            None => {
                let mut dags = Vec::new();
                for entry in fs::read_dir(&dir).map_err(read(&dir))? {
                    let path = entry.map_err(read(&dir))?.path();
                    if path.extension() == Some(OsStr::new("dag")) && !is_dagman(&path) {
                        dags.push(path);
                    }
                }
                match (dags.len(), dags.pop()) {
                    (1, Some(dag)) => dag,
                    (0, _) if dir.join("braindump.yml").exists() => dir.join("workflow.dag"),
                    (0, _) => return Err(DirError::NotARun { path: dir }),
                    (count, _) => return Err(DirError::Ambiguous { path: dir, count }),
                }
            }
        };
        let label = match braindump.get("dax_label") {
            Some(label) => label.clone(),
            None => dag.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
        };
        Ok(Self {
            dir,
            dag,
            label,
            braindump,
        })
    }

    /// Returns the files of a DAG in its directory, whose `braindump.yml` may be that of another one.
    fn of_dag(dag: PathBuf) -> Self {
        let dir = dag.parent().map_or_else(PathBuf::new, Path::to_owned);
        let is_of_dag = |values: &BTreeMap<String, String>| {
            let named = values.get("dag").and_then(|named| Path::new(named).file_name());
            named.is_some() && named == dag.file_name()
        };
        let braindump = Some(braindump(&dir)).filter(is_of_dag).unwrap_or_default();
        let stem = || dag.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let label = braindump.get("dax_label").cloned().unwrap_or_else(stem);
        Self {
            dir,
            dag,
            label,
            braindump,
        }
    }

    /// Returns the path of a file beside the DAG, such as `.dagman.out`.
    #[must_use]
    pub fn beside_dag(&self, suffix: &str) -> PathBuf {
        pmc_files::with_suffix(&self.dag, suffix)
    }

    /// Log of the executor in the format of DAGMan.
    #[must_use]
    pub fn dagman_out(&self) -> PathBuf {
        self.beside_dag(".dagman.out")
    }

    /// Log of job states, written by the executor or a loader.
    #[must_use]
    pub fn jobstate_log(&self) -> PathBuf {
        self.dir.join("jobstate.log")
    }

    /// Log of free resources.
    #[must_use]
    pub fn resource_log(&self) -> PathBuf {
        self.beside_dag(".resource")
    }

    /// Rescue file.
    #[must_use]
    pub fn rescue(&self) -> PathBuf {
        self.beside_dag(".rescue")
    }

    /// STAMPEDE database.
    #[must_use]
    pub fn database(&self) -> PathBuf {
        self.dag.with_extension("stampede.db")
    }
}

/// Returns whether the beginning of a file is that of a DAGMan file.
fn is_dagman(path: &Path) -> bool {
    let mut beginning = Vec::new();
    let read = pmc_files::open(path).and_then(|file| file.take(BEGINNING).read_to_end(&mut beginning));
    read.is_ok() && pmc_dagman::is_dagman(&String::from_utf8_lossy(&beginning))
}

fn braindump(dir: &Path) -> BTreeMap<String, String> {
    const KEYS: [&str; 12] = [
        "condor_log",
        "dag",
        "dax_label",
        "wf_uuid",
        "submit_dir",
        "submit_hostname",
        "user",
        "planner_version",
        "timestamp",
        "script",
        "dax",
        "properties",
    ];
    let Ok(bytes) = pmc_files::read(&dir.join("braindump.yml"), MAX_BRAINDUMP) else {
        return BTreeMap::new();
    };
    let Ok(values) = Braindump::read(&String::from_utf8_lossy(&bytes)) else {
        return BTreeMap::new();
    };
    KEYS.iter()
        .filter_map(|key| Some(((*key).to_owned(), values.get(key)?.to_owned())))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complete_and_incomplete_directories() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path();
        assert!(matches!(RunDir::open(path), Err(DirError::NotARun { .. })));
        // A workflow of HTCondor, from which runs are planned.
        fs::write(path.join("condor.dag"), "# nodes\nJOB A a.sub\n").unwrap();
        assert!(matches!(RunDir::open(path), Err(DirError::NotARun { .. })));
        fs::write(path.join("a.dag"), "").unwrap();
        let run = RunDir::open(path).unwrap();
        assert_eq!(
            (run.label.as_str(), run.dagman_out().file_name()),
            ("a", Some(OsStr::new("a.dag.dagman.out")))
        );
        fs::write(path.join("b.dag"), "").unwrap();
        assert!(matches!(
            RunDir::open(path),
            Err(DirError::Ambiguous { count: 2, .. })
        ));
        let run = RunDir::open(&path.join("a.dag")).unwrap();
        assert_eq!(
            run.dagman_out(),
            fs::canonicalize(path).unwrap().join("a.dag.dagman.out")
        );
        fs::write(
            path.join("braindump.yml"),
            "dag: \"/elsewhere/b.dag\"\ndax_label: \"w\"\n",
        )
        .unwrap();
        let run = RunDir::open(path).unwrap();
        assert_eq!((run.label.as_str(), run.dag.ends_with("b.dag")), ("w", true));
        assert!(run.database().ends_with("b.stampede.db"));
        for (name, label) in [("a.dag", "a"), ("b.dag", "w")] {
            assert_eq!(RunDir::open(&path.join(name)).unwrap().label, label);
        }
        let error = RunDir::open(&path.join("none")).unwrap_err().to_string();
        assert!(error.ends_with("none: No such file or directory"), "{error}");
    }
}
