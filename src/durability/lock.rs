//! Keeping other runs of the same DAG away.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use pmc_dag::reason;

/// The lock of a DAG file; it lasts as long as this value.
///
/// It belongs to the open file, not to the process: unlike the lock of the original, it does not
/// vanish when something else closes the same file. The two respect each other.
#[derive(Debug)]
pub struct DagLock {
    _file: File,
}

/// Why there is no lock. `Display` gives the text of the original.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error("Unable to open DAG file: {}: {}", path.display(), reason(source))]
    Open { path: PathBuf, source: std::io::Error },
    #[error("DAG file is already locked by another process: {}: {}", path.display(), reason(source))]
    Held { path: PathBuf, source: std::io::Error },
}

impl DagLock {
    /// Locks the file, or fails at once.
    ///
    /// # Errors
    /// The file cannot be opened for writing, or somebody else has it locked.
    pub fn acquire(path: &Path) -> Result<Self, LockError> {
        let file = OpenOptions::new().read(true).write(true).open(path);
        let file = file.map_err(|source| LockError::Open {
            path: path.to_owned(),
            source,
        })?;
        match lock(&file) {
            Ok(()) => Ok(Self { _file: file }),
            Err(error) => Err(LockError::Held {
                path: path.to_owned(),
                source: error.into(),
            }),
        }
    }
}

/// Locks a whole file for as long as it is open.
fn lock(file: &File) -> Result<(), Errno> {
    let whole = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    fcntl(file, FcntlArg::F_OFD_SETLK(&whole)).map(drop)
}

/// Locks a file that is open for writing, for as long as it is open; false if somebody else has it
/// locked. Where files cannot be locked at all, nobody has.
pub(crate) fn lock_if_possible(file: &File) -> bool {
    !matches!(lock(file), Err(Errno::EAGAIN | Errno::EACCES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_at_a_time() {
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
    fn a_missing_file() {
        let error = DagLock::acquire(Path::new("no/such.dag")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "Unable to open DAG file: no/such.dag: No such file or directory"
        );
    }
}
