//! Waits for the end of a started task.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pmc_dag::reason;

use super::ended::{Ended, describe_end};
use super::error::{Failure, WorkerError};
use super::forward::{self, Pipes};
use super::kill::KillSwitch;
use super::process::Process;
use super::watch::Watch;
use crate::protocol::{Assignment, EXECUTOR_FAILURE, ForwardedData};
use crate::transport::local::StopTask as _;

/// Time between SIGTERM and SIGKILL for a task that exceeds its time limit.
const LIMIT_GRACE: Duration = Duration::from_secs(5);

/// A running attempt of a task.
pub(super) struct Attempt<'a> {
    pub(super) task: &'a Assignment,
    /// Time limit; zero means none.
    pub(super) limit: Option<Duration>,
    pub(super) kill: &'a KillSwitch,
}

/// How an attempt ended.
pub(super) struct Ending {
    pub(super) status: i32,
    pub(super) forwards: Vec<ForwardedData>,
    /// The task server can take another task.
    pub(super) is_reusable: bool,
}

impl Attempt<'_> {
    /// Waits for the end of the task, or ends it at its time limit.
    pub(super) fn finish(
        &self,
        pipes: Pipes<'_>,
        process: &mut Process,
        watch: &mut dyn Watch,
    ) -> Result<Ending, Failure> {
        let Some(limit) = self.limit.filter(|limit| !limit.is_zero()) else {
            return self.finish_unlimited(pipes, process, watch);
        };
        let is_over = AtomicBool::new(false);
        let ending = std::thread::scope(|scope| {
            let limiter = || {
                is_over.store(self.kill.end_after(limit, LIMIT_GRACE), Ordering::Relaxed);
            };
            let thread = std::thread::Builder::new().name("limit".to_owned());
            if let Err(error) = thread.spawn_scoped(scope, limiter) {
                tracing::error!(
                    "Task {}: Unable to watch its time: {}",
                    self.name(),
                    reason(&error)
                );
                self.kill.end_now();
            }
            self.finish_unlimited(pipes, process, watch)
        })?;
        if is_over.into_inner() {
            self.log_limit(limit, ending.status);
        }
        Ok(ending)
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
        let piped = pipes.read(self.kill, watch);
        let signalled = self.kill.wait(process.leader(), watch);
        let Ended {
            mut status,
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
        if self.kill.is_aborted() {
            return Err(Failure::Aborted);
        }
        let mut forwards = Vec::new();
        if status == 0 {
            let read = piped.map_err(|error| reason(&error)).and_then(|data| {
                forward::read_files(&self.task.file_forwards, data).map_err(|e| e.to_string())
            });
            match read {
                Ok(data) => forwards = data,
                Err(message) => {
                    tracing::error!("Task {}: {message}", self.name());
                    status = EXECUTOR_FAILURE;
                }
            }
        }
        forward::remove_files(&self.task.file_forwards);
        Ok(Ending {
            status,
            forwards,
            // A signal may still be on its way to the server.
            is_reusable: is_reusable && !signalled,
        })
    }

    fn name(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.task.name)
    }
}
