//! Messages about the output of a task that a tool gets instead of the file.

use pmc_control::{Over, Portion, RedirectPoll};
use serde::{Deserialize, Serialize};

use super::SubmitId;

/// A poll for an attempt of a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Redirect {
    /// Number of the request.
    pub number: u64,
    /// Attempt of the task.
    pub submit: SubmitId,
    /// The poll.
    pub poll: RedirectPoll,
    /// The worker may wait for output.
    pub may_wait: bool,
    /// Who delivers.
    pub by: By,
}

/// Who delivers the output that a redirect brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum By {
    /// The tool. An answer begins with what it has not delivered.
    Tool,
    /// The run. An answer goes on where the one before has ended, so several requests can be on their way.
    Run {
        /// The run has room for more.
        has_room: bool,
    },
}

/// The answer to a [`Redirect`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Redirected {
    /// Number of the request.
    pub number: u64,
    /// The answer.
    pub answer: RedirectAnswer,
}

/// What becomes of a poll.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RedirectAnswer {
    /// The redirect goes on: what comes next in each stream.
    Portions(Box<[Portion; 2]>),
    /// The redirect is to end. The run must say what it has delivered, in a last request.
    Recall,
    /// The redirect has ended. What the tool has not delivered is in the file.
    /// The numbers are those of bytes of each stream that were lost, by the rule for overflow.
    Over(Over, [u64; 2]),
    /// A stream goes to this tool already.
    TakenBy(String),
    /// The attempt has no relay.
    NoRelay,
    /// The attempt has not started.
    NotYet,
    /// The attempt does not run.
    Ended,
}

impl RedirectAnswer {
    /// Returns whether the redirect goes on, and nothing has come.
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Self::Portions(portions) if portions.iter().all(|portion| portion.bytes.is_empty()))
    }
}
