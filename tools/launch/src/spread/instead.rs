//! Copies of programs on a file system that all hosts see, for a launch whose programs do not fit on all of
//! its hosts: below `$PARALLEL_FILE_SYSTEM`, else in `.programs` in the directory of the launch.
//!
//! A launch has a directory of its own there, and a lock file of the same name. It removes what killed
//! launches of the same host have left: not every file system shows locks to other hosts.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use pmc_node_files::{make_private, remove_tree};
use rustix::fs::{FlockOperation, flock};

use super::files::{Checksum, Files};
use super::messages::Needs;

/// Ending of the names of lock files.
const LOCK: &str = ".lock";

/// What no name of a host has.
const AFTER_HOST: char = '+';

/// Bytes that are copied at a time.
const COPY_SIZE: usize = 1 << 20;

/// The directory of a launch. It is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Instead {
    top: PathBuf,
    name: String,
    _lock: File,
}

impl Instead {
    /// Makes the directory. `shared` is the value of `PARALLEL_FILE_SYSTEM`.
    ///
    /// # Errors
    /// It cannot be made, or belongs to another user.
    pub(crate) fn make(shared: Option<&OsStr>, directory: &Path, host: &str) -> io::Result<Self> {
        let top = match shared.filter(|shared| !shared.is_empty()) {
            Some(shared) => Path::new(shared).join(format!("pmc-copies-{}", nix::unistd::geteuid())),
            None => directory.join(".programs"),
        };
        make_private(&top).map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("{}: {}", top.display(), pmc_dag::reason(&error)),
            )
        })?;
        remove_left(&top, host);
        let (name, lock) = new_lock(&top, host)?;
        let this = Self {
            top,
            name,
            _lock: lock,
        };
        DirBuilder::new().mode(0o700).create(this.path())?;
        Ok(this)
    }

    /// The directory.
    pub(crate) fn path(&self) -> PathBuf {
        self.top.join(&self.name)
    }

    /// Copies what a program needs, and checks it.
    ///
    /// # Errors
    /// A file cannot be copied, or has changed since it was read first.
    pub(crate) fn add(&self, needs: &Needs, files: &Files) -> io::Result<PathBuf> {
        let folder = self.path().join(needs.program.to_string());
        for part in &needs.parts {
            let folder = folder.join(part.kind.folder());
            DirBuilder::new().mode(0o700).recursive(true).create(&folder)?;
            let path = folder.join(OsStr::from_bytes(&part.name.0));
            let (from, offered) = files.get(part.file).ok_or(io::ErrorKind::NotFound)?;
            copy(from, &path)?;
            let mut checksum = Checksum::default();
            checksum.read_to(&File::open(&path)?, u64::MAX)?;
            if checksum.finish().1 != offered.sha256 {
                let name = String::from_utf8_lossy(&offered.path.0).into_owned();
                return Err(io::Error::other(format!(
                    "{name} was changed while it was copied"
                )));
            }
        }
        Ok(folder)
    }
}

impl Drop for Instead {
    fn drop(&mut self) {
        // What cannot be removed stays for the next launch.
        if remove_tree(&self.path()).is_ok() {
            let _ = fs::remove_file(self.top.join(format!("{}{LOCK}", self.name)));
        }
        let _ = fs::remove_dir(&self.top);
    }
}

/// Makes a lock file with a name that no other launch has. Returns the name, and holds the lock.
fn new_lock(top: &Path, host: &str) -> io::Result<(String, File)> {
    loop {
        let number = getrandom::u64().map_err(io::Error::other)?;
        let name = format!("{host}{AFTER_HOST}{number:016x}");
        let lock = File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(top.join(format!("{name}{LOCK}")))?;
        // Where there are no locks, nobody removes it but this launch.
        let is_taken = flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .is_err_and(|error| error == rustix::io::Errno::WOULDBLOCK);
        // Another launch may take it for one that is left, until it is locked.
        if !is_taken && lock.metadata()?.nlink() > 0 {
            return Ok((name, lock));
        }
    }
}

/// Copies a file that only its owner may read and execute.
fn copy(from: &File, path: &Path) -> io::Result<()> {
    let mut to = File::options()
        .write(true)
        .create_new(true)
        .mode(0o500)
        .open(path)?;
    let (mut buffer, mut at) = (vec![0; COPY_SIZE], 0);
    loop {
        let length = match from.read_at(&mut buffer, at) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        if length == 0 {
            return Ok(());
        }
        to.write_all(buffer.get(..length).unwrap_or_default())?;
        at += length as u64;
    }
}

/// Removes what killed launches of this host have left.
fn remove_left(top: &Path, host: &str) {
    for entry in fs::read_dir(top).into_iter().flatten().flatten() {
        let Ok(file) = entry.file_name().into_string() else {
            continue;
        };
        let Some(name) = file.strip_suffix(LOCK) else {
            continue;
        };
        let is_own = name.split_once(AFTER_HOST).is_some_and(|(of, _)| of == host);
        let Some(lock) = is_own.then(|| pmc_files::open(&entry.path()).ok()).flatten() else {
            continue;
        };
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            continue;
        }
        let gone = match remove_tree(&top.join(name)) {
            Err(error) => error.kind() == io::ErrorKind::NotFound,
            Ok(()) => true,
        };
        // The launch whose lock it becomes just now makes another one.
        if gone && lock.metadata().is_ok_and(|status| status.nlink() > 0) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn files(folder: &Path) -> Files {
        let program = folder.join("a.out");
        fs::write(&program, "program").unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let mut files = Files::default();
        files.add(&program, false, &[&program]).unwrap();
        files
    }

    #[test]
    fn copies_are_there_until_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let files = files(folder.path());
        for shared in [None, Some(folder.path().as_os_str())] {
            let instead = Instead::make(shared, folder.path(), "n1").unwrap();
            let place = instead.add(&files.needs[0], &files).unwrap();
            let copy = fs::metadata(place.join("bin/a.out")).unwrap();
            assert_eq!((copy.len(), copy.mode() & 0o777), (7, 0o500));
            assert!(place.join("files/a.out").exists());
            drop(instead);
            assert!(!place.exists());
        }
        let left: Vec<_> = fs::read_dir(folder.path()).unwrap().flatten().collect();
        assert_eq!(left.len(), 1, "{left:?}");
    }

    #[test]
    fn what_a_killed_launch_of_this_host_has_left_is_removed_by_the_next_one() {
        let folder = tempfile::tempdir().unwrap();
        let files = files(folder.path());
        let place = |host: &str| {
            let instead = Instead::make(None, folder.path(), host).unwrap();
            instead.add(&files.needs[0], &files).unwrap();
            (instead.path(), instead)
        };
        let (live, _live) = place("n1");
        let (dead, instead) = place("n1");
        let (other, of_other) = place("n1.x");
        for killed in [instead, of_other] {
            // Its lock goes, and nothing else.
            let Instead { top, name, .. } = &killed;
            let lock = top.join(format!("{name}{LOCK}"));
            fs::rename(&lock, folder.path().join("kept")).unwrap();
            fs::copy(folder.path().join("kept"), &lock).unwrap();
            std::mem::forget(killed);
        }
        let (_, _next) = place("n1");
        assert!(live.exists() && !dead.exists() && other.exists());
    }

    #[test]
    fn a_file_that_changes_while_it_is_copied_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let files = files(folder.path());
        fs::write(folder.path().join("a.out"), "PROGRAM").unwrap();
        let instead = Instead::make(None, folder.path(), "n1").unwrap();
        let error = instead.add(&files.needs[0], &files).unwrap_err();
        assert!(error.to_string().contains("a.out was changed"), "{error}");
    }

    #[test]
    fn the_directory_of_another_user_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let top = folder.path().join(".programs");
        fs::create_dir(&top).unwrap();
        fs::set_permissions(&top, fs::Permissions::from_mode(0o777)).unwrap();
        let error = Instead::make(None, folder.path(), "n1").unwrap_err();
        assert!(
            error
                .to_string()
                .contains("is not a directory of this user alone"),
            "{error}"
        );
        fs::remove_dir(&top).unwrap();
        std::os::unix::fs::symlink("/tmp", &top).unwrap();
        assert!(Instead::make(None, folder.path(), "n1").is_err());
    }
}
