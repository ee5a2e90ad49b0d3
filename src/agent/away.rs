//! Agents on hosts that do not see the directory of the DAG file: whether that is so, and a directory of
//! their own.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::unistd::geteuid;
use pmc_link::Endpoint;
use rustix::fs::{FlockOperation, flock};
use tempfile::TempDir;

/// Time for a file of another host to be seen on a shared file system, once its directory is.
const VISIBLE_TIMEOUT: Duration = Duration::from_secs(1);

const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Beginning of the names of directories, before the number of the user.
const PREFIX: &str = "pmc-agent-";

/// Returns whether this host sees the file `path` that the master has written, which says how to reach it.
/// Another file of that name is one of this host, or of another run.
pub(super) fn sees(path: &Path, endpoint: &Endpoint) -> bool {
    let begun = Instant::now();
    loop {
        if Endpoint::read(path).is_ok_and(|read| read.is_of_run(endpoint)) {
            return true;
        }
        let has_folder = path.parent().is_some_and(Path::is_dir);
        if !has_folder || begun.elapsed() >= VISIBLE_TIMEOUT {
            return false;
        }
        std::thread::sleep(RETRY_INTERVAL);
    }
}

/// A directory of the agent. It is locked while the agent lives: the next agent removes those of agents that
/// were killed.
#[derive(Debug)]
pub(super) struct OwnDirectory {
    directory: TempDir,
    _lock: File,
}

impl OwnDirectory {
    /// Makes a directory in TMPDIR or `/tmp`, and removes those of killed agents there.
    pub(super) fn make(environment: &[(OsString, OsString)]) -> io::Result<Self> {
        let variable = environment.iter().find(|(name, _)| name == "TMPDIR");
        let chosen = variable.map(|(_, value)| PathBuf::from(value));
        let base = chosen.filter(|folder| folder.is_absolute());
        Self::make_in(&base.unwrap_or_else(|| "/tmp".into()))
    }

    fn make_in(base: &Path) -> io::Result<Self> {
        let prefix = format!("{PREFIX}{}-", geteuid());
        sweep(base, &prefix);
        loop {
            let directory = tempfile::Builder::new().prefix(&prefix).tempdir_in(base)?;
            // Another agent may have taken it for that of a killed one.
            if let Some(lock) = lock(directory.path())? {
                return Ok(Self {
                    directory,
                    _lock: lock,
                });
            }
        }
    }

    pub(super) fn path(&self) -> &Path {
        self.directory.path()
    }
}

/// Locks a directory. `None` if an agent has it, or it is gone.
fn lock(directory: &Path) -> io::Result<Option<File>> {
    let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW;
    let mut options = OpenOptions::new();
    let file = match options.read(true).custom_flags(flags).open(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let is_locked = flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
    Ok((is_locked && file.metadata()?.nlink() > 0).then_some(file))
}

/// Removes the directories of killed agents. What cannot be removed stays for the next sweep.
fn sweep(base: &Path, prefix: &str) {
    for entry in fs::read_dir(base).into_iter().flatten().flatten() {
        let is_own = entry.file_name().to_string_lossy().starts_with(prefix)
            && entry
                .metadata()
                .is_ok_and(|status| status.is_dir() && status.uid() == geteuid().as_raw());
        if is_own && let Ok(Some(_lock)) = lock(&entry.path()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_of_killed_agents_are_removed() {
        let base = tempfile::tempdir().unwrap();
        let (first, killed) = (
            OwnDirectory::make_in(base.path()).unwrap(),
            OwnDirectory::make_in(base.path()).unwrap(),
        );
        let left = killed.path().to_owned();
        fs::write(left.join("a"), "a").unwrap();
        // As if its process had died.
        let OwnDirectory { directory, _lock } = killed;
        let _ = directory.keep();
        drop(_lock);
        let second = OwnDirectory::make_in(base.path()).unwrap();
        assert!(first.path().is_dir() && second.path().is_dir() && !left.exists());
        drop((first, second));
        assert_eq!(fs::read_dir(base.path()).unwrap().count(), 0);
    }
}
