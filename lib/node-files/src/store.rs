//! A directory of files with keys, which only this user can use.
//!
//! An entry is a directory `KEY` with the file `data`, and a lock file `KEY.lock`. A process that brings the
//! file holds the lock alone. Processes that use it share the lock, so that nobody removes it meanwhile. The
//! kernel frees the lock of a process that is killed. `data` gets its name when it is complete and verified.
//! The time of the lock file is that of the last use, and its text is the identity of `data`: a file that was
//! changed in the store leaves it.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use nix::sys::statvfs::statvfs;
use pmc_files::OFlags;
use rustix::fs::{FlockOperation, flock};

use crate::{NodeFile, identity, is_private, make_private, remove_tree};

/// How long an entry stays that nobody uses.
const UNUSED_LIMIT: Duration = Duration::from_secs(3600);

/// Time between two sweeps.
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);

/// File whose time is that of the last sweep.
const SWEPT: &str = "swept";

/// Suffix of lock files.
const LOCK: &str = ".lock";

/// Suffix of notes.
const NOTE: &str = ".loaded";

/// The file of an entry.
const DATA: &str = "data";

/// Directory of an entry into which its file is brought.
const NEW: &str = "new";

/// Text of a lock file whose entry is too large for the store.
const TOO_LARGE: &str = "too large\n";

/// Without a limit, entries have at most this part of the space that is free or theirs.
const PART_OF_ALL: u64 = 4;

/// Without a limit, an entry has at most this part of that space.
const PART_OF_ONE: u64 = 10;

/// Maximum bytes of a short text.
const MAX_TEXT: u64 = 1 << 12;

/// A directory of files with keys.
#[derive(Debug)]
pub struct Store {
    directory: PathBuf,
}

/// How much space the entries of a store may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// All that there is.
    None,
    /// Bytes.
    Bytes(u64),
    /// A part of the space that is free or theirs.
    Part,
}

/// What a process gets of an entry.
#[derive(Debug)]
pub enum Access<'s> {
    /// The file is there.
    Held(Held),
    /// The file is not there: this process is to bring it.
    Fill(Filling<'s>),
    /// The file was too large for the store a moment ago.
    TooLarge,
    /// Somebody has changed the file, and others use it.
    Changed,
    /// Another process brings or removes the file: ask again after a moment.
    Busy,
}

/// An entry that stays until this is dropped.
#[derive(Debug)]
pub struct Held {
    /// The file.
    pub file: PathBuf,
    /// Its size.
    pub bytes: u64,
    /// This process has brought it.
    pub is_new: bool,
    /// It leaves the store after its use.
    pub is_large: bool,
    /// Holds the lock.
    _lock: File,
}

impl Held {
    /// Ends the use.
    pub fn release(self) {
        if self.is_large {
            // What cannot be removed stays for a sweep.
            let _ = fs::remove_file(&self.file);
        }
    }
}

/// An entry that could not be removed.
#[derive(Debug)]
pub struct Unremoved {
    /// Its key.
    pub key: String,
    /// Why.
    pub error: io::Error,
}

impl Store {
    /// Returns the store in a directory, which it makes, and now and then removes what nobody has used for
    /// long. Also returns what could not be removed.
    ///
    /// # Errors
    /// The directory cannot be made, or is not that of this user alone: another user may have planted it.
    pub fn open(directory: PathBuf) -> io::Result<(Self, Vec<Unremoved>)> {
        make_private(&directory)?;
        let this = Self { directory };
        let unremoved = this.sweep_sometimes();
        Ok((this, unremoved))
    }

    /// Removes all entries of the store in a directory, if there is one, that nobody uses. Returns those that
    /// could not be removed.
    #[must_use]
    pub fn make_room(directory: PathBuf) -> Vec<Unremoved> {
        match directory.is_dir() && make_private(&directory).is_ok() {
            true => Self { directory }.shrink(0),
            false => Vec::new(),
        }
    }

    /// Removes all entries that nobody uses, and what killed processes have left.
    #[must_use]
    pub fn clear(&self) -> Vec<Unremoved> {
        let mut unremoved = Vec::new();
        for entry in self.entries() {
            self.remove_unused(&entry.key, &mut unremoved);
        }
        unremoved
    }

    /// Does the same for the store in a directory, if there is one, and removes the directory if nobody uses
    /// anything in it.
    #[must_use]
    pub fn dissolve(directory: PathBuf) -> Vec<Unremoved> {
        if !is_private(&directory) {
            return Vec::new();
        }
        let this = Self { directory };
        let unremoved = this.clear();
        if this.entries().is_empty() {
            let _ = fs::remove_file(this.directory.join(SWEPT));
            // It has something else in it, or somebody uses it again.
            let _ = fs::remove_dir(&this.directory);
        }
        unremoved
    }

    /// Returns an entry if it is there, or the right to bring its file. Never waits.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn access(&self, key: &str) -> io::Result<Access<'_>> {
        let file = self.data(key);
        let mut lock = self.open_file(&format!("{key}{LOCK}"))?;
        if flock(&lock, FlockOperation::NonBlockingLockShared).is_err() || !is_linked(&lock) {
            return Ok(Access::Busy);
        }
        match State::of(&file, &mut lock)? {
            State::TooLarge => {
                lock.set_modified(SystemTime::now())?;
                Ok(Access::TooLarge)
            }
            State::Good { bytes } => {
                lock.set_modified(SystemTime::now())?;
                Ok(Access::Held(Held {
                    file,
                    bytes,
                    is_new: false,
                    is_large: false,
                    _lock: lock,
                }))
            }
            state => {
                // The system gives up the first lock for the second one, so others may be faster.
                let is_alone = flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok();
                if is_alone && is_linked(&lock) && !matches!(State::of(&file, &mut lock)?, State::Good { .. })
                {
                    lock.set_len(0)?;
                    return Ok(Access::Fill(Filling {
                        store: self,
                        key: key.to_owned(),
                        lock: Some(lock),
                    }));
                }
                Ok(match state {
                    State::Changed => Access::Changed,
                    _ => Access::Busy,
                })
            }
        }
    }

    /// Returns what other processes of the node need to know of an entry.
    #[must_use]
    pub fn node_file(&self, key: &str, name: &str, bytes: u64) -> NodeFile {
        NodeFile {
            key: key.to_owned(),
            lock: self.directory.join(format!("{key}{LOCK}")),
            file: self.data(key),
            name: name.to_owned(),
            bytes,
        }
    }

    /// Removes an entry that is not what it should be. Returns false if somebody uses it: ask again after a
    /// moment.
    ///
    /// # Errors
    /// It cannot be removed.
    pub fn discard(&self, key: &str) -> io::Result<bool> {
        let lock = self.open_file(&format!("{key}{LOCK}"))?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Ok(false);
        }
        // If a sweep has removed the entry meanwhile, what has its name now is another one.
        if is_linked(&lock) {
            self.remove(key)?;
        }
        Ok(true)
    }

    /// Opens a note of the store, and makes it if needed: a small file beside the entries, which goes when
    /// nobody locks it and it was not changed for long.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn note(&self, name: &str) -> io::Result<File> {
        self.open_file(&format!("{name}{NOTE}"))
    }

    /// Opens a file of the store, and makes it if needed.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open_file(&self, name: &str) -> io::Result<File> {
        // Any task of this user can put a FIFO there.
        pmc_files::open_for_writing(&self.directory.join(name), OFlags::RDWR | OFlags::CREATE, 0o600)
    }

    fn data(&self, key: &str) -> PathBuf {
        self.directory.join(key).join(DATA)
    }

    /// Returns whether a new entry can stay. Removes others for it, least recently used first.
    fn has_room(&self, bytes: u64, limit: Limit) -> io::Result<bool> {
        let (all, one) = match limit {
            Limit::None => return Ok(true),
            Limit::Bytes(bytes) => (bytes, bytes),
            Limit::Part => {
                let space = statvfs(&self.directory)?;
                let free = space.blocks_available().saturating_mul(space.fragment_size());
                let used: u64 = self.entries().iter().map(|entry| entry.bytes).sum();
                let space = free.saturating_add(used);
                (space / PART_OF_ALL, space / PART_OF_ONE)
            }
        };
        if bytes > one {
            return Ok(false);
        }
        // What could not be removed is in the message of the next sweep.
        self.shrink(all);
        Ok(true)
    }

    /// Removes entries that nobody uses, least recently used first, until all have at most `limit` bytes.
    fn shrink(&self, limit: u64) -> Vec<Unremoved> {
        let mut entries = self.entries();
        entries.sort_by_key(|entry| entry.used);
        let mut bytes: u64 = entries.iter().map(|entry| entry.bytes).sum();
        let mut unremoved = Vec::new();
        for entry in entries {
            if bytes <= limit {
                break;
            }
            if self.remove_unused(&entry.key, &mut unremoved) {
                bytes = bytes.saturating_sub(entry.bytes);
            }
        }
        unremoved
    }

    /// Returns what is in the store.
    fn entries(&self) -> Vec<Found> {
        let entries = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        entries
            .filter_map(|entry| {
                let name = entry.file_name().into_string().ok()?;
                let key = name.strip_suffix(LOCK)?.to_owned();
                let lock = entry.metadata().ok()?;
                let data = fs::metadata(self.data(&key));
                Some(Found {
                    key,
                    bytes: data.map_or(0, |status| status.len()),
                    used: lock.modified().ok()?,
                    text: lock.len(),
                })
            })
            .collect()
    }

    /// Sweeps unless a process has done so a moment ago: it looks at each entry.
    fn sweep_sometimes(&self) -> Vec<Unremoved> {
        let swept = fs::metadata(self.directory.join(SWEPT)).and_then(|status| status.modified());
        let is_recent = |at: SystemTime| at.elapsed().is_ok_and(|age| age < SWEEP_INTERVAL);
        let is_noted = || {
            let noted = self.open_file(SWEPT);
            noted
                .and_then(|file| file.set_modified(SystemTime::now()))
                .is_ok()
        };
        match swept.is_ok_and(is_recent) || !is_noted() {
            true => Vec::new(),
            false => self.sweep(),
        }
    }

    /// Removes what nobody uses and nobody has used for long, and what killed processes have left. What
    /// cannot be removed stays for the next sweep.
    fn sweep(&self) -> Vec<Unremoved> {
        let is_old = |at: SystemTime| at.elapsed().is_ok_and(|age| age > UNUSED_LIMIT);
        let mut unremoved = Vec::new();
        for entry in self.entries() {
            // A process that brings a file writes the text of the lock at its end.
            if is_old(entry.used) || entry.text == 0 {
                self.remove_unused(&entry.key, &mut unremoved);
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
            if name.ends_with(NOTE) && used.is_ok_and(is_old) {
                let Ok(note) = self.open_file(&name) else { continue };
                if flock(&note, FlockOperation::NonBlockingLockExclusive).is_ok() {
                    let _ = fs::remove_file(entry.path());
                }
            }
        }
        unremoved
    }

    /// Removes an entry with its lock file unless somebody uses it. Returns whether it is gone.
    fn remove_unused(&self, key: &str, unremoved: &mut Vec<Unremoved>) -> bool {
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
        match removed {
            Ok(()) => true,
            Err(error) => {
                let key = key.to_owned();
                unremoved.push(Unremoved { key, error });
                false
            }
        }
    }

    /// Removes the files of an entry.
    fn remove(&self, key: &str) -> io::Result<()> {
        match remove_tree(&self.directory.join(key)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

/// The right to bring the file of an entry: this process holds the lock alone. If it is dropped, nothing of
/// the file is left.
#[derive(Debug)]
pub struct Filling<'s> {
    store: &'s Store,
    key: String,
    /// `None` once the file is in its place.
    lock: Option<File>,
}

impl Filling<'_> {
    /// The directory that [`Self::directory`] makes.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.store.directory.join(&self.key).join(NEW)
    }

    /// Removes what was there, and returns a new directory for the file.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn directory(&self) -> io::Result<PathBuf> {
        self.store.remove(&self.key)?;
        let new = self.path();
        fs::create_dir_all(&new)?;
        Ok(new)
    }

    /// Puts the file, which is complete and verified, into its place. `is_read_only`: users take the file
    /// itself instead of copies, and none shall change it by mistake. Returns `None` if others have removed
    /// it already.
    ///
    /// # Errors
    /// It cannot be put there.
    pub fn finish(mut self, new: &Path, limit: Limit, is_read_only: bool) -> io::Result<Option<Held>> {
        let file = self.store.data(&self.key);
        fs::rename(new, &file)?;
        // What cannot be removed goes with the entry.
        let _ = remove_tree(&self.path());
        if is_read_only {
            let mode = fs::metadata(&file)?.mode();
            fs::set_permissions(&file, fs::Permissions::from_mode(mode & !0o222))?;
        }
        let bytes = fs::metadata(&file)?.len();
        let is_large = !self.store.has_room(bytes, limit)?;
        let text = match is_large {
            true => TOO_LARGE.to_owned(),
            false => identity(&fs::metadata(&file)?),
        };
        let Some(mut lock) = self.lock.take() else {
            return Ok(None);
        };
        lock.write_all_at(text.as_bytes(), 0)?;
        lock.set_modified(SystemTime::now())?;
        // The system gives up the first lock for the second one, so others may have removed the file.
        flock(&lock, FlockOperation::LockShared)?;
        let state = State::of(&file, &mut lock)?;
        let is_there = is_large && file.exists() || matches!(state, State::Good { .. });
        Ok((is_linked(&lock) && is_there).then_some(Held {
            file,
            bytes,
            is_new: true,
            is_large,
            _lock: lock,
        }))
    }
}

impl Drop for Filling<'_> {
    fn drop(&mut self) {
        if self.lock.is_some() {
            // What cannot be removed goes when the next process brings the file.
            let _ = self.store.remove(&self.key);
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
    /// It has to be brought.
    Missing,
    /// It is too large for the store.
    TooLarge,
    /// It is what was brought.
    Good { bytes: u64 },
    /// Somebody has changed it since.
    Changed,
}

impl State {
    fn of(file: &Path, lock: &mut File) -> io::Result<Self> {
        let text = read_text(lock)?;
        if text == TOO_LARGE.trim() {
            return Ok(Self::TooLarge);
        }
        Ok(match fs::symlink_metadata(file) {
            Err(_) => Self::Missing,
            // The process that brought it was killed.
            Ok(_) if text.is_empty() => Self::Missing,
            Ok(status) if identity(&status) == text => Self::Good { bytes: status.len() },
            Ok(_) => Self::Changed,
        })
    }
}

/// Returns whether a file still has a name: a sweep may have removed it before it was locked.
fn is_linked(file: &File) -> bool {
    file.metadata().is_ok_and(|status| status.nlink() > 0)
}

/// Reads a short text from the beginning of a file: what is longer was not written by this package.
///
/// # Errors
/// It cannot be read.
pub fn read_text(file: &mut File) -> io::Result<String> {
    let mut text = String::new();
    file.seek(SeekFrom::Start(0))?;
    file.take(MAX_TEXT).read_to_string(&mut text)?;
    Ok(text.trim().to_owned())
}

#[cfg(test)]
mod tests;
