//! What an observer of a run is told.

use std::path::{Path, PathBuf};

use crate::protocol::Rank;
use crate::worker;

/// Something that happened in a run.
#[derive(Clone, Debug)]
pub enum RunEvent<'a> {
    /// The workers are there; the first tasks will be queued.
    Begun {
        /// Tasks of the DAG.
        tasks: usize,
        /// Tasks that were done before this run.
        done_before: usize,
    },
    /// A task is ready and waits for a slot; also before every further try.
    Queued {
        /// Its name.
        task: &'a [u8],
    },
    /// A try of a task begins.
    Started {
        /// Its name.
        task: &'a [u8],
        /// Where it runs.
        rank: Rank,
    },
    /// A try of a task has ended.
    Ended(TaskEnd<'a>),
}

/// How a try of a task ended.
#[derive(Clone, Debug)]
pub struct TaskEnd<'a> {
    /// Name of the task.
    pub task: &'a [u8],
    /// Where it ran.
    pub rank: Rank,
    /// Raw wait status; 256 for failures of the executor itself.
    pub status: i32,
    /// The task has succeeded.
    pub done: bool,
    dag: &'a Path,
}

impl<'a> TaskEnd<'a> {
    pub(super) fn new(task: &'a [u8], rank: Rank, status: i32, done: bool, dag: &'a Path) -> Self {
        Self {
            task,
            rank,
            status,
            done,
            dag,
        }
    }

    /// Files with standard output and error of the latest try, where tasks have files of their own.
    /// Looks at the folder each time it is called.
    #[must_use]
    pub fn files(&self) -> Option<(PathBuf, PathBuf)> {
        worker::latest_task_files(self.dag, self.task)
    }
}
