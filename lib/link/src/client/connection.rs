//! A connection after its handshake.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pmc_system::planted::{Planted, is_planted};
use tokio::io::BufReader;
use tokio::net::TcpStream;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio_rustls::client::TlsStream;
use tokio_util::codec::{Framed, LengthDelimitedCodec};

use super::{Agent, Closed, Link, State};
use crate::session::Received;
use crate::stream::{FrameHandler, Outgoing, pump};

/// A connection after its handshake.
pub struct Connection {
    pub(super) runtime: Arc<tokio::runtime::Runtime>,
    pub(super) link: Arc<Link>,
    pub(super) carrier: Carrier,
    pub(super) frames: UnboundedReceiver<Outgoing>,
    /// What the master said to an agent that joined.
    pub welcome: Vec<u8>,
    /// The session has begun with this connection.
    pub joined: bool,
}

/// What carries frames.
pub(super) enum Carrier {
    Tls(Box<Framed<TlsStream<BufReader<TcpStream>>, LengthDelimitedCodec>>),
    #[cfg(feature = "simulated")]
    Simulated(pmc_system::simulated::net::Stream),
}

impl Connection {
    /// Returns the address of this host in the network of the connection, if the system knows it.
    #[must_use]
    pub fn local_address(&self) -> Option<IpAddr> {
        match &self.carrier {
            Carrier::Tls(framed) => {
                let (stream, _) = framed.get_ref().get_ref();
                stream.get_ref().local_addr().ok().map(|address| address.ip())
            }
            #[cfg(feature = "simulated")]
            Carrier::Simulated(_) => None,
        }
    }

    /// Reads and writes until the connection ends.
    pub fn run(self, agent: &mut dyn Agent) -> Closed {
        let link = &self.link;
        let interval = link.timing.heartbeat / 4;
        let mut socket = SessionSocket {
            link,
            agent,
            next_beat: link.now(),
            asked: false,
        };
        let ended = match self.carrier {
            Carrier::Tls(framed) => {
                let pumped = pump(*framed, self.frames, Some(interval), &mut socket);
                self.runtime.block_on(pumped)
            }
            #[cfg(feature = "simulated")]
            Carrier::Simulated(stream) => {
                crate::simulated::pump(stream, self.frames, Some(interval), &mut socket)
            }
        };
        let asked = socket.asked;
        link.state().frames = None;
        match ended {
            _ if asked => Closed::Asked,
            Ok(()) => Closed::Broken(io::ErrorKind::UnexpectedEof.into()),
            Err(error) => Closed::Broken(error),
        }
    }
}

/// What a connection has to do besides reading frames.
pub(super) struct SessionSocket<'a> {
    pub(super) link: &'a Link,
    pub(super) agent: &'a mut dyn Agent,
    pub(super) next_beat: Duration,
    /// The agent has asked to close the connection.
    pub(super) asked: bool,
}

impl FrameHandler for SessionSocket<'_> {
    fn receive(&mut self, frame: Bytes) -> io::Result<()> {
        let now = self.link.now();
        let (received, lease_ends) = {
            let mut state = self.link.state();
            let live = state.session.as_mut();
            let live = live.ok_or_else(|| io::Error::other("the session has ended"))?;
            let received = live.session.receive(&frame, now).map_err(io::Error::other)?;
            let lease_ends = live.session.leased_at() + self.link.timing.lease;
            // What an agent has received, it has done: it keeps its tasks itself.
            live.session.settle(u64::MAX);
            (received, lease_ends)
        };
        // After a suspension, messages may be there from before it. Their tasks have been given to others.
        if now >= lease_ends && !is_planted(Planted::LateMessages) {
            self.asked = self.agent.tick();
            return Err(io::Error::other("the lease is over"));
        }
        match received {
            Received::Message(body) => self.agent.message(&body),
            Received::Unnumbered(body) => self.agent.unnumbered(&body),
            Received::Nothing | Received::Goodbye => {}
        }
        Ok(())
    }

    fn tick(&mut self) -> io::Result<()> {
        let now = self.link.now();
        {
            let mut state = self.link.state();
            let State { session, frames } = &mut *state;
            if let (Some(live), Some(frames)) = (session, frames) {
                if now.saturating_sub(live.session.heard_at()) > self.link.timing.patience() {
                    return Err(io::Error::new(
                        io::ErrorKind::TimedOut,
                        "nothing was heard of the master",
                    ));
                }
                if now >= self.next_beat {
                    self.next_beat = now + self.link.timing.heartbeat;
                    let _ = frames.send(live.session.beat(now).into());
                }
            }
        }
        if self.agent.tick() {
            self.asked = true;
            return Err(io::Error::other("asked to close"));
        }
        Ok(())
    }
}
