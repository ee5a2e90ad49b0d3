//! Errors that end a run.

use std::fmt;
use std::path::Path;

use pmc_dag::rescue::RescueError;
use pmc_dag::{DagError, reason};
use pmc_packed::PacksError;

use super::position::Position;
use crate::durability::forward_journal::JournalError;
use crate::durability::lock::LockError;
use crate::durability::shared_files::TooManyFiles;
use crate::durability::sync::SyncError;
use crate::logs::LogError;
use crate::merge::MergeError;
use crate::protocol::Rank;
use crate::scheduler::MasterError;
use crate::transport::TransportError;

/// The run could not begin or had to be aborted. `Display` is the message for the user.
#[derive(Debug)]
pub struct RunError {
    kind: Box<Kind>,
    position: Option<Position>,
    closed: bool,
    /// Workers that were asked to exit and have not.
    pub unresponsive_workers: Vec<Rank>,
}

/// What went wrong.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Kind {
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error("{0}")]
    Dag(DagError),
    #[error("{0}")]
    Rescue(RescueError),
    #[error(transparent)]
    Log(#[from] LogError),
    #[error("Unable to continue the packed output of tasks: {0}")]
    Packs(#[from] PacksError),
    #[error(transparent)]
    TooManyFiles(#[from] TooManyFiles),
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(transparent)]
    Sync(#[from] SyncError),
    #[error(transparent)]
    Master(#[from] MasterError),
    #[error(transparent)]
    Transport(#[from] TransportError),
    #[error(transparent)]
    Merge(#[from] MergeError),
    #[error(transparent)]
    Database(#[from] crate::database::DatabaseError),
    #[error(
        "Agents of an earlier run on {hosts} may still run tasks of {dag}: go on with agents (--agents, pmc resume \
         --hosts), or remove {dag}.agents when they have ended"
    )]
    AgentsLeft { hosts: String, dag: String },
    #[error(
        "Agents on {hosts} may still run tasks of {dag}, which was handed to the run of {host}: hand it over again \
         (pmc submit), or remove {dag}.host when they have ended"
    )]
    HostLeft {
        hosts: String,
        dag: String,
        host: String,
    },
    #[error(
        "Task {task} fits on no host that is there, and no other has come within {seconds} s (--join-timeout). \
         Hosts that are gone: {gone}. Tasks that are left: {left}. Start the run again to go on"
    )]
    Stranded {
        task: String,
        seconds: u64,
        gone: String,
        left: usize,
    },
    #[error("{what}: {}", reason(source))]
    System {
        what: &'static str,
        source: std::io::Error,
    },
}

impl RunError {
    pub(crate) fn dag(path: &Path, error: DagError) -> Self {
        let position = error.line().map(|line| Position::of_line(path, line));
        Self {
            position,
            ..Kind::Dag(error).into()
        }
    }

    pub(crate) fn rescue(path: &Path, error: RescueError) -> Self {
        let position = error.line().map(|line| Position::of_line(path, line));
        Self {
            position,
            ..Kind::Rescue(error).into()
        }
    }

    /// Returns the line of the input file with the error, if it is in one.
    #[must_use]
    pub fn position(&self) -> Option<&Position> {
        self.position.as_ref()
    }

    pub(crate) fn system(what: &'static str, source: impl Into<std::io::Error>) -> Self {
        Kind::System {
            what,
            source: source.into(),
        }
        .into()
    }

    /// True if nodes were lost, and nothing that is left fits on those that are there, if too few have come
    /// for a task that needs several, or if none has come.
    #[must_use]
    pub fn is_stranded(&self) -> bool {
        let lacks_nodes = matches!(&*self.kind, Kind::Master(MasterError::TooFewNodes { .. }));
        self.has_no_agents() || lacks_nodes || matches!(&*self.kind, Kind::Stranded { .. })
    }

    /// True if no agent has come.
    #[must_use]
    pub fn has_no_agents(&self) -> bool {
        matches!(&*self.kind, Kind::Transport(TransportError::NoAgents(_)))
    }

    /// True if a worker has sent a message that it must not send.
    pub(crate) fn is_violation(&self) -> bool {
        use MasterError::{NotRunning, RegisteredTwice, UnknownRank};
        let violation =
            |error: &MasterError| matches!(error, UnknownRank(_) | RegisteredTwice(_) | NotRunning { .. });
        matches!(&*self.kind, Kind::Master(error) if violation(error))
    }

    pub(crate) fn kind(&self) -> &Kind {
        &self.kind
    }

    /// True if the workers have already been asked to exit.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    pub(crate) fn set_closed(&mut self) {
        self.closed = true;
    }
}

impl<E: Into<Kind>> From<E> for RunError {
    fn from(error: E) -> Self {
        Self {
            kind: Box::new(error.into()),
            position: None,
            closed: false,
            unresponsive_workers: Vec::new(),
        }
    }
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kind.fmt(f)
    }
}

impl std::error::Error for RunError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.kind.source()
    }
}
