//! Lock of a catalog file that several processes change.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::CatalogError;

/// Maximum time to wait for a lock. Holding it takes milliseconds.
const LOCK_TIMEOUT: Duration = Duration::from_secs(120);

/// A lock on a catalog file, held on a separate file beside it. A lock on the catalog itself would be lost
/// when the catalog is replaced by renaming.
pub(super) struct Locked {
    path: PathBuf,
    _lock: File,
}

impl Locked {
    /// Waits for the lock.
    pub(super) fn wait(path: &Path) -> Result<Self, CatalogError> {
        // Resolve links, so that all names of a catalog share the lock and the link is kept.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let mut name = path.as_os_str().to_owned();
        name.push(".lock");
        let lock = fs::OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&name)
            .map_err(CatalogError::io("open its lock file", &path))?;
        restrict(&lock, &path);
        acquire(&lock, LOCK_TIMEOUT).map_err(CatalogError::io("lock it", &path))?;
        Ok(Self { path, _lock: lock })
    }

    /// Replaces the content in one step, and keeps the permissions.
    pub(super) fn replace(&self, content: &str) -> Result<(), CatalogError> {
        let write = || -> io::Result<()> {
            let directory = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
            let mut name = OsString::from(".pegasus-rc-client-");
            name.push(self.path.file_name().unwrap_or_default());
            let new = directory.unwrap_or(Path::new(".")).join(name);
            let target = pmc_files::replaceable(&self.path)?;
            // Only the holder of the lock uses this name. What a killed process has left goes away here.
            let mut file = pmc_files::create_anew(&new)?;
            let written = || {
                if let Ok(meta) = fs::metadata(&self.path) {
                    file.set_permissions(meta.permissions())?;
                }
                file.write_all(content.as_bytes())?;
                file.sync_all()?;
                fs::rename(&new, target)
            };
            written().inspect_err(|_| {
                // The first error counts.
                let _ = fs::remove_file(&new);
            })
        };
        write().map_err(CatalogError::io("write", &self.path))
    }
}

/// Lets only those users open the lock file who may write the catalog. Any user who can open it can hold the
/// lock.
fn restrict(lock: &File, catalog: &Path) {
    let mode = fs::metadata(catalog).map_or(0o600, |data| data.permissions().mode());
    // Reading the lock file goes with writing the catalog.
    let writable = (mode & 0o222) | 0o200;
    let wanted = writable | writable << 1;
    let is_wider = lock
        .metadata()
        .is_ok_and(|data| data.permissions().mode() & 0o777 != wanted);
    if is_wider {
        // Only the owner of the lock file can do it. It made the file like this, too.
        let _ = lock.set_permissions(fs::Permissions::from_mode(wanted));
    }
}

/// Waits for the lock, at most `timeout`.
fn acquire(lock: &File, timeout: Duration) -> io::Result<()> {
    let start = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        match rustix::fs::flock(lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(Errno::WOULDBLOCK) if start.elapsed() < timeout => {
                std::thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(50));
            }
            Err(Errno::WOULDBLOCK) => {
                let inode = lock.metadata().map(|data| data.ino());
                let holder = inode.ok().and_then(|inode| holder("FLOCK", &[inode]));
                let holder = holder.map_or_else(String::new, |pid| format!(" by process {pid}"));
                let reason = format!("it has been locked{holder} for {} s", timeout.as_secs());
                return Err(io::Error::new(io::ErrorKind::TimedOut, reason));
            }
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Returns the process on this host that holds a lock of this kind on one of the files with these inodes,
/// from `/proc/locks`: see proc_locks(5).
pub(super) fn holder(kind: &str, inodes: &[u64]) -> Option<u32> {
    let locks = fs::read_to_string("/proc/locks").ok()?;
    locks.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, of_kind, _, _, pid, file, ..] = words[..] else {
            return None;
        };
        let inode = file.rsplit(':').next()?.parse().ok()?;
        (of_kind == kind && inodes.contains(&inode))
            .then(|| pid.parse().ok())
            .flatten()
    })
}

/// Reads a file. A missing file is empty.
pub(super) fn read(path: &Path) -> Result<String, CatalogError> {
    match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        result => result.map_err(CatalogError::io("read", path)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn only_writers_of_the_catalog_can_lock_it() {
        let dir = tempfile::tempdir().unwrap();
        let (catalog, lock) = (dir.path().join("rc.txt"), dir.path().join("rc.txt.lock"));
        for (permissions, wanted) in [(0o644, 0o600), (0o664, 0o660), (0o666, 0o666), (0o600, 0o600)] {
            fs::write(&catalog, "").unwrap();
            fs::set_permissions(&catalog, fs::Permissions::from_mode(permissions)).unwrap();
            drop(Locked::wait(&catalog).unwrap());
            assert_eq!(mode(&lock), wanted, "{permissions:o}");
        }
    }

    #[test]
    fn waiting_ends_and_names_the_holder() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let held = File::create(&path).unwrap();
        acquire(&held, Duration::ZERO).unwrap();
        let other = File::open(&path).unwrap();
        let error = acquire(&other, Duration::from_millis(20)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let wanted = format!("by process {}", std::process::id());
        assert!(error.to_string().contains(&wanted), "{error}");
    }

    #[test]
    fn a_killed_writer_leaves_nothing_for_long() {
        let dir = tempfile::tempdir().unwrap();
        let catalog = dir.path().join("rc.txt");
        fs::write(dir.path().join(".pegasus-rc-client-rc.txt"), "half").unwrap();
        Locked::wait(&catalog).unwrap().replace("whole\n").unwrap();
        assert_eq!(fs::read_to_string(&catalog).unwrap(), "whole\n");
        let names = fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = names.collect();
        names.sort();
        assert_eq!(names, ["rc.txt", "rc.txt.lock"]);
    }

    #[test]
    fn a_device_is_not_replaced() {
        let locked = Locked {
            path: "/dev/null".into(),
            _lock: File::open("/dev/null").unwrap(),
        };
        let error = locked.replace("x").unwrap_err();
        assert!(error.to_string().contains("is a device"), "{error}");
    }
}
