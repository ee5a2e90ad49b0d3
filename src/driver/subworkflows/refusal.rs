//! Why a DAG cannot join.

use super::MAX_DEPTH;
use crate::driver::RunError;
use crate::scheduler::JoinError;

/// Why an attempt of a sub-workflow fails, or a guest is refused.
#[derive(Debug, thiserror::Error)]
pub(in crate::driver) enum Refusal {
    #[error("its DAG file {0} is that of a workflow around it: it would never end")]
    Cycle(String),
    #[error("it is inside of {MAX_DEPTH} others, which is the most")]
    TooDeep,
    #[error("its DAG file {dag} already runs as {task}")]
    Runs { dag: String, task: String },
    #[error("{0}")]
    Open(RunError),
    #[error("its DAG {dag} cannot join the run: {source}")]
    Join { dag: String, source: JoinError },
    #[error("no host has what task {task} of its DAG {dag} requests")]
    NoHost { task: String, dag: String },
    #[error("its DAG {0} has tasks with --abort-on, which would end the whole run: take it out")]
    AbortOn(String),
    #[error("its DAG {0} has tasks with --stdin push, which tools cannot reach in a sub-workflow")]
    Push(String),
    #[error("output of its DAG {0} is in packs: run this DAG by itself until it is done")]
    Packed(String),
    #[error("its DAG file {0} is that of the run itself")]
    First(String),
    #[error("the run merges the output of its tasks into one file; start it with --per-task-stdio")]
    Merged,
    #[error("the run takes tasks, not workflows: pmc add")]
    Serving,
    #[error("the run has not started its first task yet; try again")]
    NotStarted,
    #[error("the run ends: it starts no more tasks")]
    Ending,
    #[error("the run has as many workflows as its limit of open files allows (ulimit -n)")]
    NoRoom,
}

impl Refusal {
    /// Returns the message, with the place of an error in a file, in one line.
    pub(in crate::driver) fn describe(&self) -> String {
        let mut text = self.to_string();
        if let Self::Open(error) = self
            && let Some(position) = error.position()
        {
            text = format!("{text} {position}");
        }
        text.trim_end().replace('\n', " ")
    }
}
