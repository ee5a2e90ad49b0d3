//! Tasks that rest between two attempts. The driver knows the clock, and wakes them.

use std::time::Duration;

use pmc_dag::{RetryDelay, TaskId, words};

use super::avoidance::MOMENT;
use super::run::Master;
use super::tasks::State;

/// The pause of transfers that have no other: a server may be back soon, and the jobs of a workflow should
/// not keep it from that.
const AFTER_TRANSFERS: RetryDelay = RetryDelay {
    first: Duration::from_secs(2),
    percent: 200,
    max: Duration::from_secs(60),
};

/// What a task that has failed waits for before its next attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// The end of a pause.
    For(Duration),
    /// The next host, if it comes within this time: the task has failed on all that are there, and others are
    /// to come.
    ForHost(Duration),
    /// A host that has its program: none that is there has it, and others are to come.
    UntilHostJoins,
}

impl Master {
    /// True if all tasks that could run next rest, or are held back; also those of sub-workflows.
    #[must_use]
    pub fn only_rests(&self) -> bool {
        let joins = self.nested > self.nested_open || !self.ended.is_empty();
        let waits = !self.ready.is_empty() || self.queue.len() > 0 || self.expected > 0 || joins;
        self.has_started() && self.running == 0 && (self.resting > 0 || self.has_late()) && !waits
    }

    /// Returns what a task waits for whose attempt has just ended, if it is to be tried again later. `delay`
    /// is that of tasks without an option of their own.
    #[must_use]
    pub fn rest_before_retry(&self, task: TaskId, delay: Option<RetryDelay>) -> Option<Rest> {
        if self.state(task) != Some(State::Ready) {
            return None;
        }
        let failures = *self.failures.get(&task)?;
        if self.is_missing_on_all(task) {
            return Some(Rest::UntilHostJoins);
        }
        let (dag, local) = self.locate(task);
        let of_transfers = || {
            let command = words::split(dag.task(local).command);
            pmc_calls::is_transfer(&command).then_some(AFTER_TRANSFERS)
        };
        let delay = dag.retry_delay(local).or(delay).or_else(of_transfers);
        let pause = delay.map_or(Duration::ZERO, |delay| delay.after(failures));
        match self.may_succeed_on_others(task) {
            true if pause < MOMENT => Some(Rest::ForHost(MOMENT)),
            _ => (!pause.is_zero()).then_some(Rest::For(pause)),
        }
    }

    /// Handles [`Event::Rest`](super::Event::Rest).
    pub(super) fn rest(&mut self, task: TaskId) {
        if self.state(task) == Some(State::Ready) {
            self.nodes[task.index()].state = State::Resting;
            self.resting += 1;
        }
    }

    /// Handles [`Event::Wake`](super::Event::Wake).
    pub(super) fn wake(&mut self, task: TaskId) {
        if self.state(task) == Some(State::Resting) {
            self.nodes[task.index()].state = State::Ready;
            self.resting -= 1;
            self.ready.push(task);
        }
    }

    fn state(&self, task: TaskId) -> Option<State> {
        self.nodes.get(task.index()).map(|node| node.state)
    }
}
