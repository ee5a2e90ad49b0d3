//! Where the rows of one workflow are written: one connection, and transactions as large as the caller
//! makes them.

use std::fmt::Debug;
use std::path::PathBuf;

use rustc_hash::FxHashMap;

use crate::rows::{HostRow, InvocationRow, JobRow, TryEnd, TryRow, WorkflowRow, WorkflowState};

mod hosts;
#[cfg(feature = "postgresql")]
mod postgresql;
mod sqlite;

#[cfg(feature = "postgresql")]
pub use postgresql::{Postgresql, ServerError};
pub use sqlite::Sqlite;

/// The database failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A database in a file.
    #[error("{}: {source}", path.display())]
    Sqlite {
        /// Database.
        path: PathBuf,
        /// What SQLite says.
        source: rusqlite::Error,
    },
    /// A database on a server.
    #[cfg(feature = "postgresql")]
    #[error("{at}: {problem}")]
    Server {
        /// The database, without its password.
        at: String,
        /// What is wrong.
        problem: Box<ServerError>,
    },
}

impl StoreError {
    /// Whether another loader has the workflow.
    #[must_use]
    pub fn is_held(&self) -> bool {
        match self {
            Self::Sqlite { .. } => false,
            #[cfg(feature = "postgresql")]
            Self::Server { problem, .. } => matches!(**problem, ServerError::Held { .. }),
        }
    }

    /// Whether it may be better later: the connection was lost, or the server is not there.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Sqlite { .. } => false,
            #[cfg(feature = "postgresql")]
            Self::Server { problem, .. } => problem.may_pass(),
        }
    }
}

/// What a database is written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Readers look at it while it grows, and the loader may be killed at any moment.
    Live,
    /// Nobody sees it before it is complete; it is thrown away if anything fails.
    Bulk,
}

/// Where the loader is, in the same transactions as the rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// Bytes of the log whose lines are in the database.
    pub log_bytes: u64,
    /// The same in lines.
    pub log_lines: u64,
    /// Fingerprint of the beginning of the log.
    pub log_head: i64,
    /// Fingerprint of the log just before the position.
    pub log_tail: i64,
    /// Length of `jobstate.log`.
    pub jobstate_bytes: u64,
}

/// What a store has with tries that were submitted and have not begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queueing {
    /// It wants them when they are submitted.
    None,
    /// It wants them when they begin, in any order.
    Free,
    /// The same, and it keeps them for the next loader: they are given to [`Store::keep_queued`].
    Kept,
}

/// Writes the rows of one workflow. One thread uses it.
///
/// A transaction begins with the first row that is written. A store may hold rows back until the next
/// [`commit`](Store::commit); the questions of [`Lookup`] see them nevertheless.
///
/// # Errors
/// Every method fails if the database cannot be written.
pub trait Store: Lookup + Debug {
    /// Ends the transaction with the position that belongs to its rows. If it fails, none of them are
    /// there.
    fn commit(&self, position: Position) -> Result<(), StoreError>;

    /// Gives rows that are held back to the database, but for those that may change soon; the next
    /// [`commit`](Store::commit) has less to do.
    fn advance(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// All of the plan is there: jobs, tasks, and what belongs to them. Makes the indexes that only readers use,
    /// unless they are there.
    fn plan_complete(&self) -> Result<(), StoreError>;

    /// Ends the connection; all rows were committed.
    fn close(self: Box<Self>) -> Result<(), StoreError>;

    /// The workflow. Called once, first.
    fn workflow(&mut self, row: &WorkflowRow) -> Result<(), StoreError>;

    /// Start or end of a run.
    fn workflow_state(&self, row: &WorkflowState) -> Result<(), StoreError>;

    /// `workflow_meta`; the last value counts.
    fn workflow_meta(&self, key: &str, value: &str) -> Result<(), StoreError>;

    /// A task of the abstract workflow; one that is there already stays.
    fn task(&self, id: &str, transformation: &str, argv: Option<&str>, kind: &str) -> Result<(), StoreError>;

    /// An edge between tasks.
    fn task_edge(&self, parent: &str, child: &str) -> Result<(), StoreError>;

    /// `task_meta`; the last value counts. False if there is no such task.
    fn task_meta(&self, task: &str, key: &str, value: &str) -> Result<bool, StoreError>;

    /// A job of the executable workflow; one that is there already stays.
    fn job(&self, row: &JobRow<'_>) -> Result<(), StoreError>;

    /// An edge between jobs.
    fn job_edge(&self, parent: &str, child: &str) -> Result<(), StoreError>;

    /// The job that runs a task. False if there is no such task or job.
    fn task_of_job(&self, task: &str, job: &str) -> Result<bool, StoreError>;

    /// A job that is its only task, neither of them there yet: their rows and their connection.
    fn planned(&self, job: &JobRow<'_>, task: &str, transformation: &str) -> Result<(), StoreError> {
        self.job(job)?;
        self.task(task, transformation, job.argv, "compute")?;
        self.task_of_job(task, job.exec_job_id).map(drop)
    }

    /// Notes that a task uses a file. False if there is no such task.
    fn workflow_file(&self, task: &str, lfn: &str) -> Result<bool, StoreError>;

    /// A logical file and what is known of it, `rc_lfn` and `rc_meta`; the last value of a key counts.
    fn file(&self, lfn: &str, values: &[(&str, &str)]) -> Result<(), StoreError>;

    /// A replica.
    fn replica(&self, lfn: &str, pfn: &str, site: Option<&str>) -> Result<(), StoreError>;

    /// When it wants tries.
    fn queueing(&self) -> Queueing {
        Queueing::None
    }

    /// Keeps a text about tries that are not written yet.
    fn keep_queued(&self, _text: &str) -> Result<(), StoreError> {
        Ok(())
    }

    /// Forgets all such texts.
    fn forget_queued(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// A new try, its columns of the end still empty; its number.
    fn new_try(&self, job_id: i64, seq: i64, sched_id: &str) -> Result<i64, StoreError>;

    /// A state of a try. `time` in seconds since the epoch; `seq` counts from 1.
    fn state(&self, try_id: i64, state: &str, time: i64, seq: i64) -> Result<(), StoreError>;

    /// An invocation.
    fn invocation(&self, try_id: i64, row: InvocationRow) -> Result<(), StoreError>;

    /// Number of a host, which is made if it is new.
    fn host(&mut self, row: &HostRow) -> Result<i64, StoreError>;

    /// `integrity`; `kind` is `check` or `compute`, `files` is `input` or `output`.
    fn integrity(
        &self,
        try_id: i64,
        kind: &str,
        files: &str,
        count: i64,
        seconds: f64,
    ) -> Result<(), StoreError>;

    /// Number of files of a try with a wrong checksum.
    fn integrity_errors(&self, try_id: i64, count: i64) -> Result<(), StoreError>;

    /// The end of a try.
    fn end_try(&self, try_id: i64, end: TryEnd, host: Option<i64>) -> Result<(), StoreError>;

    /// Texts that were longer than their columns and lost their ends since the last call.
    fn texts_cut(&self) -> u64;
}

/// Program, arguments and submit file of a job.
pub type JobFacts = (String, Option<String>, String);

/// What the loader asks the database, instead of keeping it in memory.
///
/// # Errors
/// Every method fails if the database cannot be read.
pub trait Lookup {
    /// All starts and ends, in order.
    fn workflow_states(&self) -> Result<Vec<WorkflowState>, StoreError>;

    /// Number of a job.
    fn job_id(&self, job: &str) -> Result<Option<i64>, StoreError>;

    /// Number of a job, and what [`job_facts`](Lookup::job_facts) tells of it.
    fn find_job(&self, job: &str) -> Result<Option<(i64, JobFacts)>, StoreError> {
        match self.job_id(job)? {
            Some(id) => Ok(Some((id, self.job_facts(id)?))),
            None => Ok(None),
        }
    }

    /// Program, arguments and submit file of a job.
    fn job_facts(&self, job_id: i64) -> Result<JobFacts, StoreError>;

    /// Transformation of a task by its name, with the number of its job.
    fn task_facts(&self, task: &str) -> Result<Option<(String, Option<i64>)>, StoreError>;

    /// The last try of a job with a number below `below`.
    fn last_try(&self, job_id: i64, below: i64) -> Result<Option<TryRow>, StoreError>;

    /// Calls `take` for each text that was kept and not forgotten.
    fn queued(&self, _take: &mut dyn FnMut(&str) -> Result<(), StoreError>) -> Result<(), StoreError> {
        Ok(())
    }

    /// Whether the try of this place among all is written; asked only about tries in such texts.
    fn has_try(&self, _seq: i64) -> Result<bool, StoreError> {
        Ok(false)
    }

    /// Calls `take` for the number of each job that was tried.
    fn jobs_tried(&self, take: &mut dyn FnMut(i64)) -> Result<(), StoreError>;

    /// The highest number of a try, 0 if there is none.
    fn last_sequence(&self) -> Result<i64, StoreError>;

    /// Calls `take` for each job that was tried, with the number of its tries.
    fn tries_by_job(&self, take: &mut dyn FnMut(&str, i64)) -> Result<(), StoreError>;

    /// States of a try: name and time, in order.
    fn states(&self, try_id: i64) -> Result<Vec<(String, i64)>, StoreError>;

    /// First task of each job; for jobs that have no other way to be found.
    fn tasks_by_job(&self) -> Result<FxHashMap<i64, i64>, StoreError>;

    /// Name and transformation of a task by its number.
    fn task_by_id(&self, task_id: i64) -> Result<(String, String), StoreError>;
}
