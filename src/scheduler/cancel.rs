//! Tasks of the first DAG that are not to run, although nothing before them has failed.

use pmc_dag::TaskId;

use super::run::Master;
use super::tasks::State;

/// What became of a task that is to be cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancelled {
    /// It will not run. This is told once.
    Now,
    /// A worker has it, or may have it.
    Busy,
    /// It had ended.
    Over,
}

impl Master {
    /// Cancels a task that no worker has. It is not done, and does not count as failed; what depends on it
    /// does not run. Linear in the queued tasks that are like it.
    pub fn cancel(&mut self, task: TaskId) -> Cancelled {
        let Some(state) = self.nodes.get(task.index()).map(|node| node.state) else {
            return Cancelled::Over;
        };
        match state {
            // `schedule` passes over those that are not ready any more.
            State::Waiting | State::Ready => {}
            State::Resting => self.resting -= 1,
            State::Queued => self.queue.remove(&mut self.nodes, task),
            State::Late => self.run_times.retain_late(|late| *late != task),
            State::Done | State::Failed | State::Cancelled => return Cancelled::Over,
            State::Expected
            | State::Prefilled
            | State::Joining
            | State::Running
            | State::Leaving
            | State::Nested => return Cancelled::Busy,
        }
        self.nodes[task.index()].state = State::Cancelled;
        self.avoidance.forget(task);
        Cancelled::Now
    }

    /// Returns whether a task will not run because it has failed or was cancelled.
    #[must_use]
    pub fn has_no_more_attempts(&self, task: TaskId) -> bool {
        let state = self.nodes.get(task.index()).map(|node| node.state);
        matches!(state, Some(State::Failed | State::Cancelled))
    }
}
