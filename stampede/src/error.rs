//! What can go wrong, and what is only worth telling.

use std::io;
use std::path::PathBuf;

use monitord_compat::braindump_reader::BraindumpError;
use monitord_compat::record_reader::RecordError;

use crate::destination::UrlError;
use crate::store::StoreError;

/// Loading cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A file that is needed cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// File.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// File.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The name of the log is not that of one.
    #[error("{}: not the log of a workflow; its name ends in .dag.dagman.out", path.display())]
    LogName {
        /// File.
        path: PathBuf,
    },
    /// `braindump.yml` is damaged.
    #[error("{}: {source}", path.display())]
    Braindump {
        /// File.
        path: PathBuf,
        /// What is wrong.
        source: BraindumpError,
    },
    /// `braindump.yml` lacks a value.
    #[error("{}: no {key}; the file belongs to a planned workflow, plan it again", path.display())]
    BraindumpKey {
        /// File.
        path: PathBuf,
        /// Missing key.
        key: &'static str,
    },
    /// A DAG that was not planned cannot be read.
    #[error("{}: {source}", path.display())]
    Dag {
        /// DAG.
        path: PathBuf,
        /// Why.
        source: Box<pmc_dag::DagError>,
    },
    /// The workflow runs under HTCondor.
    #[error("{}: a DAG for HTCondor; pegasus-monitord loads its runs", path.display())]
    HtCondor {
        /// DAG.
        path: PathBuf,
    },
    /// The database cannot be written.
    #[error("cannot write the database {0}")]
    Store(#[from] StoreError),
    /// The settings of the run name no database that can be written.
    #[error("{}: {key}: {source}", path.display())]
    Url {
        /// File of the settings.
        path: PathBuf,
        /// Setting.
        key: &'static str,
        /// What is wrong.
        source: UrlError,
    },
    /// The environment names a way to connect that does not exist.
    #[error("{0}")]
    Client(String),
    /// Another loader is at work in the directory.
    #[error("{} is followed already by process {holder}", dir.display())]
    Held {
        /// Submit directory.
        dir: PathBuf,
        /// Process and host.
        holder: String,
    },
}

impl LoadError {
    /// Whether another loader has the run.
    #[must_use]
    pub fn is_held(&self) -> bool {
        match self {
            Self::Held { .. } => true,
            Self::Store(error) => error.is_held(),
            _ => false,
        }
    }
}

/// Something that costs a record or a column, not the run.
#[derive(Debug, thiserror::Error)]
pub enum Notice {
    /// A line of the log says nothing.
    #[error("{}:{line}: not a line of a log, left out", path.display())]
    LogLine {
        /// Log.
        path: PathBuf,
        /// Line, counted from 1.
        line: u64,
    },
    /// A line of the planner's events cannot be used.
    #[error("{}:{line}: damaged or incomplete event, left out", path.display())]
    StaticLine {
        /// File.
        path: PathBuf,
        /// Line, counted from 1.
        line: u64,
    },
    /// The file with passwords of servers is not used.
    #[error("passwords: {reason}")]
    Passwords {
        /// File, and what is wrong.
        reason: String,
    },
    /// A job is in the log, but the planner did not write about it.
    #[error("job {job} is in the log but not among the jobs that were planned; its kind is unknown")]
    UnknownJob {
        /// Job.
        job: String,
    },
    /// A job's record is damaged.
    #[error("{}:{line}: damaged record: {source}", path.display())]
    Record {
        /// Output file.
        path: PathBuf,
        /// Line where the record begins.
        line: usize,
        /// What is wrong.
        source: RecordError,
    },
    /// An output file has lost its end.
    #[error("{}: ends before the executor's record of the task; what is missing is not stored", path.display())]
    Torn {
        /// Output file.
        path: PathBuf,
    },
    /// An output file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Output {
        /// Output file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The log ends without an end of the run.
    #[error("{}: the log ends before the end of the run", path.display())]
    NoEnd {
        /// Log.
        path: PathBuf,
    },
    /// The log was begun anew since the last time.
    #[error("{}: a new log; it is read from its beginning", path.display())]
    NewLog {
        /// Log.
        path: PathBuf,
    },
    /// The list of all runs of this user was not updated.
    #[error("the dashboard's list of workflows was not updated: {reason}")]
    Dashboard {
        /// Why.
        reason: String,
    },
    /// A file beside the database could not be written.
    #[error("cannot write {}: {source}", path.display())]
    Marker {
        /// File.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Something that only pegasus-monitord does is asked for.
    #[error("{what}")]
    Unsupported {
        /// What is not done, and what instead.
        what: String,
    },
    /// The database cannot be reached any more; it is tried again.
    #[error("{reason}; trying again, the log keeps what is missing")]
    Lost {
        /// Why.
        reason: String,
    },
    /// Texts did not fit into their columns.
    #[error("{count} texts were longer than their columns and lost their ends")]
    Cut {
        /// How many.
        count: u64,
    },
    /// The file system has no locks.
    #[error("{}: cannot be locked ({source}); make sure that no other loader runs here", path.display())]
    NoLock {
        /// Lock file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}
