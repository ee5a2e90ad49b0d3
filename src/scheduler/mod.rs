//! The master as a pure state machine: it decides which task runs where, and when.
//!
//! It uses no clock, file or socket. [`Master::handle`] handles one event; [`Master::schedule`] assigns ready
//! tasks. Both emit their decisions through the [`Outbox`]. The driver owns transport, clock and logs: it
//! calls `handle` for each message that has arrived, then `schedule` once.
//!
//! # Life of a run
//!
//! With a fixed number of workers, all register first. When the last one has registered, each gets
//! [`ToWorker::Setup`]. Otherwise workers come and go at any time (`nodes`). After [`Master::start`] the
//! first tasks are ready, and `handle` and `schedule` alternate until [`Master::is_finished`].
//!
//! ```text
//! waiting ── last parent done ──> ready ── schedule ──> queued ──> running ──> done
//!                                   ^                                 │
//!                                   └── attempts left, worker lost ───┴──────> failed
//! ```
//!
//! A task may hold several hosts at once (`gangs`).
//!
//! A task may be a DAG itself. It is *nested* while that DAG, a segment of the run, runs
//! (`segments`): ready ── schedule (and its command, if there is one) ──> nested ──> done or failed.
//!
//! # Order
//!
//! `schedule` gives submit numbers to ready tasks in this order: at the start, by name; later, in the order
//! in which their last parents ended; children of one task, in the order of their EDGE lines; retries at the
//! end. Then it starts tasks by priority, and those of equal priority by submit number; only tasks whose
//! workers were lost have their old places. A task that fits on no host now, or whose category is full, is
//! overtaken only by tasks with another request or category. A task that failed on a host is tried again
//! elsewhere, and is overtaken there meanwhile (`avoidance`). Very
//! short tasks may be sent to a worker a few milliseconds before it can start them (`prefill`). Tasks whose
//! inputs lie in the caches of some hosts prefer these (`cache_index`): only then may a later task of the
//! same priority start before an earlier one that fits. Tasks that would not end before the run does are
//! held back (`run_times`). A task over several hosts that comes first and does not fit keeps what it will
//! get: others start there only if they are expected to end in time.
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
//! * A task starts whose inputs lie on other hosts than its own: a constant number of looks more.
//! * A task fails and is tried again: O(A) with A sets of hosts that tasks avoid, at most 64. While such
//!   tasks wait, a start costs O(A · log H) more. The first one that avoids a set is linear in the shapes of
//!   its class. Finding that another host is able is linear in the hosts, but the first one mostly is.
//! * A task of a run with an end succeeds: a look into a table by its transformation. One that is held back:
//!   as if it started, once.
//! * A task is lost: O(1) for each that was queued before it and has not started.
//! * A category with a limit becomes full, or has room again: O(log S) for each of its shapes.
//!
//! * While tasks over several hosts are queued, each `schedule` costs O(1) for each of their shapes, at most
//!   64, and each host on which something was taken or given back. It is linear in the hosts when such a task
//!   gets its hosts, and when other parts are reserved.
//! * A DAG gets more tasks (`growth`): linear in these and their edges.
//! * A DAG joins: linear in its tasks and edges, and in the shapes of each class that gets a new one. With J
//!   DAGs that have joined, O(log J) more for each step of their tasks.
//!
//! The number of tasks does not matter, and neither does the number of tasks that wait for memory.

mod assign;
mod avoidance;
mod bits;
mod cache_index;
mod cancel;
mod categories;
#[cfg(test)]
mod check;
mod cpuset;
mod ends;
mod error;
mod gangs;
mod gpus;
mod growth;
mod hosts;
mod levels;
mod max_tree;
mod next_request;
mod nodes;
mod prefill;
mod queue;
mod reserved_hosts;
mod rest;
mod run;
mod run_times;
mod segments;
mod shares;
mod shortage;
#[cfg(test)]
mod sim;
mod status;
mod tasks;
#[cfg(test)]
mod tests;
mod wait;

pub use cancel::Cancelled;
pub use error::MasterError;
pub use gangs::{GangParts, LeadAdoption, MemberAdoption};
pub use growth::GrowthError;
pub use rest::Rest;
pub use run::{DEFAULT_MAX_PLANS, Master, MasterConfig, Summary, Workers};
pub use segments::{JoinError, Joining, Role, SegmentId};
pub use shares::ShareId;
pub use shortage::Shortage;
pub use wait::WaitReason;

use std::time::Duration;

use pmc_dag::{Request, TaskId};

use crate::protocol::{CacheNews, EndCause, Outcome, Rank, Registration, SubmitId, TaskResult, ToWorker};

/// Input of the state machine.
#[derive(Clone, Debug)]
pub enum Event {
    /// A worker has registered. With a fixed number of workers, all must register before the first task
    /// runs.
    Registered(Rank, Registration),
    /// An attempt ended. Its data has been forwarded, or the outcome says that it was not.
    Finished(Rank, TaskResult),
    /// A worker gives back prefilled tasks.
    Retracted(Rank, Vec<SubmitId>),
    /// A worker cannot continue, with the reason. The run must be aborted.
    Failed(Rank, String),
    /// Nothing has been heard of a worker for a while: it keeps its tasks and gets no more.
    Silent(Rank),
    /// A silent worker has been heard of.
    Back(Rank),
    /// A worker is lost, and its tasks have ended: they become ready again. What it still reports is ignored.
    Lost(Rank),
    /// A worker is to leave. It gets no more tasks and, when it is idle, [`ToWorker::Shutdown`].
    Retire(Rank),
    /// A worker's part in preparing its host is done: see [`Master::with_host_scripts`].
    HostReady(Rank),
    /// An earlier master started this attempt, and it may still run: its task does not start until
    /// [`Event::Adopt`] or [`Event::Forget`]. Refused if the task is not ready, or no longer.
    Expect(TaskId, SubmitId),
    /// An attempt that was expected will not come.
    Forget(TaskId),
    /// A worker runs an attempt that an earlier master started. To be sent directly after
    /// [`Event::Registered`], before other tasks take the resources. Refused if the task does not wait, or
    /// does not fit.
    Adopt(Rank, Adoption),
    /// A member of a gang has joined it. What comes too late changes nothing; that holds for the next two,
    /// too.
    Joined(Rank, SubmitId),
    /// A member of a gang does not join it.
    NotJoined {
        /// Which worker.
        rank: Rank,
        /// Which gang.
        submit: SubmitId,
        /// The worker has said so, and holds nothing. Otherwise, it did not answer in time.
        is_answer: bool,
    },
    /// Nothing of a gang is left on a worker that was asked to leave.
    Left {
        /// Which worker.
        rank: Rank,
        /// Which gang.
        submit: SubmitId,
        /// A connection between hosts of the gang was cut before what ran over it has ended.
        is_cut: bool,
    },
    /// A worker runs the command of a gang of an earlier master. As [`Event::Adopt`].
    AdoptLead(Rank, LeadAdoption),
    /// A worker is a member of a gang of an earlier master. As [`Event::Adopt`].
    AdoptMember(Rank, MemberAdoption),
    /// What the cache of a worker's host holds has changed.
    Cache(Rank, CacheNews),
    /// The DAG that a nested task is has ended, or could not begin.
    SubdagEnded(TaskId, Outcome),
    /// The DAG that a nested task is was drained. The task is not done, and has not failed.
    SubdagStopped(TaskId),
    /// A task that is ready again does not start until [`Event::Wake`].
    Rest(TaskId),
    /// The rest of a task is over.
    Wake(TaskId),
    /// Start no more tasks of a guest and its sub-workflows.
    DrainShare(ShareId),
    /// Tasks that still run are stopped at this time, as [`Master::advance`] counts it: those that would not
    /// end before do not start.
    EndsAt(Duration),
    /// Start no more tasks.
    Drain,
    /// Start no tasks until [`Event::Release`].
    Hold,
    /// Start tasks again.
    Release,
}

/// A running attempt of an earlier master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adoption {
    /// Which task.
    pub task: TaskId,
    /// Which attempt. New attempts get higher numbers.
    pub submit: SubmitId,
    /// CPU numbers that it holds.
    pub cpus: Vec<u32>,
    /// GPUs that it holds.
    pub gpus: Vec<u32>,
}

/// A task that a worker is to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// Which task.
    pub task: TaskId,
    /// Number of the attempt.
    pub submit: SubmitId,
    /// Which worker.
    pub rank: Rank,
    /// Number of the attempt among those of the task in this run, from 1. Lost attempts do not count.
    pub attempt: u32,
    /// What the attempt may use.
    pub grant: Granted,
}

/// What an attempt may use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Granted {
    /// Memory in MB; 0 if the task requests none.
    pub memory_mb: u64,
    /// CPUs.
    pub cpus: u32,
    /// Numbers of its CPUs, if it has a block of CPUs.
    pub cpu_set: Vec<u32>,
    /// Numbers of its GPUs, counted from 0.
    pub gpu_set: Vec<u32>,
}

/// Output of the state machine: messages to workers, and records in the order of events.
pub trait Outbox {
    /// Has a worker run a task, after the one that it runs, if any.
    fn start(&mut self, start: Start);
    /// Asks the members of a gang to join it. They answer [`Event::Joined`] or [`Event::NotJoined`]. Once all
    /// have joined, [`Outbox::start`] lets its command run.
    fn join(&mut self, gang: GangParts);
    /// Asks a worker to leave a gang: to end what runs of it. It answers [`Event::Left`] or, if it runs the
    /// command of the gang, [`Event::Finished`].
    fn leave(&mut self, from: Rank, submit: SubmitId);
    /// Sends another message to a worker.
    fn send(&mut self, to: Rank, message: ToWorker);
    /// Records an event. The driver adds the time and writes log lines.
    fn record(&mut self, record: Record<'_>);
}

/// Why an attempt was evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Eviction {
    /// Its worker was lost.
    Lost,
    /// The batch system, or the end of the time of the run, has ended it.
    Interrupted,
    /// It has saved itself.
    Saved,
}

impl Eviction {
    /// Why an attempt with this outcome was evicted.
    fn of(outcome: &Outcome) -> Self {
        match outcome.cause {
            Some(EndCause::Saved) => Self::Saved,
            _ => Self::Interrupted,
        }
    }
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
    /// Free resources of a host that a gang takes or gives back, where its command does not run.
    Beside {
        /// The task, unless the next master does not know it.
        task: Option<TaskId>,
        /// Host name.
        host: &'a str,
        /// Free slots.
        slots: u32,
        /// Free CPUs.
        cpus: u32,
        /// Free memory in MB.
        memory_mb: u64,
    },
    /// Resources that came to a known host, or left it, with workers that came or are gone. A new host has
    /// [`Record::Resources`] instead.
    Capacity {
        /// Host name.
        host: &'a str,
        /// They left.
        gone: bool,
        /// Slots.
        slots: u32,
        /// CPUs.
        cpus: u32,
        /// Memory in MB.
        memory_mb: u64,
    },
    /// A task is ready and waits for a slot.
    Queued(TaskId, SubmitId),
    /// The free CPU numbers of the host are scattered: the task that starts next gets no block and no
    /// affinity.
    Fragmented(TaskId, SubmitId),
    /// A task is held back: the run ends before it would.
    HeldBack(TaskId, SubmitId),
    /// A task was assigned to a worker.
    Started(TaskId, SubmitId, Rank),
    /// An attempt that an earlier master started was found. [`Record::Started`] follows.
    Adopted(TaskId, SubmitId),
    /// An attempt ended, and has neither succeeded nor failed. The task is ready again, and no attempt is
    /// counted.
    Evicted {
        /// Which task.
        task: TaskId,
        /// Which attempt.
        submit: SubmitId,
        /// Which worker ran it.
        rank: Rank,
        /// Why.
        why: Eviction,
    },
    /// The next attempt of a task requests something else, because its last one ran out of memory or because
    /// of its expressions.
    NewRequest {
        /// Which task.
        task: TaskId,
        /// New request.
        request: Request,
        /// What the last attempt requested.
        before: Request,
    },
    /// An expression of a task gives no request, so the old one stays.
    ExpressionSkipped {
        /// Which task.
        task: TaskId,
        /// The request that the expression is about.
        request: &'a str,
        /// Why.
        reason: &'a str,
    },
    /// The expressions of a task ask for more than any host has. [`Record::NewRequest`] follows, if what a
    /// host has is not the old request.
    RequestCapped {
        /// Which task.
        task: TaskId,
        /// What is missing.
        shortage: Shortage,
    },
    /// The command that makes the DAG of a sub-workflow has ended. If it succeeded, [`Record::Nested`]
    /// follows.
    Prepared {
        /// Which task.
        task: TaskId,
        /// Which attempt.
        submit: SubmitId,
        /// Which worker ran the command.
        rank: Rank,
        /// How it ended.
        outcome: Outcome,
    },
    /// A sub-workflow needs its DAG now: [`Master::grow`], or [`Event::SubdagEnded`] if it has none. It ends
    /// with [`Record::Ended`], whose rank is 0.
    Nested(TaskId, SubmitId),
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

impl Record<'_> {
    /// Returns the task that the record is about, if it is about one.
    #[must_use]
    pub fn task(&self) -> Option<TaskId> {
        match *self {
            Self::Resources { .. } | Self::Capacity { .. } => None,
            Self::Beside { task, .. } => task,
            Self::Queued(task, _)
            | Self::Fragmented(task, _)
            | Self::HeldBack(task, _)
            | Self::Started(task, ..)
            | Self::Adopted(task, _)
            | Self::Nested(task, _)
            | Self::Evicted { task, .. }
            | Self::NewRequest { task, .. }
            | Self::ExpressionSkipped { task, .. }
            | Self::RequestCapped { task, .. }
            | Self::Prepared { task, .. }
            | Self::Ended { task, .. } => Some(task),
        }
    }

    /// Returns the record with another number of its task.
    #[must_use]
    pub fn renumbered(mut self, number: TaskId) -> Self {
        match &mut self {
            Self::Resources { .. } | Self::Capacity { .. } => {}
            Self::Beside { task, .. } => *task = Some(number),
            Self::Queued(task, _)
            | Self::Fragmented(task, _)
            | Self::HeldBack(task, _)
            | Self::Started(task, ..)
            | Self::Adopted(task, _)
            | Self::Nested(task, _)
            | Self::Evicted { task, .. }
            | Self::NewRequest { task, .. }
            | Self::ExpressionSkipped { task, .. }
            | Self::RequestCapped { task, .. }
            | Self::Prepared { task, .. }
            | Self::Ended { task, .. } => *task = number,
        }
        self
    }
}
