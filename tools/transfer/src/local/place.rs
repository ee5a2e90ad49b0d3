//! The place of a new file: an open directory and a name in it.

use std::collections::hash_map::RandomState;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher};
use std::io;
#[cfg(feature = "remote")]
use std::os::fd::AsFd as _;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use pmc_files::Destination;
use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;

use super::TEMPORARY_PREFIX;
use super::data::{self, DataError};
use crate::cancel::Cancel;
use crate::error::TransferError;

/// A name in an open directory. Access relative to the directory allows paths of any length, and a temporary
/// name fits wherever the final name does.
pub(super) struct Place {
    directory: OwnedFd,
    name: OsString,
    path: PathBuf,
}

impl Place {
    /// Opens the directory of `path`, and creates it if it is missing. A link of another user leads nowhere.
    pub(super) fn open(path: &Path) -> Result<Self, TransferError> {
        Self::new(path, path.to_owned(), Destination::named_with_folders(path))
    }

    /// Opens the directory of a file that is to be written. If `path` is a link of the user, it stays one.
    pub(super) fn of_file(path: &Path) -> Result<Self, TransferError> {
        let is_link = fs::symlink_metadata(path).is_ok_and(|meta| meta.is_symlink());
        // For messages, and for programs that cannot be given a directory.
        let real = is_link.then(|| fs::canonicalize(path).ok()).flatten();
        let real = real.unwrap_or_else(|| path.to_owned());
        Self::new(path, real, Destination::with_folders(path))
    }

    fn new(path: &Path, real: PathBuf, found: io::Result<Destination>) -> Result<Self, TransferError> {
        if path.file_name().is_none() {
            return Err(TransferError::io("write to", path, io::Error::from(Errno::ISDIR)));
        }
        let destination = found.map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::NOTDIR) => {
                TransferError::NotADirectory(path.parent().unwrap_or(Path::new(".")).to_owned())
            }
            _ => TransferError::io("write to", path, error),
        })?;
        let (directory, name) = destination.into_parts();
        Ok(Self {
            directory,
            name,
            path: real,
        })
    }

    /// Moves what has this name in a directory to the final name.
    pub(super) fn take(&self, directory: BorrowedFd<'_>, name: &Path) -> io::Result<()> {
        Ok(rustix::fs::renameat(
            directory,
            name,
            &self.directory,
            &self.name,
        )?)
    }

    /// Returns the open directory.
    #[cfg(feature = "remote")]
    pub(super) fn directory(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// Creates an empty file with `mode`, reduced by the umask. Where the file system supports it, the file
    /// has no name, so a killed process leaves nothing behind. Elsewhere (NFS, Lustre) it has a temporary
    /// name.
    pub(super) fn create_file(&self, mode: Mode) -> Result<(Temporary<'_>, File), TransferError> {
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        match rustix::fs::openat(&self.directory, c".", flags, mode) {
            Ok(file) => Ok((self.temporary(OsString::new(), Kind::File), file.into())),
            // Any error but the missing feature occurs again, and is then reported.
            Err(_) => self.create_named(mode),
        }
    }

    /// Creates an empty file under a temporary name.
    fn create_named(&self, mode: Mode) -> Result<(Temporary<'_>, File), TransferError> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let (name, file) = self.unused_name("create a file beside", |name| {
            rustix::fs::openat(&self.directory, name, flags, mode)
        })?;
        Ok((self.temporary(name, Kind::File), file.into()))
    }

    /// Creates a symbolic link to `target` under a temporary name.
    pub(super) fn create_link(&self, target: &Path) -> Result<Temporary<'_>, TransferError> {
        let (name, ()) = self.unused_name("create a link beside", |name| {
            rustix::fs::symlinkat(target, &self.directory, name)
        })?;
        Ok(self.temporary(name, Kind::File))
    }

    /// Creates an empty directory under a temporary name.
    pub(super) fn create_directory(&self, mode: Mode) -> Result<Temporary<'_>, TransferError> {
        let (name, ()) = self.unused_name("create a directory beside", |name| {
            rustix::fs::mkdirat(&self.directory, name, mode)
        })?;
        Ok(self.temporary(name, Kind::Directory))
    }

    /// Returns a file that was [kept](Temporary::keep) under a temporary name.
    #[cfg(feature = "remote")]
    pub(super) fn adopt(&self, name: OsString) -> Temporary<'_> {
        self.temporary(name, Kind::File)
    }

    /// Returns a directory that was [kept](Temporary::keep) under a temporary name.
    #[cfg(feature = "remote")]
    pub(super) fn adopt_directory(&self, name: OsString) -> Temporary<'_> {
        self.temporary(name, Kind::Directory)
    }

    /// Returns the final path.
    #[cfg(feature = "remote")]
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Publishes a copy of `file`, where a file without a name cannot get one.
    fn publish_copy(&self, file: &mut File) -> Result<(), TransferError> {
        let failed = |error: io::Error| TransferError::io("copy to", &self.path, error);
        let meta = file.metadata().map_err(failed)?;
        let (temporary, mut copy) = self.create_named(Mode::from_raw_mode(meta.mode() & 0o777))?;
        // The umask was already applied to this mode.
        copy.set_permissions(meta.permissions()).map_err(failed)?;
        let extent = (meta.len(), meta.blocks());
        match data::copy_bytes(file, &mut copy, extent, None, &Cancel::new()) {
            Ok(_) => temporary.finish(copy),
            Err(DataError::Read(error) | DataError::Write(error)) => Err(failed(error)),
            Err(DataError::Cancelled) => Err(TransferError::Cancelled),
        }
    }

    /// Links a file under a temporary name, from which it can replace the present one. The name depends on
    /// the final name only: so a transfer finds, and removes, what a killed one has left. A living process
    /// has locked its file.
    fn link_beside(
        &self,
        file: &File,
        link: impl Fn(&OsStr) -> Result<(), Errno>,
    ) -> Result<(OsString, ()), Errno> {
        let mut hasher = DefaultHasher::new();
        self.name.hash(&mut hasher);
        let name = OsString::from(format!("{TEMPORARY_PREFIX}{:x}", hasher.finish()));
        if flock(file, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Self::try_names(link);
        }
        let linked = link(&name).or_else(|errno| match errno {
            Errno::EXIST if self.remove_abandoned(&name) => link(&name),
            errno => Err(errno),
        });
        match linked {
            Err(Errno::EXIST) => Self::try_names(link),
            linked => linked.map(|()| (name, ())),
        }
    }

    /// Removes a file that no process has locked. Returns whether it did.
    fn remove_abandoned(&self, name: &OsStr) -> bool {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let Ok(file) = rustix::fs::openat(&self.directory, name, flags, Mode::empty()) else {
            return false;
        };
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            return false;
        }
        // Another process may have removed it meanwhile, and made a file of the same name.
        let locked = rustix::fs::fstat(&file).map(|status| (status.st_dev, status.st_ino));
        let named = rustix::fs::statat(&self.directory, name, AtFlags::SYMLINK_NOFOLLOW)
            .map(|status| (status.st_dev, status.st_ino));
        locked.is_ok()
            && locked == named
            && rustix::fs::unlinkat(&self.directory, name, AtFlags::empty()).is_ok()
    }

    fn temporary(&self, name: OsString, kind: Kind) -> Temporary<'_> {
        Temporary {
            place: self,
            name,
            kind,
            published: false,
        }
    }

    fn unused_name<T>(
        &self,
        action: &'static str,
        create: impl Fn(&OsStr) -> Result<T, Errno>,
    ) -> Result<(OsString, T), TransferError> {
        Self::try_names(create).map_err(|errno| TransferError::io(action, &self.path, errno))
    }

    /// Calls `create` with new names until one is free. A name has a random part, because processes on other
    /// hosts may share the directory and the process number.
    fn try_names<T>(create: impl Fn(&OsStr) -> Result<T, Errno>) -> Result<(OsString, T), Errno> {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        loop {
            let count = COUNTER.fetch_add(1, Ordering::Relaxed);
            let random = RandomState::new().build_hasher().finish();
            let name = OsString::from(format!(
                "{TEMPORARY_PREFIX}{}-{count:x}-{random:x}",
                std::process::id()
            ));
            match create(&name) {
                Ok(made) => return Ok((name, made)),
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno),
            }
        }
    }
}

enum Kind {
    File,
    Directory,
}

/// A file, link or directory under a temporary name. Dropping it removes it, unless
/// [published](Temporary::publish).
pub(super) struct Temporary<'a> {
    place: &'a Place,
    /// Empty for a file without a name.
    name: OsString,
    kind: Kind,
    published: bool,
}

impl Temporary<'_> {
    /// Returns the temporary path.
    pub(super) fn path(&self) -> PathBuf {
        self.place.path.with_file_name(&self.name)
    }

    /// Keeps it under the temporary name, and returns that name.
    #[cfg(feature = "remote")]
    pub(super) fn keep(mut self) -> OsString {
        self.published = true;
        std::mem::take(&mut self.name)
    }

    /// Closes `file`, which must be this one, and publishes it.
    pub(super) fn finish(self, file: File) -> Result<(), TransferError> {
        // Network file systems may report a full disk or a quota only when a descriptor is closed.
        let close = |file: File| {
            nix::unistd::close(file)
                .map_err(|errno| TransferError::io("finish writing", &self.place.path, errno))
        };
        if !self.name.is_empty() {
            close(file)?;
            return self.publish();
        }
        let copy = file
            .try_clone()
            .map_err(|error| TransferError::io("finish writing", &self.place.path, error))?;
        close(copy)?;
        self.link(file)
    }

    /// Gives the final name to a file without a name.
    fn link(mut self, mut file: File) -> Result<(), TransferError> {
        let place = self.place;
        let target = format!("/proc/self/fd/{}", file.as_raw_fd());
        let link =
            |name: &OsStr| rustix::fs::linkat(CWD, &*target, &place.directory, name, AtFlags::SYMLINK_FOLLOW);
        let linked = match link(&place.name) {
            Ok(()) => return Ok(()),
            // A link never replaces a file, a rename does.
            Err(Errno::EXIST) => place.link_beside(&file, link),
            Err(errno) => Err(errno),
        };
        match linked {
            Ok((name, ())) => {
                self.name = name;
                self.publish()
            }
            Err(errno @ (Errno::NOSPC | Errno::DQUOT | Errno::IO)) => Err(TransferError::io(
                "give its name to the finished copy",
                &place.path,
                errno,
            )),
            // No /proc, or a file system without links.
            Err(_) => place.publish_copy(&mut file),
        }
    }

    /// Gives it the final name, and replaces a file of that name.
    pub(super) fn publish(mut self) -> Result<(), TransferError> {
        let directory = &self.place.directory;
        rustix::fs::renameat(directory, &self.name, directory, &self.place.name)
            .map_err(|errno| TransferError::io("rename the finished copy to", &self.place.path, errno))?;
        self.published = true;
        Ok(())
    }
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        if self.published || self.name.is_empty() {
            return;
        }
        // If this fails, it stays: the failure that leads here is reported already.
        match self.kind {
            Kind::File => drop(rustix::fs::unlinkat(
                &self.place.directory,
                &self.name,
                AtFlags::empty(),
            )),
            Kind::Directory => drop(fs::remove_dir_all(self.path())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;

    fn written<'a>(made: Result<(Temporary<'a>, File), TransferError>, text: &str) -> (Temporary<'a>, File) {
        let (temporary, mut file) = made.expect("created");
        file.write_all(text.as_bytes()).expect("written");
        (temporary, file)
    }

    fn names(directory: &Path) -> Vec<OsString> {
        let mut names: Vec<OsString> = fs::read_dir(directory)
            .expect("readable")
            .map(|entry| entry.expect("readable").file_name())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn what_a_killed_process_left_is_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a");
        fs::write(&path, "old").expect("written");
        let place = Place::open(&path).expect("place");
        let mode = Mode::from_raw_mode(0o640);
        let link = |temporary: &Temporary<'_>, file: &File| {
            let target = format!("/proc/self/fd/{}", file.as_raw_fd());
            let directory = &temporary.place.directory;
            let link =
                |name: &OsStr| rustix::fs::linkat(CWD, &*target, directory, name, AtFlags::SYMLINK_FOLLOW);
            temporary.place.link_beside(file, link).expect("a name").0
        };
        let (temporary, file) = written(place.create_file(mode), "one");
        if !temporary.name.is_empty() {
            // This file system has no unnamed files.
            return;
        }
        let name = link(&temporary, &file);
        // As long as its process lives, another one takes another name.
        let (other, another) = written(place.create_file(mode), "two");
        assert_ne!(link(&other, &another), name);
        assert_eq!(names(folder.path()).len(), 3);
        drop((file, another));
        let (temporary, file) = written(place.create_file(mode), "three");
        assert_eq!(link(&temporary, &file), name);
        assert_eq!(
            fs::read_to_string(folder.path().join(name)).expect("read"),
            "three"
        );
    }

    /// With and without temporary names and replaced files, only the final file remains.
    #[test]
    fn only_the_final_file_remains() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a");
        let place = Place::open(&path).expect("place");
        let mode = Mode::from_raw_mode(0o640);
        for round in 0..2 {
            for named in [false, true] {
                let text = format!("{round} {named}");
                let made = if named {
                    place.create_named(mode)
                } else {
                    place.create_file(mode)
                };
                let (temporary, file) = written(made, &text);
                temporary.finish(file).expect("finished");
                assert_eq!(fs::read_to_string(&path).expect("read"), text);
                assert_eq!(names(folder.path()), ["a"]);
            }
            fs::remove_file(&path).expect("removed");
        }
    }

    #[test]
    fn file_that_cannot_be_linked_is_copied() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a");
        let place = Place::open(&path).expect("place");
        let (temporary, mut file) = written(place.create_file(Mode::from_raw_mode(0o600)), "text");
        file.set_permissions(fs::Permissions::from_mode(0o751))
            .expect("permitted");
        place.publish_copy(&mut file).expect("published");
        drop((temporary, file));
        assert_eq!(fs::read_to_string(&path).expect("read"), "text");
        let mode = fs::metadata(&path).expect("metadata").permissions().mode();
        assert_eq!(mode & 0o7777, 0o751);
        assert_eq!(names(folder.path()), ["a"]);
    }

    #[test]
    fn dropped_file_leaves_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let place = Place::open(&folder.path().join("a")).expect("place");
        let mode = Mode::from_raw_mode(0o600);
        drop(written(place.create_file(mode), "text"));
        drop(written(place.create_named(mode), "text"));
        assert_eq!(names(folder.path()), [""; 0]);
    }

    /// A directory of the final name is reported, and not replaced.
    #[test]
    fn directory_is_not_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a");
        let place = Place::open(&path).expect("place");
        let (temporary, file) = written(place.create_file(Mode::from_raw_mode(0o600)), "text");
        fs::create_dir(&path).expect("made");
        let error = temporary.finish(file).expect_err("refused");
        assert!(error.to_string().contains("directory"), "{error}");
        assert_eq!(names(folder.path()), ["a"]);
    }
}
