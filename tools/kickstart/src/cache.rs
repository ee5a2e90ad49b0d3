//! What an invocation leaves to the next one of the same process: names, the null device, the state for
//! starting processes, and unused mailboxes. Making and removing two mailboxes takes about a tenth of a small
//! job.

use std::cell::{OnceCell, RefCell, RefMut};
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use nix::unistd::{getgid, getuid};
use pmc_spawn::Spawner;

use crate::names::{FileId, Names};
use crate::stat;
use crate::temporary::Mailbox;

/// Names and files for reuse. Nothing in it changes what a record says.
#[derive(Debug, Default)]
pub struct InvocationCache {
    names: RefCell<Names>,
    null: OnceCell<NullDevice>,
    spawner: RefCell<Option<Spawner>>,
    mailboxes: RefCell<Vec<KeptMailbox>>,
}

#[derive(Debug)]
struct KeptMailbox {
    purpose: &'static str,
    /// Directories that it was made for.
    directories: Vec<PathBuf>,
    mailbox: Mailbox,
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
        let mut mailboxes = self.mailboxes.borrow_mut();
        if let Some(at) = mailboxes.iter().position(|kept| kept.purpose == purpose) {
            let kept = mailboxes.swap_remove(at);
            if kept.directories == directories && is_unused(&kept.mailbox) {
                return Ok(kept.mailbox);
            }
        }
        Mailbox::new(directories, purpose)
    }

    /// Keeps a mailbox. No process that knows its name may live on: the next job must not find texts of this
    /// one.
    pub fn keep_mailbox(&self, directories: &[PathBuf], purpose: &'static str, mailbox: Mailbox) {
        self.mailboxes.borrow_mut().push(KeptMailbox {
            purpose,
            directories: directories.to_owned(),
            mailbox,
        });
    }
}

/// Returns whether the mailbox is as it was made: its name means its file, which is empty and private.
fn is_unused(mailbox: &Mailbox) -> bool {
    let is_new =
        |status: &Metadata| status.size() == 0 && status.mode() & 0o7777 == 0o600 && status.nlink() == 1;
    let (Ok(named), Ok(open)) = (fs::symlink_metadata(mailbox.path()), mailbox.file().metadata()) else {
        return false;
    };
    is_new(&open) && FileId::from(&named) == FileId::from(&open)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn unused_mailboxes_are_reused() {
        let folder = tempfile::tempdir().unwrap();
        let directories = [folder.path().to_owned()];
        let cache = InvocationCache::default();
        let mailbox = cache.mailbox(&directories, "meta").unwrap();
        let name = mailbox.path().to_owned();
        cache.keep_mailbox(&directories, "meta", mailbox);
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
            cache.keep_mailbox(&directories, "meta", mailbox);
            let mailbox = cache.mailbox(&directories, "meta").unwrap();
            assert!(mailbox.path() != name && mailbox.path().exists());
        }
        let elsewhere = tempfile::tempdir().unwrap();
        let mailbox = cache.mailbox(&directories, "meta").unwrap();
        cache.keep_mailbox(&directories, "meta", mailbox);
        let mailbox = cache.mailbox(&[elsewhere.path().to_owned()], "meta").unwrap();
        assert!(mailbox.path().starts_with(elsewhere.path()));
    }
}
