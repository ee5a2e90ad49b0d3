//! Files that are to be written where other users may have put links.

use std::collections::hash_map::RandomState;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::hash::{BuildHasher as _, Hasher as _};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use crate::place::{Last, Place, path_of};
use crate::{Owner, check_kind, open_place, open_regular};

/// A directory that has been opened. Its path may lead elsewhere meanwhile.
#[derive(Debug)]
pub struct Folder(OwnedFd);

impl Folder {
    /// Opens a directory that the user has named. Follows links.
    ///
    /// # Errors
    /// It cannot be opened, or is no directory.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self(rustix::fs::openat(CWD, path, flags, Mode::empty())?))
    }

    /// Opens a directory. Follows links as [`open`](crate::open) does.
    ///
    /// # Errors
    /// It cannot be opened, is no directory, or the path leads through a link of another user.
    pub fn find(path: &Path) -> io::Result<Self> {
        Ok(Self(Place::find(&path.join("x"), Last::Keep)?.directory))
    }

    /// Opens a directory, and makes those on the way to it that are missing. Follows links as
    /// [`open`](crate::open) does.
    ///
    /// # Errors
    /// It cannot be opened or made, or the path leads through a link of another user.
    pub fn make(path: &Path) -> io::Result<Self> {
        Ok(Self(Place::make(&path.join("x"), Last::Keep)?.directory))
    }

    /// Returns a path of the directory for this process, which leads to it even if another one has its name.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        path_of(&self.0)
    }

    /// Returns the path of the directory at this moment, without links.
    ///
    /// # Errors
    /// The system does not say.
    pub fn real_path(&self) -> io::Result<PathBuf> {
        std::fs::read_link(self.path())
    }

    /// Returns the number of the user whose directory it is.
    ///
    /// # Errors
    /// The system does not say.
    pub fn user(&self) -> io::Result<u32> {
        Ok(rustix::fs::fstat(&self.0)?.st_uid)
    }

    /// Returns whose the directory is.
    ///
    /// # Errors
    /// The system does not say.
    pub fn owner(&self) -> io::Result<Owner> {
        self.user().map(Owner::of)
    }

    /// Opens a regular file below the directory for reading. Never waits, and follows no link of others.
    ///
    /// # Errors
    /// It cannot be opened, is not a regular file, or `path` leads out of the directory.
    pub fn read(&self, path: &Path) -> io::Result<File> {
        open_regular(&Place::below(self.0.as_fd(), path, Last::Follow, false)?)
    }

    /// Returns the destination `path` below the directory. Makes the directories that are missing.
    ///
    /// # Errors
    /// `path` leads out of the directory or through a link of another user, or something that is not a
    /// regular file has this name.
    pub fn destination(&self, path: &Path) -> io::Result<Destination> {
        Destination::at(Place::below(self.0.as_fd(), path, Last::Follow, true)?)
    }
}

/// A file that is to be written: a name in a directory that has been opened.
#[derive(Debug)]
pub struct Destination(Place);

impl Destination {
    /// Finds the file that `path` names. Follows links of the user and of root.
    ///
    /// # Errors
    /// The path leads through a link of another user, or something that is not a regular file has this name,
    /// for example a device, which a rename would destroy.
    pub fn new(path: &Path) -> io::Result<Self> {
        Self::at(Place::find(path, Last::Follow)?)
    }

    /// As [`new`](Self::new). Makes the directories that are missing.
    ///
    /// # Errors
    /// As [`new`](Self::new), or a directory cannot be made.
    pub fn with_folders(path: &Path) -> io::Result<Self> {
        Self::at(Place::make(path, Last::Follow)?)
    }

    /// Takes the name itself, also that of a link or a FIFO, which a new file will replace.
    ///
    /// # Errors
    /// The path leads through a link of another user.
    pub fn named(path: &Path) -> io::Result<Self> {
        Place::find(path, Last::Keep).map(Self)
    }

    /// As [`named`](Self::named). Makes the directories that are missing.
    ///
    /// # Errors
    /// The path leads through a link of another user, or a directory cannot be made.
    pub fn named_with_folders(path: &Path) -> io::Result<Self> {
        Place::make(path, Last::Keep).map(Self)
    }

    fn at(place: Place) -> io::Result<Self> {
        match place.kind() {
            Some(kind) => check_kind(kind).map(|()| Self(place)),
            None => Ok(Self(place)),
        }
    }

    /// Returns whether the file existed.
    #[must_use]
    pub fn exists(&self) -> bool {
        self.0.found.is_some()
    }

    /// Returns the permissions of the file that existed.
    #[must_use]
    pub fn mode(&self) -> Option<u32> {
        self.0.found.map(|found| found.st_mode & 0o777)
    }

    /// Returns the name of the file in its directory.
    #[must_use]
    pub fn name(&self) -> &OsStr {
        &self.0.name
    }

    /// Returns the bytes of the file that existed.
    #[must_use]
    pub fn size(&self) -> u64 {
        let size = self.0.found.map_or(0, |found| found.st_size);
        u64::try_from(size).unwrap_or(0)
    }

    /// Returns who may have put the file there, as [`open_with_owner`](crate::open_with_owner) does, or who
    /// owns the directory if there is none.
    ///
    /// # Errors
    /// The system does not say.
    pub fn owner(&self) -> io::Result<Owner> {
        self.0.owner()
    }

    /// Returns the path of the file at this moment, without links: for libraries that open paths.
    ///
    /// # Errors
    /// The system does not say.
    pub fn path(&self) -> io::Result<PathBuf> {
        self.0.path()
    }

    /// Returns directory and name.
    #[must_use]
    pub fn into_parts(self) -> (OwnedFd, OsString) {
        (self.0.directory, self.0.name)
    }

    /// Creates the file, which must not exist. The umask reduces `mode`.
    ///
    /// # Errors
    /// It exists, or cannot be created.
    pub fn create_new(&self, mode: u32) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        Ok(self.0.open(flags, Mode::from_raw_mode(mode))?.into())
    }

    /// Creates the file anew: what had its name is removed. The umask reduces `mode`.
    ///
    /// # Errors
    /// What is there cannot be removed, or the file cannot be created.
    pub fn create_anew(&self, mode: u32) -> io::Result<File> {
        remove(&self.0.directory, &self.0.name)?;
        self.create_new(mode)
    }

    /// Opens the file whose name has this ending, in addition, as
    /// [`open_for_writing`](crate::open_for_writing) does.
    ///
    /// # Errors
    /// As there.
    pub fn open_beside(&self, ending: &str, flags: OFlags, mode: u32) -> io::Result<File> {
        let mut name = self.0.name.clone();
        name.push(ending);
        let directory = self.0.directory.as_fd();
        open_place(
            &Place::below(directory, Path::new(&name), Last::Keep, false)?,
            flags,
            mode,
        )
    }

    /// Creates an empty file beside this one, which can take its place. Its name begins with `prefix`. The
    /// umask reduces `mode`.
    ///
    /// # Errors
    /// It cannot be created.
    pub fn replacement(&self, prefix: &str, mode: u32) -> io::Result<Replacement<'_>> {
        loop {
            let random = RandomState::new().build_hasher().finish();
            match self.beside(format!("{prefix}{random:016x}").into(), mode) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => return made,
            }
        }
    }

    /// As [`replacement`](Self::replacement), with the name `prefix`: what a killed process has left there is
    /// removed. Only for a process that no other one can disturb.
    ///
    /// # Errors
    /// It cannot be created.
    pub fn only_replacement(&self, prefix: &str, mode: u32) -> io::Result<Replacement<'_>> {
        let removed = remove(&self.0.directory, OsStr::new(prefix));
        removed
            .and_then(|()| self.beside(prefix.into(), mode))
            .or_else(|_| self.replacement(prefix, mode))
    }

    fn beside(&self, name: OsString, mode: u32) -> io::Result<Replacement<'_>> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(mode);
        let file = rustix::fs::openat(&self.0.directory, &name, flags, mode)?;
        Ok(Replacement {
            destination: self,
            name,
            file: file.into(),
        })
    }
}

/// A new file beside a [`Destination`]. Dropping it removes it.
#[derive(Debug)]
pub struct Replacement<'a> {
    destination: &'a Destination,
    /// Empty when it has its final name.
    name: OsString,
    file: File,
}

impl Replacement<'_> {
    /// Returns the file, to be written.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Gives the file its name. What has this name meanwhile is replaced; a link is not followed.
    ///
    /// # Errors
    /// It cannot be renamed, for example over a directory.
    pub fn publish(mut self) -> io::Result<()> {
        let Place { directory, name, .. } = &self.destination.0;
        rustix::fs::renameat(directory, &self.name, directory, name)?;
        self.name.clear();
        Ok(())
    }

    /// Gives the file its name, which must be free.
    ///
    /// # Errors
    /// A file has this name, or it cannot be renamed.
    pub fn publish_new(mut self) -> io::Result<()> {
        let Place { directory, name, .. } = &self.destination.0;
        let flags = RenameFlags::NOREPLACE;
        match rustix::fs::renameat_with(directory, &self.name, directory, name, flags) {
            // NFS and old systems cannot. A second name is never given over a first one.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                rustix::fs::linkat(directory, &self.name, directory, name, AtFlags::empty())?;
            }
            renamed => {
                renamed?;
                self.name.clear();
            }
        }
        Ok(())
    }
}

impl Drop for Replacement<'_> {
    fn drop(&mut self) {
        if !self.name.is_empty() {
            // If this fails, it stays: what leads here is reported.
            let _ = remove(&self.destination.0.directory, &self.name);
        }
    }
}

fn remove(directory: &OwnedFd, name: &OsStr) -> io::Result<()> {
    match rustix::fs::unlinkat(directory, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
