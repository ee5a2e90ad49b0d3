//! Carries messages between master and workers: one trait for each side, and one implementation for each way.

pub mod agents;
pub mod combiner;
mod error;
pub mod local;
#[cfg(feature = "mpi")]
pub mod mpi;
pub(crate) mod parts;

use std::sync::Arc;
use std::time::{Duration, Instant};

use combiner::Combiner;
pub use error::TransportError;

use crate::bell::Bell;
use crate::protocol::{Rank, ToMaster, ToWorker};
use crate::requests::AttemptHandle;

/// How the master waits for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitPolicy {
    /// A core of this host is idle, so the master may spin on it.
    IdleCore,
    /// A worker may wait for the answer to the next message.
    Normal,
    /// All workers have prefilled tasks: messages may arrive in batches.
    Batch,
}

/// The master's side.
pub trait MasterTransport {
    /// Number of workers; their ranks are `1..=workers()`.
    fn workers(&self) -> u32;
    /// What is known of workers that come and go during the run, if they do.
    fn membership(&self) -> Option<&dyn Membership> {
        None
    }
    /// The same, to be asked for changes.
    fn membership_mut(&mut self) -> Option<&mut dyn Membership> {
        None
    }
    /// True if workers come and go during the run.
    fn is_dynamic(&self) -> bool {
        self.membership().is_some()
    }
    /// Sends a message without waiting until the receiver takes it.
    fn send(&mut self, to: Rank, message: ToWorker) -> Result<(), TransportError>;
    /// Returns the next message of any worker. Waits at most `timeout`. `None` if no message came by then, or
    /// if a signal arrived.
    fn receive(&mut self, timeout: Duration) -> Result<Option<(Rank, ToMaster)>, TransportError>;
    /// Returns the attempt of a worker that is a thread of this process. Other workers get
    /// [`ToWorker::Request`].
    fn attempt_of(&self, _worker: Rank) -> Option<&dyn AttemptHandle> {
        None
    }
    /// Sets how to wait from now on.
    fn set_wait_policy(&mut self, _policy: WaitPolicy) {}
    /// Returns whether prefill pays: messages take so long that workers should have short tasks in advance.
    /// Such workers answer [`ToWorker::Retract`].
    fn supports_prefill(&self) -> bool;
    /// Returns the bytes sent to and received from workers so far.
    fn traffic(&self) -> Traffic;
    /// Waits until all workers have closed their files and ended; they have been sent [`ToWorker::Shutdown`]
    /// or [`ToWorker::Abort`]. Messages that they sent before can still be received afterwards. Returns the
    /// workers that have not ended within `timeout`.
    fn close(&mut self, timeout: Duration) -> Vec<Rank>;
}

/// Workers that come and go during a run. `registered` is the number of those that have registered and are
/// there.
pub trait Membership {
    /// Begins to receive workers. The run lock is held from now on.
    ///
    /// # Errors
    /// No worker can come.
    fn begin(&mut self) -> Result<(), TransportError>;
    /// Notes that what all messages so far say is in the rescue file and the forward journal: workers need
    /// not keep it any more.
    fn settle(&mut self);
    /// True if enough workers have come for the first task.
    fn may_start(&self, registered: u32) -> bool;
    /// Checks whether awaited workers have come. Returns when to call this next.
    ///
    /// # Errors
    /// No worker will come.
    fn check(&mut self) -> Result<Option<Instant>, TransportError>;
    /// Notes that a worker is asked to leave for good: what has started it does not start it again.
    fn release(&mut self, worker: Rank);
    /// The hosts that were there and are not any more.
    fn gone_hosts(&self) -> Vec<String>;
    /// Takes what a user should know about workers that do not come or are lost.
    fn notices(&mut self) -> Vec<String>;
    /// Goes on without a worker that has violated the protocol, and without the others of its process.
    /// Returns false if the run must end instead.
    fn dismiss(&mut self, worker: Rank, reason: &str) -> bool;
    /// How long until a worker counts as lost, if nothing more comes from it; `None` if it is gone.
    fn until_lost(&mut self, worker: Rank) -> Option<Duration>;
    /// True if the workers that are there have registered, and no workers of an earlier master may come back.
    fn all_have_come(&self, registered: u32) -> bool;
    /// True if workers are to come that have not.
    fn awaits_workers(&self) -> bool;
    /// How long to wait for other workers if those that are there cannot run what is left.
    fn patience(&self, registered: u32) -> Duration;
}

/// The master's side if workers are threads that can do the master's work.
pub trait CombiningTransport: MasterTransport + Send {
    /// Returns the combiner to which workers submit their messages.
    fn combiner(&self) -> Arc<Combiner>;
    /// Counts a message that came through the combiner.
    fn note_received(&mut self, from: Rank, message: &ToMaster);
}

/// A worker's side.
pub trait WorkerTransport {
    /// Rank of this worker.
    fn rank(&self) -> Rank;
    /// Sends a message to the master.
    fn send(&mut self, message: ToMaster) -> Result<(), TransportError>;
    /// Sends a message that can wait a millisecond, because the worker has another task.
    fn send_deferred(&mut self, message: ToMaster) -> Result<(), TransportError> {
        self.send(message)
    }
    /// Returns the next message of the master. Waits at most `timeout`.
    fn receive(&mut self, timeout: Duration) -> Result<Option<ToWorker>, TransportError>;
    /// What rings when a message has come that must be seen while a task runs. Without it, the worker looks
    /// for messages now and then.
    fn bell(&self) -> Option<&Bell> {
        None
    }
}

/// Bytes sent and received. The local transport counts the encoded size of its messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// From the master to workers.
    pub sent: u64,
    /// From workers to the master.
    pub received: u64,
}

/// Name and version of the MPI library, if this program was built with one.
#[must_use]
pub fn mpi_library() -> Option<String> {
    #[cfg(feature = "mpi")]
    return Some(mpi::library_version());
    #[cfg(not(feature = "mpi"))]
    None
}
