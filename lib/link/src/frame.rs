//! What travels over a connection: frames in the format of `postcard`.

use serde::{Deserialize, Serialize};

/// Maximum bytes of a message. It bounds what one side can make the other keep in memory.
pub const MAX_BODY: usize = 256 << 20;

/// Maximum bytes of a frame.
pub(crate) const MAX_FRAME: usize = MAX_BODY + 64;

/// Facts that each frame carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// Number of the sender's latest heartbeat.
    pub beat: u64,
    /// The latest heartbeat that the sender has heard.
    pub echo: u64,
    /// The sender has settled all messages with smaller numbers.
    pub settled: u64,
}

/// Everything but the handshake.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Frame<'a> {
    /// A numbered message.
    Message {
        head: Head,
        number: u64,
        #[serde(borrow, with = "serde_bytes")]
        body: &'a [u8],
    },
    /// A heartbeat, or the answer to one.
    Alive { head: Head },
    /// The last frame of an agent: its processes have ended.
    Goodbye { head: Head },
    /// A message without a number: it is lost with its connection.
    Unnumbered {
        head: Head,
        #[serde(borrow, with = "serde_bytes")]
        body: &'a [u8],
    },
}

/// First frame of an agent.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello<'a> {
    /// Version of this encoding.
    pub version: u32,
    /// The session that goes on; without one, the agent joins.
    pub resume: Option<Resume>,
    /// What the program has to say.
    #[serde(borrow, with = "serde_bytes")]
    pub body: &'a [u8],
}

/// A session that goes on over a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resume {
    /// The master that knows the session.
    pub epoch: u64,
    /// Number of the session.
    pub session: u64,
    /// Number of the next message that the agent expects.
    pub expected: u64,
    pub head: Head,
}

/// Answer of the master.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer<'a> {
    /// The session goes on, or begins.
    Welcome {
        resume: Resume,
        #[serde(borrow, with = "serde_bytes")]
        body: &'a [u8],
    },
    /// The master does not know the session, or has declared it lost: the agent must join as a new one.
    Gone {
        /// Number of this master among those of the DAG.
        epoch: u64,
    },
    /// The agent cannot join.
    Refused { reason: String },
    /// The agent cannot join now, but perhaps soon.
    Later { reason: String },
}

/// Encodes a frame.
pub(crate) fn encode(frame: &impl Serialize) -> bytes::Bytes {
    // Frames consist of numbers, strings and lists of bytes, so they have no field that can fail to encode.
    postcard::to_allocvec(frame).unwrap_or_default().into()
}

/// Decodes exactly one frame.
pub(crate) fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, postcard::Error> {
    match postcard::take_from_bytes(bytes)? {
        (frame, []) => Ok(frame),
        _ => Err(postcard::Error::DeserializeBadEncoding),
    }
}
