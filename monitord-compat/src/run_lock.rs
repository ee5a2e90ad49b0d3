//! Locks of a run: the executor locks its DAG, a loader locks `monitord.pid`.
//!
//! Both are locks of an open file description, which network file systems pass on to other hosts.

use std::fs::{File, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use pmc_files::OFlags;

use crate::replacement;

/// Name of the file that the loader of a submit directory holds locked.
pub const LOADER_LOCK: &str = "monitord.pid";

/// The lock of the one loader of a submit directory.
///
/// Its file names the process and its host. Dropping the lock removes the file.
#[derive(Debug)]
pub struct LoaderLock {
    file: File,
    path: PathBuf,
}

/// Why a loader did not get its lock.
#[derive(Debug, thiserror::Error)]
pub enum LoaderLockError {
    /// Another loader has it.
    #[error("locked by process {holder}")]
    Held {
        /// Process and host.
        holder: String,
    },
    /// The file cannot be written.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// The error of a file system that has no locks.
pub type Unsupported = Errno;

impl LoaderLock {
    /// Takes the lock or fails at once. `timestamp` goes into the file for its readers.
    ///
    /// On a file system without locks, the second value is the reason, and other loaders are not kept away.
    ///
    /// # Errors
    /// Another loader holds the lock, or the file cannot be written.
    pub fn acquire(path: &Path, timestamp: &str) -> Result<(Self, Result<(), Unsupported>), LoaderLockError> {
        loop {
            // The directory can be that of another user, who may have planted a link.
            // Who may read the file can lock it, so a new one is readable only when it is locked.
            let mut file = pmc_files::open_for_writing(path, OFlags::RDWR | OFlags::CREATE, 0o600)?;
            let locked = match lock(&file) {
                // No loader takes such a lock: a reader holds on to a file that a killed loader has left.
                Err(Errno::EAGAIN | Errno::EACCES) if is_read_locked(&file) => {
                    std::fs::remove_file(path)?;
                    continue;
                }
                Err(Errno::EAGAIN | Errno::EACCES) => {
                    let holder = read_holder(&mut file);
                    return Err(LoaderLockError::Held { holder });
                }
                locked => locked,
            };
            // The previous loader may have removed the file after it was opened here.
            let own = file.metadata()?;
            let is_same = |now: std::fs::Metadata| (now.dev(), now.ino()) == (own.dev(), own.ino());
            if !path.metadata().is_ok_and(is_same) {
                continue;
            }
            // Only its owner can do it.
            let _ = file.set_permissions(Permissions::from_mode(0o644));
            file.set_len(0)?;
            let host = gethostname::gethostname();
            let pid = std::process::id();
            write!(
                file,
                "pid {pid}\ntimestamp {timestamp}\nhost {}\n",
                host.display()
            )?;
            let path = path.to_owned();
            return Ok((Self { file, path }, locked));
        }
    }
}

impl Drop for LoaderLock {
    fn drop(&mut self) {
        // While the lock is held, so that the file of another loader is never removed.
        let _ = std::fs::remove_file(&self.path);
        let _ = self.file.flush();
    }
}

/// Why a DAG is not locked.
#[derive(Debug, thiserror::Error)]
pub enum DagLockError {
    /// It cannot be opened for writing.
    #[error("cannot open the DAG: {0}")]
    Open(io::Error),
    /// A run holds the lock, or the file system has no locks.
    #[error("the DAG is locked: {0}")]
    Held(Errno),
    /// A new plan counts, but its files cannot be moved to their places.
    #[error("cannot put the new plan in its place: {0}")]
    Replace(io::Error),
}

/// The lock of a DAG. Dropping it releases the lock.
#[derive(Debug)]
pub struct DagGuard {
    _dag: File,
    _beside: Option<File>,
}

/// Locks the DAG of a submit directory for as long as the result lives. If the plan was being replaced, the
/// new plan is put in its place first.
///
/// # Errors
/// The DAG cannot be opened or is locked, or the new plan cannot be put in its place.
pub fn lock_dag(path: &Path) -> Result<DagGuard, DagLockError> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    let dir = dir.unwrap_or(Path::new("."));
    loop {
        let file = pmc_files::open_output(path, OFlags::RDWR, 0);
        let file = file.map_err(DagLockError::Open)?;
        let beside = lock_against_runs(&file, path).map_err(DagLockError::Held)?;
        if replacement::is_pending(dir) {
            replacement::finish(dir, path.file_name().unwrap_or_default()).map_err(DagLockError::Replace)?;
        }
        let own = file.metadata().map_err(DagLockError::Open)?;
        let is_same = |now: std::fs::Metadata| (now.dev(), now.ino()) == (own.dev(), own.ino());
        // Another DAG may have taken the place of the one that was opened.
        if path.metadata().is_ok_and(is_same) {
            return Ok(DagGuard {
                _dag: file,
                _beside: beside,
            });
        }
    }
}

/// Locks a DAG, or the file beside it, or both.
///
/// Any user who may read the DAG can lock it for reading, which would keep the owner from running it. In that
/// case a second file takes the place of the DAG: only those who may write the DAG can open it. A run that
/// has locked one of the two looks at the other one after that, so two runs cannot miss each other.
fn lock_against_runs(dag: &File, path: &Path) -> Result<Option<File>, Errno> {
    let beside = beside(path);
    match lock(dag) {
        Ok(()) => match pmc_files::open_for_writing(&beside, OFlags::RDWR, 0) {
            Ok(file) => lock(&file).map(|()| Some(file)),
            // This is the usual case.
            Err(_) => Ok(None),
        },
        Err(held) if !is_read_locked(dag) => Err(held),
        Err(held) => {
            let mode = dag.metadata().map_or(0, |data| data.mode()) & 0o222;
            let (flags, mode) = (OFlags::RDWR | OFlags::CREATE, 0o600 | mode | mode << 1);
            let file = pmc_files::open_for_writing(&beside, flags, mode).map_err(|_| held)?;
            lock(&file)?;
            match lock(dag) {
                Err(held) if !is_read_locked(dag) => Err(held),
                _ => Ok(Some(file)),
            }
        }
    }
}

/// Returns the file that is locked in place of a DAG.
fn beside(dag: &Path) -> PathBuf {
    pmc_files::with_suffix(dag, ".lock")
}

/// Returns whether the locks of a file are those of readers, which no run takes.
fn is_read_locked(file: &File) -> bool {
    let mut query = whole_file(libc::F_WRLCK);
    let asked = fcntl(file, FcntlArg::F_OFD_GETLK(&mut query));
    asked.is_ok() && libc::c_int::from(query.l_type) == libc::F_RDLCK
}

/// Locks a whole file for as long as it is open.
///
/// # Errors
/// `EAGAIN` or `EACCES` if the file is locked already; another error if it cannot be locked at all.
pub fn lock(file: &File) -> Result<(), Errno> {
    fcntl(file, FcntlArg::F_OFD_SETLK(&whole_file(libc::F_WRLCK))).map(drop)
}

/// Returns whether a file is locked, as a DAG is while its executor runs. `None` if that is unknown.
#[must_use]
pub fn is_locked(path: &Path) -> Option<bool> {
    Some(is_file_locked(path)? || is_file_locked(&beside(path)) == Some(true))
}

fn is_file_locked(path: &Path) -> Option<bool> {
    let file = pmc_files::open(path).ok()?;
    // Asks without locking, as a lock would disturb the executor.
    let mut query = whole_file(libc::F_RDLCK);
    fcntl(&file, FcntlArg::F_OFD_GETLK(&mut query)).ok()?;
    Some(libc::c_int::from(query.l_type) != libc::F_UNLCK)
}

fn whole_file(kind: libc::c_int) -> libc::flock {
    libc::flock {
        // The constants fit by the definition of the structure.
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    }
}

/// Returns `123 on node7`.
fn read_holder(file: &mut File) -> String {
    let mut text = String::new();
    let _ = file.take(4096).read_to_string(&mut text);
    let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key));
    let pid = value("pid ").unwrap_or("(unknown)");
    match value("host ") {
        Some(host) => format!("{pid} on {host}"),
        None => pid.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dag() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.dag");
        std::fs::write(&path, "TASK a /bin/true\n").unwrap();
        (dir, path)
    }

    /// Locks a file as somebody can who may only read it.
    fn read_lock(path: &Path) -> File {
        let file = File::open(path).unwrap();
        fcntl(&file, FcntlArg::F_OFD_SETLK(&whole_file(libc::F_RDLCK))).unwrap();
        file
    }

    #[test]
    fn two_runs_exclude_each_other() {
        let (dir, path) = dag();
        let first = lock_dag(&path).unwrap();
        assert_eq!(is_locked(&path), Some(true));
        assert!(matches!(lock_dag(&path), Err(DagLockError::Held(_))));
        drop(first);
        assert_eq!(is_locked(&path), Some(false));
        drop(lock_dag(&path).unwrap());
        assert_eq!(
            std::fs::read_dir(dir.path()).unwrap().count(),
            1,
            "no second file"
        );
    }

    #[test]
    fn a_reader_does_not_stop_a_run() {
        let (_dir, path) = dag();
        let reader = read_lock(&path);
        let first = lock_dag(&path).unwrap();
        assert_eq!(is_locked(&path), Some(true));
        assert!(matches!(lock_dag(&path), Err(DagLockError::Held(_))));
        drop(reader);
        // The second run gets the lock of the DAG, and looks beside it.
        assert!(matches!(lock_dag(&path), Err(DagLockError::Held(_))));
        drop(first);
        let second = lock_dag(&path).unwrap();
        assert!(matches!(lock_dag(&path), Err(DagLockError::Held(_))));
        drop(second);
        assert_eq!(beside(&path).metadata().unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_reader_of_a_left_over_lock_does_not_stop_a_loader() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(LOADER_LOCK);
        std::fs::write(&path, "pid 1\n").unwrap();
        let _reader = read_lock(&path);
        let (first, locked) = LoaderLock::acquire(&path, "now").unwrap();
        assert_eq!((locked, is_locked(&path)), (Ok(()), Some(true)));
        assert!(LoaderLock::acquire(&path, "later").is_err());
        drop(first);
    }

    #[test]
    fn the_error_names_the_holder() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(LOADER_LOCK);
        // A file left behind by a killed loader is no lock.
        std::fs::write(&path, "pid 1\n").unwrap();
        let (first, locked) = LoaderLock::acquire(&path, "now").unwrap();
        assert_eq!(locked, Ok(()));
        assert_eq!(is_locked(&path), Some(true));
        let error = LoaderLock::acquire(&path, "later").unwrap_err().to_string();
        let expected = format!("locked by process {} on ", std::process::id());
        assert!(error.starts_with(&expected), "{error}");
        drop(first);
        assert!(!path.exists());
        assert!(LoaderLock::acquire(&path, "later").is_ok());
        assert_eq!(is_locked(&dir.path().join("none")), None);
    }
}
