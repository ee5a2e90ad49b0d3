//! Tasks that rest between two attempts. The driver knows the clock, and wakes them.

use pmc_dag::TaskId;

use super::run::Master;
use super::tasks::State;

impl Master {
    /// Number of failed attempts of a task that is to be tried again; 0 for others.
    #[must_use]
    pub fn failures_before_retry(&self, task: TaskId) -> u32 {
        let is_ready = self.state(task) == Some(State::Ready);
        let failures = self.failures.get(&task).filter(|_| is_ready);
        failures.copied().unwrap_or(0)
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
