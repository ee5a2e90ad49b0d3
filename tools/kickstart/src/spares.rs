//! What an invocation leaves to the next one: names of users and programs, the null device, what starting a process
//! needs, and temporary files that are as they were made. Making four of them takes as long as a third of a small job.
//!
//! A file is used again only if it is empty and nobody else has it open. Of the files that capture streams a lease
//! tells, which the system grants for writing only then: a job may have handed its streams to a program that was
//! there before. Jobs therefore get an opening of their own of these files.

use std::cell::{OnceCell, RefCell, RefMut};
use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime};

use monitord_compat::invocation_record::{Identity, IdentityLines};
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use nix::unistd::{getgid, getuid};
use pmc_spawn::Spawner;

use crate::environment::Environment;
use crate::stat::{self, Names};
use crate::temporary::{self, Capture, Mailbox};

/// Names and files to use again, or nothing if each invocation is to have its own.
#[derive(Debug, Default)]
pub struct Spares {
    enabled: bool,
    captures: RefCell<Vec<Spare<Capture>>>,
    /// Captures in memory, empty.
    memory: RefCell<Vec<(&'static str, Capture)>>,
    mailboxes: RefCell<Vec<Spare<Mailbox>>>,
    names: RefCell<Names>,
    null: OnceCell<Null>,
    spawner: RefCell<Option<Spawner>>,
    /// The directory of this process's descriptors, if there is one.
    descriptors: OnceCell<Option<File>>,
    identity: RefCell<Option<IdentityLines>>,
    directories: RefCell<Option<Directories>>,
    /// What the last record was gathered in.
    text: RefCell<Vec<u8>>,
    /// Mailboxes after an earlier invocation, with the time of the last change. Taking the name away, or another one
    /// in its place, is a change, too.
    seen: RefCell<Vec<(FileId, (i64, i64))>>,
}

#[derive(Debug)]
struct Spare<F> {
    /// What it was made for.
    purpose: &'static str,
    directories: Rc<[PathBuf]>,
    file: F,
    id: FileId,
    /// Until when its name is taken to be still there, if it was there a moment ago.
    named_until: Option<Instant>,
}

/// Directories for temporary files, and what they follow from.
#[derive(Debug)]
struct Directories {
    directory: PathBuf,
    values: [Option<Vec<u8>>; temporary::VARIABLES.len()],
    list: Rc<[PathBuf]>,
}

/// Device and inode.
type FileId = (u64, u64);

/// How long a name is taken to be still there. Programs that clean up look for files of days.
const NAMED: Duration = Duration::from_secs(1);

/// So many mailboxes are remembered: more than are in use.
const MOST_SEEN: usize = 8;

/// The directory of a process's own descriptors.
const DESCRIPTORS: &str = "/proc/self/fd";

/// The null device.
#[derive(Debug)]
pub struct Null {
    /// It, open for reading.
    pub file: File,
    /// Its real name.
    pub name: PathBuf,
}

impl Null {
    /// Its name.
    pub const FILE: &str = "/dev/null";

    fn open() -> io::Result<Self> {
        let name = Path::new(Self::FILE);
        Ok(Self {
            file: File::open(name)?,
            name: fs::canonicalize(name).unwrap_or_else(|_| name.to_owned()),
        })
    }
}

/// What became of a temporary file.
#[derive(Debug)]
pub struct State {
    status: io::Result<Metadata>,
    /// Nobody else has the file open.
    alone: bool,
    /// Nothing about the file has changed during the invocation.
    unchanged: bool,
}

impl State {
    /// What the system says about the file.
    pub fn status(&self) -> Result<&Metadata, &io::Error> {
        self.status.as_ref()
    }

    /// Its size in bytes, as far as it is known.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.status.as_ref().map_or(0, Metadata::len)
    }

    /// Device and inode of a file that is empty, as it was made, and open nowhere else.
    fn unused(&self) -> Option<FileId> {
        let as_made =
            |status: &&Metadata| status.size() == 0 && status.mode() & 0o7777 == 0o600 && status.nlink() <= 1;
        let status = self.status.as_ref().ok().filter(as_made)?;
        self.alone.then(|| (status.dev(), status.ino()))
    }
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

    /// Gathers what every invocation needs, while there is time.
    pub fn prepare(&self) {
        let mut names = self.names();
        names.user(getuid().as_raw());
        names.group(getgid().as_raw());
        self.keep_names(names);
        // The time zone is read from a file.
        let _ = stat::stamp_of(SystemTime::now());
        // Who needs it will be told why there is none.
        let _ = self.null();
        self.descriptors();
        self.spawner();
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

    /// The null device.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn null(&self) -> io::Result<&Null> {
        if let Some(null) = self.null.get() {
            return Ok(null);
        }
        let null = Null::open()?;
        Ok(self.null.get_or_init(|| null))
    }

    /// What starts processes.
    pub fn spawner(&self) -> RefMut<'_, Spawner> {
        RefMut::map(self.spawner.borrow_mut(), |spawner| {
            spawner.get_or_insert_with(Spawner::new)
        })
    }

    /// Looks at a capture when the jobs have ended.
    pub fn look(&self, file: &File) -> State {
        let leased = self.enabled && set_lease(file, libc::F_WRLCK);
        let status = file.metadata();
        State {
            alone: leased && set_lease(file, libc::F_UNLCK),
            status,
            unchanged: false,
        }
    }

    /// Looks at a mailbox when the jobs have ended. Only they and what they started know its name, and whoever
    /// uses files again must end if any of these lives on.
    pub fn look_into(&self, mailbox: &Mailbox) -> State {
        let status = mailbox.file().metadata();
        State {
            unchanged: status.as_ref().is_ok_and(|status| self.has_seen(status)),
            status,
            alone: self.enabled,
        }
    }

    /// Whether a mailbox is as it was after an earlier invocation.
    fn has_seen(&self, status: &Metadata) -> bool {
        let this = (
            (status.dev(), status.ino()),
            (status.ctime(), status.ctime_nsec()),
        );
        let mut seen = self.seen.borrow_mut();
        let known = seen.contains(&this);
        if !known {
            seen.retain(|(id, _)| *id != this.0);
            seen.truncate(MOST_SEEN - 1);
            seen.insert(0, this);
        }
        known
    }

    /// Who runs an invocation, and where: asked for until names are known for user and group.
    pub fn identity(&self, find: impl FnOnce() -> Identity) -> IdentityLines {
        if let Some(known) = &*self.identity.borrow() {
            return known.clone();
        }
        let identity = find();
        let lines = IdentityLines::from(&identity);
        if self.enabled && identity.user.is_some() && identity.group.is_some() {
            self.identity.replace(Some(lines.clone()));
        }
        lines
    }

    /// As [`temporary::directories`].
    pub fn directories(&self, environment: &Environment, directory: &Path) -> Rc<[PathBuf]> {
        let values = temporary::VARIABLES.map(|name| environment.get(name.as_bytes()));
        let same = |known: &&Directories| {
            known.directory.as_os_str() == directory.as_os_str()
                && known.values.iter().map(Option::as_deref).eq(values)
        };
        if let Some(known) = self.directories.borrow().as_ref().filter(same) {
            return Rc::clone(&known.list);
        }
        let list = temporary::directories(environment, directory);
        self.directories.replace(Some(Directories {
            directory: directory.to_owned(),
            values: values.map(|value| value.map(<[u8]>::to_vec)),
            list: Rc::clone(&list),
        }));
        list
    }

    /// Something empty to gather a record in.
    pub fn text(&self) -> RefMut<'_, Vec<u8>> {
        let mut text = self.text.borrow_mut();
        text.clear();
        text
    }

    /// As [`temporary::capture`].
    pub fn capture(&self, directories: &[PathBuf], stream: &'static str) -> io::Result<Capture> {
        match take(&self.captures, stream, directories) {
            Some(spare) => Ok(spare.file),
            None => temporary::capture(directories, stream),
        }
    }

    /// A capture for a job that this process does itself. It is in memory where the system has that: such jobs
    /// write a few lines, and a file of a disk takes longer to make and to remove than many of them take.
    pub fn own_capture(&self, directories: &[PathBuf], stream: &'static str) -> io::Result<Capture> {
        let mut memory = self.memory.borrow_mut();
        if let Some(at) = memory.iter().position(|(purpose, _)| *purpose == stream) {
            return Ok(memory.swap_remove(at).1);
        }
        temporary::capture_in_memory(stream).or_else(|_| temporary::capture(directories, stream))
    }

    /// As [`Mailbox::new`].
    pub fn mailbox(&self, directories: &[PathBuf], purpose: &'static str) -> io::Result<Mailbox> {
        match take(&self.mailboxes, purpose, directories) {
            Some(spare) if spare.is_named() => Ok(spare.file),
            _ => Mailbox::new(directories, purpose),
        }
    }

    /// The file of a capture for a job.
    pub fn open(&self, capture: &Capture) -> io::Result<OwnedFd> {
        if self.enabled
            && let Some(descriptors) = self.descriptors()
        {
            let own = capture.file.as_raw_fd().to_string();
            let flags = OFlag::O_RDWR | OFlag::O_APPEND | OFlag::O_CLOEXEC;
            if let Ok(file) = openat(descriptors, own.as_str(), flags, Mode::empty()) {
                return Ok(file);
            }
        }
        Ok(capture.file.try_clone()?.into())
    }

    fn descriptors(&self) -> Option<&File> {
        self.descriptors
            .get_or_init(|| File::open(DESCRIPTORS).ok())
            .as_ref()
    }

    /// Takes a capture back, of which the state is this.
    pub fn keep_capture(
        &self,
        directories: &Rc<[PathBuf]>,
        stream: &'static str,
        capture: Capture,
        state: &State,
    ) {
        put(&self.captures, stream, directories, capture, state);
    }

    /// Takes a capture of [`Self::own_capture`] back, of which the state is this.
    pub fn keep_own_capture(&self, stream: &'static str, capture: Capture, state: &State) {
        // If a program that the job has started lives on and may have it, whoever uses files again must end.
        if self.enabled && (state.size() == 0 || capture.file.set_len(0).is_ok()) {
            self.memory.borrow_mut().push((stream, capture));
        }
    }

    /// Takes a mailbox back, of which the state is this.
    pub fn keep_mailbox(
        &self,
        directories: &Rc<[PathBuf]>,
        purpose: &'static str,
        mailbox: Mailbox,
        state: &State,
    ) {
        put(&self.mailboxes, purpose, directories, mailbox, state);
    }
}

fn take<F>(spares: &RefCell<Vec<Spare<F>>>, purpose: &str, directories: &[PathBuf]) -> Option<Spare<F>> {
    let mut spares = spares.borrow_mut();
    let at = spares.iter().position(|spare| spare.purpose == purpose)?;
    let spare = spares.swap_remove(at);
    let same = std::ptr::eq(&raw const *spare.directories, directories) || *spare.directories == *directories;
    same.then_some(spare)
}

fn put<F>(
    spares: &RefCell<Vec<Spare<F>>>,
    purpose: &'static str,
    directories: &Rc<[PathBuf]>,
    file: F,
    state: &State,
) {
    if let Some(id) = state.unused() {
        spares.borrow_mut().push(Spare {
            purpose,
            directories: Rc::clone(directories),
            file,
            id,
            named_until: state.unchanged.then(|| Instant::now() + NAMED),
        });
    }
}

/// Takes a lease for writing, or gives it back. False if somebody else has the file open.
fn set_lease(file: &File, kind: libc::c_int) -> bool {
    #[expect(
        unsafe_code,
        reason = "the call changes nothing but the lease of an open file"
    )]
    unsafe {
        libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, kind) == 0
    }
}

impl Spare<Mailbox> {
    /// Whether the name of the mailbox is still that of its file, which is empty.
    fn is_named(&self) -> bool {
        if self.named_until.is_some_and(|until| Instant::now() < until) {
            return true;
        }
        let named = fs::symlink_metadata(self.file.path());
        named.is_ok_and(|named| (named.dev(), named.ino()) == self.id && named.size() == 0)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn captures_in_memory_are_emptied() {
        let spares = Spares::new();
        let mut inode = None;
        for text in ["a long text", "", "text"] {
            let capture = spares.own_capture(&[], "err").unwrap();
            writeln!(&capture.file, "{text}").unwrap();
            let state = spares.look(&capture.file);
            assert_eq!(state.size(), text.len() as u64 + 1);
            let status = state.status().unwrap();
            assert_eq!(status.mode() & 0o7777, 0o600);
            assert!(inode.is_none_or(|inode| inode == status.ino()));
            inode = Some(status.ino());
            spares.keep_own_capture("err", capture, &state);
        }
        assert_eq!(
            spares
                .own_capture(&[], "out")
                .unwrap()
                .file
                .metadata()
                .unwrap()
                .size(),
            0
        );
    }

    #[test]
    fn untouched_files_are_used_again() {
        let folder = tempfile::tempdir().unwrap();
        let directories = Rc::from([folder.path().to_owned()]);
        let (spares, none) = (Spares::new(), Spares::default());
        let inode = |file: &File| file.metadata().unwrap().ino();
        let capture = spares.capture(&directories, "out").unwrap();
        let mailbox = spares.mailbox(&directories, "meta").unwrap();
        let before = (inode(&capture.file), mailbox.path().to_owned());
        drop(spares.open(&capture).unwrap());
        let state = spares.look(&capture.file);
        spares.keep_capture(&directories, "out", capture, &state);
        let state = spares.look_into(&mailbox);
        spares.keep_mailbox(&directories, "meta", mailbox, &state);
        let capture = spares.capture(&directories, "out").unwrap();
        let mailbox = spares.mailbox(&directories, "meta").unwrap();
        // Some file systems grant no leases.
        if spares.captures.borrow().is_empty() && inode(&capture.file) == before.0 {
            assert_eq!(mailbox.path(), before.1);
        }
        let state = none.look_into(&mailbox);
        none.keep_mailbox(&directories, "meta", mailbox, &state);
        assert_eq!(folder.path().read_dir().unwrap().count(), 0);
    }

    #[test]
    fn others_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let directories = Rc::from([folder.path().to_owned()]);
        let spares = Spares::new();
        // Still open somewhere.
        let capture = spares.capture(&directories, "out").unwrap();
        let held = spares.open(&capture).unwrap();
        let state = spares.look(&capture.file);
        spares.keep_capture(&directories, "out", capture, &state);
        assert!(spares.captures.borrow().is_empty());
        // Written to.
        let capture = spares.capture(&directories, "out").unwrap();
        File::from(held).write_all(b"late").unwrap();
        assert_eq!(capture.file.metadata().unwrap().len(), 0);
        File::from(spares.open(&capture).unwrap())
            .write_all(b"x")
            .unwrap();
        let state = spares.look(&capture.file);
        spares.keep_capture(&directories, "out", capture, &state);
        assert!(spares.captures.borrow().is_empty());
        // Removed, or for another place.
        let mailbox = spares.mailbox(&directories, "meta").unwrap();
        let name = mailbox.path().to_owned();
        fs::remove_file(&name).unwrap();
        let state = spares.look_into(&mailbox);
        spares.keep_mailbox(&directories, "meta", mailbox, &state);
        let mailbox = spares.mailbox(&directories, "meta").unwrap();
        assert!(mailbox.path().exists() && mailbox.path() != name);
        let state = spares.look_into(&mailbox);
        spares.keep_mailbox(&directories, "meta", mailbox, &state);
        // As it was once more, and then renamed by the job.
        let mailbox = spares.mailbox(&directories, "meta").unwrap();
        let state = spares.look_into(&mailbox);
        assert!(state.unchanged);
        spares.keep_mailbox(&directories, "meta", mailbox, &state);
        let mailbox = spares.mailbox(&directories, "meta").unwrap();
        let name = mailbox.path().to_owned();
        // The clock of the file system ticks.
        std::thread::sleep(Duration::from_millis(20));
        fs::rename(&name, folder.path().join("taken")).unwrap();
        let state = spares.look_into(&mailbox);
        assert!(!state.unchanged);
        spares.keep_mailbox(&directories, "meta", mailbox, &state);
        let mailbox = spares.mailbox(&directories, "meta").unwrap();
        assert!(mailbox.path().exists() && mailbox.path() != name);
        let elsewhere = tempfile::tempdir().unwrap();
        let mailbox = spares.mailbox(&[elsewhere.path().to_owned()], "meta").unwrap();
        assert!(mailbox.path().starts_with(elsewhere.path()));
    }
}
