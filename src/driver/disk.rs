//! Holds a run while its file systems are full: otherwise all tasks that are left would fail, one after the
//! other.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pmc_system::clock;

use super::{Run, RunError};
use crate::options::{DEFAULT_DISK_RESERVE, Options, folder};
use crate::transport::MasterTransport;

/// Interval between checks while tasks start or the run is held.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Minimum interval between checks after failed attempts.
const FAILURE_CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// The part of a file system that is enough by default: a small one never has the reserve free, and would
/// hold the run for ever.
const ENOUGH: u64 = 8;

/// Space of a file system, in bytes.
#[derive(Clone, Copy, Debug)]
struct Space {
    free: u64,
    total: u64,
}

/// Watches the free space of the file systems of a run.
#[derive(Debug)]
pub(super) struct DiskWatch {
    folders: [PathBuf; 2],
    /// Minimum free space in bytes, as the user asks; 0 means no check.
    reserve: Option<u64>,
    last_check: Option<Instant>,
    is_held: bool,
}

/// What changed.
#[derive(Debug, PartialEq, Eq)]
enum Change {
    Full { folder: PathBuf, free: u64, needed: u64 },
    Free,
}

impl DiskWatch {
    pub(super) fn new(options: &Options) -> Self {
        Self {
            // Logs and output of tasks; relative files of tasks.
            folders: [folder(&options.dag).to_owned(), PathBuf::from(".")],
            reserve: options.disk_reserve,
            last_check: None,
            is_held: false,
        }
    }

    /// Returns when the next check is due although nothing happens.
    pub(super) fn next_check(&self) -> Option<Instant> {
        self.is_held.then_some(self.last_check? + CHECK_INTERVAL)
    }

    /// Checks the free space, in bytes, if a check is due.
    fn check(
        &mut self,
        now: Instant,
        failed: bool,
        space: impl Fn(&Path) -> Option<Space>,
    ) -> Option<Change> {
        let interval = if failed {
            FAILURE_CHECK_INTERVAL
        } else {
            CHECK_INTERVAL
        };
        let is_due = self.last_check.is_none_or(|last| now >= last + interval);
        if self.reserve == Some(0) || !is_due {
            return None;
        }
        self.last_check = Some(now);
        let full = self.folders.iter().find_map(|folder| {
            let Space { free, total } = space(folder)?;
            let needed = self
                .reserve
                .unwrap_or_else(|| DEFAULT_DISK_RESERVE.min(total / ENOUGH));
            if free >= needed {
                return None;
            }
            let folder = folder.clone();
            Some(Change::Full { folder, free, needed })
        });
        if full.is_some() == self.is_held {
            return None;
        }
        self.is_held = full.is_some();
        Some(full.unwrap_or(Change::Free))
    }
}

impl DiskWatch {
    /// Holds the run while a file system is full.
    pub(super) fn hold_while_full<T: MasterTransport>(
        &mut self,
        run: &mut Run<'_, T>,
    ) -> Result<(), RunError> {
        let failed = std::mem::take(&mut run.out.attempt_failed);
        match self.check(clock::now(), failed, space) {
            None => Ok(()),
            Some(Change::Full { folder, free, needed }) => {
                tracing::warn!(
                    "Starting no tasks: only {:.1} MiB are free in {}, {:.1} are needed (--disk-reserve)",
                    mib(free),
                    folder.display(),
                    mib(needed)
                );
                run.hold_for_disk(true)
            }
            Some(Change::Free) => {
                tracing::warn!("Starting tasks again: there is free space on the disk");
                run.hold_for_disk(false)
            }
        }
    }
}

/// Bytes in MiB.
fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Returns how much this user may still write below a folder, and the size of its file system. `None` if the
/// file system has no limit or does not know.
fn space(folder: &Path) -> Option<Space> {
    let data = nix::sys::statvfs::statvfs(folder).ok()?;
    let is_known = data.blocks() > 0;
    let bytes = |blocks: u64| blocks.saturating_mul(data.fragment_size());
    is_known.then(|| Space {
        free: bytes(data.blocks_available()),
        total: bytes(data.blocks()),
    })
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    #[test]
    fn a_run_is_held_until_there_is_space() {
        let mut options = Options::new(Path::new("run/x.dag"), OsStr::new("pmc"));
        options.disk_reserve = Some(100);
        let mut watch = DiskWatch::new(&options);
        let large = |free| Some(Space { free, total: 1 << 40 });
        let begin = Instant::now();
        let at = |milliseconds| begin + Duration::from_millis(milliseconds);
        let full = |folder: &str| {
            let folder = PathBuf::from(folder);
            Some(Change::Full {
                folder,
                free: 99,
                needed: 100,
            })
        };
        assert_eq!(watch.check(at(0), false, |_| large(100)), None);
        assert_eq!(watch.check(at(900), false, |_| large(99)), None, "too early");
        assert_eq!(watch.next_check(), None);
        let of_run = |folder: &Path| large(if folder == Path::new("run") { 99 } else { 100 });
        assert_eq!(
            watch.check(at(901), true, of_run),
            full("run"),
            "an attempt failed"
        );
        assert_eq!(watch.next_check(), Some(at(1901)));
        assert_eq!(
            watch.check(at(1901), false, |_| large(0)),
            None,
            "it is held already"
        );
        assert_eq!(watch.check(at(2901), false, |_| None), Some(Change::Free));
        assert_eq!(watch.next_check(), None);
        assert_eq!(watch.check(at(3901), false, |_| large(99)), full("run"));
        assert_eq!(watch.check(at(4901), false, |_| large(100)), Some(Change::Free));
        options.disk_reserve = Some(0);
        assert_eq!(DiskWatch::new(&options).check(at(0), true, |_| large(0)), None);
    }

    #[test]
    fn an_eighth_of_a_file_system_is_enough_by_default() {
        let mut options = Options::new(Path::new("run/x.dag"), OsStr::new("pmc"));
        let now = Instant::now();
        let check = |options: &Options, free| {
            let space = |_: &Path| Some(Space { free, total: 80 });
            DiskWatch::new(options).check(now, false, space)
        };
        assert_eq!(check(&options, 10), None);
        let change = check(&options, 9);
        assert!(
            matches!(change, Some(Change::Full { needed: 10, .. })),
            "{change:?}"
        );
        options.disk_reserve = Some(11);
        assert!(
            check(&options, 10).is_some(),
            "a reserve that was asked for is kept"
        );
    }

    #[test]
    fn free_space_is_known_for_directories_of_disks() {
        assert!(space(Path::new("/nowhere/at/all")).is_none());
        assert!(space(Path::new("/proc")).is_none());
        assert!(space(&std::env::temp_dir()).is_some());
    }
}
