//! The rows of one workflow: one connection, and transactions as large as the caller makes them.
//!
//! Nested sub-workflows are in the database of the outermost workflow, each with a store of its own. A store
//! that has not committed locks the others out, so one thread writes them in turn.

use std::fmt::Debug;
use std::path::PathBuf;

use rustc_hash::FxHashMap;

use crate::rows::{
    AttemptEnd, HostRow, InvocationRow, JobRow, NestedAttempt, StoredAttempt, WorkflowRow, WorkflowState,
};
use crate::text::{Metric, MetricKind};

mod host_ids;
#[cfg(feature = "postgresql")]
mod postgresql;
mod sqlite;

#[cfg(feature = "postgresql")]
pub use postgresql::{Postgresql, ServerError};
pub use sqlite::Sqlite;

/// An error of the database.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A database in a file.
    #[error("{}: {source}", path.display())]
    Sqlite {
        /// Database.
        path: PathBuf,
        /// Error of SQLite.
        source: rusqlite::Error,
    },
    /// A database on a server.
    #[cfg(feature = "postgresql")]
    #[error("{at}: {problem}")]
    Server {
        /// The database, without its password.
        at: String,
        /// The error.
        problem: Box<ServerError>,
    },
}

impl StoreError {
    /// Returns whether another loader holds the workflow.
    #[must_use]
    pub fn is_held(&self) -> bool {
        match self {
            Self::Sqlite { .. } => false,
            #[cfg(feature = "postgresql")]
            Self::Server { problem, .. } => matches!(**problem, ServerError::Held { .. }),
        }
    }

    /// Returns whether a later attempt may succeed: the connection was lost, or the server is down.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Sqlite { .. } => false,
            #[cfg(feature = "postgresql")]
            Self::Server { problem, .. } => problem.is_transient(),
        }
    }
}

/// Purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The database is read while it grows, and the loader may be killed at any moment.
    Live,
    /// The database is invisible until it is complete, and is removed on any failure.
    Bulk,
}

/// Position of the loader. It is stored in the same transactions as the rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// Bytes of the log whose lines are in the database.
    pub log_bytes: u64,
    /// Lines of the log that are in the database.
    pub log_lines: u64,
    /// Fingerprint of the beginning of the log.
    pub log_head: i64,
    /// Fingerprint of the log just before the position.
    pub log_tail: i64,
    /// Length of `jobstate.log`.
    pub jobstate_bytes: u64,
}

/// Who holds the attempts that were submitted and have not begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueMode {
    /// The store: it takes attempts when they are submitted.
    None,
    /// The loader: the store takes attempts when they begin, in any order.
    Memory,
    /// The loader, and the store saves them for the next loader ([`Store::save_queue`]).
    Persistent,
}

/// Writes the rows of one workflow. One thread uses it.
///
/// A transaction begins with the first row. A store may hold rows back until the next
/// [`commit`](Store::commit); the queries of [`Lookup`] see them nevertheless.
///
/// # Errors
/// Every method fails if the database cannot be written.
pub trait Store: Lookup + Debug {
    /// Commits the transaction with the position that belongs to its rows. On failure, none of the rows is
    /// in the database.
    fn commit(&self, position: Position) -> Result<(), StoreError>;

    /// Writes the rows that are held back, except those of attempts without an end. The next
    /// [`commit`](Store::commit) has less to do.
    fn write_ended(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Ends the plan: all jobs and tasks are inserted. Makes the indexes for readers unless they exist.
    fn finish_plan(&self) -> Result<(), StoreError>;

    /// Closes the connection. All rows must be committed.
    fn close(self: Box<Self>) -> Result<(), StoreError>;

    /// Inserts the workflow. Called once, first.
    fn insert_workflow(&mut self, row: &WorkflowRow) -> Result<(), StoreError>;

    /// Inserts a start or end of a run.
    fn insert_workflow_state(&self, row: &WorkflowState) -> Result<(), StoreError>;

    /// Sets a value of `workflow_meta`.
    fn set_workflow_meta(&self, key: &str, value: &str) -> Result<(), StoreError>;

    /// Inserts a task of the abstract workflow unless it exists.
    fn insert_task(
        &self,
        id: &str,
        transformation: &str,
        argv: Option<&str>,
        kind: &str,
    ) -> Result<(), StoreError>;

    /// Inserts an edge between tasks.
    fn insert_task_edge(&self, parent: &str, child: &str) -> Result<(), StoreError>;

    /// Sets a value of `task_meta`. False if there is no such task.
    fn set_task_meta(&self, task: &str, key: &str, value: &str) -> Result<bool, StoreError>;

    /// Inserts a job of the executable workflow unless it exists.
    fn insert_job(&self, row: &JobRow<'_>) -> Result<(), StoreError>;

    /// Inserts an edge between jobs.
    fn insert_job_edge(&self, parent: &str, child: &str) -> Result<(), StoreError>;

    /// Sets the job of a task. False if there is no such task or job.
    fn assign_task(&self, task: &str, job: &str) -> Result<bool, StoreError>;

    /// Inserts a job with its only task. Neither of them may exist.
    fn insert_job_with_task(
        &self,
        job: &JobRow<'_>,
        task: &str,
        transformation: &str,
    ) -> Result<(), StoreError> {
        self.insert_job(job)?;
        self.insert_task(task, transformation, job.argv, "compute")?;
        self.assign_task(task, job.exec_job_id).map(drop)
    }

    /// Inserts a use of a file by a task. False if there is no such task.
    fn insert_workflow_file(&self, task: &str, lfn: &str) -> Result<bool, StoreError>;

    /// Sets values of a logical file (`rc_meta`); inserts the file (`rc_lfn`) unless it exists.
    fn set_file_meta(&self, lfn: &str, values: &[(&str, &str)]) -> Result<(), StoreError>;

    /// Inserts a replica.
    fn insert_replica(&self, lfn: &str, pfn: &str, site: Option<&str>) -> Result<(), StoreError>;

    /// Returns who holds the attempts that have not begun.
    fn queue_mode(&self) -> QueueMode {
        QueueMode::None
    }

    /// Saves a text about attempts that have not begun.
    fn save_queue(&self, _text: &str) -> Result<(), StoreError> {
        Ok(())
    }

    /// Removes all texts of [`save_queue`](Store::save_queue).
    fn clear_queue(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Notes that the workflow is an attempt of a job of the workflow `parent`, whose rows are committed.
    fn link(&self, parent: &str, job: &str, seq: i64) -> Result<(), StoreError>;

    /// Inserts an attempt without its end. `sched_id` is empty if it is unknown. Returns its id.
    fn insert_attempt(&self, job_id: i64, seq: i64, sched_id: &str) -> Result<i64, StoreError>;

    /// Sets the id of an attempt that had none.
    fn set_sched_id(&self, attempt: i64, sched_id: &str) -> Result<(), StoreError>;

    /// Inserts a state of an attempt. `time` is in seconds since the epoch; `seq` counts from 1.
    fn insert_state(&self, attempt: i64, state: &str, time: i64, seq: i64) -> Result<(), StoreError>;

    /// Inserts an invocation.
    fn insert_invocation(&self, attempt: i64, row: InvocationRow) -> Result<(), StoreError>;

    /// Returns the id of a host. Inserts the host if it is new.
    fn host_id(&mut self, row: &HostRow) -> Result<i64, StoreError>;

    /// Inserts the checksum work of an attempt (`integrity`).
    fn insert_integrity(&self, attempt: i64, kind: MetricKind, metric: Metric) -> Result<(), StoreError>;

    /// Inserts the number of files of an attempt with a wrong checksum.
    fn insert_integrity_errors(&self, attempt: i64, count: i64) -> Result<(), StoreError>;

    /// Sets the end of an attempt.
    fn end_attempt(&self, attempt: i64, end: AttemptEnd, host: Option<i64>) -> Result<(), StoreError>;

    /// Returns the number of texts that were truncated to their columns since the last call.
    fn take_truncated(&self) -> u64;
}

/// Program, arguments and submit file of a job.
pub type JobFacts = (String, Option<String>, String);

/// Queries of the loader, which keeps little in memory.
///
/// # Errors
/// Every method fails if the database cannot be read.
pub trait Lookup {
    /// Returns all starts and ends of runs, in order.
    fn workflow_states(&self) -> Result<Vec<WorkflowState>, StoreError>;

    /// Returns the id of a job.
    fn job_id(&self, job: &str) -> Result<Option<i64>, StoreError>;

    /// Returns id and facts of a job.
    fn find_job(&self, job: &str) -> Result<Option<(i64, JobFacts)>, StoreError> {
        match self.job_id(job)? {
            Some(id) => Ok(Some((id, self.job_facts(id)?))),
            None => Ok(None),
        }
    }

    /// Returns the facts of a job.
    fn job_facts(&self, job_id: i64) -> Result<JobFacts, StoreError>;

    /// Returns the transformation of a task and the id of its job.
    fn task_facts(&self, task: &str) -> Result<Option<(String, Option<i64>)>, StoreError>;

    /// Returns the last attempt of a job with a sequence number below `below`.
    fn last_attempt(&self, job_id: i64, below: i64) -> Result<Option<StoredAttempt>, StoreError>;

    /// Calls `take` for each text of [`Store::save_queue`].
    fn read_queue(&self, _take: &mut dyn FnMut(&str) -> Result<(), StoreError>) -> Result<(), StoreError> {
        Ok(())
    }

    /// Returns whether the attempt of a job with this sequence number was inserted. Asked only about saved
    /// attempts.
    fn has_attempt(&self, _job: &str, _seq: i64) -> Result<bool, StoreError> {
        Ok(false)
    }

    /// Returns all attempts of nested sub-workflows, by job and sequence number.
    fn nested_attempts(&self) -> Result<Vec<NestedAttempt>, StoreError>;

    /// Calls `take` with the id of each job that has an attempt.
    fn attempted_jobs(&self, take: &mut dyn FnMut(i64)) -> Result<(), StoreError>;

    /// Returns the largest sequence number of an attempt, 0 without attempts.
    fn last_sequence(&self) -> Result<i64, StoreError>;

    /// Calls `take` with each job that has an attempt, and the number of its attempts.
    fn attempts_by_job(&self, take: &mut dyn FnMut(&str, i64)) -> Result<(), StoreError>;

    /// Returns name and time of each state of an attempt, in order.
    fn states(&self, attempt: i64) -> Result<Vec<(String, i64)>, StoreError>;

    /// Returns the first task of each job.
    fn tasks_by_job(&self) -> Result<FxHashMap<i64, i64>, StoreError>;

    /// Returns name and transformation of a task.
    fn task_by_id(&self, task_id: i64) -> Result<(String, String), StoreError>;
}
