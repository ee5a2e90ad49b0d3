//! The submit directory: created atomically to reserve its number; its content appears at once.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use monitord_compat::replacement;
use nix::fcntl::{Flock, FlockArg};
use nix::libc;

use crate::error::PlanError;

/// A submit directory under construction. It is removed unless it is published.
#[derive(Debug)]
pub(crate) struct SubmitDir {
    /// Returns the final path.
    path: PathBuf,
    /// Temporary path of the content, beside the final path.
    staging: PathBuf,
    /// Directories that did not exist before, innermost first.
    created: Vec<PathBuf>,
    published: bool,
    /// Shows that the planner of the temporary directory is alive. `None` on file systems without locks.
    _lock: Option<Flock<fs::File>>,
    /// The same for the final directory, if its name is reserved.
    _reserved: Option<Flock<fs::File>>,
    /// Link to the directory, made when it is published.
    link: Option<PathBuf>,
    /// The content is a new plan for a directory that has one; [`replacement`] moves it to its place.
    replaces: bool,
}

/// Start of the names of temporary directories.
const STAGING: &str = ".plan-";
/// Files that are open at a time while a plan is synced: a plan may have more files than a process may open.
const SYNCED_AT_ONCE: usize = 64;
/// Age from which a temporary directory without a lock is abandoned.
const MIN_AGE: Duration = Duration::from_secs(60);

/// Largest number of a plan of a sub-workflow.
const MAX_PLAN: u32 = 999;

/// Largest run number with four digits.
const MAX_RUN: u32 = 9999;

impl SubmitDir {
    /// Reserves the next free `runNNNN` in a directory. Creating the directory is atomic, so two planners
    /// never get the same number.
    ///
    /// # Errors
    /// A directory that cannot be created.
    pub(crate) fn next_run(parent: &Path) -> Result<Self, PlanError> {
        let mut created = make_dirs(parent)?;
        let mut number = match last_run(parent) {
            Ok(last) => last + 1,
            Err(e) => {
                remove_all(&created);
                return Err(PlanError::io("read the directory", parent, e));
            }
        };
        loop {
            if number > MAX_RUN {
                remove_all(&created);
                return Err(PlanError::refinement(format!(
                    "{} has a run{MAX_RUN} already: remove old runs or choose another --dir",
                    parent.display()
                )));
            }
            let path = parent.join(format!("run{number:04}"));
            match fs::create_dir(&path) {
                Ok(()) => {
                    created.insert(0, path.clone());
                    let reserved = lock(&path);
                    return Self::stage(path, created, reserved);
                }
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => number += 1,
                Err(e) => {
                    remove_all(&created);
                    return Err(PlanError::io("make the directory", &path, e));
                }
            }
        }
    }

    /// Returns the path that [`SubmitDir::next_run`] would reserve now.
    pub(crate) fn next_path(parent: &Path) -> PathBuf {
        let number = last_run(parent).unwrap_or_default() + 1;
        parent.join(format!("run{number:04}"))
    }

    /// Uses a directory with a given name, which may exist.
    ///
    /// # Errors
    /// A directory that cannot be created.
    pub(crate) fn named(path: &Path) -> Result<Self, PlanError> {
        let created = make_dirs(path)?;
        Self::stage(path.to_owned(), created, None)
    }

    /// Uses the first free one of the directories `LINK.000`, `LINK.001` and so on, to which `LINK` will be
    /// a link: the plan of a sub-workflow, and the next one if its inputs change.
    ///
    /// # Errors
    /// A directory that cannot be created, or `LINK` is another file.
    pub(crate) fn numbered(link: &Path) -> Result<Self, PlanError> {
        let is_other = |path: &Path| path.symlink_metadata().is_ok_and(|data| !data.is_symlink());
        if is_other(link) {
            return Err(PlanError::refinement(format!(
                "{} is not a link to the plan of a sub-workflow: move it away",
                link.display()
            )));
        }
        let parent = link.parent().unwrap_or(Path::new("/"));
        let created = make_dirs(parent)?;
        let name = link.file_name().unwrap_or_default().to_string_lossy();
        let paths = (0..=MAX_PLAN).map(|number| parent.join(format!("{name}.{number:03}")));
        let mut free = paths.filter(|path| path.symlink_metadata().is_err());
        match free.next() {
            Some(path) => {
                let mut this = Self::stage(path, created, None)?;
                this.link = Some(link.to_owned());
                Ok(this)
            }
            None => {
                remove_all(&created);
                Err(PlanError::refinement(format!(
                    "there are {} plans of {} already: remove the old ones",
                    MAX_PLAN + 1,
                    link.display()
                )))
            }
        }
    }

    /// Prepares a new plan for a submit directory. [`replacement::commit`] makes it count.
    ///
    /// # Errors
    /// A directory that cannot be created.
    pub(crate) fn replacing(path: &Path) -> Result<Self, PlanError> {
        let whole = path.join(replacement::STAGING);
        let staging = whole.join(replacement::NEW);
        // From a program that was killed.
        if whole.symlink_metadata().is_ok() {
            fs::remove_dir_all(&whole).map_err(|e| PlanError::io("remove the directory", &whole, e))?;
        }
        fs::create_dir_all(&staging).map_err(|e| PlanError::io("make the directory", &staging, e))?;
        Ok(SubmitDir {
            path: path.to_owned(),
            staging,
            created: vec![whole],
            published: false,
            // The run lock keeps others away.
            _lock: None,
            _reserved: None,
            link: None,
            replaces: true,
        })
    }

    fn stage(
        path: PathBuf,
        created: Vec<PathBuf>,
        reserved: Option<Flock<fs::File>>,
    ) -> Result<Self, PlanError> {
        let parent = path.parent().unwrap_or(&path).to_owned();
        sweep(&parent);
        let staged = tempfile::Builder::new()
            .prefix(STAGING)
            .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o777))
            .tempdir_in(&parent);
        match staged {
            Ok(directory) => Ok(SubmitDir {
                path,
                _lock: lock(directory.path()),
                _reserved: reserved,
                staging: directory.keep(),
                created,
                published: false,
                link: None,
                replaces: false,
            }),
            Err(e) => {
                remove_all(&created);
                Err(PlanError::io("write into the directory", &parent, e))
            }
        }
    }

    /// Returns the final path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
    /// Returns the directory for writing files.
    pub(crate) fn staging(&self) -> &Path {
        &self.staging
    }

    /// Syncs the DAG and the files beside it to disk, so that a directory that survives a crash has a
    /// complete plan.
    ///
    /// # Errors
    /// A failed sync.
    pub(crate) fn sync(&self) -> Result<(), PlanError> {
        let failed = |e| PlanError::io("read the directory", &self.staging, e);
        let written = |path: &Path| {
            let path = path.to_owned();
            move |e| PlanError::io("write", &path, e)
        };
        let mut paths = Vec::new();
        for entry in fs::read_dir(&self.staging).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if entry.file_type().map_err(failed)?.is_file() {
                paths.push(entry.path());
            }
        }
        for paths in paths.chunks(SYNCED_AT_ONCE) {
            let mut files = Vec::with_capacity(paths.len());
            for path in paths {
                let file = fs::File::open(path).map_err(written(path))?;
                start_sync(&file);
                files.push((path, file));
            }
            for (path, file) in files {
                file.sync_all().map_err(written(path))?;
            }
        }
        let directory = fs::File::open(&self.staging).and_then(|directory| directory.sync_all());
        directory.map_err(written(&self.staging))
    }

    /// Moves the content to the final path. An empty directory is replaced as a whole; otherwise each file is
    /// moved. A replacing plan stays where it is.
    ///
    /// # Errors
    /// A failed move.
    pub(crate) fn publish(mut self) -> Result<PathBuf, PlanError> {
        if self.replaces {
            self.published = true;
            return Ok(self.path.clone());
        }
        match fs::rename(&self.staging, &self.path) {
            Ok(()) => {}
            Err(_) => {
                merge(&self.staging, &self.path)?;
                // Only empty directories remain.
                let _ = fs::remove_dir_all(&self.staging);
            }
        }
        self.published = true;
        if let Some(link) = &self.link {
            move_link(link, &self.path)?;
        }
        Ok(self.path.clone())
    }
}

/// Makes a link point to a directory beside it, at once.
fn move_link(link: &Path, directory: &Path) -> Result<(), PlanError> {
    let mut name = std::ffi::OsString::from(".");
    name.push(directory.file_name().unwrap_or_default());
    let new = link.with_file_name(name);
    let target = Path::new(directory.file_name().unwrap_or_default());
    // From a planner that was killed.
    let _ = fs::remove_file(&new);
    std::os::unix::fs::symlink(target, &new)
        .and_then(|()| fs::rename(&new, link))
        .map_err(|e| PlanError::io("make the link", link, e))
}

impl Drop for SubmitDir {
    fn drop(&mut self) {
        if !self.published {
            // A drop cannot report errors, and leftovers do no harm.
            let _ = fs::remove_dir_all(&self.staging);
            remove_all(&self.created);
        }
    }
}

/// Starts to sync a file without waiting. Starting several files before waiting for the first halves the
/// time, since they share the writes of the file system.
fn start_sync(file: &fs::File) {
    #[expect(unsafe_code, reason = "the call takes a descriptor and numbers")]
    // SAFETY: the descriptor is open. An error here occurs again, and is reported, when the file is synced.
    let _ = unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WRITE) };
}

/// Removes empty directories.
fn remove_all(created: &[PathBuf]) {
    for directory in created {
        let _ = fs::remove_dir(directory);
    }
}

/// Creates a directory and its parents. Returns the created ones, innermost first.
fn make_dirs(path: &Path) -> Result<Vec<PathBuf>, PlanError> {
    let missing: Vec<PathBuf> = path
        .ancestors()
        .take_while(|p| !p.as_os_str().is_empty() && !p.exists())
        .map(Path::to_owned)
        .collect();
    if let Err(e) = fs::create_dir_all(path) {
        remove_all(&missing);
        return Err(PlanError::io("make the directory", path, e));
    }
    Ok(missing)
}

/// Returns the largest number of a `runNNNN`, 0 if there is none.
fn last_run(parent: &Path) -> io::Result<u32> {
    let mut last = 0;
    for entry in fs::read_dir(parent)? {
        last = last.max(run_number(&entry?.file_name()).unwrap_or(0));
    }
    Ok(last)
}

/// Returns the number in `runNNNN`.
fn run_number(name: &OsStr) -> Option<u32> {
    let digits = name.to_str()?.strip_prefix("run")?;
    let is_number = digits.len() == 4 && digits.bytes().all(|b| b.is_ascii_digit());
    is_number.then(|| digits.parse().ok()).flatten()
}

/// Moves every file below `from` to its place below `to`. The braindump comes last, because tools find the
/// plan by it.
fn merge(from: &Path, to: &Path) -> Result<(), PlanError> {
    let mut entries: Vec<fs::DirEntry> = fs::read_dir(from)
        .and_then(Iterator::collect)
        .map_err(|e| PlanError::io("read the directory", from, e))?;
    entries.sort_by_key(|entry| (entry.file_name() == "braindump.yml", entry.file_name()));
    for entry in entries {
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        if source.is_dir() {
            fs::create_dir_all(&target).map_err(|e| PlanError::io("make the directory", &target, e))?;
            merge(&source, &target)?;
        } else {
            fs::rename(&source, &target).map_err(|e| PlanError::io("write", &target, e))?;
        }
    }
    Ok(())
}

/// Removes what planners that were killed have left: temporary directories, and directories of runs that they
/// reserved and that are empty. The lock of a living one is held.
fn sweep(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let is_staging = name.as_encoded_bytes().starts_with(STAGING.as_bytes());
        if !is_staging && run_number(&name).is_none() {
            continue;
        }
        let path = entry.path();
        if entry.metadata().is_ok_and(|data| data.is_dir() && is_old(&data)) && lock(&path).is_some() {
            // What cannot be removed is of another user, in use, or not empty.
            let _ = if is_staging {
                fs::remove_dir_all(path)
            } else {
                fs::remove_dir(path)
            };
        }
    }
}

/// Returns whether the planner of a directory has had the time to lock it.
fn is_old(directory: &fs::Metadata) -> bool {
    let age = directory
        .modified()
        .map(|time| time.elapsed().unwrap_or_default());
    age.is_ok_and(|age| age > MIN_AGE)
}

/// Locks a directory without waiting.
fn lock(directory: &Path) -> Option<Flock<fs::File>> {
    let directory = fs::File::open(directory).ok()?;
    Flock::lock(directory, FlockArg::LockExclusiveNonblock).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_numbers_increase_and_failures_leave_no_files() -> Result<(), Box<dyn std::error::Error>> {
        let base = tempfile::tempdir()?;
        let parent = base.path().join("u/pegasus/wf");
        let first = SubmitDir::next_run(&parent)?;
        let second = SubmitDir::next_run(&parent)?;
        fs::write(first.staging().join("a"), "1")?;
        first.sync()?;
        let path = first.publish()?;
        assert_eq!(path, parent.join("run0001"));
        assert_eq!(fs::read_to_string(path.join("a"))?, "1");
        assert_eq!(second.path(), parent.join("run0002"));
        fs::write(second.staging().join("b"), "2")?;
        drop(second);
        let names: Vec<_> = fs::read_dir(&parent)?.collect::<Result<_, _>>()?;
        assert_eq!(names.len(), 1, "{names:?}");
        Ok(())
    }

    #[test]
    fn a_failed_first_run_leaves_no_directories() -> Result<(), Box<dyn std::error::Error>> {
        let base = tempfile::tempdir()?;
        drop(SubmitDir::next_run(&base.path().join("u/pegasus/wf"))?);
        assert_eq!(fs::read_dir(base.path())?.count(), 0);
        Ok(())
    }

    #[test]
    fn directories_of_killed_planners_are_removed() -> Result<(), Box<dyn std::error::Error>> {
        let base = tempfile::tempdir()?;
        let dir = |name: &str| base.path().join(name);
        let old = std::time::SystemTime::now() - 2 * MIN_AGE;
        for name in [".plan-killed", ".plan-alive", ".plan-new", "run0001"] {
            fs::create_dir(dir(name))?;
            fs::write(dir(name).join("x"), "")?;
            if name != ".plan-new" {
                fs::File::open(dir(name))?.set_modified(old)?;
            }
        }
        let alive = lock(&dir(".plan-alive"));
        drop(SubmitDir::next_run(base.path())?);
        let left = [".plan-killed", ".plan-alive", ".plan-new", "run0001"].map(|name| dir(name).exists());
        assert_eq!(left, [false, alive.is_some(), true, true]);
        // A killed planner has reserved this one, a living one the next.
        for name in ["run0003", "run0004"] {
            fs::create_dir(dir(name))?;
            fs::File::open(dir(name))?.set_modified(old)?;
        }
        let alive = lock(&dir("run0004"));
        drop(SubmitDir::next_run(base.path())?);
        assert_eq!(
            ["run0003", "run0004"].map(|name| dir(name).exists()),
            [false, alive.is_some()]
        );
        Ok(())
    }

    #[test]
    fn plans_of_a_sub_workflow_are_numbered_behind_a_link() -> Result<(), Box<dyn std::error::Error>> {
        let base = tempfile::tempdir()?;
        let link = base.path().join("00/in_p1");
        for number in 0..2 {
            let dir = SubmitDir::numbered(&link)?;
            fs::write(dir.staging().join("x"), number.to_string())?;
            assert_eq!(dir.path(), base.path().join(format!("00/in_p1.00{number}")));
            dir.publish()?;
            assert_eq!(fs::read_to_string(link.join("x"))?, number.to_string());
        }
        // A plan that fails leaves nothing.
        drop(SubmitDir::numbered(&link)?);
        assert_eq!(fs::read_link(&link)?, Path::new("in_p1.001"));
        assert_eq!(fs::read_dir(base.path().join("00"))?.count(), 3);
        fs::create_dir(base.path().join("other"))?;
        assert!(SubmitDir::numbered(&base.path().join("other")).is_err());
        Ok(())
    }

    #[test]
    fn an_existing_directory_keeps_its_other_files() -> Result<(), Box<dyn std::error::Error>> {
        let base = tempfile::tempdir()?;
        let path = base.path().join("mine");
        fs::create_dir_all(path.join("00"))?;
        fs::write(path.join("wf.dag.rescue"), "DONE a\n")?;
        fs::write(path.join("00/x"), "old")?;
        let dir = SubmitDir::named(&path)?;
        fs::create_dir(dir.staging().join("00"))?;
        fs::write(dir.staging().join("00/x"), "new")?;
        fs::write(dir.staging().join("braindump.yml"), "")?;
        dir.publish()?;
        assert_eq!(fs::read_to_string(path.join("00/x"))?, "new");
        assert!(path.join("wf.dag.rescue").exists());
        assert_eq!(fs::read_dir(base.path())?.count(), 1);
        Ok(())
    }
}
