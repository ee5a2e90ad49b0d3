//! The disk of the master: what is on it after a crash, and what fails.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use pmc_system::simulated::{self as system, Change, Disk, Fate, ProcessId, random};

/// What is known of a file.
#[derive(Clone, Debug)]
struct Known {
    path: Rc<Path>,
    /// Bytes that are on the disk, whatever happens.
    synced: u64,
    /// The length after each write since then.
    lengths: Vec<(Duration, u64)>,
}

/// Systems keep new data in memory for this time, at least: see `forward_journal`.
const KEPT_IN_MEMORY: Duration = Duration::from_secs(5);

/// Smallest unit in which a kernel or a disk divides a short write. Rescue files rely on it: see
/// `pmc_dag::rescue`.
const SECTOR: u64 = 512;

/// Returns where the file of this path ends that was to grow from `from` and was cut off at `at`.
fn cut_at(path: &Path, from: u64, at: u64) -> u64 {
    match path.extension().is_some_and(|end| end == "rescue") {
        true => (at / SECTOR * SECTOR).max(from),
        false => at,
    }
}

/// What hears of changes.
pub(crate) struct Watch {
    /// These bytes were written to the file of this path.
    pub(crate) wrote: fn(&Path, &[u8]),
    /// The file of this path was made shorter.
    pub(crate) shortened: fn(&Path, u64),
    /// A write has failed.
    pub(crate) failed: fn(),
}

/// Files of a round, by inode.
pub(crate) struct SimulatedDisk {
    watch: Watch,
    files: RefCell<BTreeMap<u64, Known>>,
    faults: RefCell<Faults>,
}

/// What goes wrong from now on.
#[derive(Default)]
pub(crate) struct Faults {
    pub(crate) is_full: bool,
    pub(crate) fails_once: bool,
    /// The process dies in its next write.
    pub(crate) kills: Option<ProcessId>,
}

impl SimulatedDisk {
    pub(crate) fn new(watch: Watch) -> Self {
        Self {
            watch,
            files: RefCell::default(),
            faults: RefCell::default(),
        }
    }

    pub(crate) fn faults(&self) -> std::cell::RefMut<'_, Faults> {
        self.faults.borrow_mut()
    }

    /// The path of a file.
    fn path_of(&self, file: &File) -> Option<(u64, Rc<Path>)> {
        use std::os::fd::AsRawFd as _;
        let data = file.metadata().ok()?;
        let inode = data.ino();
        if let Some(known) = self.files.borrow().get(&inode) {
            return Some((inode, Rc::clone(&known.path)));
        }
        let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
        let path: Rc<Path> = path.into();
        let known = Known {
            // The DAG file was there before.
            synced: if path.ends_with("x.dag") { data.len() } else { 0 },
            path: Rc::clone(&path),
            lengths: Vec::new(),
        };
        self.files.borrow_mut().insert(inode, known);
        Some((inode, path))
    }

    /// Takes from the files in a folder what had not reached the disk: all, a part, or nothing of it.
    pub(crate) fn lose_power(&self, folder: &Path) {
        let Ok(entries) = std::fs::read_dir(folder) else {
            return;
        };
        let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        files.sort();
        let now = system::now().unwrap_or_default();
        for path in files {
            let Ok(data) = path.metadata() else { continue };
            if data.is_dir() {
                self.lose_power(&path);
                continue;
            }
            let known = self.files.borrow().get(&data.ino()).cloned();
            let Some(known) = known.filter(|known| known.synced < data.len()) else {
                continue;
            };
            // The journal relies on this for files to which it forwards; others may be written early.
            let name = known.path.file_name().unwrap_or_default();
            let is_target = name.as_encoded_bytes().starts_with(b"forward");
            let written = known
                .lengths
                .iter()
                .rev()
                .find(|(at, _)| *at + KEPT_IN_MEMORY <= now);
            let most = match (is_target, written) {
                (true, written) => written.map_or(known.synced, |(_, len)| *len),
                (false, _) => data.len(),
            };
            let unsynced = most.clamp(known.synced, data.len()) - known.synced;
            let kept = random(|random| match random.below(3) {
                0 => 0,
                1 => unsynced,
                _ => random.below(unsynced + 1),
            });
            let kept = kept.unwrap_or(0);
            let len = match kept == unsynced {
                true => known.synced + kept,
                false => cut_at(&known.path, known.synced, known.synced + kept),
            };
            let file = File::options().write(true).open(&path);
            if let Ok(file) = file {
                let _ = file.set_len(len);
            }
        }
    }
}

/// The error of a full disk.
fn full() -> io::Error {
    io::Error::from_raw_os_error(28)
}

impl Disk for SimulatedDisk {
    fn fate_of(&self, process: ProcessId, change: Change<'_>) -> Fate {
        match change {
            Change::Write(file, bytes) => {
                let Some((inode, path)) = self.path_of(file) else {
                    return Fate::Done;
                };
                let mut faults = self.faults();
                let cut = || random(|random| random.below(bytes.len() as u64 + 1)).unwrap_or(0) as usize;
                if faults.kills == Some(process) {
                    faults.kills = None;
                    let len = file.metadata().map_or(0, |data| data.len());
                    let written = match cut() {
                        all if all == bytes.len() => all,
                        part => (cut_at(&path, len, len + part as u64) - len) as usize,
                    };
                    (self.watch.wrote)(&path, &bytes[..written]);
                    return Fate::Killed(written);
                }
                if faults.is_full || std::mem::take(&mut faults.fails_once) {
                    let written = cut();
                    (self.watch.failed)();
                    return Fate::Fails(full(), written);
                }
                drop(faults);
                if let Some(known) = self.files.borrow_mut().get_mut(&inode) {
                    let len = file.metadata().map_or(0, |data| data.len()) + bytes.len() as u64;
                    known.lengths.push((system::now().unwrap_or_default(), len));
                }
                (self.watch.wrote)(&path, bytes);
                Fate::Done
            }
            Change::Sync(file) => {
                if let Some((inode, _)) = self.path_of(file) {
                    let len = file.metadata().map_or(0, |data| data.len());
                    if let Some(known) = self.files.borrow_mut().get_mut(&inode) {
                        known.synced = len;
                        known.lengths.clear();
                    }
                }
                Fate::Done
            }
            Change::SetLen(file, len) => {
                if let Some((inode, path)) = self.path_of(file) {
                    if let Some(known) = self.files.borrow_mut().get_mut(&inode) {
                        known.synced = known.synced.min(len);
                    }
                    (self.watch.shortened)(&path, len);
                }
                Fate::Done
            }
            Change::Rename(..) | Change::Remove(_) | Change::SyncFolder(_) => Fate::Done,
        }
    }
}
