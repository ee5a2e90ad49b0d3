//! What a tool may ask of a running attempt, by way of the master.
//!
//! One message goes to the worker of the attempt, and one comes back. What each body means for the attempt is
//! in [`crate::requests`].

use std::fs::File;

use pmc_control::{HostStacks, OutputChunk, Position, RedirectEnd, RedirectPoll};
use serde::{Deserialize, Serialize};

use super::SubmitId;

/// A request to an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptRequest {
    /// Number of the request, which its answer repeats. 0 if none is wanted.
    pub number: u64,
    /// Which attempt.
    pub submit: SubmitId,
    /// What is asked.
    pub body: RequestBody,
}

/// What is asked of an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RequestBody {
    /// Send a signal to its process group, if it runs. There is no answer.
    Signal(i32),
    /// Send what comes after a position in each stream: [`AnswerBody::Read`].
    Read(ReadRequest),
    /// Write to its standard input: [`AnswerBody::Written`].
    Write(WriteRequest),
    /// Send output that a tool gets instead of the files: [`AnswerBody::Redirected`].
    Redirect(RedirectRequest),
    /// Send the signal by which it is to save itself, if it runs: once to each of its processes, also if the
    /// first one passes signals on. There is no answer.
    Notify(i32),
    /// Send what its processes on the host of the worker do: [`AnswerBody::Stacks`]. The worker may also be
    /// one that takes part in its gang.
    Stacks {
        /// Also threads other than the first one of a process.
        all_threads: bool,
    },
}

/// The answer to an [`AttemptRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptAnswer {
    /// Number of the request.
    pub number: u64,
    /// The answer.
    pub body: AnswerBody,
}

/// What an attempt answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AnswerBody {
    /// What comes next in standard output and standard error.
    Read([Chunk; 2]),
    /// What became of the input.
    Written(WriteAnswer),
    /// What becomes of the poll.
    Redirected(RedirectAnswer),
    /// What the processes do, or why that is not known.
    Stacks(Result<Box<HostStacks>, String>),
}

/// The open files that capture standard output and standard error of a task, as far as there are any.
pub type Captures = [Option<File>; 2];

/// Asks for output of an attempt that no other process sees while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadRequest {
    /// What the tool has of standard output and standard error.
    pub after: [Position; 2],
    /// What is read are the streams of the attempt itself, which are in files without names if they go to a
    /// pack at the end; otherwise, what kickstart captures.
    pub is_own: bool,
    /// The worker may wait for output. Without it, it answers at once, also that nothing has come.
    pub may_wait: bool,
}

/// Bytes of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chunk {
    /// Position of the first one.
    pub position: Position,
    /// The bytes; none if nothing has come.
    #[serde(with = "serde_bytes")]
    pub bytes: Vec<u8>,
}

/// Input for an attempt. Its worker takes as much as the pipe of the task has room for, and forgets the rest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteRequest {
    /// The bytes.
    #[serde(with = "serde_bytes")]
    pub bytes: Vec<u8>,
    /// The input ends after them.
    pub is_end: bool,
}

/// What became of input for an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WriteAnswer {
    /// The pipe has taken this number of bytes. If these are all, it has taken the end, too.
    Taken(u64),
    /// The attempt takes no input from tools.
    NotPushed,
    /// Its input had an end before.
    Complete,
    /// The task has closed its standard input.
    Closed,
    /// The attempt does not run.
    Ended,
}

/// A poll of a tool that redirects output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RedirectRequest {
    /// The poll.
    pub poll: RedirectPoll,
    /// The worker may wait for output.
    pub may_wait: bool,
    /// Who delivers.
    pub by: Deliverer,
}

/// Who delivers the output that a redirect brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Deliverer {
    /// The tool. An answer begins with what it has not delivered.
    Tool,
    /// The run. An answer goes on where the one before has ended, so several requests can be on their way.
    Run {
        /// The run has room for more.
        has_room: bool,
    },
}

/// What becomes of a poll.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RedirectAnswer {
    /// The redirect goes on: what comes next in each stream.
    Chunks(Box<[OutputChunk; 2]>),
    /// The redirect is to end. The run must say what it has delivered, in a last request.
    EndRequested,
    /// The redirect has ended. What the tool has not delivered is in the file.
    /// The numbers are those of bytes of each stream that were lost, by the rule for overflow.
    Ended(RedirectEnd, [u64; 2]),
    /// A stream goes to this tool already.
    TakenBy(String),
    /// The attempt has no relay.
    NoRelay,
    /// The attempt has not started.
    NotYet,
    /// The attempt does not run.
    NotRunning,
}

impl RedirectAnswer {
    /// Returns whether the redirect goes on, and nothing has come.
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Self::Chunks(chunks) if chunks.iter().all(|chunk| chunk.bytes.is_empty()))
    }
}
