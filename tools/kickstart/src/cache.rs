//! What an invocation leaves to the next one of the same process: names, the null device, the state for
//! starting processes, and unused temporary files. Making and removing four files takes a fifth of a small
//! job.
//!
//! A captured stream is kept only if it is empty and no process has the file open: a job may have passed its
//! streams to a process that existed before. The system grants a lease for writing only then. It counts
//! openings, so jobs open the file anew instead of sharing kickstart's descriptor.

use std::cell::{Cell, OnceCell, RefCell, RefMut};
use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use nix::unistd::{getgid, getuid};
use pmc_spawn::Spawner;

use crate::names::{FileId, Names};
use crate::stat;
use crate::temporary::{self, Capture, Mailbox};

/// Names and files for reuse. Nothing in it changes what a record says.
#[derive(Debug, Default)]
pub struct InvocationCache {
    names: RefCell<Names>,
    null: OnceCell<NullDevice>,
    spawner: RefCell<Option<Spawner>>,
    mailboxes: RefCell<Vec<KeptFile<Mailbox>>>,
    captures: RefCell<Vec<KeptFile<Capture>>>,
    keeps_captures: bool,
    /// Files that killed processes left behind are removed.
    has_swept: Cell<bool>,
}

/// A temporary file for reuse.
#[derive(Debug)]
struct KeptFile<F> {
    purpose: &'static str,
    /// Directories that it was made for.
    directories: Vec<PathBuf>,
    file: F,
    id: FileId,
}

/// Takes out a file for this purpose. A file for other directories is removed.
fn take<F>(files: &RefCell<Vec<KeptFile<F>>>, purpose: &str, directories: &[PathBuf]) -> Option<KeptFile<F>> {
    let mut files = files.borrow_mut();
    let at = files.iter().position(|kept| kept.purpose == purpose)?;
    Some(files.swap_remove(at)).filter(|kept| kept.directories == directories)
}

/// Returns whether a file is empty and private, as it was made.
fn is_unused(status: &Metadata) -> bool {
    status.size() == 0 && status.mode() & 0o7777 == 0o600 && status.nlink() <= 1
}

/// The null device.
#[derive(Debug)]
pub struct NullDevice {
    /// The device, open for reading.
    pub file: File,
    /// Its real name.
    pub name: PathBuf,
}

impl NullDevice {
    /// The name of the device.
    pub const PATH: &str = "/dev/null";

    fn open() -> io::Result<Self> {
        let name = Path::new(Self::PATH);
        Ok(Self {
            file: File::open(name)?,
            name: fs::canonicalize(name).unwrap_or_else(|_| name.to_owned()),
        })
    }
}

impl InvocationCache {
    /// A cache that also keeps captured streams. The process must have blocked `SIGIO`, which the system
    /// sends if another process opens a file during its lease.
    #[must_use]
    pub fn with_captures() -> Self {
        Self {
            keeps_captures: true,
            ..Self::default()
        }
    }

    /// Gathers what every invocation needs, before the first one asks.
    pub fn prepare(&self) {
        let mut names = self.names();
        names.user(getuid().as_raw());
        names.group(getgid().as_raw());
        self.keep_names(names);
        // The first local time reads the time zone from a file.
        let _ = stat::stamp_of(SystemTime::now());
        // The first job that needs it reports the error.
        let _ = self.null();
        drop(self.spawner());
    }

    /// Takes the names out.
    pub fn names(&self) -> Names {
        self.names.take()
    }

    /// Puts the names back.
    pub fn keep_names(&self, mut names: Names) {
        names.forget_failures();
        self.names.replace(names);
    }

    /// Returns the null device.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn null(&self) -> io::Result<&NullDevice> {
        if let Some(null) = self.null.get() {
            return Ok(null);
        }
        let null = NullDevice::open()?;
        Ok(self.null.get_or_init(|| null))
    }

    /// Returns the state for starting processes.
    pub fn spawner(&self) -> RefMut<'_, Spawner> {
        RefMut::map(self.spawner.borrow_mut(), |spawner| {
            spawner.get_or_insert_with(Spawner::new)
        })
    }

    /// Returns an empty mailbox: a kept one, or a new one as [`Mailbox::new`] makes it.
    ///
    /// # Errors
    /// No file can be made.
    pub fn mailbox(&self, directories: &[PathBuf], purpose: &'static str) -> io::Result<Mailbox> {
        if let Some(kept) = take(&self.mailboxes, purpose, directories)
            && let Ok(named) = fs::symlink_metadata(kept.file.path())
            && FileId::from(&named) == kept.id
            && is_unused(&named)
        {
            return Ok(kept.file);
        }
        // A program that runs one job has no time for this.
        if self.keeps_captures && !self.has_swept.replace(true) {
            directories
                .iter()
                .for_each(|directory| temporary::sweep(directory));
        }
        Mailbox::new(directories, purpose)
    }

    /// Keeps a mailbox with this status, if it is unused. No process that knows its name may live on.
    pub fn keep_mailbox(
        &self,
        directories: &[PathBuf],
        purpose: &'static str,
        mailbox: Mailbox,
        status: &Metadata,
    ) {
        if is_unused(status) {
            self.mailboxes.borrow_mut().push(KeptFile {
                purpose,
                directories: directories.to_owned(),
                file: mailbox,
                id: FileId::from(status),
            });
        }
    }

    /// Returns an empty capture: a kept one, or a new one as [`temporary::capture`] makes it.
    ///
    /// # Errors
    /// No file can be made.
    pub fn capture(&self, directories: &[PathBuf], stream: &'static str) -> io::Result<Capture> {
        match take(&self.captures, stream, directories) {
            Some(kept) => Ok(kept.file),
            None => temporary::capture(directories, stream),
        }
    }

    /// Keeps a capture if it is unused and no process has it open.
    pub fn keep_capture(&self, directories: &[PathBuf], stream: &'static str, capture: Capture) {
        if !self.keeps_captures || !set_lease(&capture.file, libc::F_WRLCK) {
            return;
        }
        let status = capture.file.metadata();
        if set_lease(&capture.file, libc::F_UNLCK)
            && let Ok(status) = status
            && is_unused(&status)
        {
            self.captures.borrow_mut().push(KeptFile {
                purpose: stream,
                directories: directories.to_owned(),
                file: capture,
                id: FileId::from(&status),
            });
        }
    }

    /// Opens a capture for a job, apart from kickstart's descriptor. Returns `None` if the system cannot do
    /// that.
    #[must_use]
    pub fn reopen(&self, capture: &Capture) -> Option<OwnedFd> {
        if !self.keeps_captures {
            return None;
        }
        let name = format!("/proc/self/fd/{}", capture.file.as_raw_fd());
        let file = File::options().read(true).append(true).open(name).ok()?;
        Some(file.into())
    }
}

/// Takes a lease for writing, or gives it back. Returns false if another process has the file open.
fn set_lease(file: &File, kind: libc::c_int) -> bool {
    #[expect(unsafe_code, reason = "nix has no F_SETLEASE")]
    // SAFETY: the descriptor is open, and the call changes only its lease.
    unsafe {
        libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, kind) == 0
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    /// Keeps a mailbox in the way that a report does.
    fn keep(cache: &InvocationCache, directories: &[PathBuf], mailbox: Mailbox) {
        let status = mailbox.file().metadata().unwrap();
        cache.keep_mailbox(directories, "meta", mailbox, &status);
    }

    #[test]
    fn unused_mailboxes_are_reused() {
        let folder = tempfile::tempdir().unwrap();
        let directories = [folder.path().to_owned()];
        let cache = InvocationCache::default();
        let mailbox = cache.mailbox(&directories, "meta").unwrap();
        let name = mailbox.path().to_owned();
        keep(&cache, &directories, mailbox);
        assert_ne!(cache.mailbox(&directories, "other").unwrap().path(), name);
        assert_eq!(cache.mailbox(&directories, "meta").unwrap().path(), name);
        drop(cache);
        assert_eq!(folder.path().read_dir().unwrap().count(), 0);
    }

    #[test]
    fn changed_mailboxes_are_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let directories = [folder.path().to_owned()];
        let cache = InvocationCache::default();
        let changes: [fn(&Mailbox); 5] = [
            |mailbox| mailbox.file().write_all(b"x").unwrap(),
            |mailbox| fs::remove_file(mailbox.path()).unwrap(),
            |mailbox| fs::rename(mailbox.path(), mailbox.path().with_extension("moved")).unwrap(),
            |mailbox| fs::hard_link(mailbox.path(), mailbox.path().with_extension("link")).unwrap(),
            |mailbox| {
                fs::remove_file(mailbox.path()).unwrap();
                fs::write(mailbox.path(), "").unwrap();
            },
        ];
        for change in changes {
            let mailbox = cache.mailbox(&directories, "meta").unwrap();
            let name = mailbox.path().to_owned();
            change(&mailbox);
            keep(&cache, &directories, mailbox);
            let mailbox = cache.mailbox(&directories, "meta").unwrap();
            assert!(mailbox.path() != name && mailbox.path().exists());
        }
        let elsewhere = tempfile::tempdir().unwrap();
        let mailbox = cache.mailbox(&directories, "meta").unwrap();
        keep(&cache, &directories, mailbox);
        let mailbox = cache.mailbox(&[elsewhere.path().to_owned()], "meta").unwrap();
        assert!(mailbox.path().starts_with(elsewhere.path()));
    }

    #[test]
    fn captures_are_reused_if_no_process_has_them_open() {
        let folder = tempfile::tempdir().unwrap();
        let directories = [folder.path().to_owned()];
        let inode = |capture: &Capture| capture.file.metadata().unwrap().ino();
        let cache = InvocationCache::with_captures();
        let capture = cache.capture(&directories, "out").unwrap();
        let first = inode(&capture);
        drop(cache.reopen(&capture).unwrap());
        cache.keep_capture(&directories, "out", capture);
        if cache.captures.borrow().is_empty() {
            // Some file systems grant no leases.
            return;
        }
        let capture = cache.capture(&directories, "out").unwrap();
        assert_eq!(inode(&capture), first);
        let open = cache.reopen(&capture).unwrap();
        cache.keep_capture(&directories, "out", capture);
        assert!(cache.captures.borrow().is_empty(), "a process has it open");
        drop(open);
        let capture = cache.capture(&directories, "out").unwrap();
        File::from(cache.reopen(&capture).unwrap())
            .write_all(b"x")
            .unwrap();
        cache.keep_capture(&directories, "out", capture);
        assert!(cache.captures.borrow().is_empty(), "it has text");
    }
}
