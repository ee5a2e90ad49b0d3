//! The loop: messages, deadlines and signals.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use signal_hook::consts::SIGTERM;

use super::conclusion::End;
use super::{Aborted, Driver, Loop, RunError, RunEvent};
use crate::protocol::{Rank, ToMaster};
use crate::scheduler::{Event, Summary};
use crate::transport::{MasterTransport, WaitPolicy};

/// Maximum wait while workers hold prefilled tasks: they have work, but others may need an answer.
const DEFERRED_SEND_DELAY: Duration = Duration::from_millis(3);

/// Maximum messages received per batch.
const BATCH_SIZE: usize = 32;

impl<T: MasterTransport> Driver<'_, T> {
    /// Runs from the registration of the workers to the end of the last task, or an abort.
    pub(super) fn run_tasks(&mut self, event_loop: Loop<T>) -> Result<End, RunError> {
        if let Some(minutes) = self.options.max_wall_minutes {
            tracing::info!("Setting max walltime to {minutes:.6} minutes");
        }
        self.check_nodes()?;
        while !self.may_start() {
            if let Some(end) = self.end_of_wait() {
                return Ok(end);
            }
            self.receive()?;
            self.answer_requests()?;
            self.check_nodes()?;
        }
        self.start_workers()?;
        while self.prepares_hosts() {
            if let Some(end) = self.end_of_wait() {
                return Ok(end);
            }
            self.receive()?;
            self.answer_requests()?;
            self.check_nodes()?;
        }
        let started = Instant::now();
        tracing::info!("Starting workflow");
        let Summary {
            tasks, done_before, ..
        } = self.master.summary();
        (self.out.observer)(&RunEvent::Begun { tasks, done_before });
        let end = event_loop(self);
        self.makespan = started.elapsed();
        end
    }

    /// True if no task may start because host scripts run. With workers that come and go, the first host that
    /// is prepared begins.
    fn prepares_hosts(&self) -> bool {
        if self.master.is_dynamic() {
            self.master.only_prepares()
        } else {
            self.options.host_script && self.prepared < self.master.workers()
        }
    }

    /// Processes all messages in this thread.
    pub(super) fn receive_all(&mut self) -> Result<End, RunError> {
        loop {
            if let Some(end) = self.advance()? {
                return Ok(end);
            }
            self.receive()?;
        }
    }

    /// Schedules tasks and writes the logs. Returns the end of the run, if it has ended.
    pub(super) fn advance(&mut self) -> Result<Option<End>, RunError> {
        self.answer_requests()?;
        self.drain_if_asked()?;
        self.wake_tasks()?;
        if let Some(aborted) = self.task_abort {
            self.flush()?;
            return Ok(Some(End::Aborted(aborted)));
        }
        self.hold_while_full()?;
        // Tasks that start now may rely on the rescue file: a clean-up job removes the inputs of tasks that
        // must not run again.
        self.out.flush_rescue()?;
        self.master.advance(self.begin.at.elapsed());
        self.master.schedule(&mut self.out);
        // What has joined or ended may make others ready.
        while self.has_subworkflows && self.advance_subworkflows()? {
            self.out.flush_rescue()?;
            self.master.schedule(&mut self.out);
        }
        if self.out.transport.is_dynamic() {
            self.check_nodes()?;
            self.check_stranded()?;
        }
        if tracing::enabled!(tracing::Level::TRACE) {
            self.log_waiting();
        }
        self.flush()?;
        if self.master.is_finished() && !self.subworkflows.awaits_guests() && !self.requests.keep_the_run() {
            return Ok(Some(End::Finished));
        }
        Ok(self.aborted().map(End::Aborted))
    }

    /// Returns why the run must be aborted, if it must.
    pub(super) fn aborted(&self) -> Option<Aborted> {
        if let Some(signal) = self.interrupt.signal() {
            return Some(Aborted::Signal(signal));
        }
        let now = Instant::now();
        if self.deadline.is_some_and(|deadline| now >= deadline) {
            return Some(Aborted::WallTime);
        }
        let drain = self.drain.as_ref()?;
        let is_over = drain.until.is_some_and(|until| now >= until);
        is_over.then_some(Aborted::Signal(drain.signal))
    }

    /// Logs why the task that is to start next waits, if that is new.
    fn log_waiting(&mut self) {
        let waiting = self.master.waiting();
        if let Some((task, reason)) = waiting
            && waiting != self.waiting
        {
            let name = self.out.name(task);
            tracing::trace!("Task {name} waits: {reason}");
        }
        self.waiting = waiting;
    }

    /// Returns when the loop has to act if nothing happens before.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let drained = self.drain.as_ref().and_then(|drain| drain.until);
        let next_start = self.master.next_time();
        let times = [
            next_start.and_then(|time| self.begin.at.checked_add(time)),
            self.deadline,
            drained,
            self.drain_at,
            self.disk.next_check(),
            self.nodes.next_check,
            self.requests.next_check(),
            self.rests.next(),
        ];
        times.into_iter().flatten().min()
    }

    /// Waits for a message, then handles it and all others that have arrived.
    fn receive(&mut self) -> Result<(), RunError> {
        let until = |deadline: Instant| deadline.saturating_duration_since(Instant::now());
        let mut timeout = self.next_deadline().map_or(Duration::MAX, until);
        if self.master.has_prefilled() {
            timeout = timeout.min(DEFERRED_SEND_DELAY);
        }
        let wait_policy = if self.master.running() < self.cores {
            WaitPolicy::IdleCore
        } else if self.master.has_prefilled() {
            WaitPolicy::Batch
        } else {
            WaitPolicy::Normal
        };
        self.out.transport.set_wait_policy(wait_policy);
        // With a timeout of zero, the transport would not wait at all.
        timeout = timeout.max(Duration::from_micros(1));
        let mut inbox = std::mem::take(&mut self.inbox);
        let result = loop {
            let mut received = Ok(());
            while inbox.len() < BATCH_SIZE {
                match self.out.transport.receive(timeout) {
                    Ok(Some(message)) => inbox.push_back(message),
                    Ok(None) => break,
                    Err(error) => {
                        received = Err(error.into());
                        break;
                    }
                }
                timeout = Duration::ZERO;
            }
            let is_last = inbox.len() < BATCH_SIZE;
            let result = self.handle_all(&mut inbox).and(received);
            if is_last || result.is_err() {
                break result;
            }
        };
        self.inbox = inbox;
        result
    }

    /// Handles messages in order. After an error, the remaining ones are left.
    pub(super) fn handle_all(&mut self, messages: &mut VecDeque<(Rank, ToMaster)>) -> Result<(), RunError> {
        while let Some((from, message)) = messages.pop_front() {
            self.handle(from, message)?;
        }
        Ok(())
    }

    /// Handles a message. A worker that violates the protocol ends the run, or costs only its agent.
    pub(super) fn handle(&mut self, from: Rank, message: ToMaster) -> Result<(), RunError> {
        match self.handle_valid(from, message) {
            Err(error) if error.is_violation() && self.out.transport.dismiss(from, &error.to_string()) => {
                Ok(())
            }
            handled => handled,
        }
    }

    fn handle_valid(&mut self, from: Rank, message: ToMaster) -> Result<(), RunError> {
        let Some(message) = self.keep_early(from, message) else {
            return Ok(());
        };
        let event = match message {
            ToMaster::Register(registration) => {
                if tracing::enabled!(tracing::Level::TRACE) {
                    self.out.hosts.insert(from, registration.host.clone());
                }
                if let Some(reporter) = &mut self.out.reporter {
                    reporter.register(from, &registration.host);
                }
                self.note_sight(from, &registration);
                self.master
                    .handle(Event::Registered(from, registration), &mut self.out)?;
                return self.handle_kept(from);
            }
            ToMaster::Ready if self.master.is_dynamic() => Event::HostReady(from),
            ToMaster::Ready => {
                self.prepared += 1;
                return Ok(());
            }
            ToMaster::NotReady { message } if self.master.is_dynamic() => {
                return self.note_unprepared(from, message);
            }
            ToMaster::NotReady { message } => Event::Failed(from, message),
            ToMaster::Terminating => {
                self.interrupt.drain_for_worker(SIGTERM);
                return Ok(());
            }
            ToMaster::Finished(result) if self.is_ignored(from, &result) => return Ok(()),
            ToMaster::Finished(result) => {
                let result = self.store_returned(from, result)?;
                let result = self.forward(from, result)?;
                let result = self.note_interruption(from, result)?;
                let exit = self.abort_exit(from, &result);
                let task = self.master.running_on(from).map(|(task, _)| task);
                self.master.handle(Event::Finished(from, result), &mut self.out)?;
                if let Some(task) = task {
                    self.rest(task)?;
                }
                self.judge_hosts()?;
                exit.into_iter().for_each(|exit| self.abort_with(exit));
                return Ok(());
            }
            ToMaster::Retracted { submits } => Event::Retracted(from, submits),
            ToMaster::Failed { message } => Event::Failed(from, message),
            ToMaster::Running(attempt) => return self.adopt(from, attempt),
            ToMaster::Answer(answer) => {
                self.note_answer(from, *answer);
                return Ok(());
            }
            ToMaster::Node(change) => return self.note_change(from, &change),
        };
        Ok(self.master.handle(event, &mut self.out)?)
    }

    fn flush(&mut self) -> Result<(), RunError> {
        if let Some(error) = self.out.error.take() {
            return Err(error.into());
        }
        self.write_logs()?;
        self.out.transport.settle();
        Ok(())
    }
}
