//! Loads a submit directory: a finished run at once, or a running one while it goes on.

use std::path::PathBuf;
use std::time::Duration;

use crate::client::ClientSettings;
use crate::error::Notice;
use crate::notifications::Limits;

mod context;
mod follow;
mod follow_nested;
mod live;
mod nested;
mod replay;

pub use crate::destination::Destination;
pub use follow::{follow, follow_own};
pub use live::Live;
pub use replay::replay;

/// Input and settings of a session.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The log, `SUBMIT_DIR/NAME.dag.dagman.out`.
    pub log: PathBuf,
    /// The same log in another file, to be read instead: another log of the run, in this format.
    pub converted: Option<PathBuf>,
    /// Seconds to add to the times of the log.
    pub adjust: i64,
    /// Directory for the small files beside the database.
    pub output_dir: Option<PathBuf>,
    /// The log of states, if not `jobstate.log`.
    pub state_log: Option<PathBuf>,
    /// The database.
    pub destination: Destination,
    /// Properties to use instead of those of the run.
    pub conf: Option<PathBuf>,
    /// Defaults for connections to PostgreSQL servers.
    pub client: ClientSettings,
    /// The list of all workflows of the user, unless the properties name another.
    pub dashboard: Option<PathBuf>,
    /// True to leave out what jobs printed.
    pub skip_output: bool,
    /// Send the notifications of the run while it is followed.
    pub notifications: Option<Limits>,
    /// Leave out nested sub-workflows.
    pub flat: bool,
    /// Pause after each line, to simulate a slow run.
    pub pause: Duration,
    /// The file to lock instead of `monitord.pid` in the submit directory.
    pub lock: Option<PathBuf>,
}

/// How loading ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The run has ended and all of it is in the database.
    Complete,
    /// The log ends before the run does.
    NoEnd,
    /// Everything was loaded before.
    NothingNew,
    /// The caller stopped loading; the next session continues.
    Interrupted,
}

/// Result of a session.
#[derive(Clone, Copy, Debug)]
pub struct Summary {
    /// How it ended.
    pub end: End,
    /// Number of attempts that ended.
    pub jobs: u64,
    /// Time spent.
    pub elapsed: Duration,
}

/// Receives the problems that do not end a session.
pub type Notices<'n> = &'n mut dyn FnMut(Notice);
