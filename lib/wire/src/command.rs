//! What `pmc-rsh` and an agent on another host say to each other, so that processes of a gang run commands
//! there.
//!
//! A process of a gang finds the token of the gang in [`VARIABLE`]. With it, `pmc-rsh` connects with the
//! agent of its host, at an abstract socket, and sends a [`Call`]. The agent connects with the agent of the
//! host that the call names, and from then on passes all bytes in both directions: the other agent runs the
//! command, and both sides send [`ToCommand`] and [`ToCaller`].
//!
//! Each stream has one frame on its way at most: the next one is sent when the other side has said that it
//! has taken the last one. So a stream that nobody reads holds up neither the others nor the end, and nobody
//! keeps more than a frame of each.
//!
//! A frame is its length, 32 bits in big endian, and that many bytes in the format of `postcard`.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::peers;

/// Variable with the token of a gang.
pub const VARIABLE: &str = "PMC_GANG";

/// Maximum bytes of a frame.
pub const MAX_FRAME: usize = 4 << 20;

/// Bytes of a stream in one frame, at most.
pub const MAX_DATA: usize = 128 << 10;

/// Digits of a token that name the sockets of agents. The others stay unknown to those who see the names.
const NAMED_DIGITS: usize = 16;

/// What a process of a gang wants to be run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// Token of the gang.
    pub token: String,
    /// Name of the host.
    pub host: String,
    /// The command, for a shell.
    #[serde(with = "serde_bytes")]
    pub command: Vec<u8>,
    /// Standard input is empty.
    pub no_input: bool,
}

/// What the caller says while the command runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToCommand {
    /// The next bytes of its standard input. None: it ends.
    Input(#[serde(with = "serde_bytes")] Vec<u8>),
    /// The last frame of this stream was taken.
    Taken(Stream),
    /// Send this signal to the group of the command.
    Signal(i32),
}

/// What the side of the command says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToCaller {
    /// The next bytes of a stream.
    Output(Stream, #[serde(with = "serde_bytes")] Vec<u8>),
    /// The last frame of the standard input was taken.
    Taken,
    /// The command has ended with this wait status, and all its output was sent.
    Ended(i32),
    /// The command was not started: why, as a sentence for the user.
    Refused(String),
}

/// Output of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// Names of the sockets at which agents of a gang listen, in the order in which they are tried. If several
/// agents share a machine, its lead knows the others.
#[must_use]
pub fn sockets(token: &str) -> [String; 2] {
    let named = token.get(..NAMED_DIGITS).unwrap_or(token);
    ["lead", "member"].map(|role| format!("pmc-{role}-{named}"))
}

/// Connects with the agent of this host.
///
/// # Errors
/// Nobody listens, or another user does.
pub fn connect(token: &str) -> io::Result<UnixStream> {
    let [lead, member] = sockets(token);
    peers::connect(&lead).or_else(|_| peers::connect(&member))
}

/// Returns a frame.
///
/// # Errors
/// It is too large.
pub fn frame(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let body = postcard::to_allocvec(message).map_err(io::Error::other)?;
    let length = u32::try_from(body.len()).ok();
    let length = length.filter(|_| body.len() <= MAX_FRAME);
    let length = length.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    Ok([&length.to_be_bytes()[..], &body].concat())
}

/// Returns the message in the body of a frame.
///
/// # Errors
/// It is none.
pub fn decode<T: DeserializeOwned>(body: &[u8]) -> io::Result<T> {
    match postcard::take_from_bytes(body) {
        Ok((message, [])) => Ok(message),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Writes a frame.
///
/// # Errors
/// It cannot be written, or is too large.
pub fn send(mut stream: impl Write, message: &impl Serialize) -> io::Result<()> {
    stream.write_all(&frame(message)?)
}

/// Reads a frame. `None` at the end of the stream.
///
/// # Errors
/// It cannot be read, or is none.
pub fn receive<T: DeserializeOwned>(mut stream: impl Read) -> io::Result<Option<T>> {
    let mut length = [0; 4];
    match stream.read(&mut length[..1])? {
        0 => return Ok(None),
        _ => stream.read_exact(&mut length[1..])?,
    }
    let length = u32::from_be_bytes(length) as usize;
    if length > MAX_FRAME {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    decode(&body).map(Some)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn frames_round_trip(token in ".*", host in ".*", bytes: Vec<u8>, number: i32, no_input: bool) {
            let call = Call { token, host: host.clone(), command: bytes.clone(), no_input };
            let mut stream = Vec::new();
            send(&mut stream, &call).unwrap();
            let to_command = [
                ToCommand::Input(bytes.clone()),
                ToCommand::Taken(Stream::Err),
                ToCommand::Signal(number),
            ];
            let to_caller = [
                ToCaller::Output(Stream::Out, bytes),
                ToCaller::Taken,
                ToCaller::Ended(number),
                ToCaller::Refused(host),
            ];
            to_command.iter().for_each(|message| send(&mut stream, message).unwrap());
            to_caller.iter().for_each(|message| send(&mut stream, message).unwrap());
            let mut read = &stream[..];
            prop_assert_eq!(receive(&mut read).unwrap(), Some(call));
            for message in to_command {
                prop_assert_eq!(receive(&mut read).unwrap(), Some(message));
            }
            for message in to_caller {
                prop_assert_eq!(receive(&mut read).unwrap(), Some(message));
            }
            prop_assert_eq!(receive::<ToCaller>(&mut read).unwrap(), None);
        }

        #[test]
        fn arbitrary_bytes_are_no_panic(bytes: Vec<u8>) {
            let _ = (receive::<Call>(&bytes[..]), receive::<ToCommand>(&bytes[..]), receive::<ToCaller>(&bytes[..]));
        }
    }

    #[test]
    fn a_frame_has_a_maximum() {
        let long = ToCommand::Input(vec![0; MAX_FRAME + 1]);
        assert!(frame(&long).is_err());
        let claims = [&u32::MAX.to_be_bytes()[..], &[0; 9]].concat();
        assert!(receive::<ToCommand>(&claims[..]).is_err());
    }

    #[test]
    fn names_of_sockets_do_not_tell_the_token() {
        let token = "0123456789abcdef0123456789abcdef";
        assert_eq!(
            sockets(token),
            ["pmc-lead-0123456789abcdef", "pmc-member-0123456789abcdef"]
        );
        assert_eq!(sockets("é"), ["pmc-lead-é", "pmc-member-é"]);
    }
}
