//! Fingerprints of a plan: from what it was made, and for each task of its DAG what the task does and which
//! files it depends on. A later command compares them, to find what has changed since.
//!
//! The file is `NAME.fingerprints` in the submit directory:
//!
//! ```text
//! pmc-fingerprints 1 {"cluster":true,"scripts":[["slurm","w-0.sbatch"]],"reused":0}
//! I 812 1795374703566718000 /home/me/workflow.yml
//! F 20 1795374700000000000 /home/me/bin/first
//! T first_A 5f0c1e63b9d2a7c4 0
//! ```
//!
//! `I` is an input of the plan, `F` a program or an input file of tasks: size and time of the last change in
//! nanoseconds, `-` for a file that is not there. `T` is a task, with a hash of its definition and the
//! numbers of its `F` lines, counted from 0. `%` and line feeds in names are written as `%25` and `%0A`.
//!
//! In the plan of a nested sub-workflow, `P` lines follow: size and path of each file of the plan, that of
//! the DAG last. Nobody waits until such a plan is on the disk. If the machine fails before, the next planner
//! sees by these lines that the plan is not whole.

mod parts;

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use pmc_batch::Scheduler;

pub(crate) use self::parts::{add_parts, is_whole};

/// First word of the file.
const MAGIC: &str = "pmc-fingerprints 1 ";
/// Maximum length in bytes of the first line.
const MAX_FACTS: u64 = 1 << 20;
/// Largest fingerprints that are read, in bytes: those of many million jobs.
const MAX_BYTES: u64 = 4 << 30;

/// Size and time of the last change; `None` for a file that is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stamp(Option<(u64, i128)>);

impl Stamp {
    /// Looks at a file. Links are followed.
    #[must_use]
    pub fn of(path: &Path) -> Self {
        let found = fs::metadata(path).ok();
        Stamp(found.map(|data| {
            let nanoseconds = i128::from(data.mtime()) * 1_000_000_000 + i128::from(data.mtime_nsec());
            (data.len(), nanoseconds)
        }))
    }

    fn push(self, text: &mut String) {
        // Writing into a String cannot fail.
        let _ = match self.0 {
            Some((size, time)) => write!(text, "{size} {time}"),
            None => write!(text, "- -"),
        };
    }

    fn parse(size: &str, time: &str) -> Option<Self> {
        match (size, time) {
            ("-", "-") => Some(Stamp(None)),
            _ => Some(Stamp(Some((size.parse().ok()?, time.parse().ok()?)))),
        }
    }
}

/// Facts about the whole plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// The plan is for a batch system, not for this machine.
    pub cluster: bool,
    /// Name of the scheduler and file name of each batch script, the preferred one first.
    pub scripts: Vec<(String, String)>,
    /// The user has chosen the scheduler of the first script.
    pub chosen: bool,
    /// Jobs left out because their outputs existed.
    pub reused: usize,
    /// Hash of what the plan of a nested sub-workflow is made of; empty for other plans.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub made_of: String,
}

impl Facts {
    /// Returns the batch script to submit: the one of the chosen scheduler, else the one whose scheduler is
    /// on `path`, else the one for Slurm.
    #[must_use]
    pub fn script(&self, dir: &Path, path: Option<&str>) -> Option<(Scheduler, PathBuf)> {
        let scripts = || {
            self.scripts.iter().filter_map(|(scheduler, name)| {
                let scheduler = Scheduler::parse(scheduler)?;
                Some((scheduler, dir.join(name)))
            })
        };
        let is_here = |scheduler: Scheduler| {
            let directories = path
                .unwrap_or_default()
                .split(':')
                .filter(|part| part.starts_with('/'));
            let program = scheduler.submit_words()[0];
            directories
                .map(|part| Path::new(part).join(program))
                .any(|path| path.is_file())
        };
        let chosen = scripts().next().filter(|_| self.chosen);
        let slurm = || scripts().find(|(scheduler, _)| *scheduler == Scheduler::Slurm);
        let here = || scripts().find(|(scheduler, _)| is_here(*scheduler));
        chosen
            .or_else(|| slurm().filter(|_| is_here(Scheduler::Slurm)))
            .or_else(here)
            .or_else(slurm)
            .or_else(|| scripts().next())
    }
}

/// A task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskPrint {
    /// Name in the DAG.
    pub name: Box<str>,
    /// Hash of what it does.
    pub definition: u64,
    /// Programs and input files that it depends on: indices into [`Fingerprints::files`].
    pub files: Vec<u32>,
}

/// All fingerprints of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fingerprints {
    /// Facts about the plan.
    pub facts: Facts,
    /// Workflow, catalogs and properties.
    pub inputs: Vec<(PathBuf, Stamp)>,
    /// Programs and input files of tasks. A path may occur more than once, if tasks saw different versions.
    pub files: Vec<(PathBuf, Stamp)>,
    /// Tasks, in the order of the DAG.
    pub tasks: Vec<TaskPrint>,
    /// Files of the plan of a nested sub-workflow, relative to its directory, each with its size.
    pub parts: Vec<(PathBuf, u64)>,
}

/// Why fingerprints cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FingerprintError {
    /// The file cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// File.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// There is no such file.
    #[error(
        "{} has no fingerprints of its plan, as plans of other planners and of earlier versions: plan again with pmc-plan",
        dir.display()
    )]
    Absent {
        /// Submit directory.
        dir: PathBuf,
    },
    /// A line is not understood.
    #[error("{}:{line}: not a line of fingerprints", path.display())]
    Damaged {
        /// File.
        path: PathBuf,
        /// Line, counted from 1.
        line: usize,
    },
}

/// Returns the path of the fingerprints beside a DAG.
#[must_use]
pub fn path(dag: &Path) -> PathBuf {
    dag.with_extension("fingerprints")
}

/// Returns the first 64 bits of the SHA-256 of some parts. It is the same for all versions and machines.
pub(crate) fn hash<'a>(parts: impl Iterator<Item = &'a [u8]>) -> u64 {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update((part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    let digest = hasher.finalize();
    let mut first = [0; 8];
    first.copy_from_slice(&digest[..8]);
    u64::from_be_bytes(first)
}

/// Appends the first line.
pub(crate) fn push_head(facts: &Facts, text: &mut String) {
    text.push_str(MAGIC);
    // A structure of texts and numbers always has a text.
    text.push_str(&serde_json::to_string(facts).unwrap_or_default());
    text.push('\n');
}

/// Appends the line of a file; `kind` is `I` or `F`.
pub(crate) fn push_file(kind: char, path: &Path, stamp: Stamp, text: &mut String) {
    text.push(kind);
    text.push(' ');
    stamp.push(text);
    text.push(' ');
    push_name(path, text);
}

/// Appends a name and the end of the line.
fn push_name(path: &Path, text: &mut String) {
    let name = path.to_string_lossy();
    match name.contains(['%', '\n']) {
        true => text.push_str(&name.replace('%', "%25").replace('\n', "%0A")),
        false => text.push_str(&name),
    }
    text.push('\n');
}

fn parse_name(name: &str) -> PathBuf {
    name.replace("%0A", "\n").replace("%25", "%").into()
}

/// Appends the line of a task.
pub(crate) fn push_task(name: &str, definition: u64, files: &[u32], text: &mut String) {
    let _ = write!(text, "T {name} {definition:016x} ");
    for (n, file) in files.iter().enumerate() {
        let _ = write!(text, "{}{file}", if n > 0 { "," } else { "" });
    }
    text.push('\n');
}

impl Facts {
    /// Reads the facts about the plan of a DAG. `None` for plans without fingerprints.
    #[must_use]
    pub fn read(dag: &Path) -> Option<Self> {
        use std::io::{BufRead as _, Read as _};
        // Views read this in directories of other users, too.
        let file = pmc_files::open(&path(dag)).ok()?.take(MAX_FACTS);
        let mut line = String::new();
        std::io::BufReader::new(file).read_line(&mut line).ok()?;
        serde_json::from_str(line.strip_prefix(MAGIC)?).ok()
    }
}

impl Fingerprints {
    /// Reads the fingerprints of the plan of a DAG.
    ///
    /// # Errors
    /// There are none, or they cannot be read.
    pub fn read(dag: &Path) -> Result<Self, FingerprintError> {
        let path = path(dag);
        let text = match pmc_files::read_to_string(&path, MAX_BYTES) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let dir = dag.parent().unwrap_or(dag).to_owned();
                return Err(FingerprintError::Absent { dir });
            }
            Err(source) => return Err(FingerprintError::Io { path, source }),
        };
        let mut this = Self::default();
        for (number, line) in text.lines().enumerate() {
            let read = match number {
                0 => this.read_head(line),
                _ => this.read_line(line),
            };
            if read.is_none() {
                let line = number + 1;
                return Err(FingerprintError::Damaged { path, line });
            }
        }
        Ok(this)
    }

    fn read_head(&mut self, line: &str) -> Option<()> {
        self.facts = serde_json::from_str(line.strip_prefix(MAGIC)?).ok()?;
        Some(())
    }

    fn read_line(&mut self, line: &str) -> Option<()> {
        let (kind, rest) = line.split_once(' ')?;
        if kind == "T" {
            let mut words = rest.rsplitn(3, ' ');
            let files = words.next()?;
            let definition = u64::from_str_radix(words.next()?, 16).ok()?;
            let name = words.next()?.into();
            let known = |file: &u32| (*file as usize) < self.files.len();
            let files = match files {
                "" => Vec::new(),
                list => list
                    .split(',')
                    .map(|number| number.parse().ok().filter(known))
                    .collect::<Option<_>>()?,
            };
            self.tasks.push(TaskPrint {
                name,
                definition,
                files,
            });
            return Some(());
        }
        if kind == "P" {
            self.parts.push(parts::parse(rest)?);
            return Some(());
        }
        let mut words = rest.splitn(3, ' ');
        let stamp = Stamp::parse(words.next()?, words.next()?)?;
        let file = (parse_name(words.next()?), stamp);
        match kind {
            "I" => self.inputs.push(file),
            "F" => self.files.push(file),
            _ => return None,
        }
        Some(())
    }

    /// Writes the fingerprints beside a DAG. The file is complete or unchanged.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&self, dag: &Path) -> Result<(), FingerprintError> {
        let mut text = String::new();
        push_head(&self.facts, &mut text);
        for (kind, files) in [('I', &self.inputs), ('F', &self.files)] {
            for (path, stamp) in files {
                push_file(kind, path, *stamp, &mut text);
            }
        }
        for task in &self.tasks {
            push_task(&task.name, task.definition, &task.files, &mut text);
        }
        for (part, size) in &self.parts {
            parts::push(part, *size, &mut text);
        }
        let path = path(dag);
        let failed = |source| FingerprintError::Io {
            path: path.clone(),
            source,
        };
        let dir = path.parent().unwrap_or(Path::new("."));
        let mut file = tempfile::Builder::new()
            .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666))
            .tempfile_in(dir)
            .map_err(failed)?;
        file.write_all(text.as_bytes()).map_err(failed)?;
        file.persist(&path).map_err(|error| failed(error.error))?;
        Ok(())
    }

    /// Returns the tasks by name.
    #[must_use]
    pub fn by_name(&self) -> FxHashMap<&str, &TaskPrint> {
        self.tasks.iter().map(|task| (&*task.name, task)).collect()
    }

    /// Returns the files that a task depends on.
    pub fn files_of<'a>(&'a self, task: &'a TaskPrint) -> impl Iterator<Item = &'a (PathBuf, Stamp)> {
        task.files.iter().map(|file| &self.files[*file as usize])
    }

    /// Looks at all files again. Returns the inputs of the plan that have changed, and the files of tasks
    /// that have changed, each with the number of tasks for which `is_done` holds and that used the old
    /// version.
    #[must_use]
    pub fn changes(&self, is_done: impl Fn(&str) -> bool) -> Changes {
        let mut now: FxHashMap<&Path, Stamp> = FxHashMap::default();
        let inputs = self
            .inputs
            .iter()
            .filter(|(path, stamp)| Stamp::of(path) != *stamp);
        let inputs = inputs.map(|(path, _)| path.clone()).collect();
        let changed: Vec<bool> = self
            .files
            .iter()
            .map(|(path, stamp)| *now.entry(path).or_insert_with(|| Stamp::of(path)) != *stamp)
            .collect();
        let mut users = vec![0; self.files.len()];
        if changed.iter().any(|changed| *changed) {
            for task in &self.tasks {
                let used = task.files.iter().filter(|file| changed[**file as usize]);
                let used: Vec<u32> = used.copied().collect();
                if !used.is_empty() && is_done(&task.name) {
                    used.iter().for_each(|file| users[*file as usize] += 1);
                }
            }
        }
        let files = self.files.iter().zip(users).zip(changed);
        let files = files
            .filter(|((_, users), changed)| *changed && *users > 0)
            .map(|(((path, _), users), _)| (path.clone(), users))
            .collect();
        Changes { inputs, files }
    }

    /// Notes the present versions of the files of all tasks for which `is_done` does not hold: they will use
    /// these. Returns whether anything has changed.
    pub fn refresh(&mut self, is_done: impl Fn(&str) -> bool) -> bool {
        // The present version of each file, if it is another one.
        let mut newer: Vec<Option<u32>> = Vec::with_capacity(self.files.len());
        let mut versions: FxHashMap<(PathBuf, Stamp), u32> = FxHashMap::default();
        for (path, stamp) in self.files.clone() {
            let now = Stamp::of(&path);
            newer.push((now != stamp).then(|| {
                let next = self.files.len() as u32;
                let number = *versions.entry((path.clone(), now)).or_insert(next);
                if number == next {
                    self.files.push((path, now));
                }
                number
            }));
        }
        let mut changed = false;
        for task in self.tasks.iter_mut().filter(|task| !is_done(&task.name)) {
            for file in &mut task.files {
                if let Some(Some(number)) = newer.get(*file as usize) {
                    *file = *number;
                    changed = true;
                }
            }
        }
        changed
    }
}

/// What has changed since a plan was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Workflow, catalogs and properties.
    pub inputs: Vec<PathBuf>,
    /// Programs and input files, each with the number of done tasks that used the old version.
    pub files: Vec<(PathBuf, usize)>,
}

impl Changes {
    /// Returns whether nothing has changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.inputs.is_empty() && self.files.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(dir: &Path) -> Fingerprints {
        for name in ["w.yml", "a", "b%\nc"] {
            fs::write(dir.join(name), name).unwrap();
        }
        let file = |name: &str| (dir.join(name), Stamp::of(&dir.join(name)));
        let task = |name: &str, files: &[u32]| TaskPrint {
            name: name.into(),
            definition: hash([name.as_bytes()].into_iter()),
            files: files.to_vec(),
        };
        Fingerprints {
            facts: Facts {
                cluster: true,
                scripts: vec![
                    ("torque".into(), "w.pbs".into()),
                    ("slurm".into(), "w.sbatch".into()),
                ],
                chosen: false,
                reused: 2,
                made_of: String::new(),
            },
            inputs: vec![file("w.yml"), file("absent")],
            files: vec![file("a"), file("b%\nc")],
            tasks: vec![task("x", &[0]), task("y", &[0, 1]), task("z", &[])],
            parts: vec![("00/%\n.in".into(), 7), ("w.dag".into(), 12)],
        }
    }

    #[test]
    fn fingerprints_are_read_back() -> Result<(), FingerprintError> {
        let dir = tempfile::tempdir().unwrap();
        let dag = dir.path().join("w.dag");
        assert!(matches!(
            Fingerprints::read(&dag),
            Err(FingerprintError::Absent { .. })
        ));
        let written = sample(dir.path());
        written.write(&dag)?;
        assert_eq!(Fingerprints::read(&dag)?, written);
        assert_eq!(Facts::read(&dag), Some(written.facts));
        let mut text = fs::read_to_string(path(&dag)).unwrap();
        text.push_str("T x 1 9\n");
        fs::write(path(&dag), text).unwrap();
        let error = Fingerprints::read(&dag).unwrap_err().to_string();
        assert!(
            error.ends_with("w.fingerprints:11: not a line of fingerprints"),
            "{error}"
        );
        Ok(())
    }

    #[test]
    fn changes_count_for_tasks_that_are_done() {
        let dir = tempfile::tempdir().unwrap();
        let mut prints = sample(dir.path());
        assert!(prints.changes(|_| true).is_empty());
        fs::write(dir.path().join("a"), "longer").unwrap();
        fs::write(dir.path().join("absent"), "there now").unwrap();
        let changes = prints.changes(|name| name == "x");
        assert_eq!(changes.inputs, [dir.path().join("absent")]);
        assert_eq!(changes.files, [(dir.path().join("a"), 1)]);
        // `y` runs with the new version, so only `x` used the old one.
        assert!(prints.refresh(|name| name == "x"));
        assert!(!prints.refresh(|name| name == "x"));
        assert_eq!(prints.changes(|_| true).files, [(dir.path().join("a"), 1)]);
        assert!(prints.changes(|name| name == "y").files.is_empty());
    }

    #[test]
    fn the_script_of_the_scheduler_that_is_here_is_submitted() {
        let dir = tempfile::tempdir().unwrap();
        let mut facts = sample(dir.path()).facts;
        let script = |facts: &Facts, path: &Path| {
            let found = facts.script(Path::new("/s"), path.to_str());
            found.map(|(_, script)| script.display().to_string())
        };
        assert_eq!(script(&facts, Path::new("/none")).as_deref(), Some("/s/w.sbatch"));
        fs::write(dir.path().join("qsub"), "").unwrap();
        assert_eq!(script(&facts, dir.path()).as_deref(), Some("/s/w.pbs"));
        fs::write(dir.path().join("sbatch"), "").unwrap();
        assert_eq!(script(&facts, dir.path()).as_deref(), Some("/s/w.sbatch"));
        facts.chosen = true;
        assert_eq!(script(&facts, dir.path()).as_deref(), Some("/s/w.pbs"));
    }
}
