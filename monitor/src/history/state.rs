//! What is known of tasks, tries and runs.

use crate::events::Micros;
use crate::plan::TaskNumber;
use crate::resources::HostNumber;

/// Not known, or not yet.
pub const NEVER: Micros = Micros::MIN;

/// What is known of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// It waits for others, or its run has not come to it.
    Waiting,
    /// It can start as soon as there is room.
    Ready,
    /// It runs.
    Running,
    /// It succeeded.
    Done,
    /// Its last try failed.
    Failed,
}

impl State {
    pub(super) const COUNT: usize = 5;

    pub(super) fn index(self) -> usize {
        self as usize
    }
}

/// One try of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Try {
    /// Task.
    pub task: TaskNumber,
    /// Raw wait status, if it has one.
    pub status: i32,
    /// When the task was ready.
    pub queued: Micros,
    /// When it started.
    pub start: Micros,
    /// When it ended; [`NEVER`] if nobody saw its end.
    pub end: Micros,
    /// Where it ran.
    pub host: HostNumber,
    /// Its run ended before it did.
    pub lost: bool,
}

impl Try {
    /// Whether it succeeded.
    #[must_use]
    pub fn succeeded(&self) -> bool {
        self.end != NEVER && self.status == 0 && !self.lost
    }

    /// Microseconds that it took, if it has ended.
    #[must_use]
    pub fn duration(&self) -> Option<Micros> {
        (self.end != NEVER).then(|| self.end.saturating_sub(self.start).max(0))
    }
}

/// One run of the executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// When it began.
    pub start: Micros,
    /// When it ended, and whether with 0 or 1; without it, it is going on, or was killed.
    pub end: Option<(Micros, i32)>,
    /// The last that was heard of it.
    pub last: Micros,
    /// Process.
    pub process: Option<u32>,
}

/// How the latest run stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Nothing ran yet.
    NotStarted,
    /// It goes on.
    Running,
    /// It ended by itself; 0 if all tasks are done.
    Ended(i32),
    /// It ended without saying so: it was killed, or its host went down.
    Cut,
}

/// Number of tasks by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally(pub(super) [u32; State::COUNT]);

impl Tally {
    /// Tasks in this state.
    #[must_use]
    pub fn get(&self, state: State) -> usize {
        self.0[state.index()] as usize
    }

    /// All tasks.
    #[must_use]
    pub fn total(&self) -> usize {
        self.0.iter().map(|count| *count as usize).sum()
    }

    /// Adds those of another.
    pub fn add(&mut self, other: &Tally) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine += theirs;
        }
    }
}

/// Seconds of a number of microseconds.
#[must_use]
#[expect(
    clippy::cast_precision_loss,
    reason = "microseconds of a run are far below 2^53"
)]
pub fn seconds(micros: Micros) -> f64 {
    micros.max(0) as f64 / 1e6
}
