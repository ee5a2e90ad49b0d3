//! Waits for the end of a started task.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::Scope;
use std::time::Duration;

use pmc_dag::reason;

use super::ended::{Ended, describe_end};
use super::error::{Failure, WorkerError};
use super::forward::{self, ForwardError, Pipes, Room};
use super::memory;
use super::process::Process;
use super::running::RunningAttempt;
use super::strays;
use super::watch::Watch;
use crate::options::{WorkerOptions, folder};
use crate::protocol::{Assignment, EXECUTOR_FAILURE, ForwardedData};
use crate::transport::local::StopTask as _;

/// Time between SIGTERM and SIGKILL for a task that exceeds its time limit.
const LIMIT_GRACE: Duration = Duration::from_secs(5);

/// A running attempt of a task.
pub(super) struct Attempt<'a> {
    pub(super) task: &'a Assignment,
    /// Time limit; zero means none.
    pub(super) limit: Option<Duration>,
    /// Memory limit of its processes, KiB.
    pub(super) memory_limit_kib: Option<u64>,
    pub(super) current: &'a RunningAttempt,
    pub(super) options: &'a WorkerOptions,
}

/// How an attempt ended.
pub(super) struct Ending {
    pub(super) status: i32,
    pub(super) forwards: Vec<ForwardedData>,
    /// Peak resident memory, KiB; 0 if it is unknown.
    pub(super) peak_kib: u64,
    /// It was ended at its memory limit.
    pub(super) is_over_memory: bool,
    /// Its time limit, if it was ended at that.
    pub(super) over_time: Option<Duration>,
    /// It was sent a signal.
    pub(super) was_signalled: bool,
    /// The task server can take another task.
    pub(super) is_reusable: bool,
}

impl Attempt<'_> {
    /// Waits for the end of the task, or ends it at its limits.
    pub(super) fn finish(
        &self,
        pipes: Pipes<'_>,
        process: &mut Process,
        watch: &mut dyn Watch,
    ) -> Result<Ending, Failure> {
        let limit = self.limit.filter(|limit| !limit.is_zero());
        if limit.is_none() && self.memory_limit_kib.is_none() {
            return self.finish_unlimited(pipes, process, watch);
        }
        let (is_over, used_kib) = (AtomicBool::new(false), AtomicU64::new(0));
        let (time_is_over, memory_used, leader) = (&is_over, &used_kib, process.leader().pid());
        let mut ending = std::thread::scope(|scope| {
            if let Some(limit) = limit {
                let watch =
                    move || time_is_over.store(self.current.end_after(limit, LIMIT_GRACE), Ordering::Relaxed);
                self.start_limiter(scope, "time", watch);
            }
            if let Some(limit) = self.memory_limit_kib {
                let watch = move || {
                    let used = memory::enforce(self.current, leader, limit);
                    memory_used.store(used.unwrap_or(0), Ordering::Relaxed);
                };
                self.start_limiter(scope, "memory", watch);
            }
            self.finish_unlimited(pipes, process, watch)
        })?;
        if let (true, Some(limit)) = (is_over.into_inner(), limit) {
            self.log_limit(limit, ending.status);
            ending.over_time = Some(limit);
        }
        let used_kib = used_kib.into_inner();
        ending.is_over_memory = used_kib > 0;
        ending.peak_kib = ending.peak_kib.max(used_kib);
        Ok(ending)
    }

    /// Starts a thread that ends the task at a limit.
    fn start_limiter<'s>(&self, scope: &'s Scope<'s, '_>, what: &str, watch: impl FnOnce() + Send + 's) {
        let thread = std::thread::Builder::new().name("limit".to_owned());
        if let Err(error) = thread.spawn_scoped(scope, watch) {
            let name = self.name();
            tracing::error!("Task {name}: Unable to watch its {what}: {}", reason(&error));
            self.current.end_now();
        }
    }

    /// Logs that the task was sent a signal at its time limit. It may have ended at that moment, or handled
    /// the signal.
    fn log_limit(&self, limit: Duration, status: i32) {
        let (name, seconds) = (self.name(), limit.as_secs_f64());
        if status == 0 {
            tracing::warn!("Task {name} has succeeded, but its limit of {seconds} seconds is over");
        } else {
            tracing::error!("Task {name} is ended: its limit of {seconds} seconds is over");
        }
    }

    /// Reads what the task sends, waits for its end and reads the files that it leaves.
    fn finish_unlimited(
        &self,
        pipes: Pipes<'_>,
        process: &mut Process,
        watch: &mut dyn Watch,
    ) -> Result<Ending, Failure> {
        let mut room = Room::new(folder(&self.options.worker_files), self.options.forward_limit);
        let piped = pipes.read(&mut room, self.current, watch);
        let signalled = self.current.wait(process.leader(), watch);
        if let Err(ForwardError::Held(pipes)) = &piped {
            strays::kill_writers(pipes);
        }
        let Ended {
            mut status,
            peak_kib,
            is_reusable,
            server_died,
        } = process.conclude().map_err(WorkerError::Wait)?;
        if server_died && !signalled {
            let end = describe_end(status);
            tracing::error!(
                "Task {}: its kickstart exited {end} and left no record",
                self.name()
            );
            if status == 0 {
                status = EXECUTOR_FAILURE;
            }
        }
        if self.current.is_aborted() {
            return Err(Failure::Aborted);
        }
        let read = piped.and_then(|()| match status {
            0 => room.read_files(&self.task.file_forwards),
            _ => Ok(()),
        });
        if let Err(error) = read {
            tracing::error!("Task {}: {error}", self.name());
            if status == 0 {
                status = EXECUTOR_FAILURE;
            }
        }
        // The data of a failed task does not count.
        let forwards = if status == 0 { room.finish() } else { Vec::new() };
        forward::remove_files(&self.task.file_forwards);
        Ok(Ending {
            status,
            forwards,
            peak_kib,
            is_over_memory: false,
            over_time: None,
            was_signalled: signalled,
            // A signal may still be on its way to the server.
            is_reusable: is_reusable && !signalled,
        })
    }

    fn name(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.task.name)
    }
}
