//! Lock of a catalog file that several processes change.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pmc_files::{Destination, OFlags, Replacement};
use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::CatalogError;

/// Maximum time to wait for a lock. Holding it takes milliseconds.
const LOCK_TIMEOUT: Duration = Duration::from_secs(120);

/// A lock on a catalog file, held on a separate file beside it. A lock on the catalog itself would be lost
/// when the catalog is replaced by renaming.
pub(super) struct Locked {
    path: PathBuf,
    catalog: Destination,
    _lock: File,
}

impl Locked {
    /// Waits for the lock.
    pub(super) fn wait(path: &Path) -> Result<Self, CatalogError> {
        // All names of a catalog share the lock, and a link is kept.
        let catalog = Destination::new(path).map_err(CatalogError::io("open", path))?;
        // In the directory of another user it may be a link to a file whose mode must not change.
        let lock = catalog
            .open_beside(".lock", OFlags::WRONLY | OFlags::CREATE, 0o600)
            .map_err(CatalogError::io("open its lock file", path))?;
        restrict(&lock, catalog.mode());
        acquire(&lock, LOCK_TIMEOUT).map_err(CatalogError::io("lock it", path))?;
        Ok(Self {
            path: path.to_owned(),
            catalog,
            _lock: lock,
        })
    }

    /// Replaces the content in one step, and keeps the permissions.
    pub(super) fn replace(&self, content: &str) -> Result<(), CatalogError> {
        let write = || -> io::Result<()> {
            let file = temporary(&self.catalog)?;
            if let Some(mode) = self.catalog.mode() {
                file.file().set_permissions(fs::Permissions::from_mode(mode))?;
            }
            file.file().write_all(content.as_bytes())?;
            file.file().sync_all()?;
            file.publish()
        };
        write().map_err(CatalogError::io("write", &self.path))
    }
}

/// Creates a file that is to replace the catalog with this name. Its own name depends on that of the catalog
/// only: the holder of the lock finds, and removes, what a killed process has left.
fn temporary(catalog: &Destination) -> io::Result<Replacement<'_>> {
    let mut hasher = DefaultHasher::new();
    catalog.name().hash(&mut hasher);
    catalog.only_replacement(&format!(".pegasus-rc-client-{:x}", hasher.finish()), 0o666)
}

/// Lets only those users open the lock file who may write the catalog with this mode. Any user who can open
/// it can hold the lock.
fn restrict(lock: &File, mode: Option<u32>) {
    let mode = mode.unwrap_or(0o600);
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
                let reason = is_locked_by(lock.metadata().ok().as_ref(), "FLOCK", timeout);
                return Err(io::Error::new(io::ErrorKind::TimedOut, reason));
            }
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Describes a lock that is not released, with the process on this host that holds it, if it is known from
/// `/proc/locks`: see proc_locks(5). `kind` is `FLOCK` or `POSIX`.
pub(super) fn is_locked_by(file: Option<&fs::Metadata>, kind: &str, waited: Duration) -> String {
    let holder = file.and_then(|file| holder(file.ino(), kind));
    let by = holder.map_or_else(String::new, |pid| format!(" by process {pid}"));
    format!("it has been locked{by} for {} s", waited.as_secs())
}

fn holder(inode: u64, wanted: &str) -> Option<u32> {
    let inode = inode.to_string();
    let locks = fs::read_to_string("/proc/locks").ok()?;
    locks.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, kind, _, _, pid, file, ..] = words[..] else {
            return None;
        };
        let pid = pid
            .parse()
            .ok()
            .filter(|pid| wanted == "FLOCK" || *pid != std::process::id())?;
        (kind == wanted && file.rsplit(':').next() == Some(&inode)).then_some(pid)
    })
}

/// Reads a file. A missing file is empty.
pub(super) fn read(path: &Path) -> Result<String, CatalogError> {
    let read = || {
        let bytes = pmc_files::read_at_most(pmc_files::open_input(path)?, pmc_files::MAX_LIST)?;
        String::from_utf8(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "is not UTF-8 text"))
    };
    match read() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        result => result.map_err(CatalogError::io("read", path)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_process_left_is_replaced() {
        let directory = tempfile::tempdir().expect("a directory");
        let catalog = directory.path().join("rc.txt");
        let destination = Destination::new(&catalog).expect("a destination");
        std::mem::forget(temporary(&destination).expect("a file"));
        Locked::wait(&catalog)
            .expect("the lock")
            .replace("a b\n")
            .expect("written");
        let mut names: Vec<_> = fs::read_dir(directory.path())
            .expect("a directory")
            .map(|entry| entry.expect("an entry").file_name())
            .collect();
        names.sort();
        assert_eq!(names, ["rc.txt", "rc.txt.lock"]);
    }

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
    fn a_device_is_not_replaced() {
        let error = Locked::wait(Path::new("/dev/null")).err().unwrap();
        assert!(error.to_string().contains("is a device"), "{error}");
    }
}
