//! The loop: messages, deadlines and signals.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use monitord_compat::run_end::DrainedBy;
use pmc_system::clock;
use pmc_system::planted::{Planted, is_planted};
use signal_hook::consts::{SIGTERM, SIGUSR1};

use super::conclusion::End;
use super::rests::Rests;
use super::serving::Serving;
use super::{Driver, Loop, RunError, RunEvent};
use crate::protocol::{EndCause, NodeChange, Rank, TaskResult, ToMaster};
use crate::scheduler::{Event, Summary};
use crate::transport::{MasterTransport, WaitPolicy};

/// Maximum wait while workers hold prefilled tasks: they have work, but others may need an answer.
const DEFERRED_SEND_DELAY: Duration = Duration::from_millis(3);

/// Maximum messages received per batch.
const BATCH_SIZE: usize = 32;

impl<T: MasterTransport> Driver<'_, T> {
    /// Runs from the registration of the workers to the end of the last task, or an abort.
    pub(super) fn run_tasks(&mut self, event_loop: Loop<T>) -> Result<End, RunError> {
        if let Some(minutes) = self.run.options.max_wall_minutes {
            tracing::info!("Setting max walltime to {minutes:.6} minutes");
        }
        self.tell_end()?;
        self.nodes.check(&mut self.run)?;
        while !self.is_ready()? {
            if let Some(end) = self.run.end_of_wait() {
                return Ok(end);
            }
            self.receive()?;
            self.answer_requests()?;
            // Tools that wait for ends hear in time that there are none.
            self.tell_ends();
            self.nodes.check(&mut self.run)?;
        }
        self.run.tell_end_of_time();
        let started = clock::now();
        tracing::info!("Starting workflow");
        let Summary {
            tasks, done_before, ..
        } = self.run.master.summary();
        (self.run.out.observer)(&RunEvent::Begun { tasks, done_before });
        let end = event_loop(self);
        self.makespan = clock::elapsed(started);
        end
    }

    /// Lets the workers prepare their hosts once enough of them have come. Returns whether tasks may start.
    fn is_ready(&mut self) -> Result<bool, RunError> {
        if !self.nodes.has_started() && self.nodes.may_start(&self.run) {
            self.start_workers()?;
        }
        Ok(self.nodes.has_started() && !self.prepares_hosts())
    }

    /// Begins the run with the workers that have come.
    fn start_workers(&mut self) -> Result<(), RunError> {
        let mut said = Vec::new();
        for (rank, registration, messages) in self.nodes.start() {
            self.handle(rank, ToMaster::Register(registration))?;
            said.push((rank, messages));
        }
        self.run.master.start(&mut self.run.out)?;
        for (rank, messages) in said {
            for message in messages {
                self.handle(rank, message)?;
            }
        }
        self.run.check_fit()
    }

    /// True if no task may start because host scripts run. With workers that come and go, the first host that
    /// is prepared begins.
    fn prepares_hosts(&self) -> bool {
        if self.run.master.is_dynamic() {
            self.run.master.only_prepares()
        } else {
            self.run.options.host_script && self.prepared < self.run.master.workers()
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
        self.add_early_tasks()?;
        self.take_news()?;
        self.run.drain_if_asked()?;
        self.run.stop_if_time_is_over()?;
        self.tell_limits();
        self.run.tend_checkpoints();
        self.rests.wake_tasks(&mut self.run)?;
        if let Some(aborted) = self.run.task_abort {
            self.flush()?;
            return Ok(Some(End::Aborted(aborted)));
        }
        self.disk.hold_while_full(&mut self.run)?;
        self.run.release_after_eviction()?;
        // Tasks that start now may rely on the rescue file: a clean-up job removes the inputs of tasks that
        // must not run again.
        self.run.out.dags.flush_rescue()?;
        self.check_gangs()?;
        self.run.master.advance(clock::elapsed(self.begin.at));
        self.run.master.schedule(&mut self.run.out);
        // What has joined or ended may make others ready.
        while self.subworkflows.may_join && self.subworkflows.advance(&mut self.run)? {
            self.run.out.dags.flush_rescue()?;
            self.run.master.schedule(&mut self.run.out);
        }
        if self.run.out.transport.is_dynamic() {
            self.nodes.check(&mut self.run)?;
            self.nodes.check_stranded(&mut self.run)?;
        }
        if tracing::enabled!(tracing::Level::TRACE) {
            self.log_waiting();
        }
        self.flush()?;
        if self.run.master.is_finished()
            && !self.subworkflows.awaits_guests()
            && !self.takes_tasks()
            && !self.requests.0.keep_the_run()
        {
            let is_over = self.run.is_stopping && self.run.master.is_cut_short();
            let end = is_over.then_some(End::Aborted(super::Aborted::WallTime));
            return Ok(Some(end.unwrap_or(End::Finished)));
        }
        let waits_for_time = !self.run.notices.held.is_empty() || self.run.master.has_late();
        let only_rests = self.run.master.only_rests() && !self.subworkflows.awaits_guests();
        if waits_for_time && only_rests && self.rests.next().is_none() {
            return Ok(Some(End::Aborted(super::Aborted::HeldBack)));
        }
        Ok(self.run.aborted().map(End::Aborted))
    }

    /// Takes what batch system and site say of the end of the run.
    fn take_news(&mut self) -> Result<(), RunError> {
        let Some(outside) = &self.outside else {
            return Ok(());
        };
        let news = outside.take();
        for problem in news.problems {
            self.run.out.warn(&problem);
        }
        if let Some((asked, left)) = news.time_left
            && self.run.time.set_time_left(asked, left)
        {
            self.run.notices.reset();
            self.run.tell_end_of_time();
            for task in std::mem::take(&mut self.run.notices.held) {
                self.run.handle(Event::Wake(task))?;
            }
            self.tell_end()?;
            let minutes = left.as_secs_f64() / 60.0;
            tracing::info!("The batch job ends in {minutes:.1} minutes");
        }
        for node in news.draining {
            self.leave_draining_node(&node)?;
        }
        if let Some(reason) = news.site_drain
            && self.run.drain.is_none()
        {
            let why = if reason.is_empty() {
                String::new()
            } else {
                format!(": {reason}")
            };
            self.run.out.warn(&format!("The site clears its nodes{why}"));
            // As after this signal.
            self.run.begin_drain((DrainedBy::Site, SIGUSR1), None)?;
        }
        Ok(())
    }

    /// Tells the scheduler when tasks that still run are stopped.
    fn tell_end(&mut self) -> Result<(), RunError> {
        match self.run.time.stop_at() {
            Some(at) => self
                .run
                .handle(Event::EndsAt(at.saturating_duration_since(self.begin.at))),
            None => Ok(()),
        }
    }

    /// Logs why the task that is to start next waits, if that is new.
    fn log_waiting(&mut self) {
        let waiting = self.run.master.waiting();
        if let Some((task, reason)) = waiting
            && waiting != self.waiting
        {
            let name = self.run.out.dags.name(task);
            tracing::trace!("Task {name} waits: {reason}");
        }
        self.waiting = waiting;
    }

    /// Returns when the loop has to act if nothing happens before.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let drained = self.run.drain.as_ref().and_then(|drain| drain.until);
        let next_start = self.run.master.next_time();
        let times = [
            next_start.and_then(|time| self.begin.at.checked_add(time)),
            self.run.time.kill_at(),
            self.run.time.stop_at().filter(|_| !self.run.is_stopping),
            self.run.notices.next(self.run.time.stop_at()),
            self.run.checkpoints.next(self.run.time.stop_at()),
            self.run.next_flush_look(),
            self.run.drain.as_ref().and_then(|drain| drain.stop_at),
            drained,
            self.drain_at,
            self.disk.next_check(),
            self.run.holds.next(),
            self.nodes.next_check,
            self.requests.0.next_check(),
            self.rests.next(),
            self.next_gang_check(),
            self.serving.as_ref().and_then(Serving::next),
        ];
        times.into_iter().flatten().min()
    }

    /// Waits for a message, then handles it and all others that have arrived.
    fn receive(&mut self) -> Result<(), RunError> {
        // Before tasks start, nothing writes logs: hosts are prepared.
        self.run.out.send_held();
        let until = |deadline: Instant| deadline.saturating_duration_since(clock::now());
        let mut timeout = self.next_deadline().map_or(Duration::MAX, until);
        if self.run.master.has_prefilled() {
            timeout = timeout.min(DEFERRED_SEND_DELAY);
        }
        let wait_policy = if self.run.master.running() < self.cores {
            WaitPolicy::IdleCore
        } else if self.run.master.has_prefilled() {
            WaitPolicy::Batch
        } else {
            WaitPolicy::Normal
        };
        self.run.out.transport.set_wait_policy(wait_policy);
        // With a timeout of zero, the transport would not wait at all.
        timeout = timeout.max(Duration::from_micros(1));
        let mut inbox = std::mem::take(&mut self.inbox);
        let result = loop {
            let mut received = Ok(());
            while inbox.len() < BATCH_SIZE {
                match self.run.out.transport.receive(timeout) {
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
            Err(error) if error.is_violation() => {
                let membership = self.run.out.transport.membership_mut();
                match membership.is_some_and(|agents| agents.dismiss(from, &error.to_string())) {
                    true => Ok(()),
                    false => Err(error),
                }
            }
            handled => handled,
        }
    }

    fn handle_valid(&mut self, from: Rank, message: ToMaster) -> Result<(), RunError> {
        let Some(message) = self.nodes.keep_early(&self.run, from, message) else {
            return Ok(());
        };
        let event = match message {
            ToMaster::Register(registration) => {
                if tracing::enabled!(tracing::Level::TRACE) {
                    self.run.out.hosts.insert(from, registration.host.clone());
                }
                self.run.note_sight(from, &registration);
                self.run.note_agent(from, &registration.host, registration.away);
                self.run.handle(Event::Registered(from, registration))?;
                self.rests.wake_for_host(&mut self.run)?;
                let mut kept = self.nodes.take_kept(from).into_iter();
                return kept.try_for_each(|message| self.handle(from, message));
            }
            ToMaster::Ready if self.run.master.is_dynamic() => Event::HostReady(from),
            ToMaster::Ready => {
                self.prepared += 1;
                return Ok(());
            }
            ToMaster::NotReady { message } if self.run.master.is_dynamic() => {
                return self.bad_hosts.note_unprepared(&mut self.run, from, message);
            }
            ToMaster::NotReady { message } => Event::Failed(from, message),
            ToMaster::Terminating => {
                self.run.interrupt.drain_for_worker(SIGTERM);
                return Ok(());
            }
            ToMaster::Finished(result) if self.nodes.is_ignored(from, &result) => {
                let submit = result.submit;
                self.subworkflows.keep_earlier(self.run.options, from, &result);
                self.subworkflows.note_end(from, Some(submit));
                return Ok(());
            }
            ToMaster::Finished(result) => return self.finish(from, result),
            ToMaster::Retracted { submits } => Event::Retracted(from, submits),
            ToMaster::Failed { message } => Event::Failed(from, message),
            ToMaster::Running(attempt) if attempt.gang.is_some() && attempt.dag.is_none() => {
                return self.run.adopt_lead(from, attempt);
            }
            ToMaster::Running(attempt) if attempt.dag.is_some() => {
                self.nodes.ignore(from, attempt.submit);
                self.subworkflows.kill_earlier(&mut self.run, from, attempt);
                return Ok(());
            }
            ToMaster::Running(attempt) => return self.nodes.adopt(&mut self.run, from, attempt),
            ToMaster::Answer(answer) => {
                self.requests.note_answer(from, *answer);
                return Ok(());
            }
            ToMaster::Joined { .. }
            | ToMaster::NotJoined { .. }
            | ToMaster::Left { .. }
            | ToMaster::Member(_) => {
                return self.handle_member(from, message);
            }
            ToMaster::Checkpoint(said) => {
                self.run.hear_checkpoints(from, *said);
                return Ok(());
            }
            ToMaster::Node(change) => {
                if let NodeChange::Lost = change {
                    self.subworkflows.note_end(from, None);
                }
                return self.run.note_change(from, &change);
            }
        };
        self.run.handle(event)
    }

    /// Handles the end of an attempt.
    fn finish(&mut self, from: Rank, result: TaskResult) -> Result<(), RunError> {
        let run = &mut self.run;
        let result = run.store_returned(from, result)?;
        let result = run.forward(from, result)?;
        let result = run.note_interruption(from, result)?;
        let result = run.note_saved(from, result);
        let exit = run.abort_exit(from, &result);
        Rests::note_hosts(run, &result.outcome);
        let task = run.master.running_on(from).map(|(task, _)| task);
        let is_saved = result.outcome.cause == Some(EndCause::Saved);
        let is_done = result.outcome.succeeded();
        run.handle(Event::Finished(from, result))?;
        if let Some(task) = task {
            // Not if it is only a part of a gang.
            if is_done && run.master.is_done(task) {
                run.note_done(task);
            }
            if is_saved {
                run.hold_saved(task)?;
            }
            self.rests.rest(run, task)?;
        }
        self.bad_hosts.judge(run)?;
        if is_planted(Planted::EarlyEnd) {
            self.tell_ends();
        }
        exit.into_iter().for_each(|exit| self.run.abort_with(exit));
        Ok(())
    }

    fn flush(&mut self) -> Result<(), RunError> {
        if let Some(error) = self.run.out.error.take() {
            return Err(error.into());
        }
        self.run.write_logs()?;
        self.run.out.send_held();
        self.tell_ends();
        if let Some(membership) = self.run.out.transport.membership_mut() {
            membership.settle();
        }
        self.run.remove_done();
        Ok(())
    }
}
