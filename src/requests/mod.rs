//! Requests of tools to attempts: signals, input, and output that is not in a file yet.
//!
//! A tool names a task. The driver finds its attempt and passes an [`AttemptRequest`](crate::protocol) to the
//! worker, whose half ([`OpenRequests`]) answers; [`PendingRequests`] knows who waits for that. If the worker
//! is a thread of this process, the driver asks its [`AttemptHandle`] instead, and no message is sent.
//!
//! A new kind of request needs a body and an answer (`protocol/request.rs`), a method of the handle if the
//! attempt has to know something for it, and an arm in [`OpenRequests`] and in `driver/requests.rs`.

mod open;
mod pending;
mod read;

pub(crate) use open::OpenRequests;
pub(crate) use pending::{PendingRequest, PendingRequests};

use nix::unistd::Pid;

use crate::protocol::{Captures, RedirectAnswer, SubmitId, WriteAnswer};
use crate::relay::Relay;

/// The attempt that a worker runs, for other threads. Nothing here waits.
pub trait AttemptHandle: Send + Sync {
    /// Sends a signal to the processes of this attempt, if it runs.
    fn signal(&self, attempt: SubmitId, signal: i32);
    /// Sends the signal by which this attempt is to save itself, if it runs. Each of its processes gets it
    /// once: not from here if the first one passes signals on.
    fn notify(&self, attempt: SubmitId, signal: i32);
    /// Returns the files that [`ReadRequest`](crate::protocol::ReadRequest) names, if this attempt runs.
    fn captures(&self, attempt: SubmitId, is_own: bool) -> Option<Captures>;
    /// Returns the first process of this attempt, if it runs: it leads the process group.
    fn leader(&self, attempt: SubmitId) -> Option<Pid>;
    /// Passes input to this attempt, as much as there is room for.
    fn write(&self, attempt: SubmitId, bytes: &[u8], is_end: bool) -> WriteAnswer;
    /// Returns the relay of this attempt, or the answer to a tool if there is none.
    ///
    /// # Errors
    /// It has none, or does not run.
    fn relay(&self, attempt: SubmitId) -> Result<Relay, RedirectAnswer>;
}
