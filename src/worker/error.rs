//! Errors of workers.

use std::ffi::NulError;
use std::io;
use std::path::PathBuf;

use monitord_compat::reason::Reason;
use pmc_dag::reason;

/// Why a worker cannot continue.
#[derive(Debug)]
pub(super) enum Failure {
    /// The run was aborted; the result does not count.
    Aborted,
    /// An error to report to the user.
    Error(WorkerError),
}

impl<E: Into<WorkerError>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Error(error.into())
    }
}

/// An error that ends the run.
#[derive(Debug, thiserror::Error)]
pub(super) enum WorkerError {
    #[error("Unable to open /dev/null: {}", reason(.0))]
    OpenNull(io::Error),
    #[error("unable to open task {stream}: {}: {}", .path.display(), reason(.source))]
    OpenSharedFile {
        stream: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error(
        "unable to open task stdout: {}: another run of this DAG uses it; \
         give runs that overlap different rescue files (-r)",
        .0.display()
    )]
    SharedFileInUse(PathBuf),
    #[error("Task {task}: Error writing to {}: {}", .path.display(), reason(.source))]
    WriteRecord {
        task: String,
        path: PathBuf,
        source: io::Error,
    },
    #[error("unable to open the pack for the output of tasks: {}: {}", .path.display(), reason(.source))]
    OpenPack { path: PathBuf, source: io::Error },
    #[error("Unable to wait for a task: {}", reason(.0))]
    Wait(io::Error),
    #[error(transparent)]
    HostScript(#[from] HostScriptError),
}

/// Why the host script did not succeed.
#[derive(Debug, thiserror::Error)]
pub(super) enum HostScriptError {
    #[error("Host script has a name that no file can have")]
    Name(#[from] NulError),
    #[error(
        "Host script {name} is not on PATH: for a file in the working directory, give ./{name}",
        name = .0.display()
    )]
    NotFound(PathBuf),
    #[error("Host script cannot be started: {}", reason(.0))]
    Start(io::Error),
    #[error("Host script timed out after {0} seconds")]
    TimedOut(u64),
    #[error("Host script failed with status {0}")]
    Status(String),
}

/// Why a task was not started. It counts as failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotStarted {
    #[error("Unable to open task {stream} file {}: {}", .path.display(), reason(.source))]
    OpenFile {
        stream: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("Unable to open task stdout file {}: all numbers are in use", .0.display())]
    TooManyFiles(PathBuf),
    #[error(
        "this host does not see the directory of the DAG file, and what the task reads there did not come with it: \
         the log of the master says why"
    )]
    NothingCarried,
    #[error("{}", reason(.0))]
    Prepare(io::Error),
    #[error("Unable to start a process: {}", reason(.0))]
    Start(io::Error),
    #[error("its output cannot be read: {}", reason(.0))]
    Output(io::Error),
}

impl NotStarted {
    /// Returns what the logs say of it.
    pub(super) fn reason(&self) -> Reason {
        let errno = |error: &io::Error| error.raw_os_error().unwrap_or(0);
        match self {
            NotStarted::OpenFile { source, .. } => Reason::OutputFile { errno: errno(source) },
            NotStarted::TooManyFiles(_) => Reason::OutputFile { errno: 0 },
            NotStarted::NothingCarried => Reason::NotStarted { errno: 0 },
            NotStarted::Prepare(source) | NotStarted::Start(source) | NotStarted::Output(source) => {
                Reason::NotStarted { errno: errno(source) }
            }
        }
    }
}

/// Why there is no result of an attempt.
#[derive(Debug)]
pub(super) enum AttemptError {
    /// The task was not started.
    NotStarted(NotStarted),
    /// The worker cannot continue.
    Failure(Failure),
}

impl From<NotStarted> for AttemptError {
    fn from(error: NotStarted) -> Self {
        Self::NotStarted(error)
    }
}

impl From<Failure> for AttemptError {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}
