//! Waits while this process or the system has too many open files: an attempt that has not started can start
//! later as well.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use pmc_spawn::open_files::are_short;

use super::error::{AttemptError, Failure, NotStarted};
use super::running::RunningAttempt;
use super::watch::Watch;
use crate::transport::local::StopTask as _;

/// Time between two looks.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// How long an attempt waits while no other one runs here: then other processes have to close files.
const FREE_FILES_TIMEOUT: Duration = Duration::from_secs(60);

/// Attempts that run in this process, to which the limit of open files applies.
static RUNNING: AtomicU32 = AtomicU32::new(0);

/// An attempt that runs. Dropping it ends the count of its files.
pub(super) struct Running;

impl Running {
    pub(super) fn begin() -> Self {
        RUNNING.fetch_add(1, Ordering::Relaxed);
        Self
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        RUNNING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Begins something for an attempt, and does so again while open files are short. `begin` leaves nothing
/// behind when it fails for that reason.
pub(super) fn begin<T>(
    task: &str,
    current: &RunningAttempt,
    watch: &mut dyn Watch,
    mut begin: impl FnMut() -> Result<T, AttemptError>,
) -> Result<T, AttemptError> {
    let mut since = None;
    loop {
        let error = match begin() {
            Err(AttemptError::NotStarted(error)) if error.source_of_io().is_some_and(are_short) => error,
            result => return result,
        };
        let now = Instant::now();
        if since.is_none() {
            tracing::warn!("Task {task} waits until files are closed: {error}");
        }
        let since = since.get_or_insert(now);
        if RUNNING.load(Ordering::Relaxed) > 0 {
            *since = now;
        } else if now.duration_since(*since) > FREE_FILES_TIMEOUT {
            return Err(error.into());
        }
        if current.is_aborted() {
            return Err(Failure::Aborted.into());
        }
        watch.poll();
        std::thread::sleep(RETRY_INTERVAL);
    }
}

impl NotStarted {
    /// What the system said, if it was asked.
    fn source_of_io(&self) -> Option<&io::Error> {
        match self {
            Self::OpenFile { source, .. } => Some(source),
            Self::Prepare(error) | Self::Start(error) => Some(error),
            _ => None,
        }
    }
}
