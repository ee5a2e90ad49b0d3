//! Syncs the files of the master to the disk in the background.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pmc_dag::reason;
use pmc_system::sync::Condvar;
use pmc_system::thread::{self, JoinHandle};
use pmc_system::{clock, disk};

use crate::options::folder;

/// A file could not be synced.
#[derive(Debug, thiserror::Error)]
#[error("Unable to bring {} to the disk: {}", path.display(), reason(source))]
pub struct SyncError {
    path: PathBuf,
    source: io::Error,
}

/// A thread that syncs files periodically.
#[derive(Debug)]
pub struct Syncer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle>,
}

/// Files written since the last sync, in the order in which they must reach the disk.
#[derive(Debug, Default)]
struct Work {
    journal: Option<Arc<File>>,
    /// Targets of forwarded data, if there is no journal from which they can be restored.
    targets: BTreeSet<Arc<Path>>,
    rescue: bool,
    /// Files of sub-workflows, by the paths of their rescue files.
    others: BTreeMap<PathBuf, OtherFiles>,
}

#[derive(Debug)]
struct OtherFiles {
    rescue: Arc<File>,
    journal: Option<Arc<File>>,
    targets: BTreeSet<Arc<Path>>,
    /// Files and directories of its plan, which was made a moment ago.
    plan: Vec<PathBuf>,
}

impl OtherFiles {
    fn new(rescue: &Arc<File>) -> Self {
        Self {
            rescue: Arc::clone(rescue),
            journal: None,
            targets: BTreeSet::new(),
            plan: Vec::new(),
        }
    }
}

#[derive(Debug, Default)]
struct State {
    work: Option<Work>,
    error: Option<SyncError>,
    stop: bool,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
}

impl Syncer {
    /// Starts the thread. Noted files are synced at most `interval` later.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(interval: Duration, rescue: File, rescue_path: PathBuf) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let thread_shared = Arc::clone(&shared);
        let serve = move || thread_shared.serve(interval, &rescue, &rescue_path);
        let thread = thread::spawn("sync", serve)?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// Notes that journal, targets or rescue file were written.
    ///
    /// # Errors
    /// An earlier sync has failed.
    pub fn note(
        &self,
        journal: Option<&Arc<File>>,
        targets: BTreeSet<Arc<Path>>,
        rescue: bool,
    ) -> Result<(), SyncError> {
        self.add(|work| {
            if journal.is_some() {
                work.journal = journal.cloned();
            } else {
                work.targets.extend(targets);
            }
            work.rescue |= rescue;
        })
    }

    /// Notes that the files of a sub-workflow were written.
    ///
    /// # Errors
    /// An earlier sync has failed.
    pub fn note_other(
        &self,
        path: &Path,
        rescue: &Arc<File>,
        journal: Option<&Arc<File>>,
        targets: BTreeSet<Arc<Path>>,
    ) -> Result<(), SyncError> {
        self.add(|work| {
            let files = work.others.entry(path.to_owned());
            let files = files.or_insert_with(|| OtherFiles::new(rescue));
            if journal.is_some() {
                files.journal = journal.cloned();
            } else {
                files.targets.extend(targets);
            }
        })
    }

    /// Notes the files and directories of the plan of a sub-workflow, which its planner has not synced. They
    /// reach the disk before anything that is noted later for the same rescue file.
    ///
    /// # Errors
    /// An earlier sync has failed.
    pub fn note_plan(&self, path: &Path, rescue: &Arc<File>, plan: Vec<PathBuf>) -> Result<(), SyncError> {
        self.add(|work| {
            let files = work.others.entry(path.to_owned());
            files.or_insert_with(|| OtherFiles::new(rescue)).plan = plan;
        })
    }

    fn add(&self, note: impl FnOnce(&mut Work)) -> Result<(), SyncError> {
        let mut state = self.shared.state();
        if let Some(error) = state.error.take() {
            return Err(error);
        }
        let is_idle = state.work.is_none();
        note(state.work.get_or_insert_default());
        if is_idle {
            self.shared.wake.notify_all();
        }
        Ok(())
    }
}

impl Drop for Syncer {
    fn drop(&mut self) {
        self.shared.state().stop = true;
        self.shared.wake.notify_all();
        if let Some(thread) = self.thread.take() {
            // The caller syncs what is left.
            thread.join();
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // No panic can leave the state invalid.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self, interval: Duration, rescue: &File, rescue_path: &Path) {
        let mut last = clock::now();
        while let Some(work) = self.next(last + interval) {
            if let Err(error) = work.sync(rescue, rescue_path) {
                self.state().error = Some(error);
            }
            last = clock::now();
        }
    }

    /// Waits for work and for the time to do it. Returns `None` when the thread must end.
    fn next(&self, not_before: Instant) -> Option<Work> {
        let mut state = self.state();
        loop {
            if state.stop {
                return None;
            }
            let wait = not_before.saturating_duration_since(clock::now());
            if state.work.is_none() {
                state = self.wake.wait(&self.state, state);
            } else if wait.is_zero() {
                return state.work.take();
            } else {
                state = self.wake.wait_timeout(&self.state, state, wait);
            }
        }
    }
}

impl Work {
    fn sync(&self, rescue: &File, rescue_path: &Path) -> Result<(), SyncError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| SyncError { path, source }
        };
        let sync_journal = |journal: &Option<Arc<File>>, rescue_path: &Path| {
            let path = crate::durability::forward_journal::path_for(rescue_path);
            journal
                .as_ref()
                .map_or(Ok(()), |journal| file(journal).map_err(failed(&path)))
        };
        let sync_targets = |targets: &BTreeSet<Arc<Path>>| {
            let mut targets = targets.iter();
            targets.try_for_each(|target| file_and_folder(target).map_err(failed(target)))
        };
        sync_journal(&self.journal, rescue_path)?;
        sync_targets(&self.targets)?;
        if self.rescue {
            file(rescue).map_err(failed(rescue_path))?;
        }
        // All new files first: each sync would else wait for the file system to note one new file.
        for part in self.others.values().flat_map(|files| &files.plan) {
            start_writing(part);
        }
        for (path, files) in &self.others {
            for part in &files.plan {
                file_by_path(part).map_err(failed(part))?;
            }
            sync_journal(&files.journal, path)?;
            sync_targets(&files.targets)?;
            file(&files.rescue).map_err(failed(path))?;
        }
        Ok(())
    }
}

/// Syncs a file, if its file system supports that.
///
/// # Errors
/// The disk reports an error.
pub fn file(file: &File) -> io::Result<()> {
    match disk::sync_data(file) {
        // Pipes, devices and some special file systems.
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOTSUP)) => Ok(()),
        other => other,
    }
}

/// Lets the system begin to write a file to the disk, without waiting.
#[expect(unsafe_code, reason = "no library wraps this call")]
fn start_writing(path: &Path) {
    let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW;
    let Ok(file) = OpenOptions::new().read(true).custom_flags(flags).open(path) else {
        return;
    };
    // SAFETY: the descriptor is open. Nothing else is passed.
    let _ = unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WRITE) };
}

/// Syncs a file or a directory. What cannot be opened any more is skipped.
fn file_by_path(path: &Path) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let opened = options.read(true).custom_flags(libc::O_NONBLOCK).open(path);
    opened.map_or(Ok(()), |opened| file(&opened))
}

/// Syncs a file and its directory entry. A file that has been removed, or replaced by a FIFO, is skipped.
///
/// # Errors
/// The disk reports an error.
pub fn file_and_folder(path: &Path) -> io::Result<()> {
    let mut options = OpenOptions::new();
    match options.append(true).custom_flags(libc::O_NONBLOCK).open(path) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENXIO)) => return Ok(()),
        opened => file(&opened?)?,
    }
    disk::sync_folder(folder(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(5);

    fn start(interval: Duration) -> (tempfile::TempDir, Syncer) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.rescue");
        let rescue = File::create(&path).unwrap();
        (folder, Syncer::start(interval, rescue, path).unwrap())
    }

    fn is_idle(syncer: &Syncer) -> bool {
        syncer.shared.state().work.is_none()
    }

    #[test]
    fn files_are_synced_after_the_interval() {
        let (folder, syncer) = start(SHORT);
        let journal = Arc::new(File::create(folder.path().join("journal")).unwrap());
        for _ in 0..3 {
            syncer.note(Some(&journal), BTreeSet::new(), true).unwrap();
            let began = Instant::now();
            while !is_idle(&syncer) {
                assert!(began.elapsed() < Duration::from_secs(30), "nothing happens");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    #[test]
    fn a_failed_sync_is_reported_by_the_next_note() {
        let (folder, syncer) = start(SHORT);
        let bad: Arc<Path> = folder.path().join("x.rescue/below").into();
        let began = Instant::now();
        let error = loop {
            match syncer.note(None, BTreeSet::from([Arc::clone(&bad)]), false) {
                Err(error) => break error.to_string(),
                Ok(()) => assert!(began.elapsed() < Duration::from_secs(30), "no failure"),
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        let expected = format!("Unable to bring {} to the disk: Not a directory", bad.display());
        assert_eq!(error, expected);
    }

    #[test]
    fn plans_of_sub_workflows_are_synced() {
        let (folder, syncer) = start(SHORT);
        let path = folder.path().join("y.rescue");
        let rescue = Arc::new(File::create(&path).unwrap());
        let plan = ["y.rescue", "", "removed"].map(|name| folder.path().join(name));
        syncer.note_plan(&path, &rescue, plan.to_vec()).unwrap();
        let began = Instant::now();
        while !is_idle(&syncer) {
            assert!(began.elapsed() < Duration::from_secs(30), "nothing is synced");
            std::thread::sleep(Duration::from_millis(1));
        }
        syncer.note(None, BTreeSet::new(), true).unwrap();
    }

    #[test]
    fn dropping_does_not_wait_for_the_interval() {
        let (_folder, syncer) = start(Duration::from_secs(3600));
        syncer.note(None, BTreeSet::new(), true).unwrap();
        let began = Instant::now();
        drop(syncer);
        assert!(began.elapsed() < Duration::from_secs(60));
    }

    #[test]
    fn devices_and_missing_files_are_skipped() {
        file(&File::open("/dev/null").unwrap()).unwrap();
        file_and_folder(Path::new("no/such/file")).unwrap();
    }
}
