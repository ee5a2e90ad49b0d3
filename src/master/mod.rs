//! The master as a pure state machine: which task runs where, and when.
//!
//! No clock, file or socket in here. [`Master::handle`] takes one event and [`Master::schedule`]
//! assigns ready tasks; both say what is to happen through the [`Outbox`]. The loop around it
//! (`crate::driver`) owns transport, clock and logs, works off all messages that are there with
//! `handle`, then calls `schedule` once.

use pmc_dag::TaskId;

use crate::message::{Rank, Registration, SubmitId, TaskResult, ToWorker};

/// What comes in.
#[derive(Clone, Debug)]
pub enum Event {
    /// A worker said hello. All workers must have done so before the first task runs.
    Registered(Rank, Registration),
    /// An execution ended; forwarded data has been written already (or `status` says it was not).
    Finished(Rank, TaskResult),
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
    /// The task was assigned to a worker.
    Started(TaskId, SubmitId, Rank),
    /// The execution ended. `done` where the task will not run again and succeeded: its rescue
    /// record must be on disk before any log line about its end.
    Ended {
        /// Which task.
        task: TaskId,
        /// Which execution.
        submit: SubmitId,
        /// Where.
        rank: Rank,
        /// Raw wait status.
        status: i32,
        /// The task succeeded.
        done: bool,
    },
}
