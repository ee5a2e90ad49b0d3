//! Drain: no more tasks start, running tasks end.

use std::time::{Duration, Instant};

use monitord_compat::run_end::DrainedBy;
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
    /// Who asked for it.
    pub(super) by: DrainedBy,
    /// The signal that asked for it.
    pub(super) signal: i32,
    /// When tasks that still run are asked to end.
    pub(super) stop_at: Option<Instant>,
    /// When tasks that still run are killed.
    pub(super) until: Option<Instant>,
}

/// Time from SIGTERM to SIGKILL for tasks of a drain that has a limit.
const STOP_GRACE: Duration = Duration::from_secs(3);

impl<T: MasterTransport> Run<'_, T> {
    /// Returns why the run must be aborted, if it must.
    pub(super) fn aborted(&self) -> Option<Aborted> {
        if let Some(signal) = self.interrupt.signal() {
            return Some(Aborted::Signal(signal));
        }
        let now = clock::now();
        if self.time.kill_at().is_some_and(|at| now >= at) {
            return Some(Aborted::WallTime);
        }
        let drain = self.drain.as_ref()?;
        let is_over = drain.until.is_some_and(|until| now >= until);
        is_over.then_some(Aborted::Signal(drain.signal))
    }

    /// True if no more tasks start.
    pub(super) fn is_ending(&self) -> bool {
        let is_over =
            self.drain.is_some() || self.is_stopping || self.task_abort.is_some() || self.aborted().is_some();
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
            self.hold_after_eviction()?;
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

    /// Asks tasks to save themselves or to end, if it is time.
    pub(super) fn stop_if_time_is_over(&mut self) -> Result<(), RunError> {
        let now = clock::now();
        self.notify_before_end(now);
        self.tell_end_if_near(now);
        let is_over = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if self.time.has_grace() && is_over(self.time.stop_at()) && !self.is_stopping {
            self.is_stopping = true;
            let running = self.master.running();
            tracing::info!("The time is over: asking the {running} tasks that run to end");
            self.master.handle(Event::Drain, &mut self.out)?;
            self.terminate_tasks();
            self.begin_flush();
        }
        if let Some(drain) = &mut self.drain
            && drain.stop_at.take_if(|at| *at <= now).is_some()
        {
            tracing::debug!("The drain is nearly over: asking tasks to end");
            self.terminate_tasks();
        }
        // Tasks that their workers had in advance.
        if self.is_stopping && self.master.has_prefilled() {
            self.terminate_tasks();
        }
        Ok(())
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
        let by = if signal == SIGTERM {
            DrainedBy::Term
        } else {
            DrainedBy::Time
        };
        self.begin_drain((by, signal), until)
    }

    /// Starts no more tasks. Those that still run at `until` are killed.
    pub(super) fn begin_drain(
        &mut self,
        (by, signal): (DrainedBy, i32),
        until: Option<Instant>,
    ) -> Result<(), RunError> {
        let running = self.master.running();
        // After SIGTERM, the original logs nothing else at this level, and programs compare the output.
        if until.is_none() {
            tracing::info!("Starting no more tasks, waiting for the {running} that run");
        } else {
            tracing::debug!("Starting no more tasks, waiting for the {running} that run");
        }
        self.master.handle(Event::Drain, &mut self.out)?;
        let stop_at = until.and_then(|until| until.checked_sub(STOP_GRACE));
        let stop_at = stop_at.filter(|at| *at > clock::now());
        self.drain = Some(Drain {
            by,
            signal,
            stop_at,
            until,
        });
        self.tell_drain();
        self.notify_tasks(None, Duration::ZERO);
        Ok(())
    }
}
