//! The lock of a DAG file: only one run of a DAG at a time.

use std::fs::File;
use std::path::{Path, PathBuf};

use monitord_compat::run_lock::{DagGuard, DagLockError, lock, lock_dag};
use nix::errno::Errno;
use nix::libc;
use pmc_dag::reason;

/// The lock of a DAG file. Dropping it releases the lock.
///
/// It belongs to the open file, not to the process. So, unlike the lock of the original, it is not lost when
/// the process closes another descriptor of the same file. The two exclude each other.
#[derive(Debug)]
pub struct DagLock {
    _guard: DagGuard,
}

/// Why there is no lock. `Display` is the text of the original.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error("Unable to open DAG file: {}: {}", path.display(), reason(source))]
    Open { path: PathBuf, source: std::io::Error },
    #[error(
        "Unable to lock DAG file: {}: {}. The lock needs write permission; -n (--nolock) runs the DAG without a lock",
        path.display(), reason(source)
    )]
    ReadOnly { path: PathBuf, source: std::io::Error },
    #[error("DAG file is already locked by another process: {}: {}", path.display(), reason(source))]
    Held { path: PathBuf, source: std::io::Error },
    #[error("Unable to put the new plan in its place: {}: {}", path.display(), reason(source))]
    Replace { path: PathBuf, source: std::io::Error },
}

impl DagLock {
    /// Locks the file or fails at once. If the plan was being replaced, the new one is put in its place
    /// first.
    ///
    /// # Errors
    /// The file cannot be opened for writing, it is already locked, or a new plan cannot be put in its place.
    pub fn acquire(path: &Path) -> Result<Self, LockError> {
        let own_path = || path.to_owned();
        match lock_dag(path) {
            Ok(guard) => Ok(Self { _guard: guard }),
            Err(DagLockError::Open(source)) => {
                let path = own_path();
                let is_refused = matches!(
                    source.raw_os_error(),
                    Some(libc::EACCES | libc::EPERM | libc::EROFS)
                );
                if is_refused && File::open(&path).is_ok() {
                    Err(LockError::ReadOnly { path, source })
                } else {
                    Err(LockError::Open { path, source })
                }
            }
            Err(DagLockError::Held(error)) => Err(LockError::Held {
                path: own_path(),
                source: error.into(),
            }),
            Err(DagLockError::Replace(source)) => Err(LockError::Replace {
                path: own_path(),
                source,
            }),
        }
    }
}

/// Locks a writable file for as long as it is open. Returns false if it is already locked. On file systems
/// without locks, every file counts as unlocked.
pub(crate) fn lock_if_possible(file: &File) -> bool {
    !matches!(lock(file), Err(Errno::EAGAIN | Errno::EACCES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_lock_fails_until_the_first_is_dropped() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let first = DagLock::acquire(file.path()).unwrap();
        // Reading the file and closing it again must not end the lock.
        drop(File::open(file.path()).unwrap());
        let error = DagLock::acquire(file.path()).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("DAG file is already locked by another process: "),
            "{error}"
        );
        drop(first);
        DagLock::acquire(file.path()).unwrap();
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = DagLock::acquire(Path::new("no/such.dag")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "Unable to open DAG file: no/such.dag: No such file or directory"
        );
    }
}
