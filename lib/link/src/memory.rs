//! An agent without a socket, for tests and benchmarks of a master with many agents.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::endpoint::VERSION;
use crate::frame::{self, Answer, Hello};
use crate::server::{Accepted, Hub, Service, SessionSocket};
use crate::session::{Received, Session};
use crate::stream::Outgoing;

/// Both ends of a connection, whose frames the caller carries. Nothing is encrypted.
pub struct MemoryAgent {
    socket: SessionSocket<dyn Service>,
    /// Frames of the master.
    frames: UnboundedReceiver<Outgoing>,
    session: Session,
}

impl MemoryAgent {
    /// Joins and says `hello`. Returns what the master says, too.
    ///
    /// # Errors
    /// The master refuses the agent.
    pub fn join(hub: &Arc<Hub>, service: &Arc<dyn Service>, hello: &[u8]) -> io::Result<(Self, Vec<u8>)> {
        let session = Session::new(hub.now());
        let first = frame::encode(&Hello {
            version: VERSION,
            resume: None,
            body: hello,
        });
        let accepted = hub.hello(&first, service.as_ref());
        let answer = match &accepted {
            Ok(Accepted { welcome: answer, .. }) | Err(answer) => answer,
        };
        let welcome = match frame::decode(answer).map_err(io::Error::other)? {
            Answer::Welcome { body, .. } => body.to_vec(),
            Answer::Refused { reason } | Answer::Later { reason } => return Err(io::Error::other(reason)),
            Answer::Gone { .. } => return Err(io::ErrorKind::ConnectionRefused.into()),
        };
        let Ok(accepted) = accepted else {
            return Err(io::ErrorKind::ConnectionRefused.into());
        };
        service.joined(accepted.session);
        let socket = SessionSocket {
            hub: Arc::clone(hub),
            service: Arc::clone(service),
            session: accepted.session,
            connection: accepted.connection,
        };
        let agent = Self {
            socket,
            frames: accepted.frames,
            session,
        };
        Ok((agent, welcome))
    }

    /// Returns the frame of a message of the agent.
    pub fn frame(&mut self, body: Vec<u8>) -> Bytes {
        self.session.send(body.into())
    }

    /// Returns a heartbeat of the agent.
    pub fn beat(&mut self) -> Bytes {
        self.session.beat(self.socket.hub.now())
    }

    /// Lets the master take a frame of the agent.
    ///
    /// # Errors
    /// The master closes the connection.
    pub fn deliver(&self, frame: &Bytes) -> io::Result<()> {
        self.socket.take(frame)
    }

    /// Returns the next message of the master.
    ///
    /// # Errors
    /// What the master says makes no sense.
    pub fn receive(&mut self) -> io::Result<Option<Bytes>> {
        while let Ok(outgoing) = self.frames.try_recv() {
            let received = self.session.receive(&outgoing.frame, self.socket.hub.now());
            if let Received::Message(body) = received.map_err(io::Error::other)? {
                self.session.settle(1);
                return Ok(Some(body));
            }
        }
        Ok(None)
    }

    /// Number of messages that the master has not settled.
    #[must_use]
    pub fn unsettled(&self) -> usize {
        self.session.unsettled().count()
    }
}
