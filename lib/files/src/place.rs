//! Finds the directory of a file, component by component.
//!
//! A path is a text: between a check of it and its use, another user may put something else in its place.
//! So each directory is opened in turn, what was opened is checked, and the file is opened in the last one.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use crate::{Owner, is_trusted, refused};

/// Most links on the way to a file, as in the kernel.
const MAX_LINKS: u32 = 40;
/// Longest path of the kernel, which looks at a path as a whole.
const PATH_MAX: usize = 4096;
/// Opens a directory for its names only: that needs no right to list it.
const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// What is done at a link of the user or of root that is the last component.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Last {
    Follow,
    Keep,
}

/// A name in an open directory.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) directory: OwnedFd,
    pub(crate) name: OsString,
    /// What has this name, if there is something.
    pub(crate) found: Option<Stat>,
    /// It is a link in `/proc` that leads to an open file, such as `/dev/stdout`, and not where its text
    /// says.
    is_open_file: bool,
}

impl Place {
    /// Finds the directory of `path`, which is relative to the working directory.
    ///
    /// Links of the user and of root are followed. A link of somebody else is followed if it leads to a
    /// directory of the user whose link it is: that user could as well have made the directory there.
    pub(crate) fn find(path: &Path, last: Last) -> io::Result<Self> {
        match Self::without_links(CWD, path) {
            Some(place) if last == Last::Keep || !place.is_link() => Ok(place),
            _ => Walk::default().find(CWD, path, last),
        }
    }

    /// Finds the directory of `path` as [`find`](Self::find) does, and makes the directories that are
    /// missing.
    pub(crate) fn make(path: &Path, last: Last) -> io::Result<Self> {
        match Self::find(path, last) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let makes = true;
                Walk {
                    makes,
                    ..Walk::default()
                }
                .find(CWD, path, last)
            }
            found => found,
        }
    }

    /// Finds the directory of `path` below `base` as [`find`](Self::find) does. `path` has names only. If it
    /// `makes` directories, those that are missing.
    pub(crate) fn below(base: BorrowedFd<'_>, path: &Path, last: Last, makes: bool) -> io::Result<Self> {
        let is_name = |part| matches!(part, Component::Normal(_));
        if path.as_os_str().is_empty() || !path.components().all(is_name) {
            return Err(refused("leads out of the directory"));
        }
        match Self::without_links(base, path) {
            Some(place) if last == Last::Keep || !place.is_link() => Ok(place),
            _ => Walk {
                makes,
                ..Walk::default()
            }
            .find(base, path, last),
        }
    }

    /// Finds the directory of `path` if the user `reader`, too, may enter each directory on the way. Links of
    /// that user are followed.
    pub(crate) fn find_for(path: &Path, reader: u32) -> io::Result<Self> {
        let reader = Some(reader);
        Walk {
            reader,
            ..Walk::default()
        }
        .find(CWD, path, Last::Follow)
    }

    /// Finds the directory of a path on which no link is, but perhaps at its end: the usual case, in one
    /// system call. Linux before 5.6 and some sandboxes do not have it.
    fn without_links(base: BorrowedFd<'_>, path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_owned();
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let none = ResolveFlags::NO_SYMLINKS;
        let directory = rustix::fs::openat2(base, parent, DIRECTORY, Mode::empty(), none).ok()?;
        let found = look(directory.as_fd(), &name).ok()?;
        Some(Self {
            directory,
            name,
            found,
            is_open_file: false,
        })
    }

    /// Returns the path at this moment, without links but perhaps at its end.
    pub(crate) fn path(&self) -> io::Result<PathBuf> {
        Ok(std::fs::read_link(path_of(&self.directory))?.join(&self.name))
    }

    pub(crate) fn is_link(&self) -> bool {
        self.kind() == Some(FileType::Symlink)
    }

    pub(crate) fn kind(&self) -> Option<FileType> {
        self.found
            .as_ref()
            .map(|found| FileType::from_raw_mode(found.st_mode))
    }

    /// True if users other than this one and root may put files into the directory.
    pub(crate) fn is_shared(&self) -> io::Result<bool> {
        is_shared(self.directory.as_fd())
    }

    /// Returns who may have put there what has the name now.
    pub(crate) fn owner(&self) -> io::Result<Owner> {
        match &self.found {
            Some(found) => self.owner_of(found),
            None => Ok(Owner::of(rustix::fs::fstat(&self.directory)?.st_uid)),
        }
    }

    /// Returns who may have put a file there, if it has the name.
    pub(crate) fn owner_of(&self, file: &Stat) -> io::Result<Owner> {
        let directory = Owner::of(rustix::fs::fstat(&self.directory)?.st_uid);
        // A file with several names can be that of a user who does not know of this name.
        let is_placed = directory != Owner::Other && (file.st_nlink == 1 || !self.is_shared()?);
        Ok(match is_placed {
            true => Owner::of(file.st_uid),
            false => Owner::Other,
        })
    }

    /// Opens what has the name. Neither follows a link nor waits.
    pub(crate) fn open(&self, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
        let mut safe = OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        safe.set(OFlags::NOFOLLOW, !self.is_open_file);
        Ok(rustix::fs::openat(
            &self.directory,
            &self.name,
            flags | safe,
            mode,
        )?)
    }
}

/// Returns a path of an open directory for this process.
pub(crate) fn path_of(directory: &OwnedFd) -> PathBuf {
    format!("/proc/self/fd/{}", directory.as_raw_fd()).into()
}

fn is_shared(directory: BorrowedFd<'_>) -> io::Result<bool> {
    let data = rustix::fs::fstat(directory)?;
    let others = Mode::WGRP | Mode::WOTH;
    Ok(!is_trusted(data.st_uid) || Mode::from_raw_mode(data.st_mode).intersects(others))
}

/// Returns what has a name, if there is something.
fn look(directory: BorrowedFd<'_>, name: &OsStr) -> io::Result<Option<Stat>> {
    match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) => Ok(Some(found)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The way to a file, one component after the other.
#[derive(Default)]
struct Walk {
    /// Links that were followed.
    links: u32,
    /// The user who has to be able to go the same way.
    reader: Option<u32>,
    /// Missing directories are made.
    makes: bool,
}

struct Link {
    owner: u32,
    is_trusted: bool,
    target: PathBuf,
}

impl Walk {
    fn find(mut self, base: BorrowedFd<'_>, path: &Path, last: Last) -> io::Result<Place> {
        if path.as_os_str().len() >= PATH_MAX {
            return Err(Errno::NAMETOOLONG.into());
        }
        let mut path = path.to_owned();
        let mut base = self.enter(base, OsStr::new("."))?;
        loop {
            let name = path.file_name().unwrap_or(OsStr::new(".")).to_owned();
            let parent = match path.file_name() {
                Some(_) => path.parent().unwrap_or(Path::new("")),
                None => &path,
            };
            let directory = self.directory(base.as_fd(), parent)?;
            let found = look(directory.as_fd(), &name)?;
            let mut place = Place {
                directory,
                name,
                found,
                is_open_file: false,
            };
            if last == Last::Keep || !place.is_link() {
                return Ok(place);
            }
            let link = self.read(place.directory.as_fd(), &place.name)?;
            if !link.is_trusted {
                return Err(refused("is a link of another user"));
            }
            if rustix::fs::fstatfs(&place.directory)?.f_type == rustix::fs::PROC_SUPER_MAGIC {
                place.found = Some(rustix::fs::statat(
                    &place.directory,
                    &place.name,
                    AtFlags::empty(),
                )?);
                place.is_open_file = true;
                return Ok(place);
            }
            base = place.directory;
            path = link.target;
        }
    }

    /// Opens a directory. Follows links.
    fn directory(&mut self, from: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
        let mut at = self.enter(from, OsStr::new("."))?;
        for part in path.components().filter(|part| *part != Component::CurDir) {
            let name = part.as_os_str();
            let mut entered = self.enter(at.as_fd(), name);
            if self.makes && entered.as_ref().is_err_and(|error| *error == Errno::NOENT) {
                // Somebody else may have made it meanwhile.
                let made = rustix::fs::mkdirat(&at, name, Mode::from_raw_mode(0o777));
                made.or_else(|error| if error == Errno::EXIST { Ok(()) } else { Err(error) })?;
                entered = self.enter(at.as_fd(), name);
            }
            at = match entered {
                // Linux says the first of a link, POSIX the second.
                Err(Errno::NOTDIR | Errno::LOOP) => self.through(at.as_fd(), name)?,
                entered => entered?,
            };
        }
        Ok(at)
    }

    /// Opens a directory, which is no link.
    fn enter(&self, from: BorrowedFd<'_>, name: &OsStr) -> Result<OwnedFd, Errno> {
        // With O_DIRECTORY, an automounter mounts it.
        let flags = DIRECTORY | OFlags::NOFOLLOW;
        let directory = rustix::fs::openat(from, name, flags, Mode::empty())?;
        match self.reader {
            Some(reader) if !may(reader, &rustix::fs::fstat(&directory)?, Mode::XUSR, Mode::XOTH) => {
                Err(Errno::ACCESS)
            }
            _ => Ok(directory),
        }
    }

    /// Opens the directory that a link leads to.
    fn through(&mut self, directory: BorrowedFd<'_>, name: &OsStr) -> io::Result<OwnedFd> {
        let link = self.read(directory, name)?;
        let target = self.directory(directory, &link.target)?;
        // An own link that is not trusted was put there by somebody else.
        let is_of_owner = || Ok::<_, Errno>(rustix::fs::fstat(&target)?.st_uid == link.owner);
        if !link.is_trusted && (is_trusted(link.owner) || !is_of_owner()?) {
            let name = name.display();
            return Err(refused(&format!("leads through {name}, a link of another user")));
        }
        Ok(target)
    }

    /// Reads a link.
    fn read(&mut self, directory: BorrowedFd<'_>, name: &OsStr) -> io::Result<Link> {
        self.links += 1;
        if self.links > MAX_LINKS {
            return Err(Errno::LOOP.into());
        }
        // Opened, so that owner and target are those of one link.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let link = rustix::fs::openat(directory, name, flags, Mode::empty())?;
        let data = rustix::fs::fstat(&link)?;
        if !FileType::from_raw_mode(data.st_mode).is_symlink() {
            return Err(Errno::NOTDIR.into());
        }
        let target = rustix::fs::readlinkat(&link, "", Vec::new())?;
        // Where others may write, the owner of a link with several names need not have put it there.
        let is_placed = data.st_nlink == 1 || !is_shared(directory)?;
        Ok(Link {
            owner: data.st_uid,
            is_trusted: is_trusted(data.st_uid) && is_placed || self.reader == Some(data.st_uid),
            target: OsString::from_vec(target.into_bytes()).into(),
        })
    }
}

/// Returns whether the mode of a file lets a user do something, as far as it is known without the groups of
/// the user.
pub(crate) fn may(user: u32, file: &Stat, owner: Mode, others: Mode) -> bool {
    let mode = Mode::from_raw_mode(file.st_mode);
    match user {
        0 => true,
        user if user == file.st_uid => mode.contains(owner),
        _ => mode.contains(others),
    }
}
