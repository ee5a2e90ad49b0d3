//! Errors of the scheduler.

use pmc_dag::TaskId;
use thiserror::Error;

use crate::protocol::{Rank, SubmitId};
use crate::scheduler::shortage::Shortage;

/// Why the run must be aborted.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MasterError {
    /// A task requests more than any host has. The text begins as that of the original.
    #[error("FATAL ERROR: No host is capable of running task {task}{}", explained(.shortage.as_ref()))]
    NoCapableHost {
        /// Name of the first such task in byte order.
        task: String,
        /// What is short; `None` if there are no hosts.
        shortage: Option<Shortage>,
    },
    /// A task needs the directory of the DAG file, and no host that has enough sees it.
    #[error(
        "No host is capable of running task {task}: it needs the directory of the DAG file, which the hosts that \
         are there do not see. Start an agent on a host that sees it, for example on that of the master"
    )]
    NoHostWithDirectory {
        /// Name of the task.
        task: String,
    },
    /// A task needs more hosts than there are with enough of what its ranks request.
    #[error("Task {task} needs {needed} nodes, {there} are there")]
    TooFewNodes {
        /// Name of the task.
        task: String,
        /// Nodes that it needs.
        needed: u32,
        /// Nodes that have enough for its ranks.
        there: u32,
    },
    /// A task needs several hosts, and the transport has no connections between them.
    #[error("Task {task} needs {nodes} nodes: tasks over several nodes need --agents")]
    NeedsAgents {
        /// Name of the task.
        task: String,
        /// Nodes that it needs.
        nodes: u32,
    },
    /// A worker cannot continue.
    #[error("Worker {}: {message}", rank.0)]
    WorkerFailed {
        /// Which worker.
        rank: Rank,
        /// Its reason.
        message: String,
    },
    /// A message came from a rank that is no worker of this run.
    #[error("Protocol error: rank {} is no worker of this run", .0.0)]
    UnknownRank(Rank),
    /// A worker registered a second time.
    #[error("Protocol error: worker {} has registered twice", .0.0)]
    RegisteredTwice(Rank),
    /// A worker reported an attempt that it does not have.
    #[error("Protocol error: worker {} reported attempt {}, which it does not run", rank.0, submit.0)]
    NotRunning {
        /// Which worker.
        rank: Rank,
        /// The attempt.
        submit: SubmitId,
    },
    /// A task was expected to run already, but it is not ready, or another attempt has begun.
    #[error("Task number {} is not ready, so no attempt of it is expected", .0.0)]
    NotExpected(TaskId),
    /// A worker runs an attempt of an earlier master that cannot go on.
    #[error(
        "Worker {} runs attempt {} of an earlier master, which cannot go on: its task does not wait, or does \
         not fit",
        rank.0, submit.0
    )]
    NotAdopted {
        /// Which worker.
        rank: Rank,
        /// The attempt.
        submit: SubmitId,
    },
    /// A task that is not nested was said to have ended as a DAG.
    #[error("Task number {} is no sub-workflow that runs", .0.0)]
    NotNested(TaskId),
    /// Not all workers have registered, or the run has already started.
    #[error("The run cannot be started now: {registered} of {workers} workers have registered")]
    CannotStart {
        /// Workers that have registered.
        registered: u32,
        /// Workers of the run.
        workers: u32,
    },
}

fn explained(shortage: Option<&Shortage>) -> String {
    shortage.map_or(String::new(), |shortage| format!(": {shortage}"))
}
