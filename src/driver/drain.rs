//! Drain: no more tasks start, running tasks end.

use std::time::Instant;

use pmc_system::clock;
use signal_hook::consts::SIGTERM;

use super::conclusion::End;
use super::{Aborted, Run, RunError};
use crate::logging::FATAL;
use crate::protocol::{EndCause, Rank, TaskResult};
use crate::scheduler::Event;
use crate::transport::MasterTransport;

/// A drain in progress.
pub(super) struct Drain {
    /// The signal that asked for it.
    pub(super) signal: i32,
    /// When tasks that still run are killed.
    pub(super) until: Option<Instant>,
}

impl<T: MasterTransport> Run<'_, T> {
    /// Returns why the run must be aborted, if it must.
    pub(super) fn aborted(&self) -> Option<Aborted> {
        if let Some(signal) = self.interrupt.signal() {
            return Some(Aborted::Signal(signal));
        }
        let now = clock::now();
        if self.deadline.is_some_and(|deadline| now >= deadline) {
            return Some(Aborted::WallTime);
        }
        let drain = self.drain.as_ref()?;
        let is_over = drain.until.is_some_and(|until| now >= until);
        is_over.then_some(Aborted::Signal(drain.signal))
    }

    /// True if no more tasks start.
    pub(super) fn is_ending(&self) -> bool {
        let is_over = self.drain.is_some() || self.task_abort.is_some() || self.aborted().is_some();
        is_over || self.master.summary().max_failures_reached
    }

    /// Returns how the run ends before its first task, if it does. A signal to drain is an abort then.
    pub(super) fn end_of_wait(&self) -> Option<End> {
        let signal = self.interrupt.drain_signal().map(Aborted::Signal);
        let aborted = self.aborted().or(signal).map(End::Aborted);
        aborted.or_else(|| self.drain.is_some().then_some(End::Finished))
    }

    /// Marks the result of an attempt that was ended with the batch job: what ends a job sends SIGTERM to all
    /// of its processes. An agent to which that happens gets no more tasks; it says so itself, but later. Any
    /// other worker ends with its run, which may not have seen its own signal yet.
    pub(super) fn note_interruption(
        &mut self,
        from: Rank,
        mut result: TaskResult,
    ) -> Result<TaskResult, RunError> {
        let is_ending = self.interrupt.signal().is_some() || self.interrupt.drain_signal() == Some(SIGTERM);
        if is_ending && result.outcome.is_terminated() {
            result.outcome.cause = Some(EndCause::Interrupted);
        }
        if result.outcome.cause != Some(EndCause::Interrupted) {
            return Ok(result);
        }
        if self.master.is_dynamic() {
            let host = self.master.host_of(from).unwrap_or_default().to_owned();
            for rank in self.master.workers_of(&host) {
                self.master.handle(Event::Retire(rank), &mut self.out)?;
            }
        } else {
            self.interrupt.drain_for_worker(SIGTERM);
            self.drain_if_asked()?;
        }
        Ok(result)
    }

    /// Begins to drain if a signal has asked for it.
    pub(super) fn drain_if_asked(&mut self) -> Result<(), RunError> {
        let Some(signal) = self.interrupt.drain_signal() else {
            return Ok(());
        };
        if self.drain.is_some() || self.interrupt.signal().is_some() {
            return Ok(());
        }
        // SIGTERM is followed by SIGKILL; everything must be written before that.
        let grace = (signal == SIGTERM).then_some(self.options.drain_grace);
        let until = grace.and_then(|grace| clock::now().checked_add(grace));
        if signal == SIGTERM {
            tracing::error!(target: FATAL, "Caught signal {signal}");
        } else {
            // It was sent to ask for this.
            tracing::info!("Caught signal {signal}");
        }
        self.begin_drain(signal, until)
    }

    /// Starts no more tasks. Those that still run at `until` are killed.
    pub(super) fn begin_drain(&mut self, signal: i32, until: Option<Instant>) -> Result<(), RunError> {
        let running = self.master.running();
        // After SIGTERM, the original logs nothing else at this level, and programs compare the output.
        if until.is_none() {
            tracing::info!("Starting no more tasks, waiting for the {running} that run");
        } else {
            tracing::debug!("Starting no more tasks, waiting for the {running} that run");
        }
        self.master.handle(Event::Drain, &mut self.out)?;
        self.drain = Some(Drain { signal, until });
        Ok(())
    }
}
