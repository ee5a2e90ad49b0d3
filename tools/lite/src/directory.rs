//! The directory of a job on the node.
//!
//! Each directory has a lock file, which its process holds locked. A lock that is free belongs to a process
//! that was killed: the next job of the node removes its directory. The first line of the lock file says
//! which directory it is, so that nothing else of the same name is removed; the rest is the note of the job.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::sys::statvfs::statvfs;
use nix::unistd::getuid;
use pmc_files::OFlags;
use pmc_node_files::{is_private, make_private, remove_tree};
use rustix::fs::{FlockOperation, flock};

use crate::messages::Log;

/// Variables with directories for jobs, best first, as in Pegasus' job scripts.
const VARIABLES: [&str; 8] = [
    "PEGASUS_WN_TMP",
    "_CONDOR_SCRATCH_DIR",
    "OSG_WN_TMP",
    "TG_NODE_SCRATCH",
    "TG_CLUSTER_SCRATCH",
    "SCRATCH",
    "TMPDIR",
    "TMP",
];

/// The directory that is tried last.
const LAST: &str = "/tmp";

/// Free space that a directory must have, in KiB, unless [`MIN_SPACE_VARIABLE`] says otherwise.
const MIN_SPACE: u64 = 1_000_000;

/// Variable with the free space that a directory must have, in KiB.
const MIN_SPACE_VARIABLE: &str = "PEGASUS_WN_TMP_MIN_SPACE";

/// Beginning of the names of directories of jobs.
const PREFIX: &str = "pegasus.";

/// Attempts to make a directory, should others sweep at the same moment.
const ATTEMPTS: u32 = 16;

/// Attempts to remove a directory in which the program of a killed job still makes files.
const REMOVALS: u32 = 8;

/// Maximum bytes of the text of a lock.
const MAX_NOTE: u64 = 1 << 16;

/// The directory of a job. [`Self::remove`] ends it; if the process is killed before, the next job does.
#[derive(Debug)]
pub(crate) struct JobDirectory {
    path: PathBuf,
    /// First line of the lock file.
    identity: String,
    /// Its name, and the locked file; `None` if the program that has started the job has made the
    /// directory, and removes it.
    lock: Option<(PathBuf, File)>,
}

/// What other parts of the program do for [`JobDirectory::make`].
pub(crate) struct Helpers<'a> {
    /// Gets what a killed job has noted.
    pub(crate) left: &'a dyn Fn(&str),
    /// Frees space in a directory that seems not to be suitable.
    pub(crate) make_room: &'a dyn Fn(&Path),
    /// Gets messages for people.
    pub(crate) log: &'a Log,
}

/// No directory can be used.
#[derive(Debug, thiserror::Error)]
#[error(
    "no directory for the job: {}; set PEGASUS_WN_TMP (profile env of the job, or localScratch of the site) to a \
     directory of the node", .0.join("; ")
)]
pub(crate) struct NoDirectory(Vec<String>);

impl JobDirectory {
    /// Makes a directory in `first`, or else in the first suitable directory that a variable names. Removes
    /// directories of killed jobs there. `helpers` does what else is necessary.
    ///
    /// # Errors
    /// No directory is suitable; the message says why.
    pub(crate) fn make(
        first: Option<&Path>,
        variable: &dyn Fn(&str) -> Option<OsString>,
        helpers: &Helpers<'_>,
    ) -> Result<Self, NoDirectory> {
        let value = |name: &str| variable(name).filter(|value| !value.is_empty());
        let text = |name: &str| value(name)?.into_string().ok();
        let min_space = text(MIN_SPACE_VARIABLE).and_then(|kib| kib.trim().parse().ok());
        let min_space = min_space.unwrap_or(MIN_SPACE);
        let named = VARIABLES.iter().filter_map(|name| value(name).map(PathBuf::from));
        let mut reasons = Vec::new();
        for base in first
            .map(Path::to_owned)
            .into_iter()
            .chain(named)
            .chain([LAST.into()])
        {
            helpers.log.say(format_args!(
                "Checking {} for potential use as work space",
                base.display()
            ));
            let checked = check(&base, min_space).or_else(|_| {
                (helpers.make_room)(&base);
                check(&base, min_space)
            });
            let made = checked.and_then(|()| {
                sweep(&base, helpers);
                Self::make_in(&base).map_err(|error| error.to_string())
            });
            match made {
                Ok(this) => {
                    helpers.log.directory(this.path.display());
                    return Ok(this);
                }
                Err(reason) => {
                    helpers
                        .log
                        .say(format_args!("Not usable: {}: {reason}", base.display()));
                    reasons.push(format!("{}: {reason}", base.display()));
                }
            }
        }
        Err(NoDirectory(reasons))
    }

    /// Returns the directory in which the job was started, which is its own.
    pub(crate) fn started_in(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            identity: String::new(),
            lock: None,
        }
    }

    fn make_in(base: &Path) -> io::Result<Self> {
        for _ in 0..ATTEMPTS {
            let locks = make_locks(base)?;
            let made = tempfile::Builder::new()
                .prefix("")
                .rand_bytes(9)
                .tempfile_in(&locks);
            if made
                .as_ref()
                .is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
            {
                // The last job of the node has removed it just now.
                continue;
            }
            let (file, lock) = made?.keep().map_err(|error| error.error)?;
            // A sweep may have seen the file before it was locked.
            if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err()
                || file.metadata()?.nlink() == 0
            {
                continue;
            }
            let Some(name) = lock.file_name() else { continue };
            let path = directory_of(base, name.as_encoded_bytes());
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => {
                    let path = path.canonicalize()?;
                    let this = Self {
                        identity: identity(&fs::symlink_metadata(&path)?),
                        path,
                        lock: Some((lock, file)),
                    };
                    this.note("")?;
                    return Ok(this);
                }
                Err(error) => {
                    fs::remove_file(&lock)?;
                    if error.kind() != io::ErrorKind::AlreadyExists {
                        return Err(error);
                    }
                }
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Returns its absolute path without links.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Notes what has to be done should this process be killed. A later note replaces it.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn note(&self, text: &str) -> io::Result<()> {
        let Some((_, file)) = &self.lock else {
            return Ok(());
        };
        let text = format!("{}{text}", self.identity);
        file.write_all_at(text.as_bytes(), 0)?;
        file.set_len(text.len() as u64)
    }

    /// Removes the directory with its content, and directories of jobs that were killed meanwhile: this may
    /// be the last job of the node.
    ///
    /// # Errors
    /// Something in it cannot be removed. The next job tries again.
    pub(crate) fn remove(self, helpers: &Helpers<'_>) -> io::Result<()> {
        let Some((lock, file)) = self.lock else {
            return Ok(());
        };
        remove_tree(&self.path)?;
        fs::remove_file(&lock)?;
        drop(file);
        let (base, locks) = (self.path.parent(), lock.parent());
        if let Some((base, locks)) = base.zip(locks)
            && fs::remove_dir(locks).is_err()
        {
            sweep(base, helpers);
            // Jobs that run have their locks there.
            let _ = fs::remove_dir(locks);
        }
        Ok(())
    }
}

/// Returns what distinguishes a directory from all others of the node.
fn identity(status: &fs::Metadata) -> String {
    format!("{} {}\n", status.dev(), status.ino())
}

/// Returns why a directory is not suitable.
fn check(base: &Path, min_space: u64) -> Result<(), String> {
    if !base.is_dir() {
        return Err("it is no directory".to_owned());
    }
    let space = statvfs(base).map_err(|error| error.desc().to_owned())?;
    let free = space.blocks_available().saturating_mul(space.fragment_size()) / 1024;
    if free < min_space {
        return Err(format!("not enough disk space: {free} of {min_space} KiB"));
    }
    Ok(())
}

/// Returns the usual directory of the lock files of this user's jobs.
fn locks_of(base: &Path) -> PathBuf {
    base.join(format!(".pegasus-lite-{}", getuid()))
}

/// Beginning of the names of other directories for lock files.
fn other_locks() -> String {
    format!(".pegasus-lite-{}.", getuid())
}

/// Returns the directories with lock files of this user's jobs: if another user has taken the usual name,
/// those with other names.
fn all_locks(base: &Path) -> Vec<PathBuf> {
    let usual = locks_of(base);
    if is_private(&usual) || fs::symlink_metadata(&usual).is_err() {
        return vec![usual];
    }
    let prefix = other_locks();
    let entries = fs::read_dir(base).into_iter().flatten().flatten();
    let others = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix));
    let paths = others.map(|entry| entry.path());
    paths.filter(|path| is_private(path)).collect()
}

/// Makes a directory for lock files, unless there is one. Another user may have taken the usual name.
fn make_locks(base: &Path) -> io::Result<PathBuf> {
    let usual = locks_of(base);
    match make_private(&usual) {
        Ok(()) => Ok(usual),
        Err(error) if fs::symlink_metadata(&usual).is_err() => Err(error),
        Err(_) => match all_locks(base).pop() {
            Some(other) => Ok(other),
            None => Ok(tempfile::Builder::new()
                .prefix(&other_locks())
                .tempdir_in(base)?
                .keep()),
        },
    }
}

fn directory_of(base: &Path, name: &[u8]) -> PathBuf {
    base.join(format!("{PREFIX}{}", String::from_utf8_lossy(name)))
}

/// Removes the directories of killed jobs. What cannot be removed stays for the next sweep.
fn sweep(base: &Path, helpers: &Helpers<'_>) {
    let locks = all_locks(base).into_iter().flat_map(fs::read_dir);
    for entry in locks.flatten().flatten() {
        let lock = entry.path();
        let Ok(file) = pmc_files::open_for_writing(&lock, OFlags::RDWR, 0o600) else {
            continue;
        };
        let is_free = flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
        if !is_free || file.metadata().is_ok_and(|status| status.nlink() == 0) {
            continue;
        }
        let text = pmc_files::read_rest(&file, MAX_NOTE).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let (known, note) = text.split_at(text.find('\n').map_or(0, |end| end + 1));
        if !note.is_empty() {
            (helpers.left)(note);
        }
        let left = directory_of(base, entry.file_name().as_encoded_bytes());
        match remove_left(&left, known) {
            Ok(()) => {
                let _ = fs::remove_file(&lock);
            }
            Err(error) => helpers.log.say(format_args!(
                "the directory {} of a killed job cannot be removed: {error}",
                left.display()
            )),
        }
    }
}

/// Removes the directory of a killed job. What else has its name stays: another user can have put it there.
fn remove_left(left: &Path, known: &str) -> io::Result<()> {
    let Ok(status) = fs::symlink_metadata(left) else {
        return Ok(());
    };
    if !status.is_dir() || status.uid() != getuid().as_raw() {
        return Ok(());
    }
    if known.is_empty() {
        // The job was killed before it put anything there.
        return match fs::remove_dir(left) {
            Err(error) if error.kind() != io::ErrorKind::DirectoryNotEmpty => Err(error),
            _ => Ok(()),
        };
    }
    if identity(&status) != known {
        return Ok(());
    }
    let mut removed = remove_tree(left);
    for _ in 1..REMOVALS {
        match &removed {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => removed = remove_tree(left),
            _ => break,
        }
    }
    removed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn none(_: &str) -> Option<OsString> {
        None
    }

    fn helpers(log: &Log) -> Helpers<'_> {
        Helpers {
            left: &|_| {},
            make_room: &|_| {},
            log,
        }
    }

    fn names(base: &Path) -> Vec<String> {
        let entries = fs::read_dir(base).unwrap().flatten();
        let mut names: Vec<String> = entries
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .filter(|name| name.starts_with(PREFIX))
            .collect();
        names.sort();
        names
    }

    fn small(name: &str) -> Option<OsString> {
        (name == MIN_SPACE_VARIABLE).then(|| "1".into())
    }

    #[test]
    fn directory_is_made_in_the_first_suitable_place_and_removed() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().to_owned();
        let variable = move |name: &str| match name {
            "PEGASUS_WN_TMP" => Some("/nowhere/at/all".into()),
            "SCRATCH" => Some(path.clone().into_os_string()),
            name => small(name),
        };
        let directory = JobDirectory::make(None, &variable, &helpers(&Log::unread())).unwrap();
        assert_eq!(
            directory.path().parent(),
            Some(base.path().canonicalize().unwrap().as_path())
        );
        // A job may take away its own rights.
        let inner = directory.path().join("closed");
        DirBuilder::new().mode(0o000).create(&inner).unwrap();
        directory.remove(&helpers(&Log::unread())).unwrap();
        assert!(names(base.path()).is_empty());
    }

    #[test]
    fn lack_of_space_is_told() {
        let variable = |name: &str| match name {
            MIN_SPACE_VARIABLE => Some(u64::MAX.to_string().into()),
            name => none(name),
        };
        let asked = std::cell::Cell::new(false);
        let log = Log::unread();
        let helpers = Helpers {
            make_room: &|_| asked.set(true),
            ..helpers(&log)
        };
        let error = JobDirectory::make(None, &variable, &helpers)
            .unwrap_err()
            .to_string();
        assert!(asked.get());
        assert!(error.contains("not enough disk space"), "{error}");
        assert!(error.contains("set PEGASUS_WN_TMP"), "{error}");
    }

    #[test]
    fn directories_of_killed_jobs_are_removed_and_others_kept() {
        check_sweep(&tempfile::tempdir().unwrap());
    }

    /// In a directory that all may write, another user can take the name of the directory for locks.
    #[test]
    fn a_planted_name_holds_up_no_job() {
        let base = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), locks_of(base.path())).unwrap();
        check_sweep(&base);
        assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0);
        assert!(locks_of(base.path()).is_symlink());
    }

    /// Ends a job as SIGKILL does: its lock is free, all else stays. Returns its directory.
    fn kill(job: JobDirectory) -> PathBuf {
        let (path, lock) = (
            job.path.clone(),
            File::open(&job.lock.as_ref().unwrap().0).unwrap(),
        );
        drop(job);
        // A process that another test starts has the lock, too, until it executes its program.
        flock(&lock, FlockOperation::LockExclusive).unwrap();
        path
    }

    /// What has the name of the directory of a killed job, but is not the one, stays.
    #[test]
    fn only_the_directory_that_a_job_has_made_is_removed() {
        let base = tempfile::tempdir().unwrap();
        let log = Log::unread();
        let make = || JobDirectory::make(Some(base.path()), &small, &helpers(&log)).unwrap();
        let (moved, linked, early, filled) = (make(), make(), make(), make());
        for job in [&early, &filled] {
            job.lock.as_ref().unwrap().1.set_len(0).unwrap();
        }
        let [moved, linked, early, filled] = [moved, linked, early, filled].map(kill);
        let elsewhere = tempfile::tempdir().unwrap();
        fs::write(elsewhere.path().join("kept"), "").unwrap();
        // As another user can, where the base has no sticky bit.
        fs::rename(&moved, elsewhere.path().join("moved")).unwrap();
        fs::create_dir(&moved).unwrap();
        fs::write(moved.join("kept"), "").unwrap();
        fs::remove_dir(&linked).unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), &linked).unwrap();
        fs::write(filled.join("kept"), "").unwrap();
        make().remove(&helpers(&log)).unwrap();
        assert!(moved.join("kept").exists() && filled.join("kept").exists());
        assert!(linked.is_symlink() && elsewhere.path().join("kept").exists());
        assert!(!early.exists());
        assert!(!locks_of(base.path()).exists(), "no lock is left");
    }

    /// The last job of a node finds what was left while it ran.
    #[test]
    fn a_job_sweeps_at_its_end_too() {
        let base = tempfile::tempdir().unwrap();
        let log = Log::unread();
        let make = || JobDirectory::make(Some(base.path()), &small, &helpers(&log)).unwrap();
        let (killed, running, last) = (make(), make(), make());
        let left = kill(killed);
        fs::write(left.join("file"), "").unwrap();
        last.remove(&helpers(&log)).unwrap();
        assert!(!left.exists() && running.path().is_dir());
        running.remove(&helpers(&log)).unwrap();
        assert_eq!(fs::read_dir(base.path()).unwrap().count(), 0);
    }

    fn check_sweep(base: &tempfile::TempDir) {
        let noted = std::cell::RefCell::new(Vec::new());
        let note = |text: &str| noted.borrow_mut().push(text.to_owned());
        let log = Log::unread();
        let helpers = Helpers {
            left: &note,
            ..helpers(&log)
        };
        let make = || JobDirectory::make(Some(base.path()), &small, &helpers).unwrap();
        let (killed, running) = (make(), make());
        fs::write(killed.path().join("data"), "x").unwrap();
        // Of Pegasus' own job scripts: never touched.
        fs::create_dir(base.path().join("pegasus.ABCDEFGHI")).unwrap();
        killed.note("docker b").unwrap();
        running.note("docker c").unwrap();
        kill(killed);
        let next = make();
        let mut expected = vec!["pegasus.ABCDEFGHI".to_owned()];
        expected.extend([&running, &next].map(|directory| {
            directory
                .path()
                .file_name()
                .unwrap()
                .to_string_lossy()
                .into_owned()
        }));
        expected.sort();
        assert_eq!(names(base.path()), expected);
        assert_eq!(*noted.borrow(), ["docker b"]);
    }
}
