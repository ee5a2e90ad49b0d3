//! The relay of an attempt, if it has one.

use std::io;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use super::error::NotStarted;
use super::running::RunningAttempt;
use super::stdio::TaskFiles;
use super::watch::Watch;
use crate::protocol::Assignment;
use crate::relay::{self, Relay, RelayThread, WriteEnds};
use crate::transport::local::StopTask as _;

/// Time between two looks for an abort of the run.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The same while messages are polled: a tool may deliver the rest.
const BUSY_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Time after an abort for the run to say what it has delivered.
const LAST_REQUEST_TIMEOUT: Duration = Duration::from_millis(500);

/// The relay of an attempt that has not started.
pub(super) struct TaskRelay(Option<(RelayThread, WriteEnds)>);

impl TaskRelay {
    /// Starts the relay if the task is to have one.
    pub(super) fn open(task: &Assignment, files: &TaskFiles) -> Result<Self, NotStarted> {
        if !task.has_relay() {
            return Ok(Self(None));
        }
        let started = relay::start([&files.out, &files.err], task.redirect.as_deref());
        Ok(Self(Some(started.map_err(NotStarted::Prepare)?)))
    }

    /// Returns the standard streams of the task.
    pub(super) fn descriptors(&self, files: &TaskFiles, input: RawFd) -> [RawFd; 3] {
        let Some((_, ends)) = &self.0 else {
            return files.descriptors(input);
        };
        let [out, err] = ends.descriptors();
        [input, out, err]
    }

    /// Returns what tools ask.
    pub(super) fn relay(&self) -> Option<Relay> {
        self.0.as_ref().map(|(thread, _)| thread.relay())
    }

    /// Closes the ends of the task, which has them now.
    pub(super) fn started(self) -> Option<StartedRelay> {
        self.0.map(|(thread, _)| StartedRelay(thread))
    }
}

/// The relay of an attempt that runs.
pub(super) struct StartedRelay(RelayThread);

impl StartedRelay {
    /// Waits until all output is where it belongs, now that the attempt has ended. Polls `watch` meanwhile.
    /// Returns why output is missing, if it is.
    pub(super) fn finish(self, current: &RunningAttempt, watch: &mut dyn Watch) -> Option<io::Error> {
        let Self(thread) = self;
        thread.end();
        let interval = watch.interval().map_or(POLL_INTERVAL, |_| BUSY_POLL_INTERVAL);
        let mut aborted_at = None;
        while !thread.wait(interval) {
            if current.is_aborted() {
                let since = *aborted_at.get_or_insert_with(Instant::now);
                if !thread.is_out() || since.elapsed() >= LAST_REQUEST_TIMEOUT {
                    break;
                }
            }
            watch.poll();
        }
        thread.error()
    }
}
