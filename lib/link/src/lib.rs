//! The connection between a master and its agents.
//!
//! An agent keeps one connection to the master. It is encrypted, and both sides prove that they have the
//! key of the run ([`Endpoint`]), at first cheaply, so that strangers cost little. A connection may be cut
//! and made again: both sides number their messages and keep them until the other side has *settled* them
//! ([`Session`]). The agent holds a *lease*: as long as the master has answered a recent heartbeat, the
//! master counts on the agent's tasks.
//!
//! Agents also give each other files, over connections with the same key ([`PeerServer`], [`fetch`]), and run
//! commands for the gangs of which they are members ([`Commands`], [`Callers`]).
//!
//! This package knows nothing of what the messages say. Framing is that of `tokio-util`, encryption that of
//! `rustls`, in threads that call no other code of the program but [`Service`] and [`Agent`].
//!
//! Why not gRPC: a run needs one stream for each agent, and numbers and acknowledgements of its own in any
//! case. What is left of gRPC is framing, and that is one type of `tokio-util`.

mod client;
mod command;
mod endpoint;
mod frame;
mod key;
mod listener;
mod member;
mod memory;
mod offline;
mod peer;
mod proof;
mod server;
mod session;
mod silence;
#[cfg(feature = "simulated")]
mod simulated;
mod stream;
mod unauthenticated;

#[doc(hidden)]
pub use client::crowd::{CrowdAgent, Member, run_crowd};
pub use client::{Agent, Carry, Client, Closed, ConnectError, Connection, Link};
pub use command::{Callers, Calls, Commands, Gang, Handle, OpenSocket, Route, Running};
pub use endpoint::{Endpoint, EndpointError, VERSION};
pub use frame::MAX_BODY;
pub use key::{KeyError, RunKey};
pub use listener::{Listen, ServerError};
pub use memory::MemoryAgent;
pub use offline::serve_bytes;
pub use peer::{Growing, Offered, PeerError, PeerServer, Progress, fetch};
pub use server::{Hub, JoinError, Server, Service, SessionId};
pub use session::{Received, Session, SessionError};
pub use silence::SilentAddresses;

use std::time::Duration;

/// How long the sides wait for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Time between heartbeats of an agent.
    pub heartbeat: Duration,
    /// An agent whose heartbeats were not answered for this time ends its tasks.
    pub lease: Duration,
    /// The master waits this much longer before it counts an agent as lost.
    pub grace: Duration,
}

impl Timing {
    /// Timing with this lease.
    #[must_use]
    pub fn with_lease(lease: Duration) -> Self {
        Self {
            heartbeat: (lease / 15).clamp(Duration::from_millis(100), Duration::from_secs(2)),
            lease,
            // Even a busy host ends its tasks in this time.
            grace: Duration::from_secs(2),
        }
    }

    /// A side that has heard nothing for this time makes a new connection, or waits for one.
    #[must_use]
    pub fn patience(self) -> Duration {
        self.heartbeat * 3
    }

    /// The master counts an agent as lost this long after its process has died, as its host says. Its guard
    /// has ended its tasks and started it again by then, or is dead, too.
    #[must_use]
    pub fn until_dead(self) -> Duration {
        self.grace
    }

    /// The master counts an agent as lost that was silent for this time.
    #[must_use]
    pub fn until_lost(self) -> Duration {
        self.lease + self.grace
    }
}

impl Default for Timing {
    /// Heartbeats every two seconds, and a lease of thirty.
    fn default() -> Self {
        Self::with_lease(Duration::from_secs(30))
    }
}
