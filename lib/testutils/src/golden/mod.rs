//! Golden cases: what the reference programs did with small inputs, compared with what this project's
//! programs do.
//!
//! `tests/golden/README.md` describes the files.

pub mod diff;
pub mod executor;
pub mod planner;
pub mod stampede;
pub mod text;

mod differences;
mod folder;
pub(crate) mod process;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::txtar::Archive;
pub use differences::Differences;
pub use folder::{pack, unpack};

/// A golden case.
#[derive(Clone, Debug)]
pub struct Case {
    /// The name of its file, without `.txtar`.
    pub name: String,
    /// Its files.
    pub archive: Archive,
}

/// A place where a program does something else than the golden case expects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// What differs, in one line. The lists of differences match this text.
    pub what: String,
    /// How it differs: the lines of a diff.
    pub detail: String,
}

impl Problem {
    /// A problem that one line describes.
    pub fn new(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            detail: String::new(),
        }
    }
}

/// Returns `tests/golden`.
pub fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden")
}

impl Case {
    /// Reads a case from `tests/golden/KIND/NAME.txtar`.
    ///
    /// # Panics
    /// There is no such case, or it is malformed.
    pub fn read(kind: &str, name: &str) -> Self {
        let path = directory().join(kind).join(format!("{name}.txtar"));
        let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        Self {
            name: name.to_owned(),
            archive: Archive::parse(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display())),
        }
    }

    /// Reads all cases of a kind, sorted by name.
    ///
    /// # Panics
    /// A case is malformed.
    pub fn read_all(kind: &str) -> Vec<Self> {
        let entries = fs::read_dir(directory().join(kind)).expect("a directory of golden cases");
        let mut names: Vec<String> = entries
            .map(|entry| {
                entry
                    .expect("a golden case")
                    .file_name()
                    .to_string_lossy()
                    .into_owned()
            })
            .filter_map(|name| name.strip_suffix(".txtar").map(str::to_owned))
            .collect();
        names.sort();
        names.iter().map(|name| Self::read(kind, name)).collect()
    }

    /// Returns the content of a file that every case of this kind has.
    ///
    /// # Panics
    /// The case does not have it.
    pub fn file(&self, path: &str) -> &str {
        let content = self.archive.get(path);
        content.unwrap_or_else(|| panic!("case {} has no file {path}", self.name))
    }

    /// Writes the files below a directory of the case into a directory.
    ///
    /// # Panics
    /// They cannot be written.
    pub fn unpack(&self, directory: &str, target: &Path) {
        fs::create_dir_all(target).expect("a directory");
        for (path, file) in self.archive.below(directory) {
            file.write(&target.join(path)).expect("a file");
        }
    }
}

/// Compares all cases of a kind, `jobs` at a time, and demands exactly the differences that
/// `tests/golden/KIND.differences` lists. `GOLDEN=NAME,NAME` in the environment selects cases.
///
/// # Panics
/// A case differs in another way, or no longer in a listed way.
pub fn check(kind: &str, jobs: usize, compare: impl Fn(&Case) -> Vec<Problem> + Sync) {
    let mut cases = Case::read_all(kind);
    let selected = std::env::var("GOLDEN").ok();
    if let Some(names) = &selected {
        cases.retain(|case| names.split(',').any(|name| name == case.name));
    }
    assert!(!cases.is_empty(), "no golden case of kind {kind} is selected");
    let found = Mutex::new(Vec::new());
    for_each(&cases, jobs, |case| {
        let problems = catch_unwind(AssertUnwindSafe(|| compare(case))).unwrap_or_else(|panic| {
            let message = panic.downcast_ref::<String>().map_or("", String::as_str);
            vec![Problem::new(format!("the comparison panicked: {message}"))]
        });
        found.lock().expect("a lock").push((case.name.clone(), problems));
    });
    let mut found = found.into_inner().expect("a lock");
    found.sort_by(|a, b| a.0.cmp(&b.0));
    let report = Differences::read(kind).judge(&found, selected.is_none());
    assert!(report.is_empty(), "golden cases of kind {kind}:\n{report}");
}

/// Calls a function for each item, on `jobs` threads.
pub fn for_each<T: Sync>(items: &[T], jobs: usize, work: impl Fn(&T) + Sync) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                    work(item);
                }
            });
        }
    });
}

/// Returns the number of processors.
pub fn processors() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from)
}
