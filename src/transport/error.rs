//! Errors of transports.

use std::fmt;
use std::io;

use crate::protocol::{DecodeError, Rank};

/// A message could not be sent or received; the run cannot continue.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransportError {
    /// The system refused a thread.
    #[error("Unable to start worker {}: {}", .rank.0, pmc_dag::reason(.source))]
    StartWorker {
        /// The worker.
        rank: Rank,
        /// Why.
        source: io::Error,
    },
    /// There is no process of this rank.
    #[error("There is no worker {}", .0.0)]
    UnknownRank(Rank),
    /// The thread of the master has ended.
    #[error("The master has ended")]
    MasterEnded,
    /// A thread panicked while it did the master's work.
    #[error("A worker has ended in the middle of its work")]
    CombinerPanicked,
    /// A process of this host has died.
    #[error("{}", match .0 {
        Peer::Master => "The master has died: its process is gone".to_owned(),
        Peer::Worker(rank) => format!(
            "Worker {} has died: its process is gone (killed by the system for want of memory, perhaps)",
            rank.0
        ),
    })]
    Died(Peer),
    /// The bytes of a message make no sense.
    #[error("Invalid message from {from}: {source}")]
    Decode {
        /// The sender.
        from: Peer,
        /// What is wrong with it.
        source: DecodeError,
    },
    /// The endpoint file cannot be written.
    #[error(transparent)]
    Endpoint(#[from] pmc_link::EndpointError),
    /// The list of agents cannot be used.
    #[error("Unable to use the list of agents: {}", pmc_dag::reason(.0))]
    Roster(io::Error),
    /// Agents cannot reach this process.
    #[error(transparent)]
    Server(#[from] pmc_link::ServerError),
    /// Agents cannot be started.
    #[error(transparent)]
    Launch(#[from] super::agents::LaunchError),
    /// No agent has come.
    #[error("{0}")]
    NoAgents(super::agents::Missing),
    /// MPI counts bytes with 32 bits.
    #[error("Message of {0} bytes is too long for MPI")]
    TooLong(usize),
    /// This process has started MPI before.
    #[error("MPI is in use already")]
    MpiInUse,
    /// The MPI library must allow threads that do not call it.
    #[error("The MPI library does not support threads")]
    MpiWithoutThreads,
}

/// The other side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// The master.
    Master,
    /// A worker.
    Worker(Rank),
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Master => f.write_str("the master"),
            Self::Worker(rank) => write!(f, "worker {}", rank.0),
        }
    }
}
