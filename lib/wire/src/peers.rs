//! What a lite job and the agent of its node say to each other, so that nodes get cached files from each
//! other.
//!
//! The agent listens at an abstract socket, whose name tasks find in [`VARIABLE`]. A job makes a connection
//! for each entry of its cache. It says that it has the entry ([`ToAgent::Have`]), or that it needs it
//! ([`ToAgent::Want`]): then the agent answers, and the job fetches the file if it must, and says how that
//! ended. A connection that is closed without a word means that the job has failed.
//!
//! A message is its length, 32 bits in little endian, and that many bytes in the format of `postcard`.

use std::io::{self, Read, Write};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::PathBuf;

use nix::sys::socket::{getsockopt, sockopt};
use pmc_node_files::NodeFile;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Variable with the name of the agent's socket.
pub const VARIABLE: &str = "PEGASUS_LITE_PEERS";

/// Maximum bytes of a message.
const MAX_MESSAGE: u32 = 64 << 10;

/// What a job says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToAgent {
    /// The job needs the entry with this key. If another node has it, its bytes are to be written into the
    /// file, which need not exist.
    Want {
        /// The key.
        key: String,
        /// The file.
        into: PathBuf,
    },
    /// What came from another node is not what it should be.
    Wrong,
    /// The entry is too large for the cache.
    TooLarge,
    /// The entry is in the cache.
    Have(NodeFile),
}

/// The answer to [`ToAgent::Want`] and [`ToAgent::Wrong`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToJob {
    /// Fetch it yourself.
    Fetch,
    /// It is in the file.
    Got {
        /// Its bytes.
        bytes: u64,
    },
}

/// Listens at a name.
///
/// # Errors
/// The name is in use, or too long.
pub fn listen(name: &str) -> io::Result<UnixListener> {
    UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)
}

/// Connects with the agent that listens at a name.
///
/// # Errors
/// Nobody listens, or another user does.
pub fn connect(name: &str) -> io::Result<UnixStream> {
    let stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?)?;
    check_owner(&stream)?;
    Ok(stream)
}

/// Checks that the other side belongs to this user: anybody can connect with an abstract socket.
///
/// # Errors
/// It does not.
pub fn check_owner(stream: &UnixStream) -> io::Result<()> {
    let peer = getsockopt(stream, sockopt::PeerCredentials)?.uid();
    if peer == nix::unistd::geteuid().as_raw() {
        return Ok(());
    }
    Err(io::ErrorKind::PermissionDenied.into())
}

/// Writes a message.
///
/// # Errors
/// It cannot be written, or has a path that is no UTF-8.
pub fn send(stream: impl Write, message: &impl Serialize) -> io::Result<()> {
    send_within(MAX_MESSAGE, stream, message)
}

/// Writes a message of at most `max` bytes.
pub(crate) fn send_within(max: u32, mut stream: impl Write, message: &impl Serialize) -> io::Result<()> {
    let body = postcard::to_allocvec(message).map_err(io::Error::other)?;
    let length = u32::try_from(body.len()).ok();
    let length = length.filter(|length| *length <= max);
    let length = length.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    stream.write_all(&[&length.to_le_bytes()[..], &body].concat())
}

/// Reads a message.
///
/// # Errors
/// It cannot be read, or is none.
pub fn receive<T: DeserializeOwned>(stream: impl Read) -> io::Result<T> {
    receive_within(MAX_MESSAGE, stream)
}

/// Reads a message of at most `max` bytes.
pub(crate) fn receive_within<T: DeserializeOwned>(max: u32, mut stream: impl Read) -> io::Result<T> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length);
    if length > max {
        return Err(io::ErrorKind::InvalidData.into());
    }
    // Memory is taken as the bytes come.
    let mut body = Vec::new();
    stream.take(length.into()).read_to_end(&mut body)?;
    if body.len() < length as usize {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    match postcard::take_from_bytes(&body) {
        Ok((message, [])) => Ok(message),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn messages_round_trip(key in ".*", path in ".*", name in ".*", bytes: u64) {
            let entry = NodeFile {
                key: key.clone(),
                lock: path.clone().into(),
                file: path.clone().into(),
                name,
                bytes,
            };
            let want = ToAgent::Want { key, into: path.into() };
            for message in [want, ToAgent::Wrong, ToAgent::Have(entry)] {
                let mut bytes = Vec::new();
                send(&mut bytes, &message).unwrap();
                prop_assert_eq!(receive::<ToAgent>(&bytes[..]).unwrap(), message);
                bytes.truncate(bytes.len() - 1);
                prop_assert!(receive::<ToAgent>(&bytes[..]).is_err());
            }
        }

        #[test]
        fn arbitrary_bytes_are_no_panic(bytes: Vec<u8>) {
            let _ = (receive::<ToAgent>(&bytes[..]), receive::<ToJob>(&bytes[..]));
        }
    }

    #[test]
    fn who_listens_at_a_name_is_found() {
        let name = format!("pmc-wire-test-{}", std::process::id());
        assert!(connect(&name).is_err());
        let listener = listen(&name).unwrap();
        let job = connect(&name).unwrap();
        let (agent, _) = listener.accept().unwrap();
        check_owner(&agent).unwrap();
        send(&job, &ToJob::Got { bytes: 7 }).unwrap();
        assert_eq!(receive::<ToJob>(&agent).unwrap(), ToJob::Got { bytes: 7 });
        drop(job);
        assert!(receive::<ToJob>(&agent).is_err());
    }
}
