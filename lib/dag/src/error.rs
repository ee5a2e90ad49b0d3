//! Errors of the DAG reader.

use std::io;

use thiserror::Error;

use crate::gang::GangError;

/// Why a DAG was refused.
///
/// `Display` is exactly the text of the original pegasus-mpi-cluster, because scripts search for it. Four of
/// these texts end with a line feed.
#[derive(Debug, Error)]
#[error("{kind}")]
pub struct DagError {
    line: Option<u64>,
    kind: DagErrorKind,
}

impl DagError {
    pub(crate) fn at(line: u64, kind: DagErrorKind) -> Self {
        Self {
            line: Some(line),
            kind,
        }
    }

    /// Line of the DAG file, counted from 1; `None` if the file could not be read.
    #[must_use]
    pub fn line(&self) -> Option<u64> {
        self.line
    }

    /// Kind of error.
    #[must_use]
    pub fn kind(&self) -> &DagErrorKind {
        &self.kind
    }
}

impl From<DagErrorKind> for DagError {
    fn from(kind: DagErrorKind) -> Self {
        Self { line: None, kind }
    }
}

/// Kinds of errors in a DAG file.
#[derive(Debug, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each message says it")]
pub enum DagErrorKind {
    #[error("Error opening DAG file: {path}: {}", reason(.source))]
    Read { path: String, source: io::Error },
    #[error(
        "The DAG is incomplete: it has {tasks} tasks and {edges} edges, but its last line is missing or has \
         other numbers. Plan again, or run what is there with --accept-incomplete"
    )]
    Incomplete { tasks: usize, edges: usize },
    #[error("Invalid DAG record: {0}")]
    Record(String),
    #[error("Invalid TASK record: {0}\n")]
    TaskRecord(String),
    #[error("Invalid EDGE record: {0}\n")]
    EdgeRecord(String),
    #[error("Invalid MAXJOBS record: {0}: it needs a category and a number above 0")]
    MaxJobsRecord(String),
    #[error("Invalid SUBDAG record: {0}: it is SUBDAG EXTERNAL NAME FILE [DIR DIRECTORY]")]
    SubdagRecord(String),
    #[error("Invalid SCRIPT record: {0}: it is SCRIPT PRE NAME [OPTIONS] COMMAND")]
    ScriptRecord(String),
    #[error("No SUBDAG before this line has the name {0}: only a sub-workflow can have a SCRIPT PRE")]
    NoSuchSubdag(String),
    #[error("The sub-workflow {0} has two SCRIPT PRE lines")]
    SecondScript(String),
    #[error(
        "--category is not for a SCRIPT PRE, as that of sub-workflow {0}: --max-plans limits how many run at a time"
    )]
    ScriptCategory(String),
    #[error("Invalid #@ record: {0}\n")]
    PegasusRecord(String),
    #[error("Duplicate task: {0}")]
    DuplicateTask(String),
    #[error("No such task: {0}\n")]
    NoSuchTask(String),
    #[error("Invalid argument '{argument}' for task {task}")]
    Argument { argument: String, task: String },
    #[error("{option} requires {what} for task {task}")]
    MissingValue {
        option: &'static str,
        what: &'static str,
        task: String,
    },
    #[error("Invalid {what} '{value}' for task {task}")]
    Value {
        what: &'static str,
        value: String,
        task: String,
    },
    #[error("Negative {what} not allowed for task {task}")]
    Negative { what: &'static str, task: String },
    #[error("{option} format should be {format} for task {task}: {value}")]
    Forward {
        option: &'static str,
        format: &'static str,
        task: String,
        value: String,
    },
    #[error("Options of task {task} do not go together: {why}")]
    Gang { task: String, why: GangError },
    #[error("A SCRIPT PRE runs on one host, also that of sub-workflow {0}: it takes no {1}")]
    ScriptGang(String, &'static str),
    #[error("Missing program for task {0}")]
    MissingProgram(String),
    #[error("More {0} than 4294967294")]
    TooMany(&'static str),
    #[error("Line is longer than {} bytes", u32::MAX)]
    LineTooLong,
}

/// Returns the text of an error without the number that `io::Error` adds.
#[must_use]
pub fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    match text.find(" (os error ") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}
