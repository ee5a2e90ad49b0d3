//! The place a file goes to: an open directory and a name in it.

use std::collections::hash_map::RandomState;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::TEMPORARY_PREFIX;
use crate::error::TransferError;

/// A name in an open directory. Working relative to the directory, names may be as long as the system
/// allows, and a temporary name fits wherever the final name does.
pub(super) struct Place {
    directory: OwnedFd,
    name: OsString,
    path: PathBuf,
}

impl Place {
    /// Opens the directory of `path`, making it if it is missing.
    pub(super) fn open(path: &Path) -> Result<Self, TransferError> {
        let Some(name) = path.file_name() else {
            return Err(TransferError::io("write to", path, io::Error::from(Errno::ISDIR)));
        };
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let open = || {
            rustix::fs::open(
                parent,
                OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
                Mode::empty(),
            )
        };
        let directory = match open() {
            Err(Errno::NOENT) => {
                super::make_directory(parent)?;
                open()
            }
            other => other,
        };
        let directory = directory.map_err(|errno| match errno {
            Errno::NOTDIR => TransferError::NotADirectory(parent.to_owned()),
            errno => TransferError::io("open the directory", parent, errno),
        })?;
        Ok(Self {
            directory,
            name: name.to_owned(),
            path: path.to_owned(),
        })
    }

    /// Creates an empty file under a temporary name, with `mode` less the umask.
    pub(super) fn create_file(&self, mode: Mode) -> Result<(Temporary<'_>, File), TransferError> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let (name, file) = self.unused_name("create a file beside", |name| {
            rustix::fs::openat(&self.directory, name, flags, mode)
        })?;
        Ok((
            Temporary {
                place: self,
                name,
                kind: Kind::File,
                published: false,
            },
            file.into(),
        ))
    }

    /// Makes a symbolic link to `target` under a temporary name.
    pub(super) fn create_link(&self, target: &Path) -> Result<Temporary<'_>, TransferError> {
        let (name, ()) = self.unused_name("create a link beside", |name| {
            rustix::fs::symlinkat(target, &self.directory, name)
        })?;
        Ok(Temporary {
            place: self,
            name,
            kind: Kind::File,
            published: false,
        })
    }

    /// Makes an empty directory under a temporary name.
    pub(super) fn create_directory(&self, mode: Mode) -> Result<Temporary<'_>, TransferError> {
        let (name, ()) = self.unused_name("create a directory beside", |name| {
            rustix::fs::mkdirat(&self.directory, name, mode)
        })?;
        Ok(Temporary {
            place: self,
            name,
            kind: Kind::Directory,
            published: false,
        })
    }

    /// A file that was [kept](Temporary::keep) under a temporary name.
    #[cfg(feature = "remote")]
    pub(super) fn adopt(&self, name: OsString) -> Temporary<'_> {
        Temporary {
            place: self,
            name,
            kind: Kind::File,
            published: false,
        }
    }

    /// The same for a directory.
    #[cfg(feature = "remote")]
    pub(super) fn adopt_directory(&self, name: OsString) -> Temporary<'_> {
        Temporary {
            place: self,
            name,
            kind: Kind::Directory,
            published: false,
        }
    }

    /// The path with the final name.
    #[cfg(feature = "remote")]
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Calls `create` with new names until one is not taken. Processes on other hosts may share the
    /// directory and the process number, so a name has a random part too.
    fn unused_name<T>(
        &self,
        action: &'static str,
        create: impl Fn(&OsStr) -> Result<T, Errno>,
    ) -> Result<(OsString, T), TransferError> {
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
                Err(errno) => return Err(TransferError::io(action, &self.path, errno)),
            }
        }
    }
}

enum Kind {
    File,
    Directory,
}

/// Something under a temporary name; removed unless [published](Temporary::publish).
pub(super) struct Temporary<'a> {
    place: &'a Place,
    name: OsString,
    kind: Kind,
    published: bool,
}

impl Temporary<'_> {
    /// Path under the temporary name.
    pub(super) fn path(&self) -> PathBuf {
        self.place.path.with_file_name(&self.name)
    }

    /// Keeps it under the temporary name, which is returned.
    #[cfg(feature = "remote")]
    pub(super) fn keep(mut self) -> OsString {
        self.published = true;
        std::mem::take(&mut self.name)
    }

    /// Gives it the final name, in place of what had that name.
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
        if self.published {
            return;
        }
        // Nothing better to do than to leave it: the failure that leads here is already being reported.
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
