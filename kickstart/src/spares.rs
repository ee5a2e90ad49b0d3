//! What an invocation leaves to the next one: names of users, and temporary files that are as they were made. Making
//! four of them takes as long as a third of a small job.
//!
//! A file is used again only if it is empty and nobody else has it open, which a lease tells: the system grants one
//! for writing only then. Jobs therefore get an opening of their own of the files that capture their streams.

use std::cell::RefCell;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

use crate::stat::Names;
use crate::temporary::{self, Capture, Mailbox};

/// Names and files to use again, or nothing if each invocation is to have its own.
#[derive(Debug, Default)]
pub struct Spares {
    enabled: bool,
    captures: RefCell<Vec<Spare<Capture>>>,
    mailboxes: RefCell<Vec<Spare<Mailbox>>>,
    names: RefCell<Names>,
}

#[derive(Debug)]
struct Spare<F> {
    /// What it was made for.
    purpose: &'static str,
    directories: Vec<PathBuf>,
    file: F,
}

impl Spares {
    /// Keeps files. The calling process must have blocked `SIGIO`, which tells that somebody opens a file while
    /// its lease is held.
    #[must_use]
    pub fn new() -> Self {
        Self {
            enabled: true,
            ..Self::default()
        }
    }

    /// Names of users and groups that were looked up.
    pub fn names(&self) -> Names {
        self.names.take()
    }

    /// Takes the names back.
    pub fn keep_names(&self, mut names: Names) {
        if self.enabled {
            names.forget_failures();
            self.names.replace(names);
        }
    }

    /// As [`temporary::capture`].
    pub fn capture(&self, directories: &[PathBuf], stream: &'static str) -> io::Result<Capture> {
        match take(&self.captures, stream, directories) {
            Some(capture) => Ok(capture),
            None => temporary::capture(directories, stream),
        }
    }

    /// As [`Mailbox::new`].
    pub fn mailbox(&self, directories: &[PathBuf], purpose: &'static str) -> io::Result<Mailbox> {
        match take(&self.mailboxes, purpose, directories) {
            Some(mailbox) if is_where_it_was(&mailbox) => Ok(mailbox),
            _ => Mailbox::new(directories, purpose),
        }
    }

    /// The file of a capture for a job.
    pub fn open(&self, capture: &Capture) -> io::Result<OwnedFd> {
        if self.enabled {
            let own = format!("/proc/self/fd/{}", capture.file.as_raw_fd());
            let mut options = File::options();
            options.read(true).append(true).custom_flags(libc::O_CLOEXEC);
            if let Ok(file) = options.open(own) {
                return Ok(file.into());
            }
        }
        Ok(capture.file.try_clone()?.into())
    }

    /// Takes a capture back.
    pub fn keep_capture(&self, directories: &[PathBuf], stream: &'static str, capture: Capture) {
        if self.enabled && is_unused(&capture.file) {
            put(&self.captures, stream, directories, capture);
        }
    }

    /// Takes a mailbox back.
    pub fn keep_mailbox(&self, directories: &[PathBuf], purpose: &'static str, mailbox: Mailbox) {
        if self.enabled && is_unused(mailbox.file()) {
            put(&self.mailboxes, purpose, directories, mailbox);
        }
    }
}

fn take<F>(spares: &RefCell<Vec<Spare<F>>>, purpose: &str, directories: &[PathBuf]) -> Option<F> {
    let mut spares = spares.borrow_mut();
    let at = spares.iter().position(|spare| spare.purpose == purpose)?;
    let spare = spares.swap_remove(at);
    (spare.directories == directories).then_some(spare.file)
}

fn put<F>(spares: &RefCell<Vec<Spare<F>>>, purpose: &'static str, directories: &[PathBuf], file: F) {
    spares.borrow_mut().push(Spare {
        purpose,
        directories: directories.to_vec(),
        file,
    });
}

/// Whether the file is empty, as it was made, and nobody else has it open.
fn is_unused(file: &File) -> bool {
    let Ok(status) = file.metadata() else {
        return false;
    };
    if status.size() != 0 || status.mode() & 0o7777 != 0o600 || status.nlink() > 1 {
        return false;
    }
    #[expect(
        unsafe_code,
        reason = "the calls change nothing but the lease of an open file"
    )]
    unsafe {
        libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) == 0
            && libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK) == 0
    }
}

/// Whether the name of a mailbox is still that of its file, which is empty.
fn is_where_it_was(mailbox: &Mailbox) -> bool {
    let (Ok(named), Ok(open)) = (fs::symlink_metadata(mailbox.path()), mailbox.file().metadata()) else {
        return false;
    };
    (named.dev(), named.ino(), named.size()) == (open.dev(), open.ino(), 0)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn untouched_files_are_used_again() {
        let folder = tempfile::tempdir().unwrap();
        let directories = [folder.path().to_owned()];
        let (spares, none) = (Spares::new(), Spares::default());
        let inode = |file: &File| file.metadata().unwrap().ino();
        let capture = spares.capture(&directories, "out").unwrap();
        let mailbox = spares.mailbox(&directories, "meta").unwrap();
        let before = (inode(&capture.file), mailbox.path().to_owned());
        drop(spares.open(&capture).unwrap());
        spares.keep_capture(&directories, "out", capture);
        spares.keep_mailbox(&directories, "meta", mailbox);
        let capture = spares.capture(&directories, "out").unwrap();
        let mailbox = spares.mailbox(&directories, "meta").unwrap();
        // Some file systems grant no leases.
        if spares.captures.borrow().is_empty() && inode(&capture.file) == before.0 {
            assert_eq!(mailbox.path(), before.1);
        }
        none.keep_mailbox(&directories, "meta", mailbox);
        assert_eq!(folder.path().read_dir().unwrap().count(), 0);
    }

    #[test]
    fn others_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let directories = [folder.path().to_owned()];
        let spares = Spares::new();
        // Still open somewhere.
        let capture = spares.capture(&directories, "out").unwrap();
        let held = spares.open(&capture).unwrap();
        spares.keep_capture(&directories, "out", capture);
        assert!(spares.captures.borrow().is_empty());
        // Written to.
        let capture = spares.capture(&directories, "out").unwrap();
        File::from(held).write_all(b"late").unwrap();
        assert_eq!(capture.file.metadata().unwrap().len(), 0);
        File::from(spares.open(&capture).unwrap())
            .write_all(b"x")
            .unwrap();
        spares.keep_capture(&directories, "out", capture);
        assert!(spares.captures.borrow().is_empty());
        // Removed, or for another place.
        let mailbox = spares.mailbox(&directories, "meta").unwrap();
        let name = mailbox.path().to_owned();
        fs::remove_file(&name).unwrap();
        spares.keep_mailbox(&directories, "meta", mailbox);
        let mailbox = spares.mailbox(&directories, "meta").unwrap();
        assert!(mailbox.path().exists() && mailbox.path() != name);
        spares.keep_mailbox(&directories, "meta", mailbox);
        let elsewhere = tempfile::tempdir().unwrap();
        let mailbox = spares.mailbox(&[elsewhere.path().to_owned()], "meta").unwrap();
        assert!(mailbox.path().starts_with(elsewhere.path()));
    }
}
