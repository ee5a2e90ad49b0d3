//! The master as a pure state machine: which task runs where, and when.
//!
//! No clock, file or socket in here. [`Master::handle`] takes one event and [`Master::schedule`]
//! assigns ready tasks; both say what is to happen through the [`Outbox`]. The loop around it
//! (the driver) owns transport, clock and logs, works off all messages that are there with
//! `handle`, then calls `schedule` once.
//!
//! # Life of a run
//!
//! All workers register; when the last one has, each gets its [`ToWorker::Setup`]. After
//! [`Master::start`] the first tasks are ready, and `schedule` and `handle` alternate until
//! [`Master::is_finished`].
//!
//! ```text
//! waiting ── last parent done ──> ready ── schedule ──> queued ──> running ──> done
//!                                   ^                                 │
//!                                   └────────── tries left ───────────┴──────> failed
//! ```
//!
//! # Order
//!
//! Tasks that are ready at the start are taken in byte order of their names, later ones in the
//! order in which their last parent ended, the children of one task in the order of their EDGE
//! lines; a failed try goes to the end. In this order `schedule` gives them submit numbers. Then
//! it starts tasks by priority, among equals by submit number. A task that fits nowhere now is
//! overtaken by tasks that ask for something else, never by one that asks for the same. Very short
//! tasks may be sent to a worker a few milliseconds before it can start them (`prefill`).
//!
//! # Cost
//!
//! Tasks that ask for the same memory, CPUs and GPUs are of one *shape*; shapes with the same number
//! of CPUs and of GPUs form a *class*. With H hosts, S shapes in a class and C classes:
//!
//! * A task that ends: O(log H), and O(1) for each of its edges.
//! * A task that becomes ready: O(log S).
//! * A task that is started: O(C · log S + log H), and one more look of O(C · log S) when nothing
//!   else fits. Without a free slot nothing is looked at.
//!
//! So the number of tasks, ready or not, does not matter, nor how many of them wait for memory.

mod assign;
mod bits;
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

pub use error::MasterError;
pub use run::{Master, MasterConfig, Summary};

use pmc_dag::TaskId;

use crate::protocol::{Outcome, Rank, Registration, SubmitId, TaskResult, ToWorker};

/// What comes in.
#[derive(Clone, Debug)]
pub enum Event {
    /// A worker said hello. All workers must have done so before the first task runs.
    Registered(Rank, Registration),
    /// An execution ended; forwarded data has been written already (or `status` says it was not).
    Finished(Rank, TaskResult),
    /// A worker gives back prefilled tasks.
    Retracted(Rank, Vec<SubmitId>),
    /// A worker cannot go on, and says why. The run must be aborted.
    Failed(Rank, String),
    /// Start nothing new (drain, or the end of the wall time).
    Drain,
}

/// What goes out: messages to workers, and facts for the logs in the order in which they happen.
pub trait Outbox {
    /// Sends a message to a worker.
    fn send(&mut self, to: Rank, message: ToWorker);
    /// Notes a fact; the loop turns it into log lines and stamps it with the time.
    fn record(&mut self, record: Record<'_>);
}

/// A fact for the logs.
#[derive(Clone, Debug, PartialEq)]
pub enum Record<'a> {
    /// Free resources of a host after a change: one at the start, one after each assignment and one
    /// after each end.
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
    /// The task is ready and waits for a slot.
    Queued(TaskId, SubmitId),
    /// The free CPU numbers of the host are scattered: the task that is started next gets no block
    /// of its own, and no affinity.
    Fragmented(TaskId, SubmitId),
    /// The task was assigned to a worker.
    Started(TaskId, SubmitId, Rank),
    /// An attempt ended. If it succeeded, its rescue record must be on disk before any log line about its end.
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
