//! One side of a session: what was sent and not yet settled, what was received, and the lease.
//!
//! A session outlives its connections. It has no clock and no socket: the caller passes the time since some
//! fixed moment, and carries frames.
//!
//! # Messages
//!
//! Each side numbers its messages from 0 and keeps them until the other side has *settled* them: the program
//! has done with them what must not be lost. After a cut, the sides tell each other which number they expect
//! next, and the messages from there on are sent again. So each message is delivered once, in order.
//!
//! An *unnumbered* message is lost with its connection, and nobody keeps it.
//!
//! # Lease
//!
//! The agent numbers its heartbeats and notes when it made each of them. Every frame of the master names the
//! latest heartbeat that the master has heard. So the agent knows that the master has heard of it at or after
//! the moment of that heartbeat, also when messages get through in one direction only. The lease ends a fixed
//! time after that moment. The master, which waits longer than that since the last frame, always sees the
//! agent as lost after the agent's own lease is over. Only an agent whose process has died is lost sooner.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use pmc_system::planted::{Planted, is_planted};

use crate::frame::{self, Frame, Head};

/// A frame makes no sense: the connection must be closed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The bytes are no frame.
    #[error("a frame is damaged: {0}")]
    Damaged(postcard::Error),
    /// A message is missing.
    #[error("message {found} came, but {expected} is next")]
    Gap {
        /// Number of the message.
        found: u64,
        /// Number that was expected.
        expected: u64,
    },
    /// The peer speaks of messages or heartbeats that were never sent, or are forgotten.
    #[error("the other side speaks of messages that it cannot know")]
    Unknown,
}

/// What a frame brought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// The next message.
    Message(Bytes),
    /// A message without a number.
    Unnumbered(Bytes),
    /// A heartbeat or a message that came before.
    Nothing,
    /// The other side has ended.
    Goodbye,
}

/// One side of a session.
#[derive(Debug)]
pub struct Session {
    /// Number of the next message to send.
    next: u64,
    /// The messages before `next` that the other side has not settled.
    kept: VecDeque<Bytes>,
    /// Number of the next message to receive.
    expected: u64,
    /// Received messages with smaller numbers are settled.
    settled: u64,
    /// Number of the latest heartbeat of this side.
    beat: u64,
    /// Heartbeats that were not answered, and when they were made.
    beats: VecDeque<(u64, Duration)>,
    /// The latest heartbeat of the other side.
    echo: u64,
    /// When the latest answered heartbeat was made.
    leased_at: Duration,
    /// When the last frame came.
    heard_at: Duration,
}

impl Session {
    /// Begins a session. On the agent's side, `now` must not be later than the first frame that the master
    /// hears.
    #[must_use]
    pub fn new(now: Duration) -> Self {
        Self {
            next: 0,
            kept: VecDeque::new(),
            expected: 0,
            settled: 0,
            beat: 0,
            beats: VecDeque::new(),
            echo: 0,
            leased_at: now,
            heard_at: now,
        }
    }

    /// Keeps a message and returns its frame, which is sent if there is a connection.
    pub fn send(&mut self, body: Bytes) -> Bytes {
        let frame = self.frame(self.next, &body);
        self.kept.push_back(body);
        self.next += 1;
        frame
    }

    /// Makes a heartbeat.
    pub fn beat(&mut self, now: Duration) -> Bytes {
        self.beat += 1;
        self.beats.push_back((self.beat, now));
        self.alive()
    }

    /// Returns the answer to a heartbeat.
    #[must_use]
    pub fn alive(&self) -> Bytes {
        frame::encode(&Frame::Alive { head: self.head() })
    }

    /// Returns the frame of a message that is not kept.
    #[must_use]
    pub fn unnumbered(&self, body: &[u8]) -> Bytes {
        let head = self.head();
        frame::encode(&Frame::Unnumbered { head, body })
    }

    /// Returns the last frame of this side.
    #[must_use]
    pub fn goodbye(&self) -> Bytes {
        frame::encode(&Frame::Goodbye { head: self.head() })
    }

    /// Takes a frame of the other side.
    ///
    /// # Errors
    /// The frame makes no sense. The session is unchanged and may go on over another connection.
    pub fn receive(&mut self, bytes: &Bytes, now: Duration) -> Result<Received, SessionError> {
        match frame::decode(bytes).map_err(SessionError::Damaged)? {
            Frame::Message { head, number, body } => {
                if number > self.expected {
                    return Err(SessionError::Gap {
                        found: number,
                        expected: self.expected,
                    });
                }
                self.note(head, now)?;
                if number < self.expected && is_planted(Planted::TakenTwice) {
                    return Ok(Received::Message(bytes.slice_ref(body)));
                }
                if number < self.expected {
                    return Ok(Received::Nothing);
                }
                self.expected += 1;
                Ok(Received::Message(bytes.slice_ref(body)))
            }
            Frame::Alive { head } => self.note(head, now).map(|()| Received::Nothing),
            Frame::Goodbye { head } => self.note(head, now).map(|()| Received::Goodbye),
            Frame::Unnumbered { head, body } => {
                self.note(head, now)?;
                Ok(Received::Unnumbered(bytes.slice_ref(body)))
            }
        }
    }

    /// Takes what the other side says about this one.
    ///
    /// # Errors
    /// The other side cannot know this.
    pub(crate) fn note(&mut self, head: Head, now: Duration) -> Result<(), SessionError> {
        if head.settled > self.next || head.echo > self.beat {
            return Err(SessionError::Unknown);
        }
        while self.first_kept() < head.settled && self.kept.pop_front().is_some() {}
        while let Some((_, at)) = self.beats.front().filter(|(beat, _)| *beat <= head.echo) {
            let from = if is_planted(Planted::LeaseFromAnswer) {
                now
            } else {
                *at
            };
            self.leased_at = self.leased_at.max(from);
            self.beats.pop_front();
        }
        self.echo = self.echo.max(head.beat);
        self.heard_at = self.heard_at.max(now);
        Ok(())
    }

    /// Settles this number of received messages, from the oldest on.
    pub fn settle(&mut self, messages: u64) {
        self.settled = self.settled.saturating_add(messages).min(self.expected);
    }

    /// Returns the frames to send after a new connection was made. The other side expects the message of this
    /// number.
    ///
    /// # Errors
    /// The other side cannot expect this message.
    pub fn resume(&self, peer_expects: u64) -> Result<Vec<Bytes>, SessionError> {
        let first = self.first_kept();
        if peer_expects < first || peer_expects > self.next {
            return Err(SessionError::Unknown);
        }
        let again = (first..).zip(&self.kept);
        let again = again.filter(|(number, _)| {
            let is_due = *number >= peer_expects || is_planted(Planted::TakenTwice);
            is_due && !is_planted(Planted::NotSentAgain)
        });
        Ok(again.map(|(number, body)| self.frame(number, body)).collect())
    }

    /// Number of the next message that this side expects.
    #[must_use]
    pub fn expected(&self) -> u64 {
        self.expected
    }

    /// The latest heartbeat of the other side. An answer is due when it changes.
    #[must_use]
    pub fn echo(&self) -> u64 {
        self.echo
    }

    /// When the last frame came.
    #[must_use]
    pub fn heard_at(&self) -> Duration {
        self.heard_at
    }

    /// When the latest answered heartbeat was made.
    #[must_use]
    pub fn leased_at(&self) -> Duration {
        self.leased_at
    }

    /// The messages that the other side has not settled.
    pub fn unsettled(&self) -> impl Iterator<Item = &Bytes> {
        self.kept.iter()
    }

    pub(crate) fn head(&self) -> Head {
        Head {
            beat: self.beat,
            echo: self.echo,
            settled: self.settled,
        }
    }

    fn first_kept(&self) -> u64 {
        self.next - self.kept.len() as u64
    }

    fn frame(&self, number: u64, body: &[u8]) -> Bytes {
        let head = self.head();
        frame::encode(&Frame::Message { head, number, body })
    }
}

#[cfg(test)]
mod tests;
