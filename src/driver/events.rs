//! Events of a run, for its observer.

use std::path::{Path, PathBuf};

use crate::protocol::{Outcome, Rank};
use crate::scheduler::Eviction;
use crate::worker;

/// Something that happened in a run.
#[derive(Clone, Debug)]
pub enum RunEvent<'a> {
    /// All workers have registered; the first tasks are queued next.
    Begun {
        /// Number of tasks of the DAG.
        tasks: usize,
        /// Number of tasks that were done before this run.
        done_before: usize,
    },
    /// A task is ready and waits for a slot. Occurs before each attempt.
    Queued {
        /// Name of the task.
        task: &'a [u8],
    },
    /// An attempt starts.
    Started {
        /// Name of the task.
        task: &'a [u8],
        /// Worker that runs it.
        rank: Rank,
    },
    /// An attempt was evicted: it has neither succeeded nor failed. The task runs again.
    Evicted {
        /// Name of the task.
        task: &'a [u8],
        /// Why.
        why: Eviction,
    },
    /// Something about hosts that the user should know.
    Notice(&'a str),
    /// An attempt has ended.
    Ended(TaskEnd<'a>),
}

/// The end of an attempt.
#[derive(Clone, Debug)]
pub struct TaskEnd<'a> {
    /// Name of the task.
    pub task: &'a [u8],
    /// Worker that ran it.
    pub rank: Rank,
    /// How it ended.
    pub outcome: Outcome,
    dag: &'a Path,
}

impl<'a> TaskEnd<'a> {
    pub(super) fn new(task: &'a [u8], rank: Rank, outcome: Outcome, dag: &'a Path) -> Self {
        Self {
            task,
            rank,
            outcome,
            dag,
        }
    }

    /// Returns the files with standard output and error of the latest attempt, if each attempt has its own
    /// files. Searches the directory on every call.
    #[must_use]
    pub fn files(&self) -> Option<(PathBuf, PathBuf)> {
        worker::latest_task_files(self.dag, self.task)
    }
}
