//! Errors, and notices about problems that do not end loading.

use std::io;
use std::path::PathBuf;

use monitord_compat::braindump_reader::BraindumpError;
use monitord_compat::record_reader::RecordError;

use crate::client::VariableError;
use crate::destination::UrlError;
use crate::pgpass::PasswordFileError;
use crate::store::StoreError;

/// An error that ends loading.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A required file cannot be read.
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
    /// The name of a file is not that of a log.
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
        /// Why.
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
    /// The properties of the run name a database that is not supported.
    #[error("{}: {key}: {source}", path.display())]
    Url {
        /// File of the properties.
        path: PathBuf,
        /// Property.
        key: &'static str,
        /// Why.
        source: UrlError,
    },
    /// Properties of another user name a database.
    #[error(
        "{}: {key}: the properties of another user do not choose where you write; name the database with --dest, or \
         the properties with --conf",
        path.display()
    )]
    OthersProperties {
        /// File of the properties.
        path: PathBuf,
        /// Property.
        key: &'static str,
    },
    /// The environment demands security for connections to PostgreSQL.
    #[error(transparent)]
    Variable(#[from] VariableError),
    /// A nested sub-workflow is in the directory of another user than the workflow around it.
    #[error("{}: it belongs to another user than the workflow around it", dir.display())]
    OtherUser {
        /// Submit directory.
        dir: PathBuf,
    },
    /// The UUID of a nested sub-workflow is not its own.
    #[error("{}: its UUID {uuid} is that of another workflow of the run", dir.display())]
    Uuid {
        /// Submit directory.
        dir: PathBuf,
        /// UUID.
        uuid: String,
    },
    /// Another loader is at work in the directory.
    #[error("{} is being loaded by process {holder} already", dir.display())]
    Held {
        /// Submit directory.
        dir: PathBuf,
        /// Process and host.
        holder: String,
    },
}

impl LoadError {
    /// Returns whether another loader holds the run.
    #[must_use]
    pub fn is_held(&self) -> bool {
        match self {
            Self::Held { .. } => true,
            Self::Store(error) => error.is_held(),
            _ => false,
        }
    }
}

/// Says that there are more damaged lines than the first.
fn more(count: u64) -> String {
    match count {
        0 | 1 => String::new(),
        count => format!(", as {} more after it", count - 1),
    }
}

/// A problem that affects a record or a column only.
#[derive(Debug, thiserror::Error)]
pub enum Notice {
    /// A line of the log has an unknown format.
    #[error("{}:{line}: not a line of a log, skipped", path.display())]
    LogLine {
        /// Log.
        path: PathBuf,
        /// Line, counted from 1.
        line: u64,
    },
    /// Events of the planner are damaged.
    #[error(
        "{}:{first}: damaged or incomplete event, skipped{}",
        path.display(),
        more(*count)
    )]
    StaticLines {
        /// File.
        path: PathBuf,
        /// The first damaged line, counted from 1.
        first: u64,
        /// Number of damaged lines.
        count: u64,
    },
    /// The file with passwords of servers is not used.
    #[error("passwords: {reason}")]
    Passwords {
        /// Why.
        reason: PasswordFileError,
    },
    /// A job of the log is not in the plan.
    #[error("job {job} is in the log but not in the plan; its kind is unknown")]
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
        /// Why.
        source: RecordError,
    },
    /// An output file lacks its end.
    #[error("{}: ends before the executor's record of the task; the rest is not stored", path.display())]
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
    /// The log ends before the run does.
    #[error("{}: the log ends before the end of the run", path.display())]
    NoEnd {
        /// Log.
        path: PathBuf,
    },
    /// A nested sub-workflow is not loaded.
    #[error("{}: this sub-workflow is not loaded: {reason}", path.display())]
    Nested {
        /// Its log.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The log was replaced.
    #[error("{}: a new log; it is read from its beginning", path.display())]
    NewLog {
        /// Log.
        path: PathBuf,
    },
    /// The list of all workflows of this user was not updated.
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
    /// A notification is not sent.
    #[error("{what}")]
    Notification {
        /// Which one, and why.
        what: String,
    },
    /// The connection to the database was lost.
    #[error("{reason}; reconnecting; no data is lost, as the log keeps it")]
    Lost {
        /// Why.
        reason: String,
    },
    /// Texts did not fit into their columns.
    #[error("{count} texts were longer than their columns and were truncated")]
    Truncated {
        /// Number of texts.
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
