//! The master as a pure state machine: it decides which task runs where, and when.
//!
//! It uses no clock, file or socket. [`Master::handle`] handles one event; [`Master::schedule`] assigns ready
//! tasks. Both emit their decisions through the [`Outbox`]. The driver owns transport, clock and logs: it
//! calls `handle` for each message that has arrived, then `schedule` once.
//!
//! # Life of a run
//!
//! All workers register. When the last one has registered, each gets [`ToWorker::Setup`]. After
//! [`Master::start`] the first tasks are ready, and `handle` and `schedule` alternate until
//! [`Master::is_finished`].
//!
//! ```text
//! waiting ── last parent done ──> ready ── schedule ──> queued ──> running ──> done
//!                                   ^                                 │
//!                                   └────────── attempts left ────────┴──────> failed
//! ```
//!
//! # Order
//!
//! `schedule` gives submit numbers to ready tasks in this order: at the start, by name; later, in the order
//! in which their last parents ended; children of one task, in the order of their EDGE lines; retries at the
//! end. Then it starts tasks by priority, and those of equal priority by submit number. A task that fits on
//! no host now, or whose category is full, is overtaken only by tasks with another request or category. Very
//! short tasks may be sent to a worker a few milliseconds before it can start them (`prefill`).
//!
//! # Cost
//!
//! Tasks with the same request and category form a *shape*; shapes with the same number of CPUs and GPUs
//! form a *class*. With H hosts, S shapes in a class and C classes, the costs are:
//!
//! * A task ends: O(log H), and O(1) for each of its edges.
//! * A task becomes ready: O(log S).
//! * A task starts: O(C · log S + log H). When nothing else fits, another O(C · log S). Without a free slot,
//!   nothing.
//! * A category with a limit becomes full, or has room again: O(log S) for each of its shapes.
//!
//! The number of tasks does not matter, and neither does the number of tasks that wait for memory.

mod assign;
mod bits;
mod categories;
#[cfg(test)]
mod check;
mod cpuset;
mod error;
mod gpus;
mod hosts;
mod prefill;
mod queue;
mod run;
#[cfg(test)]
mod sim;
mod tasks;
#[cfg(test)]
mod tests;
mod wait;

pub use error::MasterError;
pub use run::{Master, MasterConfig, Summary};
pub use wait::WaitReason;

use pmc_dag::TaskId;

use crate::protocol::{Outcome, Rank, Registration, SubmitId, TaskResult, ToWorker};

/// Input of the state machine.
#[derive(Clone, Debug)]
pub enum Event {
    /// A worker has registered. All workers must register before the first task runs.
    Registered(Rank, Registration),
    /// An attempt ended. Its data has been forwarded, or the outcome says that it was not.
    Finished(Rank, TaskResult),
    /// A worker gives back prefilled tasks.
    Retracted(Rank, Vec<SubmitId>),
    /// A worker cannot continue, with the reason. The run must be aborted.
    Failed(Rank, String),
    /// Start no more tasks.
    Drain,
    /// Start no tasks until [`Event::Release`].
    Hold,
    /// Start tasks again.
    Release,
}

/// Output of the state machine: messages to workers, and records in the order of events.
pub trait Outbox {
    /// Sends a message to a worker.
    fn send(&mut self, to: Rank, message: ToWorker);
    /// Records an event. The driver adds the time and writes log lines.
    fn record(&mut self, record: Record<'_>);
}

/// An event for the logs.
#[derive(Clone, Debug, PartialEq)]
pub enum Record<'a> {
    /// Free resources of a host: at the start, after each assignment and after each end.
    Resources {
        /// Host name.
        host: &'a str,
        /// Free slots.
        slots: u32,
        /// Free CPUs.
        cpus: u32,
        /// Free memory in MB.
        memory_mb: u64,
    },
    /// A task is ready and waits for a slot.
    Queued(TaskId, SubmitId),
    /// The free CPU numbers of the host are scattered: the task that starts next gets no block and no
    /// affinity.
    Fragmented(TaskId, SubmitId),
    /// A task was assigned to a worker.
    Started(TaskId, SubmitId, Rank),
    /// An attempt ended. If it succeeded, its rescue record must be on disk before any log line about its
    /// end.
    Ended {
        /// Which task.
        task: TaskId,
        /// Which attempt.
        submit: SubmitId,
        /// Which worker ran it.
        rank: Rank,
        /// How it ended.
        outcome: Outcome,
    },
}
