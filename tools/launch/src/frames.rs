//! What front end and proxies say to each other, over the standard streams of the proxy.
//!
//! A frame is that of [`pmc_wire::command`]: its length, and a message of `postcard`. A proxy has the version
//! of its front end on its command line, and says nothing if it is of another one.
//!
//! Of each output of a rank, and of the input, one frame is on its way at most: the next one is sent when the
//! other side has taken the last one. So nothing gathers, and a reader that is slow holds up the ranks.

use std::io::{self, Read};

use pmc_stacks::HostStacks;
use pmc_wire::command::{MAX_FRAME, decode};
pub(crate) use pmc_wire::command::{Stream, send};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::spread::messages::{Offer, Room, Sources};

/// Bytes of a stream in one frame, at most.
pub(crate) const MAX_DATA: usize = 32 << 10;

/// Bytes that are read at a time.
const READ_SIZE: usize = 64 << 10;

/// Bytes as they are: names and values of the operating system are no UTF-8.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Bytes(#[serde(with = "serde_bytes")] pub(crate) Vec<u8>);

/// What the front end says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ToProxy {
    /// All that there is to know. The ranks are to be started, and to stop before their first instruction.
    Load(Box<Load>),
    /// All ranks have stopped: they run on.
    Go,
    /// A signal for each rank.
    Signal(i32),
    /// Pairs of all ranks, after a barrier.
    Pairs(Vec<Pair>),
    /// The last ones: the barrier is passed.
    PastBarrier,
    /// What a rank has asked about a name.
    Named { rank: u32, port: Option<String> },
    /// The next bytes of standard input. None: it ends.
    Input(Bytes),
    /// The last frame of this output was taken.
    Taken { rank: u32, stream: Stream },
    /// Whatever is left is to be killed, and the proxy ends.
    Done,
    /// What the host is to have before its ranks are started.
    Offer(Box<Offer>),
    /// From where it gets what it lacks of that.
    Sources(Box<Sources>),
}

/// What a proxy says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ToFront {
    /// It is there. Its groups.
    Here { groups: Vec<u32> },
    /// All of its ranks have stopped, or run if `is_held` is false: this host forbids it.
    Stopped {
        processes: Vec<(u32, i32)>,
        is_held: bool,
    },
    /// A rank cannot be started: what, and why.
    Failed { what: String, why: String },
    /// The next bytes of an output.
    Output { rank: u32, stream: Stream, bytes: Bytes },
    /// The last frame of the input was taken.
    InputTaken,
    /// New pairs of its ranks.
    Put(Vec<Pair>),
    /// The last ones: all of its ranks are at the barrier.
    AtBarrier,
    /// A rank asks for a name, or gives one.
    Name { rank: u32, request: NameRequest },
    /// A rank ends the program with this exit code.
    Abort { rank: u32, code: i32 },
    /// A rank has ended with this wait status, and all its output was sent.
    Ended { rank: u32, status: i32, end: PmiEnd },
    /// Where a rank is that a signal ends.
    Trace(HostStacks),
    /// A rank speaks another protocol than the one it was started for, so that it finds no other rank.
    Alone { rank: u32 },
    /// What it has of the files that were offered, and room for the others.
    Room(Room),
    /// Hosts have given wrong bytes of a file.
    Wrong { file: u32, from: Vec<u32> },
    /// It has all files.
    Spread,
}

/// A key and its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pair {
    pub(crate) key: String,
    pub(crate) value: String,
}

/// What a rank wants of the names of the launch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum NameRequest {
    Publish { name: String, port: String },
    Unpublish { name: String },
    Look { name: String },
}

/// Whether a rank has said that it ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum PmiEnd {
    /// It has never said anything.
    #[default]
    Silent,
    /// It has begun, and not said that it ends.
    Open,
    /// It has said so.
    Finalized,
}

/// What a proxy is to start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Load {
    /// Number of the host in the launch.
    pub(crate) node: u32,
    /// Its ranks, ascending.
    pub(crate) ranks: Vec<LocalRank>,
    /// Programs with their arguments.
    pub(crate) programs: Vec<Vec<Bytes>>,
    /// Number of all ranks.
    pub(crate) size: u32,
    /// Which ranks share a host, in the words of PMI.
    pub(crate) mapping: String,
    /// Name of the launch among those of this host.
    pub(crate) name: String,
    /// Environment of the front end, as `NAME=VALUE`.
    pub(crate) environment: Vec<Bytes>,
    pub(crate) directory: Bytes,
    pub(crate) umask: u32,
    /// Ranks find each other by PMI-1.
    pub(crate) has_pmi: bool,
    /// Names of all hosts, with commas between them, if ranks find each other by PMIx.
    pub(crate) pmix: Option<String>,
    /// Each rank has CPUs of its own.
    pub(crate) binds: bool,
    pub(crate) input: Input,
    /// Ranks that a signal ends are traced.
    pub(crate) traces: bool,
    /// Ranks have the variables of PyTorch.
    pub(crate) sets_torch: bool,
    /// Ranks go on stopped, for debuggers.
    pub(crate) holds: bool,
    /// Ranks that run below `strace`.
    pub(crate) strace: Option<Strace>,
}

/// What a proxy needs to run ranks below `strace` (`--strace`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Strace {
    pub(crate) directory: Bytes,
    /// Number of the process of the front end: part of the names of files.
    pub(crate) job: u32,
    /// Further options.
    pub(crate) options: Vec<Bytes>,
    /// Those of the ranks of the proxy that run below it.
    pub(crate) ranks: Vec<u32>,
}

/// A rank, as its proxy knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LocalRank {
    pub(crate) rank: u32,
    /// Number of its program.
    pub(crate) program: u32,
    /// Arguments in place of those of the program, if they depend on the rank.
    pub(crate) words: Option<Vec<Bytes>>,
}

/// Which ranks get the standard input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
pub(crate) enum Input {
    /// Rank 0
    #[default]
    #[value(name = "0")]
    First,
    /// Each rank
    All,
    /// No rank
    None,
}

/// Frames of a stream that is read whenever something is there.
#[derive(Debug, Default)]
pub(crate) struct FrameReader {
    bytes: Vec<u8>,
}

impl FrameReader {
    /// Reads once. Returns false at the end of the stream.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) fn read(&mut self, mut stream: impl Read) -> io::Result<bool> {
        let mut buffer = vec![0; READ_SIZE];
        let length = match stream.read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(true),
            read => read?,
        };
        self.bytes
            .extend_from_slice(buffer.get(..length).unwrap_or_default());
        Ok(length > 0)
    }

    /// Returns the next message, if all of it is there.
    ///
    /// # Errors
    /// It is none.
    pub(crate) fn next<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        let Some(length) = self.bytes.first_chunk::<4>() else {
            return Ok(None);
        };
        let length = u32::from_be_bytes(*length) as usize;
        if length > MAX_FRAME {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let Some(body) = self.bytes.get(4..4 + length) else {
            return Ok(None);
        };
        let message = decode(body)?;
        self.bytes.drain(..4 + length);
        Ok(Some(message))
    }
}

/// Splits pairs into parts of which each fits into a frame.
pub(crate) fn parts_of(pairs: Vec<Pair>) -> Vec<Vec<Pair>> {
    const MOST: usize = MAX_FRAME / 4;
    let (mut parts, mut size) = (Vec::<Vec<Pair>>::new(), MOST);
    for pair in pairs {
        size += pair.key.len() + pair.value.len() + 16;
        match parts.last_mut() {
            Some(last) if size < MOST => last.push(pair),
            _ => {
                size = pair.key.len() + pair.value.len() + 16;
                parts.push(vec![pair]);
            }
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn frames_come_in_pieces() {
        let messages = [
            ToProxy::Signal(15),
            ToProxy::Input(Bytes(b"abc".to_vec())),
            ToProxy::Done,
        ];
        let mut stream = Vec::new();
        messages
            .iter()
            .for_each(|message| send(&mut stream, message).unwrap());
        let (mut reader, mut read) = (FrameReader::default(), Vec::new());
        for byte in &stream {
            assert!(reader.read(&[*byte][..]).unwrap());
            read.extend(reader.next::<ToProxy>().unwrap());
        }
        assert_eq!(read, messages);
        assert!(!reader.read(&[][..]).unwrap());
    }

    #[test]
    fn a_frame_that_is_too_long_is_refused() {
        let mut reader = FrameReader::default();
        reader.read(&u32::MAX.to_be_bytes()[..]).unwrap();
        assert!(reader.next::<ToProxy>().is_err());
    }

    #[test]
    fn many_pairs_go_in_several_frames() {
        let pair = |number: u32| Pair {
            key: format!("key{number}"),
            value: "x".repeat(1000),
        };
        let pairs: Vec<Pair> = (0..5000).map(pair).collect();
        let parts = parts_of(pairs.clone());
        assert!(parts.len() > 1);
        for part in &parts {
            let mut frame = Vec::new();
            send(&mut frame, &ToFront::Put(part.clone())).unwrap();
        }
        assert_eq!(parts.concat(), pairs);
        assert!(parts_of(Vec::new()).is_empty());
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_no_panic(bytes: Vec<u8>) {
            let mut reader = FrameReader::default();
            reader.read(&bytes[..]).unwrap();
            while let Ok(Some(_)) = reader.next::<ToProxy>() {}
            while let Ok(Some(_)) = reader.next::<ToFront>() {}
        }
    }
}
