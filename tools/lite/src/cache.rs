//! The cache of a node: what several of its jobs need comes over the network once.
//!
//! It is a directory beside those of jobs, which only this user can use. An entry is a directory `KEY` with
//! the file `data`, and a lock file `KEY.lock`. A job that fetches the file holds the lock alone. Jobs that
//! use it share the lock, so that nobody removes it meanwhile. The kernel frees the lock of a process that
//! is killed. `data` gets its name when it is complete and verified. Another node of the run may give it
//! ([`peers`]). The time of the lock file is that of the last use, and its text is the identity of `data`:
//! a file that was changed in the cache leaves it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use monitord_compat::lite_log::Step;
use nix::sys::statvfs::statvfs;
use nix::unistd::getuid;
use pegasus_kickstart::interrupts::{Interrupt, Interrupts};
use pegasus_kickstart::wait::poll_interrupts;
use pmc_job_files::Verified;
use pmc_wire::peers::{ToAgent, identity};
use rustix::fs::{FlockOperation, flock};

use crate::data::{DataError, Direction, Mover};
use crate::directory::{make_private, remove_tree};
use crate::messages::Log;
use crate::peers::{self, Asked};

/// How long an entry stays that nobody uses.
pub(crate) const KEPT: Duration = Duration::from_secs(3600);

/// Time between two sweeps.
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);

/// File whose time is that of the last sweep.
const SWEPT: &str = "swept";

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
    pub(crate) fetch: &'a [pmc_job_files::Entry],
    /// Its checksum.
    pub(crate) verify: &'a [Verified],
    /// Its path in the directory into which it is fetched.
    pub(crate) name: &'a str,
    /// The steps in which it is fetched and verified, if they have headings of their own.
    pub(crate) steps: Option<[Step; 2]>,
    /// How many bytes all entries may have; `None` if all space is theirs.
    pub(crate) limit: Option<Limit>,
    /// Jobs use the file itself instead of copies: none shall change it by mistake.
    pub(crate) is_read_only: bool,
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
        if let Some([step, _]) = self.steps {
            mover.log.heading(step);
        }
        mover.transfer(self.fetch, Direction::In, interrupts)?;
        if let Some([_, step]) = self.steps.filter(|_| !self.verify.is_empty()) {
            mover.log.heading(step);
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
    /// Opens the cache beside the directories of jobs, and now and then removes what nobody has used for
    /// long. `None` if the directory cannot be made, or is not that of this user alone: another user may have
    /// planted it. The log says so, and the job does without the cache.
    pub(crate) fn open(base: &Path, log: &Log) -> Option<Self> {
        let this = Self::of(base, log);
        if let Err(error) = make_private(&this.directory) {
            log.say(format_args!("The cache of the node cannot be used: {error}"));
            return None;
        }
        this.sweep_sometimes();
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

    /// Returns an entry, and fetches it unless it is there. Returns `None` if it is too large, or has changed
    /// while others use it: each job fetches the file by itself.
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
        loop {
            let mut lock = self.open_file(&lock_name)?;
            if flock(&lock, FlockOperation::NonBlockingLockShared).is_ok() && is_linked(&lock) {
                match State::of(&file, &mut lock)? {
                    State::TooLarge => {
                        lock.set_modified(SystemTime::now())?;
                        return Ok(None);
                    }
                    State::Good { bytes } => {
                        lock.set_modified(SystemTime::now())?;
                        peers::tell(self.known(wanted, bytes), mover);
                        mover.data.cached = mover.data.cached.saturating_add(bytes);
                        return Ok(Some(Entry {
                            file,
                            is_new: false,
                            is_large: false,
                            _lock: lock,
                        }));
                    }
                    state => {
                        // The system gives up the first lock for the second one, so others may be faster.
                        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok()
                            && is_linked(&lock)
                            && !matches!(State::of(&file, &mut lock)?, State::Good { .. })
                        {
                            if let Some(entry) = self.fill(wanted, lock, mover, interrupts)? {
                                return Ok(Some(entry));
                            }
                            continue;
                        }
                        if state == State::Changed {
                            self.log.say(format_args!(
                                "{} was changed in the cache of the node, where others use it",
                                wanted.name
                            ));
                            return Ok(None);
                        }
                    }
                }
            }
            drop(lock);
            let clock = Instant::now();
            let paused = pause(interrupts);
            mover.data.waited += clock.elapsed().as_secs_f64();
            paused?;
        }
    }

    /// What the agent of the node learns of an entry.
    fn known(&self, wanted: &Wanted<'_>, bytes: u64) -> pmc_wire::peers::Entry {
        let directory = self.directory.join(wanted.key);
        pmc_wire::peers::Entry {
            key: wanted.key.to_owned(),
            lock: self.directory.join(format!("{}{LOCK}", wanted.key)),
            file: directory.join(DATA),
            name: wanted.name.to_owned(),
            bytes,
        }
    }

    /// Fetches the file of an entry, whose lock this process holds alone. `None` if it is gone again.
    fn fill(
        &self,
        wanted: &Wanted<'_>,
        mut lock: File,
        mover: &mut Mover,
        interrupts: &mut dyn Interrupts,
    ) -> Result<Option<Entry>, DataError> {
        let file = self.directory.join(wanted.key).join(DATA);
        lock.set_len(0)?;
        let asked = self.fetch(wanted, &file, mover, interrupts)?;
        if wanted.is_read_only {
            let mode = fs::metadata(&file)?.mode();
            fs::set_permissions(&file, fs::Permissions::from_mode(mode & !0o222))?;
        }
        let is_large = !self.has_room(&file, wanted.limit)?;
        let status = fs::metadata(&file)?;
        let text = if is_large {
            TOO_LARGE.to_owned()
        } else {
            identity(&status)
        };
        lock.write_all_at(text.as_bytes(), 0)?;
        lock.set_modified(SystemTime::now())?;
        // The system gives up the first lock for the second one, so others may have removed the file.
        flock(&lock, FlockOperation::LockShared).map_err(io::Error::from)?;
        let state = State::of(&file, &mut lock)?;
        if !is_linked(&lock) || !(is_large && file.exists() || matches!(state, State::Good { .. })) {
            return Ok(None);
        }
        match (is_large, asked) {
            (true, Some(asked)) => asked.tell(&ToAgent::TooLarge),
            (true, None) => {}
            (false, Some(asked)) => asked.tell(&ToAgent::Have(self.known(wanted, status.len()))),
            (false, None) => peers::tell(self.known(wanted, status.len()), mover),
        }
        Ok(Some(Entry {
            file,
            is_new: true,
            is_large,
            _lock: lock,
        }))
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

    /// Fetches and verifies a file. Nothing is left of a failure. A file without a checksum never comes from
    /// another node, where a task could have changed it.
    fn fetch(
        &self,
        wanted: &Wanted<'_>,
        file: &Path,
        mover: &mut Mover,
        interrupts: &mut dyn Interrupts,
    ) -> Result<Option<Asked>, DataError> {
        self.remove(wanted.key)?;
        let new = self.directory.join(wanted.key).join(NEW);
        fs::create_dir_all(&new)?;
        let fetched = mover.within(&new, |mover| {
            let into = new.join(wanted.name);
            fs::create_dir_all(into.parent().unwrap_or(&new))?;
            if wanted.verify.is_empty() {
                wanted.fetch_here(mover, interrupts)?;
                return Ok(None);
            }
            let (mut asked, bytes) = Asked::want(wanted.key, &into, mover, interrupts)?;
            if let Some(bytes) = bytes {
                if mover.agrees(&into, bytes, wanted.verify)? {
                    mover.log.say(format_args!(
                        "{} ({bytes} bytes) is from another node",
                        wanted.name
                    ));
                    mover.data.from_peers = mover.data.from_peers.saturating_add(bytes);
                    return Ok(Some(asked));
                }
                mover.log.say(format_args!(
                    "the copy of {} on another node is wrong",
                    wanted.name
                ));
                fs::remove_file(&into)?;
                asked.wrong(interrupts)?;
            }
            wanted.fetch_here(mover, interrupts)?;
            Ok(Some(asked))
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
                let lock = entry.metadata().ok()?;
                let data = fs::metadata(self.directory.join(&key).join(DATA));
                Some(Found {
                    key,
                    bytes: data.map_or(0, |status| status.len()),
                    used: lock.modified().ok()?,
                    text: lock.len(),
                })
            })
            .collect()
    }

    /// Sweeps unless a job has done so a moment ago: it looks at each entry.
    fn sweep_sometimes(&self) {
        let swept = fs::metadata(self.directory.join(SWEPT)).and_then(|status| status.modified());
        let is_recent = |at: SystemTime| at.elapsed().is_ok_and(|age| age < SWEEP_INTERVAL);
        if swept.is_ok_and(is_recent) {
            return;
        }
        let noted = self.open_file(SWEPT);
        if noted
            .and_then(|file| file.set_modified(SystemTime::now()))
            .is_ok()
        {
            self.sweep();
        }
    }

    /// Removes what nobody uses and nobody has used for long, and what killed jobs have left. What cannot be
    /// removed stays for the next sweep.
    fn sweep(&self) {
        let is_old = |at: SystemTime| at.elapsed().is_ok_and(|age| age > KEPT);
        for entry in self.entries() {
            // A job that fetches writes the text of the lock at its end.
            if is_old(entry.used) || entry.text == 0 {
                self.remove_unused(&entry.key);
            } else if entry.text == TOO_LARGE.len() as u64
                && let Ok(lock) = self.open_file(&format!("{}{LOCK}", entry.key))
                && flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok()
                && is_linked(&lock)
            {
                let _ = self.remove(&entry.key);
            }
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
    /// Bytes of the text of its lock file.
    text: u64,
}

/// What there is of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It has to be fetched.
    Missing,
    /// It is too large for the cache.
    TooLarge,
    /// It is what was fetched.
    Good { bytes: u64 },
    /// Somebody has changed it since.
    Changed,
}

impl State {
    fn of(file: &Path, lock: &mut File) -> io::Result<Self> {
        let text = read(lock)?;
        if text == TOO_LARGE.trim() {
            return Ok(Self::TooLarge);
        }
        Ok(match fs::symlink_metadata(file) {
            Err(_) => Self::Missing,
            // The job that fetched it was killed.
            Ok(_) if text.is_empty() => Self::Missing,
            Ok(status) if identity(&status) == text => Self::Good { bytes: status.len() },
            Ok(_) => Self::Changed,
        })
    }
}

/// Returns the key of a file with a checksum, `None` if the text is no SHA-256 in hexadecimal.
pub(crate) fn key_of(sha256: &str) -> Option<String> {
    let is_one = sha256.len() == 64 && sha256.bytes().all(|b| b.is_ascii_hexdigit());
    is_one.then(|| sha256.to_ascii_lowercase())
}

/// Returns whether a file still has a name: a sweep may have removed it before it was locked.
fn is_linked(file: &File) -> bool {
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

    /// A cache with entries of ten bytes, used this many seconds ago.
    fn cache(base: &Path, entries: &[(&str, u64)]) -> Cache {
        let cache = Cache::open(base, &Log::unread()).unwrap();
        for (key, age) in entries {
            fs::create_dir(cache.directory.join(key)).unwrap();
            fs::write(cache.directory.join(key).join(DATA), [0; 10]).unwrap();
            let lock = cache.open_file(&format!("{key}{LOCK}")).unwrap();
            lock.write_all_at(b"its identity", 0).unwrap();
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
        assert_eq!(keys(&Cache::open(base.path(), &Log::unread()).unwrap()).len(), 3);
        let swept = first.open_file(SWEPT).unwrap();
        swept.set_modified(SystemTime::now() - SWEEP_INTERVAL).unwrap();
        let second = Cache::open(base.path(), &Log::unread()).unwrap();
        assert_eq!(keys(&second), ["held", "new"]);
        let mut left: Vec<_> = fs::read_dir(&second.directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(left, ["held", "held.lock", "new", "new.lock", SWEPT]);
    }

    #[test]
    fn what_killed_jobs_have_left_is_removed() {
        let base = tempfile::tempdir().unwrap();
        let cache = cache(
            base.path(),
            &[("fetched", 0), ("large", 0), ("fetching", 0), ("good", 0)],
        );
        let lock = |key: &str| cache.open_file(&format!("{key}{LOCK}")).unwrap();
        for key in ["fetched", "fetching"] {
            lock(key).set_len(0).unwrap();
        }
        let _fetching = hold(&cache, "fetching");
        lock("large").set_len(0).unwrap();
        lock("large").write_all_at(TOO_LARGE.as_bytes(), 0).unwrap();
        cache.sweep();
        assert_eq!(keys(&cache), ["fetching", "good", "large"]);
        let is_there = |key: &str| cache.directory.join(key).exists();
        assert!(is_there("fetching") && is_there("good") && !is_there("large"));
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
