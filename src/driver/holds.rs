//! Why no tasks start for a while: a file system is full, or the batch system has begun to end the tasks of
//! its job.
//!
//! What ends a batch job sends SIGTERM to its nodes, one after the other. Where it comes first, tasks are
//! evicted. If they started again on the other nodes, they would be evicted there a moment later. So no task
//! starts until it is known whether only one node was meant.

use std::time::{Duration, Instant};

use pmc_system::clock;

use super::{Run, RunError};
use crate::scheduler::Event;
use crate::transport::MasterTransport;

/// How long no tasks start after the batch system has ended one. Its signal has come to all nodes of the job
/// by then, if it ends the job.
const EVICTION_PAUSE: Duration = Duration::from_secs(5);

/// Why no tasks start now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Holds {
    disk_is_full: bool,
    /// The batch system has ended a task: until then.
    after_eviction: Option<Instant>,
}

impl Holds {
    fn are_some(self) -> bool {
        self.disk_is_full || self.after_eviction.is_some()
    }

    /// When one of them is over by itself.
    pub(super) fn next(self) -> Option<Instant> {
        self.after_eviction
    }
}

impl<T: MasterTransport> Run<'_, T> {
    /// Notes whether a file system is full.
    pub(super) fn hold_for_disk(&mut self, disk_is_full: bool) -> Result<(), RunError> {
        let after_eviction = self.holds.after_eviction;
        self.set_holds(Holds {
            disk_is_full,
            after_eviction,
        })
    }

    /// Notes that the batch system has ended a task. Outside of a batch job, this was meant for one agent.
    pub(super) fn hold_after_eviction(&mut self) -> Result<(), RunError> {
        if self.options.batch_job.is_none() || self.is_ending() {
            return Ok(());
        }
        if self.holds.after_eviction.is_none() {
            let seconds = EVICTION_PAUSE.as_secs();
            tracing::info!("The batch system ends tasks: starting no others for {seconds} s");
        }
        self.set_holds(Holds {
            after_eviction: clock::now().checked_add(EVICTION_PAUSE),
            ..self.holds
        })
    }

    /// Lets tasks start again when the time after an eviction is over.
    pub(super) fn release_after_eviction(&mut self) -> Result<(), RunError> {
        if self.holds.after_eviction.is_none_or(|until| clock::now() < until) {
            return Ok(());
        }
        self.set_holds(Holds {
            after_eviction: None,
            ..self.holds
        })
    }

    fn set_holds(&mut self, holds: Holds) -> Result<(), RunError> {
        let before = std::mem::replace(&mut self.holds, holds);
        match (before.are_some(), holds.are_some()) {
            (false, true) => self.handle(Event::Hold),
            (true, false) => self.handle(Event::Release),
            _ => Ok(()),
        }
    }
}
