//! Why a run could not begin or had to be given up.

use std::fmt;
use std::path::Path;

use pmc_dag::rescue::RescueError;
use pmc_dag::{DagError, reason};

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

/// Why a run could not begin or had to be given up. `Display` gives the text for the user.
#[derive(Debug)]
pub struct RunError {
    kind: Box<Kind>,
    position: Option<Position>,
    closed: bool,
    /// Workers that have not ended although they were asked to.
    pub silent_workers: Vec<Rank>,
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
    #[cfg(feature = "stampede")]
    #[error(transparent)]
    Database(#[from] crate::database::DatabaseError),
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

    /// The line of an input file that is wrong, if one is.
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

    pub(crate) fn kind(&self) -> &Kind {
        &self.kind
    }

    /// The workers were asked to end already.
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
            silent_workers: Vec::new(),
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
