//! States of tasks, attempts and runs.

use crate::events::Micros;
use crate::plan::TaskNumber;
use crate::resources::HostNumber;

/// Time of something that has not happened or is unknown.
pub const NEVER: Micros = Micros::MIN;

/// State of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// Waits for its parents.
    Waiting,
    /// Waits for a free slot.
    Ready,
    /// An attempt runs.
    Running,
    /// Succeeded.
    Done,
    /// The last attempt failed.
    Failed,
}

impl State {
    pub(super) const COUNT: usize = 5;

    pub(super) fn index(self) -> usize {
        self as usize
    }
}

/// One attempt of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// Task.
    pub task: TaskNumber,
    /// Raw wait status; 0 until it ends.
    pub status: i32,
    /// Time at which the task became ready.
    pub queued: Micros,
    /// Start.
    pub start: Micros,
    /// End; [`NEVER`] without one.
    pub end: Micros,
    /// Host.
    pub host: HostNumber,
    /// It has no result: the run ended before it, or its worker was lost.
    pub lost: bool,
    /// Its worker was lost. If the task failed for that, the attempt has a status and is not `lost`.
    pub worker_lost: bool,
}

impl Attempt {
    /// Returns whether the attempt succeeded.
    #[must_use]
    pub fn succeeded(&self) -> bool {
        self.end != NEVER && self.status == 0 && !self.lost
    }

    /// Returns whether it was lost with its worker and its task ran again, which is no failure.
    #[must_use]
    pub fn was_evicted(&self) -> bool {
        self.lost && self.worker_lost
    }

    /// Returns whether the attempt ended and failed. One that was cut off with its run has not.
    #[must_use]
    pub fn failed(&self) -> bool {
        self.end != NEVER && !self.succeeded() && !self.lost
    }

    /// Returns the duration if the attempt has ended.
    #[must_use]
    pub fn duration(&self) -> Option<Micros> {
        (self.end != NEVER).then(|| self.end.saturating_sub(self.start).max(0))
    }
}

/// One run of the executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Start.
    pub start: Micros,
    /// End and exit status; `None` if the run is active or was killed.
    pub end: Option<(Micros, i32)>,
    /// Time of the last event.
    pub last: Micros,
    /// Process of the executor.
    pub process: Option<u32>,
}

/// Phase of the latest run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// There is no run.
    NotStarted,
    /// The run is active.
    Running,
    /// The run ended with this status; 0 if all tasks are done.
    Ended(i32),
    /// The run ended without a log entry: it was killed, or its host went down.
    CutOff,
}

impl Phase {
    /// The names of all phases in JSON and metrics.
    pub const KEYS: [&str; 4] = ["not_started", "running", "ended", "cut_off"];

    /// Name in JSON and metrics, which never changes.
    #[must_use]
    pub fn key(self) -> &'static str {
        let [not_started, running, ended, cut_off] = Self::KEYS;
        match self {
            Self::NotStarted => not_started,
            Self::Running => running,
            Self::Ended(_) => ended,
            Self::CutOff => cut_off,
        }
    }
}

/// Counts of tasks by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally(pub(super) [u32; State::COUNT]);

impl Tally {
    /// Number of tasks in this state.
    #[must_use]
    pub fn get(&self, state: State) -> usize {
        self.0[state.index()] as usize
    }

    /// Number of all tasks.
    #[must_use]
    pub fn total(&self) -> usize {
        self.0.iter().map(|count| *count as usize).sum()
    }

    /// Adds the counts of another tally.
    pub fn add(&mut self, other: &Tally) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine += theirs;
        }
    }
}

/// Converts microseconds to seconds; 0 for negative values.
#[must_use]
pub fn seconds(micros: Micros) -> f64 {
    micros.max(0) as f64 / 1e6
}
