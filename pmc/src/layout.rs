//! Where a run keeps its files: `BASE/LABEL/runNNNN` with `submit`, `scratch` and `output`.

use std::fs::{DirEntry, File, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use nix::fcntl::{Flock, FlockArg};
use pmc_monitor::dir::RunDir;

use crate::condor;
use crate::exit;
use crate::failure::{Failure, OrCode as _};

/// Name of the submit directory within the directory of a run.
pub const SUBMIT: &str = "submit";
/// Name of the scratch directory within the directory of a run.
pub const SCRATCH: &str = "scratch";
/// Name of the output directory within the directory of a run.
pub const OUTPUT: &str = "output";
/// Name of the directory, within that of a run, of the file with the commands of a command line.
pub const COMMANDS: &str = "commands";
/// Default directory for runs.
pub const RUNS: &str = "pmc-runs";
/// Link to the latest run of a workflow.
const LATEST: &str = "latest";

/// Age from which a run without a plan and without a lock was abandoned.
const MIN_AGE: Duration = Duration::from_secs(60);

/// The directory of a new run. While it is being planned, its lock shows that `pmc` is alive.
#[derive(Debug)]
pub struct NewRun {
    /// Path.
    pub dir: PathBuf,
    /// `None` on file systems without locks.
    _lock: Option<Flock<File>>,
}

/// Creates the directory of a new run. Simultaneous runs get different directories. Removes runs that were
/// killed before they had a plan.
pub fn new_run(base: &Path, label: &str) -> Result<NewRun> {
    let parent = base.join(label);
    std::fs::create_dir_all(&parent)
        .with_context(|| format!("cannot create the directory {}", parent.display()))?;
    sweep(&parent);
    let mut number = last_number(&parent)?;
    loop {
        number += 1;
        let dir = parent.join(format!("run{number:04}"));
        match std::fs::create_dir(&dir) {
            Ok(()) => {
                let _lock = lock(&dir);
                return Ok(NewRun { dir, _lock });
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => {
                return Err(error).with_context(|| format!("cannot create the directory {}", dir.display()));
            }
        }
    }
}

/// Removes what killed programs have left: runs without a plan, and links that were to become `latest`.
fn sweep(parent: &Path) {
    for entry in parent.read_dir().into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let path = entry.path();
        let Some(data) = entry.metadata().ok().filter(is_old) else {
            continue;
        };
        // What cannot be removed is of another user, or in use.
        if data.is_symlink() && name.starts_with(&format!(".{LATEST}.")) {
            let _ = std::fs::remove_file(path);
        } else if data.is_dir() && run_number(name).is_some() && has_no_plan(&path) && lock(&path).is_some() {
            let _ = std::fs::remove_dir_all(path);
        }
    }
}

fn is_old(data: &Metadata) -> bool {
    let age = data.modified().map(|time| time.elapsed().unwrap_or_default());
    age.is_ok_and(|age| age > MIN_AGE)
}

/// Returns whether a directory holds nothing but commands, unfinished plans and the empty directory of a
/// finished one.
fn has_no_plan(run: &Path) -> bool {
    let is_unfinished = |entry: io::Result<DirEntry>| {
        entry.is_ok_and(|entry| match entry.file_name().to_str() {
            Some(SUBMIT) => entry
                .path()
                .read_dir()
                .is_ok_and(|mut inside| inside.next().is_none()),
            name => name.is_some_and(|name| name == COMMANDS || name.starts_with(".plan-")),
        })
    };
    run.read_dir().is_ok_and(|mut entries| entries.all(is_unfinished))
}

/// Locks a directory without waiting.
fn lock(directory: &Path) -> Option<Flock<File>> {
    let directory = File::open(directory).ok()?;
    Flock::lock(directory, FlockArg::LockExclusiveNonblock).ok()
}

/// Returns the directory that [`new_run`] would create.
pub fn next_run(base: &Path, label: &str) -> Result<PathBuf> {
    let parent = base.join(label);
    let number = if parent.is_dir() { last_number(&parent)? } else { 0 };
    Ok(parent.join(format!("run{:04}", number + 1)))
}

fn last_number(parent: &Path) -> Result<u32> {
    let entries = std::fs::read_dir(parent)
        .with_context(|| format!("cannot read the directory {}", parent.display()))?;
    let numbers = entries.filter_map(|entry| {
        let name = entry.ok()?.file_name();
        run_number(name.to_str()?)
    });
    Ok(numbers.max().unwrap_or(0))
}

/// Returns the number in the name of a run.
fn run_number(name: &str) -> Option<u32> {
    name.strip_prefix("run")?.parse().ok()
}

/// Removes the directory of a run that never started, and its parent if that is empty.
pub fn discard(run: &Path) {
    let _ = std::fs::remove_dir_all(run);
    if let Some(parent) = run.parent() {
        // Fails if there are other runs.
        let _ = std::fs::remove_dir(parent);
    }
}

/// Points the link `latest` to this run. Failures are ignored: the link is a convenience.
pub fn mark_latest(run: &Path) {
    let (Some(parent), Some(name)) = (run.parent(), run.file_name()) else {
        return;
    };
    let temporary = parent.join(format!(".{LATEST}.{}", std::process::id()));
    if std::os::unix::fs::symlink(name, &temporary).is_ok()
        && std::fs::rename(&temporary, parent.join(LATEST)).is_err()
    {
        let _ = std::fs::remove_file(&temporary);
    }
}

/// Returns the directory that the user gives. Without one, returns the working directory if it is a run, else
/// the run below [`RUNS`] that was active last, whose name goes to standard error unless `quiet`.
pub fn given_or_latest(dir: Option<&Path>, quiet: bool) -> PathBuf {
    let found = given_or_latest_in(dir, Path::new("."));
    match found.strip_prefix("./").map(Path::to_owned) {
        Ok(latest) if dir.is_none() && latest.starts_with(RUNS) => {
            if !quiet {
                pmc_terminal::message(format!("pmc: {}", latest.display()));
            }
            latest
        }
        _ => found,
    }
}

/// Splits words into names of tasks and the directory of a run. That is the last word, or, as in the first
/// versions, the first one. A word with a slash is a directory, right or wrong; no task has one in its name.
pub fn tasks_and_run(mut words: Vec<String>) -> (Vec<String>, Option<PathBuf>) {
    let is_run = |word: &String| word.contains('/') || has_run(Path::new(word));
    let last = words.len().saturating_sub(1);
    let at = [last, 0]
        .into_iter()
        .find(|&at| words.get(at).is_some_and(is_run));
    let run = at.map(|at| PathBuf::from(words.remove(at)));
    (words, run)
}

/// Returns whether a directory is that of a run.
fn has_run(dir: &Path) -> bool {
    find_submit(dir).is_ok() || RunDir::open(dir).is_ok()
}

fn given_or_latest_in(dir: Option<&Path>, cwd: &Path) -> PathBuf {
    match dir {
        Some(dir) => dir.to_owned(),
        None if has_begun(cwd) => cwd.to_owned(),
        None => latest_run(&cwd.join(RUNS)).unwrap_or_else(|| cwd.to_owned()),
    }
}

/// Returns whether a directory is that of a plan, or has a DAG that was run there. Another DAG is more likely
/// a workflow whose runs are below [`RUNS`].
fn has_begun(dir: &Path) -> bool {
    let was_run = |run: RunDir| {
        let traces = [run.rescue(), run.resource_log(), run.beside_dag(".place")];
        traces.iter().any(|trace| trace.exists())
    };
    find_submit(dir).is_ok() || RunDir::open(dir).is_ok_and(was_run)
}

/// Returns the run below a directory for runs that was active last.
fn latest_run(base: &Path) -> Option<PathBuf> {
    let entries = |dir: &Path| std::fs::read_dir(dir).into_iter().flatten().flatten();
    let workflows = entries(base).map(|entry| entry.path());
    let runs = workflows.flat_map(|workflow| entries(&workflow).map(|entry| entry.path()));
    runs.filter(|run| {
        let name = run.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with("run"))
    })
    .filter_map(|run| Some((last_active(&run)?, run)))
    .max()
    .map(|(_, run)| run)
}

/// Returns the time at which a run was planned, or at which a task changed its state.
fn last_active(run: &Path) -> Option<SystemTime> {
    let submit = run.join(SUBMIT);
    ["braindump.yml", "jobstate.log"]
        .iter()
        .filter_map(|name| submit.join(name).metadata().ok()?.modified().ok())
        .max()
}

/// Finds the submit directory, given the directory of a run, of all runs of a workflow, or the submit
/// directory itself.
pub fn find_submit(dir: &Path) -> Result<PathBuf> {
    for candidate in [dir.to_owned(), dir.join(SUBMIT), dir.join(LATEST).join(SUBMIT)] {
        if candidate.join("braindump.yml").is_file() {
            return pmc_files::real_path(&candidate).with_context(|| format!("{}", candidate.display()));
        }
    }
    if !dir.is_dir() {
        bail!("{}: no such directory", dir.display());
    }
    bail!(
        "{}: not a run of a workflow: no braindump.yml here or in {SUBMIT}/",
        dir.display()
    )
}

/// Finds the run to read for a directory, as [`find_submit`] does. Accepts an incomplete plan and a DAG
/// without a plan, too. A run of HTCondor is refused, with what shows it.
pub fn find_run(dir: &Path) -> Result<RunDir, Failure> {
    let submit = match find_submit(dir) {
        // One of several DAGs in a directory.
        _ if dir.is_file() => dir.to_owned(),
        Ok(submit) => submit,
        Err(_) if dir.join(SUBMIT).is_dir() => dir.join(SUBMIT),
        Err(_) => dir.to_owned(),
    };
    let run = RunDir::open(&submit).or_code(exit::USAGE).map_err(|failure| {
        failure
            .hint("give the directory that `pmc run` printed at its end, or a submit directory of pmc-plan")
    })?;
    match run.braindump.contains_key("condor_log") {
        true => Err(Failure::new(exit::USAGE, condor::refusal(&run.dir, &run.dag))),
        false => Ok(run),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_continue_after_the_highest() {
        let base = tempfile::tempdir().expect("temporary directory");
        let first = new_run(base.path(), "w").expect("first run").dir;
        assert!(first.ends_with("w/run0001"));
        std::fs::create_dir(base.path().join("w/run0007")).expect("directory");
        let next = new_run(base.path(), "w").expect("next run").dir;
        assert!(next.ends_with("w/run0008"));
    }

    #[test]
    fn runs_that_were_killed_before_they_had_a_plan_are_removed() {
        let base = tempfile::tempdir().expect("temporary directory");
        let runs = base.path().join("w");
        let alive = new_run(base.path(), "w").expect("run");
        for name in [
            "run0002/submit",
            "run0003/.plan-x",
            "run0004/submit/00",
            "run0005",
        ] {
            std::fs::create_dir_all(runs.join(name)).expect("directory");
        }
        std::os::unix::fs::symlink("run0001", runs.join(".latest.1")).expect("link");
        for name in ["run0001", "run0002", "run0003", "run0004"] {
            let directory = File::open(runs.join(name)).expect("directory");
            directory
                .set_modified(SystemTime::now() - 2 * MIN_AGE)
                .expect("time");
        }
        new_run(base.path(), "w").expect("run");
        let left =
            ["run0001", "run0002", "run0003", "run0004", "run0005"].map(|name| runs.join(name).exists());
        assert_eq!(left, [true, false, false, true, true]);
        drop(alive);
        assert!(runs.join(".latest.1").symlink_metadata().is_ok(), "it is new");
    }

    #[test]
    fn a_run_is_the_last_word_or_the_first() {
        let top = tempfile::tempdir().unwrap();
        let run = top.path().join("run0001");
        std::fs::create_dir(&run).unwrap();
        std::fs::write(run.join("x.dag"), "TASK a /bin/true\n").unwrap();
        let run = run.display().to_string();
        let split = |words: &[&str]| tasks_and_run(words.iter().map(|word| (*word).to_owned()).collect());
        let tasks = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let found = Some(PathBuf::from(&run));
        assert_eq!(split(&["a", "b", &run]), (tasks(&["a", "b"]), found.clone()));
        assert_eq!(split(&[&run, "a"]), (tasks(&["a"]), found.clone()));
        assert_eq!(split(&[&run]), (tasks(&[]), found));
        assert_eq!(split(&["a", "b"]), (tasks(&["a", "b"]), None));
        assert_eq!(split(&["a", "no/run"]), (tasks(&["a"]), Some("no/run".into())));
        assert_eq!(split(&[]), (tasks(&[]), None));
    }

    #[test]
    fn without_a_directory_the_latest_run_is_taken() {
        let cwd = tempfile::tempdir().expect("temporary directory");
        let default = || given_or_latest_in(None, cwd.path());
        assert_eq!(default(), cwd.path());
        let runs = cwd.path().join(RUNS);
        let first = new_run(&runs, "b").expect("run").dir;
        let second = new_run(&runs, "a").expect("run").dir;
        for (run, seconds) in [(&first, 200), (&second, 100)] {
            std::fs::create_dir(run.join(SUBMIT)).expect("directory");
            let file = std::fs::File::create(run.join(SUBMIT).join("braindump.yml")).expect("file");
            let time = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
            file.set_modified(time).expect("time");
        }
        mark_latest(&second);
        assert_eq!(default(), first);
        // It is resumed.
        std::fs::write(second.join(SUBMIT).join("jobstate.log"), "").expect("file");
        assert_eq!(default(), second);
        assert_eq!(given_or_latest_in(None, &first), first);
        // The workflow of these runs is no run itself, until it is one.
        std::fs::write(cwd.path().join("b.dag"), "TASK a /bin/true\n").expect("file");
        assert_eq!(default(), second);
        std::fs::write(cwd.path().join("b.dag.rescue"), "").expect("file");
        assert_eq!(default(), cwd.path());
        let given = Path::new("/nonexistent");
        assert_eq!(given_or_latest_in(Some(given), cwd.path()), given);
    }

    #[test]
    fn a_run_is_found_by_any_of_its_directories() {
        let base = tempfile::tempdir().expect("temporary directory");
        let run = new_run(base.path(), "w").expect("run").dir;
        let submit = run.join(SUBMIT);
        std::fs::create_dir(&submit).expect("directory");
        assert!(find_submit(&run).is_err());
        std::fs::write(submit.join("braindump.yml"), "").expect("file");
        mark_latest(&run);
        mark_latest(&run);
        let submit = submit.canonicalize().expect("exists");
        for dir in [&submit, &run, &base.path().join("w")] {
            assert_eq!(find_submit(dir).expect("found"), submit);
        }
        let error = find_submit(Path::new("/nonexistent")).expect_err("not there");
        assert_eq!(error.to_string(), "/nonexistent: no such directory");
    }
}
