//! Messages about the output of a task that a tool gets instead of the file.

use serde::{Deserialize, Serialize};

use super::SubmitId;

/// What a tool asks for when it redirects streams of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// Number that the tool has made up: it names the redirect in later requests.
    pub token: u64,
    /// Name of the tool, for the messages to others.
    pub tool: String,
    /// Whether it wants standard output and standard error.
    pub streams: [bool; 2],
    /// Bytes of a stream that may wait for the tool.
    pub buffer: u32,
    /// Milliseconds for which a full buffer may hold up the task.
    pub patience_ms: u32,
    /// What happens then.
    pub overflow: Overflow,
}

impl Claim {
    /// Default of [`Claim::buffer`].
    pub const BUFFER: u32 = 2 << 20;
    /// Largest [`Claim::buffer`].
    pub const MAX_BUFFER: u32 = 64 << 20;
    /// Default of [`Claim::patience_ms`].
    pub const PATIENCE_MS: u32 = 1000;
    /// Largest [`Claim::patience_ms`].
    pub const MAX_PATIENCE_MS: u32 = 3_600_000;
}

/// What happens when the tool takes less than half of a full buffer in its time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Overflow {
    /// The redirect ends: what waits, and all that follows, goes to the file.
    #[default]
    File,
    /// The older half of the buffer is lost.
    DropOldest,
    /// What comes is lost until half of the buffer is free.
    DropNewest,
}

/// What a tool says each time it asks for more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RedirectPoll {
    /// The redirect. The first poll begins it.
    pub claim: Claim,
    /// Bytes that the tool has delivered of each stream, since the redirect began. The rest goes to the file
    /// if the redirect ends.
    pub delivered: [u64; 2],
    /// The redirect ends.
    pub is_end: bool,
}

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

/// Why a redirect has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Over {
    /// The tool has ended it.
    Detached,
    /// The attempt has ended.
    TaskEnded,
    /// The tool was too slow.
    TooSlow,
    /// The tool did not ask for a long time.
    Silent,
}

/// Bytes of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Portion {
    /// Bytes of the redirect before these.
    pub offset: u64,
    /// The bytes.
    #[serde(with = "serde_bytes")]
    pub bytes: Vec<u8>,
    /// When the worker read them: offsets, and microseconds since the epoch from there on.
    pub times: Vec<(u64, u64)>,
    /// Bytes of the redirect that were lost so far, by its overflow rule.
    pub dropped: u64,
}

impl RedirectAnswer {
    /// Returns whether the redirect goes on, and nothing has come.
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Self::Portions(portions) if portions.iter().all(|portion| portion.bytes.is_empty()))
    }
}
