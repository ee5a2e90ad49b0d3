//! The cache of a node: what several of its jobs need comes over the network once.
//!
//! It is a directory beside those of jobs, which only this user can use. An entry is a directory `KEY` with
//! the file `data`, and a lock file `KEY.lock`. Whoever fetches holds the lock alone; whoever uses the file
//! shares it, so that nobody removes it meanwhile. The kernel frees the lock of a process that is killed.
//! `data` gets its name when it is complete and verified. Another node of the run may give it ([`peers`]).
//! The time of the lock file is that of the last use.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use nix::sys::statvfs::statvfs;
use nix::unistd::getuid;
use pegasus_kickstart::interrupts::{Interrupt, Interrupts};
use pegasus_kickstart::wait::poll_interrupts;
use pmc_wire::peers::ToAgent;
use rustix::fs::{FlockOperation, flock};
use serde_json::Value;

use crate::data::{DataError, Direction, Mover};
use crate::description::Verified;
use crate::directory::{make_private, remove_tree};
use crate::messages::Log;
use crate::peers::{self, Asked};

/// How long an entry stays that nobody uses.
pub(crate) const KEPT: Duration = Duration::from_secs(3600);

/// Time between two looks at a lock.
const PAUSE: Duration = Duration::from_millis(50);

/// Suffix of lock files.
const LOCK: &str = ".lock";

/// Suffix of files with the names of loaded images.
pub(crate) const LOADED: &str = ".loaded";

/// The file of an entry.
const DATA: &str = "data";

/// Directory of an entry into which its file is fetched.
const NEW: &str = "new";

/// Text of a lock file whose entry is too large for the cache.
const TOO_LARGE: &str = "too large\n";

/// Without a limit, entries have at most this part of the space that is free or theirs.
const PART_OF_ALL: u64 = 4;

/// Without a limit, an entry has at most this part of that space.
const PART_OF_ONE: u64 = 10;

/// The cache in a directory for jobs.
#[derive(Debug)]
pub(crate) struct Cache {
    directory: PathBuf,
    log: Log,
}

/// What a job wants.
#[derive(Debug)]
pub(crate) struct Wanted<'a> {
    /// What distinguishes the file from all others of the node: letters and digits.
    pub(crate) key: &'a str,
    /// How it is fetched.
    pub(crate) fetch: &'a [Value],
    /// Its checksum.
    pub(crate) verify: &'a [Verified],
    /// Its path in the directory into which it is fetched.
    pub(crate) name: &'a str,
    /// Title of the section of the log in which it is fetched, and of that in which it is verified.
    pub(crate) headings: Option<[&'a str; 2]>,
    /// How many bytes all entries may have; `None` if all space is theirs.
    pub(crate) limit: Option<Limit>,
}

impl Wanted<'_> {
    /// Fetches and verifies the file, in the directory of the mover.
    ///
    /// # Errors
    /// It cannot be fetched, differs from its checksum, or a signal arrived.
    pub(crate) fn fetch_here(
        &self,
        mover: &mut Mover,
        interrupts: &mut dyn Interrupts,
    ) -> Result<(), DataError> {
        if let Some([title, _]) = self.headings {
            mover.log.heading(title);
        }
        mover.transfer(self.fetch, Direction::In, interrupts)?;
        if let Some([_, title]) = self.headings.filter(|_| !self.verify.is_empty()) {
            mover.log.heading(title);
        }
        mover.verify(self.verify.iter())
    }
}

/// How much space the entries of a cache may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// Bytes.
    Bytes(u64),
    /// A part of the space that is free or theirs.
    Part,
}

/// An entry in use.
#[derive(Debug)]
pub(crate) struct Entry {
    /// The file.
    pub(crate) file: PathBuf,
    /// This process has fetched it.
    pub(crate) is_new: bool,
    /// It leaves the cache after its use.
    is_large: bool,
    /// Holds the lock.
    _lock: File,
}

impl Entry {
    /// Ends the use.
    pub(crate) fn release(self) {
        if self.is_large {
            // What cannot be removed stays for a sweep.
            let _ = fs::remove_file(&self.file);
        }
    }
}

impl Cache {
    /// Opens the cache beside the directories of jobs, and removes what nobody has used for long. `None` if
    /// the directory cannot be made, or is not that of this user alone: another user may have planted it. The
    /// log says so, and the job does without the cache.
    pub(crate) fn open(base: &Path, log: &Log) -> Option<Self> {
        let this = Self::of(base, log);
        if let Err(error) = make_private(&this.directory) {
            log.say(format_args!("The cache of the node cannot be used: {error}"));
            return None;
        }
        this.sweep();
        Some(this)
    }

    fn of(base: &Path, log: &Log) -> Self {
        Self {
            directory: base.join(format!(".pegasus-lite-{}-cache", getuid())),
            log: log.clone(),
        }
    }

    /// Removes all entries of a directory for jobs that nobody uses.
    pub(crate) fn make_room(base: &Path, log: &Log) {
        let this = Self::of(base, log);
        if this.directory.is_dir() && make_private(&this.directory).is_ok() {
            this.shrink(0);
        }
    }

    /// Returns an entry, and fetches it unless it is there. Returns `None` if it is too large: each job
    /// fetches the file by itself.
    ///
    /// # Errors
    /// It cannot be fetched, differs from its checksum, or a signal arrived.
    pub(crate) fn entry(
        &self,
        wanted: &Wanted<'_>,
        mover: &mut Mover,
        interrupts: &mut dyn Interrupts,
    ) -> Result<Option<Entry>, DataError> {
        let file = self.directory.join(wanted.key).join(DATA);
        let lock_name = format!("{}{LOCK}", wanted.key);
        let lock_path = self.directory.join(&lock_name);
        let (mut is_new, mut is_large) = (false, false);
        loop {
            let mut lock = self.open_file(&lock_name)?;
            let mut asked = None;
            if flock(&lock, FlockOperation::NonBlockingLockShared).is_ok() && is_linked(&lock) {
                if read(&mut lock)? == TOO_LARGE.trim() {
                    lock.set_modified(SystemTime::now())?;
                    return Ok(None);
                }
                // The system gives up the first lock for the second one, so others may be faster.
                if !file.exists()
                    && flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok()
                    && is_linked(&lock)
                    && !file.exists()
                {
                    asked = Some(self.fetch(wanted, &file, mover, interrupts)?);
                    is_new = true;
                    is_large = !self.has_room(&file, wanted.limit)?;
                    if is_large {
                        lock.write_all(TOO_LARGE.as_bytes())?;
                    }
                    flock(&lock, FlockOperation::LockShared).map_err(io::Error::from)?;
                }
                if file.exists() && is_linked(&lock) {
                    lock.set_modified(SystemTime::now())?;
                    let bytes = fs::metadata(&file)?.len();
                    let known = || pmc_wire::peers::Entry {
                        key: wanted.key.to_owned(),
                        lock: lock_path.clone(),
                        file: file.clone(),
                        name: wanted.name.to_owned(),
                        bytes,
                    };
                    match asked {
                        Some(asked) if is_large => asked.tell(&ToAgent::TooLarge),
                        Some(asked) => asked.tell(&ToAgent::Have(known())),
                        None => peers::tell(known(), mover),
                    }
                    if !is_new {
                        mover.data.cached = mover.data.cached.saturating_add(bytes);
                    }
                    return Ok(Some(Entry {
                        file,
                        is_new,
                        is_large,
                        _lock: lock,
                    }));
                }
            }
            drop(lock);
            let clock = Instant::now();
            let paused = pause(interrupts);
            mover.data.waited += clock.elapsed().as_secs_f64();
            paused?;
        }
    }

    /// Removes an entry that is not what it should be.
    ///
    /// # Errors
    /// It cannot be removed, or a signal arrived.
    pub(crate) fn discard(&self, key: &str, interrupts: &mut dyn Interrupts) -> Result<(), DataError> {
        let lock = self.open_file(&format!("{key}{LOCK}"))?;
        while flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            pause(interrupts)?;
        }
        // If a sweep has removed the entry meanwhile, what has its name now is another one.
        if is_linked(&lock) {
            self.remove(key)?;
        }
        Ok(())
    }

    /// Opens a file of the cache; makes it if needed.
    ///
    /// # Errors
    /// It cannot be opened.
    pub(crate) fn open_file(&self, name: &str) -> io::Result<File> {
        OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(nix::libc::O_NOFOLLOW)
            .open(self.directory.join(name))
    }

    /// Fetches and verifies a file. Nothing is left of a failure.
    fn fetch(
        &self,
        wanted: &Wanted<'_>,
        file: &Path,
        mover: &mut Mover,
        interrupts: &mut dyn Interrupts,
    ) -> Result<Asked, DataError> {
        self.remove(wanted.key)?;
        let new = self.directory.join(wanted.key).join(NEW);
        fs::create_dir_all(&new)?;
        let fetched = mover.within(&new, |mover| {
            let into = new.join(wanted.name);
            fs::create_dir_all(into.parent().unwrap_or(&new))?;
            let (mut asked, bytes) = Asked::want(wanted.key, &into, mover, interrupts)?;
            if let Some(bytes) = bytes {
                if mover.agrees(&into, bytes, wanted.verify)? {
                    mover.log.say(format_args!(
                        "{} ({bytes} bytes) is from another node",
                        wanted.name
                    ));
                    mover.data.from_peers = mover.data.from_peers.saturating_add(bytes);
                    return Ok(asked);
                }
                mover.log.say(format_args!(
                    "the copy of {} on another node is wrong",
                    wanted.name
                ));
                fs::remove_file(&into)?;
                asked.wrong(interrupts)?;
            }
            wanted.fetch_here(mover, interrupts)?;
            Ok(asked)
        });
        let fetched = fetched.and_then(|asked| {
            fs::rename(new.join(wanted.name), file)?;
            Ok(asked)
        });
        // What cannot be removed goes with the entry: the next job that fetches it begins anew.
        let _ = match &fetched {
            Ok(_) => remove_tree(&new),
            Err(_) => self.remove(wanted.key),
        };
        fetched
    }

    /// Returns whether a new entry can stay. Removes others for it, least recently used first.
    fn has_room(&self, file: &Path, limit: Option<Limit>) -> io::Result<bool> {
        let (all, one) = match limit {
            None => return Ok(true),
            Some(Limit::Bytes(bytes)) => (bytes, bytes),
            Some(Limit::Part) => {
                let space = statvfs(&self.directory)?;
                let free = space.blocks_available().saturating_mul(space.fragment_size());
                let used: u64 = self.entries().iter().map(|entry| entry.bytes).sum();
                let space = free.saturating_add(used);
                (space / PART_OF_ALL, space / PART_OF_ONE)
            }
        };
        if fs::metadata(file)?.len() > one {
            return Ok(false);
        }
        self.shrink(all);
        Ok(true)
    }

    /// Removes entries that nobody uses, least recently used first, until all have at most `limit` bytes.
    fn shrink(&self, limit: u64) {
        let mut entries = self.entries();
        entries.sort_by_key(|entry| entry.used);
        let mut bytes: u64 = entries.iter().map(|entry| entry.bytes).sum();
        for entry in entries {
            if bytes <= limit {
                break;
            }
            if self.remove_unused(&entry.key) {
                bytes = bytes.saturating_sub(entry.bytes);
            }
        }
    }

    /// Returns what is in the cache.
    fn entries(&self) -> Vec<Found> {
        let entries = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        entries
            .filter_map(|entry| {
                let name = entry.file_name().into_string().ok()?;
                let key = name.strip_suffix(LOCK)?.to_owned();
                let data = fs::metadata(self.directory.join(&key).join(DATA));
                Some(Found {
                    key,
                    bytes: data.map_or(0, |status| status.len()),
                    used: entry.metadata().ok()?.modified().ok()?,
                })
            })
            .collect()
    }

    /// Removes what nobody uses and nobody has used for long. What cannot be removed stays for the next
    /// sweep.
    fn sweep(&self) {
        let is_old = |at: SystemTime| at.elapsed().is_ok_and(|age| age > KEPT);
        for entry in self.entries().iter().filter(|entry| is_old(entry.used)) {
            self.remove_unused(&entry.key);
        }
        for entry in fs::read_dir(&self.directory).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let used = entry.metadata().and_then(|status| status.modified());
            if name.ends_with(LOADED) && used.is_ok_and(is_old) {
                let Ok(note) = self.open_file(&name) else { continue };
                if flock(&note, FlockOperation::NonBlockingLockExclusive).is_ok() {
                    let _ = fs::remove_file(entry.path());
                }
            }
        }
    }

    /// Removes an entry with its lock file unless somebody uses it. Returns whether it is gone.
    fn remove_unused(&self, key: &str) -> bool {
        let name = format!("{key}{LOCK}");
        let Ok(lock) = self.open_file(&name) else {
            return false;
        };
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() || !is_linked(&lock) {
            return false;
        }
        let removed = self
            .remove(key)
            .and_then(|()| fs::remove_file(self.directory.join(&name)));
        if let Err(error) = &removed {
            self.log
                .say(format_args!("{key} cannot be removed from the cache: {error}"));
        }
        removed.is_ok()
    }

    /// Removes the files of an entry.
    fn remove(&self, key: &str) -> io::Result<()> {
        match remove_tree(&self.directory.join(key)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

/// An entry that is there.
#[derive(Debug)]
struct Found {
    key: String,
    bytes: u64,
    used: SystemTime,
}

/// Returns the key of a file with a checksum, `None` if the text is no SHA-256 in hexadecimal.
pub(crate) fn key_of(sha256: &str) -> Option<String> {
    let is_one = sha256.len() == 64 && sha256.bytes().all(|b| b.is_ascii_hexdigit());
    is_one.then(|| sha256.to_ascii_lowercase())
}

/// Returns whether a file still has a name: a sweep may have removed it before it was locked.
fn is_linked(file: &File) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    file.metadata().is_ok_and(|status| status.nlink() > 0)
}

/// Reads a short text from the beginning of a file.
///
/// # Errors
/// It cannot be read.
pub(crate) fn read(file: &mut File) -> io::Result<String> {
    let mut text = String::new();
    file.seek(SeekFrom::Start(0))?;
    file.read_to_string(&mut text)?;
    Ok(text.trim().to_owned())
}

/// Waits a moment.
///
/// # Errors
/// A signal arrived.
pub(crate) fn pause(interrupts: &mut dyn Interrupts) -> Result<(), DataError> {
    if poll_interrupts(Some(PAUSE), None, interrupts)?.abandoned {
        interrupts.abandoned();
    }
    while let Some(interrupt) = interrupts.take() {
        if let Interrupt::Forward(signal) = interrupt {
            return Err(DataError::Signal(signal));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cache with entries of ten bytes, used so many seconds ago.
    fn cache(base: &Path, entries: &[(&str, u64)]) -> Cache {
        let cache = Cache::open(base, &Log::unread()).unwrap();
        for (key, age) in entries {
            fs::create_dir(cache.directory.join(key)).unwrap();
            fs::write(cache.directory.join(key).join(DATA), [0; 10]).unwrap();
            let lock = cache.open_file(&format!("{key}{LOCK}")).unwrap();
            lock.set_modified(SystemTime::now() - Duration::from_secs(*age))
                .unwrap();
        }
        cache
    }

    fn keys(cache: &Cache) -> Vec<String> {
        let mut keys: Vec<_> = cache.entries().into_iter().map(|entry| entry.key).collect();
        keys.sort();
        keys
    }

    fn hold(cache: &Cache, key: &str) -> File {
        let lock = cache.open_file(&format!("{key}{LOCK}")).unwrap();
        flock(&lock, FlockOperation::LockShared).unwrap();
        lock
    }

    #[test]
    fn what_nobody_has_used_for_an_hour_is_removed() {
        let base = tempfile::tempdir().unwrap();
        let first = cache(base.path(), &[("old", 7200), ("held", 7200), ("new", 10)]);
        let _held = hold(&first, "held");
        let note = first.open_file("a.docker.loaded").unwrap();
        note.set_modified(SystemTime::now() - 2 * KEPT).unwrap();
        drop(note);
        let second = Cache::open(base.path(), &Log::unread()).unwrap();
        assert_eq!(keys(&second), ["held", "new"]);
        let mut left: Vec<_> = fs::read_dir(&second.directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(left, ["held", "held.lock", "new", "new.lock"]);
    }

    #[test]
    fn least_recently_used_entries_give_way_unless_they_are_in_use() {
        let base = tempfile::tempdir().unwrap();
        let entries = [("a", 50), ("b", 40), ("c", 30), ("d", 20)];
        let cache = cache(base.path(), &entries);
        let _held = hold(&cache, "a");
        let new = cache.directory.join("d").join(DATA);
        assert!(cache.has_room(&new, Some(Limit::Bytes(25))).unwrap());
        assert_eq!(keys(&cache), ["a", "d"]);
        assert!(!cache.has_room(&new, Some(Limit::Bytes(9))).unwrap());
        assert!(cache.has_room(&new, None).unwrap());
        Cache::make_room(base.path(), &Log::unread());
        assert_eq!(keys(&cache), ["a"]);
    }
}
