//! What a task that saves its state and the node service of its worker say to each other.
//!
//! The service listens at an abstract socket. A task finds its name, and the submit number of its attempt, in
//! [`VARIABLE`]. Each process of the task makes a connection. It begins with [`ToService::Hello`]; each
//! message has one answer. An answer with a descriptor is followed by one byte that carries it. Files that a
//! process has open when its connection ends never count.
//!
//! The process writes and reads the files itself: their bytes do not go through the socket. Messages are
//! those of [`peers`], but may be longer.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::{peers, receive_descriptors, send_descriptors};

/// Variable with the name of the socket and the submit number of the attempt, as `NAME:SUBMIT`.
pub const VARIABLE: &str = "PMC_NODE";

/// The version of these messages.
pub const VERSION: u32 = 1;

/// Maximum bytes of a message: the checksums of a file of some TiB.
const MAX_MESSAGE: u32 = 16 << 20;

/// Bits of [`Figures::errors`].
pub mod errors {
    /// Opening a file failed.
    pub const OPEN: u8 = 1;
    /// Reading failed.
    pub const READ: u8 = 2;
    /// Writing failed.
    pub const WRITE: u8 = 4;
    /// Closing failed.
    pub const CLOSE: u8 = 8;
}

/// What a process has done with a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Bytes that were read or written.
    pub bytes: u64,
    /// Seconds spent in opening it.
    pub open: f64,
    /// Seconds spent in reading.
    pub read: f64,
    /// Seconds spent in writing.
    pub write: f64,
    /// Seconds spent in closing, up to this message.
    pub close: f64,
    /// What went wrong: see [`errors`].
    pub errors: u8,
}

/// More seconds than a task can take: thirty years.
const MAX_SECONDS: f64 = 1e9;

impl Figures {
    /// Returns the figures without times that cannot be: a message may hold any bytes. Sums of what is left
    /// are numbers.
    #[must_use]
    pub fn plausible(self) -> Self {
        let time = |seconds: f64| match (0.0..=MAX_SECONDS).contains(&seconds) {
            true => seconds,
            false => 0.0,
        };
        Self {
            open: time(self.open),
            read: time(self.read),
            write: time(self.write),
            close: time(self.close),
            ..self
        }
    }
}

/// What a process of a task says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToService {
    /// Who it is. Answers: `Ready`, `Refused`.
    Hello {
        /// [`VERSION`].
        version: u32,
        /// Submit number of the attempt.
        submit: u64,
        /// Rank of the process.
        rank: u32,
        /// Number of ranks.
        ranks: u32,
    },
    /// It saves a file with this prefix. Answers: `Created` with a descriptor for writing, `Refused`.
    Create {
        /// The prefix.
        prefix: String,
    },
    /// It has written the file that it has created last with this prefix. With errors, the file does not
    /// count. Answers: `Done`, `Refused`.
    Close {
        /// The prefix.
        prefix: String,
        /// CRC-32 of each MiB.
        crc32: Vec<u32>,
        /// What it has done.
        figures: Figures,
    },
    /// It needs the file with this prefix from the series that the attempt is given. Answers: `Opened` with a
    /// descriptor for reading, `Refused`.
    Open {
        /// The prefix.
        prefix: String,
    },
    /// It has read the file with this prefix. Answers: `Done`.
    Read {
        /// The prefix.
        prefix: String,
        /// What it has done.
        figures: Figures,
    },
    /// The file with this prefix is not what its sidecar says. Answers: `Done`.
    Damaged {
        /// The prefix.
        prefix: String,
    },
    /// Is the task to save its state now? Answers: `Yes`, `No`.
    IsDue,
    /// Was the run asked to drain, or is its time nearly over? Answers: `Yes`, `No`.
    IsDraining,
    /// What the task says of its progress. The last message counts. Answers: `Done`, `Refused`.
    Message {
        /// The text.
        text: String,
    },
    /// It ends. Answers when the newest series of the task is safe, or after a minute: `Done`.
    Finish,
}

/// What the service answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToTask {
    /// The connection is one of the task.
    Ready {
        /// The series from which the attempt goes on; 0 if there is none.
        given: u64,
    },
    /// A file was created.
    Created {
        /// Its series.
        series: u64,
    },
    /// A file was opened.
    Opened {
        /// Its series.
        series: u64,
        /// Its bytes.
        bytes: u64,
        /// CRC-32 of each MiB.
        crc32: Vec<u32>,
    },
    /// That was done.
    Done,
    /// It is so.
    Yes,
    /// It is not so.
    No,
    /// That cannot be done.
    Refused {
        /// Why, as a sentence for users.
        reason: String,
    },
}

/// Writes a message.
///
/// # Errors
/// It cannot be written, or is too long.
pub fn send(stream: &UnixStream, message: &impl Serialize) -> io::Result<()> {
    peers::send_within(MAX_MESSAGE, stream, message)
}

/// Reads a message.
///
/// # Errors
/// It cannot be read, or is none.
pub fn receive<T: DeserializeOwned>(stream: &UnixStream) -> io::Result<T> {
    peers::receive_within(MAX_MESSAGE, stream)
}

/// Sends the descriptor that belongs to an answer.
///
/// # Errors
/// It cannot be sent.
pub fn send_descriptor(stream: &UnixStream, descriptor: impl AsFd) -> io::Result<()> {
    send_descriptors(stream, &[0], &[descriptor.as_fd().as_raw_fd()])
}

/// Receives the descriptor that belongs to an answer.
///
/// # Errors
/// Something else comes, or nothing.
pub fn receive_descriptor(stream: &UnixStream) -> io::Result<OwnedFd> {
    let (_, descriptors) = receive_descriptors(stream, &mut [0])?;
    let [descriptor] = <[OwnedFd; 1]>::try_from(descriptors).map_err(|_| io::ErrorKind::InvalidData)?;
    Ok(descriptor)
}

/// Returns the value of [`VARIABLE`] for an attempt.
#[must_use]
pub fn address(name: &str, submit: u64) -> String {
    format!("{name}:{submit}")
}

/// Reads the value of [`VARIABLE`]: the name of the socket, and the submit number.
#[must_use]
pub fn parse_address(value: &str) -> Option<(&str, u64)> {
    let (name, submit) = value.rsplit_once(':')?;
    Some((name, submit.parse().ok()?)).filter(|(name, _)| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Seek as _, Write as _};

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn messages_round_trip(prefix in ".{0,30}", crc32: Vec<u32>, bytes: u64, text in ".*", submit: u64) {
            let (task, service) = UnixStream::pair().unwrap();
            let figures = Figures { bytes, open: 0.5, errors: errors::WRITE, ..Figures::default() };
            for message in [
                ToService::Hello { version: VERSION, submit, rank: 1, ranks: 2 },
                ToService::Close { prefix: prefix.clone(), crc32: crc32.clone(), figures },
                ToService::Message { text: text.clone() },
                ToService::IsDue,
            ] {
                send(&task, &message).unwrap();
                prop_assert_eq!(receive::<ToService>(&service).unwrap(), message);
            }
            for answer in [
                ToTask::Opened { series: submit, bytes, crc32 },
                ToTask::Refused { reason: text },
                ToTask::Yes,
            ] {
                send(&service, &answer).unwrap();
                prop_assert_eq!(receive::<ToTask>(&task).unwrap(), answer);
            }
            let value = address("pmc-node-1", submit);
            prop_assert_eq!(parse_address(&value), Some(("pmc-node-1", submit)));
        }

        #[test]
        fn arbitrary_bytes_are_no_panic(bytes: Vec<u8>, text in ".*") {
            let (mut task, service) = UnixStream::pair().unwrap();
            task.write_all(&bytes).unwrap();
            drop(task);
            let _ = receive::<ToService>(&service);
            let _ = parse_address(&text);
        }
    }

    #[test]
    fn times_that_cannot_be_count_as_none() {
        let figures = Figures {
            bytes: 4,
            open: f64::NAN,
            read: -1.0,
            write: f64::MAX,
            close: 0.5,
            errors: 1,
        };
        let plausible = Figures {
            open: 0.0,
            read: 0.0,
            write: 0.0,
            ..figures
        };
        assert_eq!(figures.plausible(), plausible);
    }

    #[test]
    fn a_descriptor_follows_its_answer() {
        let (task, service) = UnixStream::pair().unwrap();
        let path = std::env::temp_dir().join(format!("pmc-wire-checkpoint-{}", std::process::id()));
        let mut file = std::fs::File::options()
            .create_new(true)
            .write(true)
            .read(true)
            .open(&path)
            .unwrap();
        std::fs::remove_file(&path).unwrap();
        send(&service, &ToTask::Created { series: 3 }).unwrap();
        send_descriptor(&service, &file).unwrap();
        send(&service, &ToTask::Done).unwrap();
        assert_eq!(receive::<ToTask>(&task).unwrap(), ToTask::Created { series: 3 });
        let mut other = std::fs::File::from(receive_descriptor(&task).unwrap());
        assert_eq!(receive::<ToTask>(&task).unwrap(), ToTask::Done);
        other.write_all(b"state").unwrap();
        let mut text = String::new();
        file.rewind().unwrap();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "state");
    }
}
