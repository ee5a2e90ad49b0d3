//! How messages travel. One trait for each side; everything that knows MPI is in `mpi`.

pub mod combiner;
pub mod local;
#[cfg(feature = "mpi")]
pub mod mpi;

use std::sync::Arc;
use std::time::Duration;

use combiner::Combiner;

use crate::protocol::{Rank, ToMaster, ToWorker};

/// A message could not be sent or received; the run cannot go on.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct TransportError(pub String);

/// How the master waits for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitPolicy {
    /// A core of this host has nothing to do but to wait for the next message.
    IdleCore,
    /// Somebody may wait for the answer to the next message.
    Normal,
    /// Everybody has work; the cores are theirs.
    Batch,
}

/// The master's side.
pub trait MasterTransport {
    /// Number of workers; their ranks are `1..=workers()`.
    fn workers(&self) -> u32;
    /// Sends without waiting for the receiver to take the message.
    fn send(&mut self, to: Rank, message: ToWorker) -> Result<(), TransportError>;
    /// The next message of any worker. Waits at most `timeout`; `None` when nothing came by then
    /// or when a signal arrived.
    fn receive(&mut self, timeout: Duration) -> Result<Option<(Rank, ToMaster)>, TransportError>;
    /// Says how to wait from now on.
    fn set_wait_policy(&mut self, _wait_policy: WaitPolicy) {}
    /// Whether messages take so long that workers should have short tasks in advance. They then
    /// give back what they do not get round to.
    fn supports_prefill(&self) -> bool;
    /// Bytes sent to and received from workers so far.
    fn traffic(&self) -> Traffic;
    /// Waits until all workers, which have been sent [`ToWorker::Shutdown`] or
    /// [`ToWorker::Abort`], have closed their files and ended. Messages that they sent before can
    /// still be received afterwards. Gives the workers that have not ended within `timeout`.
    fn close(&mut self, timeout: Duration) -> Vec<Rank>;
}

/// The master's side, where the workers are threads that can do its work.
pub trait CombiningTransport: MasterTransport + Send {
    /// Where the workers bring their messages.
    fn combiner(&self) -> Arc<Combiner>;
    /// A message was received through the combiner.
    fn note_received(&mut self, message: &ToMaster);
}

/// A worker's side.
pub trait WorkerTransport {
    /// Own rank.
    fn rank(&self) -> Rank;
    /// Sends to the master.
    fn send(&mut self, message: ToMaster) -> Result<(), TransportError>;
    /// Sends to the master a message that can wait a millisecond: the worker has another task.
    fn send_deferred(&mut self, message: ToMaster) -> Result<(), TransportError> {
        self.send(message)
    }
    /// The next message of the master. Waits at most `timeout`.
    fn receive(&mut self, timeout: Duration) -> Result<Option<ToWorker>, TransportError>;
}

/// Bytes that went over the wire; for the local transport the size they would have had there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// From the master to workers.
    pub sent: u64,
    /// From workers to the master.
    pub received: u64,
}

/// The MPI library that this program was built with, if it was.
#[must_use]
pub fn mpi_library() -> Option<String> {
    #[cfg(feature = "mpi")]
    return Some(mpi::library_version());
    #[cfg(not(feature = "mpi"))]
    None
}
