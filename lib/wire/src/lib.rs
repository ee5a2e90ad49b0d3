//! The wire format between the executor and its task server: one pair of sockets and two pipes.
//!
//! The server makes the pipes and sends the executor's ends over the socket with [`GREETING`]. For each task
//! the executor writes one [`Request`], and the server answers with one [`Reply`] when the task has ended.
//! Requests and replies go through the pipes: a round trip takes half as long as over a socket. Descriptors
//! cannot go through a pipe, so they precede the request over the socket, as `SCM_RIGHTS` of one byte. A
//! request without descriptors reuses the streams of the request before. Each request has a [`Ticket`], and
//! only a reply with the same ticket counts: a task might find a way to write into the pipe.
//!
//! A request is the number of descriptors and the length of the rest, of 32 bits, little endian, and then
//! the fields in the encoding of `postcard`. Executor and server come from one installation, so the greeting
//! changes with every change of the format.

pub mod checkpoint;
pub mod command;
pub mod peers;
pub mod ranks;

use std::io::{self, ErrorKind, IoSlice, IoSliceMut, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};
use serde::{Deserialize, Serialize};

/// Name of the server program, which lies beside `pegasus-kickstart`. Its standard input is the socket. Its
/// standard output is a pipe that the executor closes to cancel the running task.
pub const SERVER_NAME: &str = "pegasus-kickstart-server";

/// The first message of a server.
pub const GREETING: [u8; 8] = *b"pmc-ks09";

/// Maximum descriptors sent with a message: a limit of the kernel.
pub const MAX_DESCRIPTORS: usize = 253;

/// Maximum bytes of a request: more than any system allows for arguments and environment.
const MAX_REQUEST: usize = 64 << 20;

/// Bytes of the number of descriptors, which precedes a request.
const COUNT_BYTES: usize = 4;

/// Bytes read at first; most requests are shorter.
const TYPICAL_REQUEST: usize = 2 << 10;

/// Bytes of a reply with its ticket, whose numbers have fixed lengths.
const REPLY_BYTES: usize = 34;

/// One side's ends of the two pipes.
#[derive(Debug)]
pub struct PipeEnds {
    /// Messages of the other side.
    pub read: PipeReader,
    /// Messages of this side.
    pub write: PipeWriter,
}

/// Names a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ticket {
    /// Counts the requests of an executor's worker.
    #[serde(with = "postcard::fixint::le")]
    pub number: u64,
    /// Random bytes, so that no other process can forge a reply.
    pub token: [u8; 16],
}

/// The program that a task calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Tool {
    /// `pegasus-kickstart`.
    #[default]
    Kickstart,
    /// `pegasus-lite`.
    Lite,
}

impl Tool {
    /// All programs.
    pub const ALL: [Self; 2] = [Self::Kickstart, Self::Lite];

    /// Name of the program.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Kickstart => pmc_calls::KICKSTART,
            Self::Lite => pmc_calls::LITE,
        }
    }
}

/// A task as the executor describes it.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Request<'a> {
    /// Names the request.
    pub ticket: Ticket,
    /// The program that the server stands in for.
    pub tool: Tool,
    /// Arguments of the program, without its name.
    pub words: &'a [&'a [u8]],
    /// Variables as `NAME=value`, added to those that the server inherited; the last of equal names counts.
    pub variables: &'a [&'a [u8]],
    /// CPUs to run on; empty means those of the server.
    pub cpus: &'a [u32],
    /// Working directory, as from that in which the server was started; empty means this one.
    pub directory: &'a [u8],
}

impl Request<'_> {
    /// Encodes the request for [`send_request`].
    ///
    /// # Errors
    /// It cannot be encoded.
    pub fn encode(&self) -> io::Result<Vec<u8>> {
        let mut message = postcard::to_extend(self, vec![0; 4]).map_err(io::Error::other)?;
        // `send_request` refuses a message that is too long.
        let length = u32::try_from(message.len() - 4).unwrap_or(u32::MAX);
        message[..4].copy_from_slice(&length.to_le_bytes());
        Ok(message)
    }
}

/// Sends an encoded request. `descriptors` are standard input, output and error, then those of the pipes. It
/// may be empty if there are no pipes: the server then reuses the streams it got last.
///
/// The calling process must ignore `SIGPIPE`.
///
/// # Errors
/// Socket or pipe fail. The server has not started the task then.
pub fn send_request(
    socket: impl AsFd,
    pipe: &PipeWriter,
    message: &[u8],
    descriptors: &[RawFd],
) -> io::Result<()> {
    if message.len() > MAX_REQUEST {
        return Err(Errno::E2BIG.into());
    }
    if !descriptors.is_empty() {
        send_descriptors(socket, &[0], descriptors)?;
    }
    let count = u32::try_from(descriptors.len()).map_err(|_| malformed())?;
    let count = count.to_le_bytes();
    let mut pipe = pipe;
    // A pipe takes the first bytes in one piece.
    let sent = retry_interrupted(|| pipe.write_vectored(&[IoSlice::new(&count), IoSlice::new(message)]))?;
    let rest = sent.checked_sub(COUNT_BYTES).and_then(|sent| message.get(sent..));
    pipe.write_all(rest.ok_or(ErrorKind::WriteZero)?)
}

/// Sends descriptors. `bytes` are few, so that one call sends them all.
fn send_descriptors(socket: impl AsFd, bytes: &[u8], descriptors: &[RawFd]) -> io::Result<()> {
    let (vector, rights) = ([IoSlice::new(bytes)], [ControlMessage::ScmRights(descriptors)]);
    let socket = socket.as_fd().as_raw_fd();
    retry_interrupted(|| {
        Ok(sendmsg::<()>(
            socket,
            &vector,
            &rights,
            MsgFlags::MSG_NOSIGNAL,
            None,
        )?)
    })
    .map(drop)
}

/// A task as the server receives it.
#[derive(Debug, Default, Deserialize)]
pub struct Received<'a> {
    /// As [`Request::ticket`].
    pub ticket: Ticket,
    /// As [`Request::tool`].
    pub tool: Tool,
    /// As [`Request::words`].
    #[serde(borrow)]
    pub words: Vec<&'a [u8]>,
    /// As [`Request::variables`].
    #[serde(borrow)]
    pub variables: Vec<&'a [u8]>,
    /// As [`Request::cpus`].
    pub cpus: Vec<u32>,
    /// As [`Request::directory`].
    pub directory: &'a [u8],
    /// Standard input, output and error; `None` means those of the request before.
    #[serde(skip)]
    pub streams: Option<[OwnedFd; 3]>,
    /// Descriptors of the pipes. The job inherits them as 3, 4, … in this order.
    #[serde(skip)]
    pub descriptors: Vec<OwnedFd>,
    /// Size of the message in bytes.
    #[serde(skip)]
    pub size: usize,
}

/// Waits for a request and reads it into `buffer`. Returns `None` if the executor has ended.
///
/// # Errors
/// Socket or pipe fail, or the message is malformed.
pub fn receive_request<'a>(
    socket: impl AsFd,
    pipe: &PipeReader,
    buffer: &'a mut Vec<u8>,
) -> io::Result<Option<Received<'a>>> {
    const HEAD: usize = COUNT_BYTES + 4;
    let (mut pipe, message) = (pipe, buffer);
    message.resize(TYPICAL_REQUEST.max(message.len()), 0);
    let mut filled = retry_interrupted(|| pipe.read(message))?;
    if filled == 0 {
        return Ok(None);
    }
    let mut fill = |message: &mut [u8], to: usize| -> io::Result<()> {
        if filled < to {
            pipe.read_exact(&mut message[filled..to])?;
            filled = to;
        }
        Ok(())
    };
    fill(message, HEAD)?;
    let number = |at: usize| {
        message[at..]
            .first_chunk()
            .map_or(0, |bytes| u32::from_le_bytes(*bytes) as usize)
    };
    let (count, length) = (number(0), number(COUNT_BYTES));
    if length > MAX_REQUEST || count > MAX_DESCRIPTORS {
        return Err(malformed());
    }
    message.resize((HEAD + length).max(message.len()), 0);
    fill(message, HEAD + length)?;
    if filled > HEAD + length {
        return Err(malformed());
    }
    let (mut received, rest) =
        postcard::take_from_bytes::<Received<'_>>(&message[HEAD..HEAD + length]).map_err(|_| malformed())?;
    if !rest.is_empty() {
        return Err(malformed());
    }
    if count > 0 {
        let (bytes, descriptors) = receive_descriptors(socket, &mut [0])?;
        if bytes == 0 || descriptors.len() != count {
            return Err(malformed());
        }
        let mut descriptors = descriptors.into_iter();
        let streams = [descriptors.next(), descriptors.next(), descriptors.next()];
        let [Some(stdin), Some(stdout), Some(stderr)] = streams else {
            return Err(malformed());
        };
        received.streams = Some([stdin, stdout, stderr]);
        received.descriptors = descriptors.collect();
    }
    received.size = length;
    Ok(Some(received))
}

/// Receives bytes into `buffer` and the descriptors sent with them. Returns the number of bytes, too.
fn receive_descriptors(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let socket = socket.as_fd().as_raw_fd();
    let mut space = cmsg_space!([RawFd; MAX_DESCRIPTORS]);
    let mut descriptors = Vec::new();
    let count = loop {
        let mut vector = [IoSliceMut::new(buffer)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        match recvmsg::<()>(socket, &mut vector, Some(&mut space), flags) {
            Ok(received) => {
                for control in received.cmsgs()? {
                    if let ControlMessageOwned::ScmRights(numbers) = control {
                        #[expect(unsafe_code, reason = "descriptors arrive as plain numbers")]
                        // SAFETY: the kernel has just opened these descriptors for this call; nothing else
                        // owns them.
                        descriptors.extend(numbers.iter().map(|&fd| unsafe { OwnedFd::from_raw_fd(fd) }));
                    }
                }
                break received.bytes;
            }
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    };
    Ok((count, descriptors))
}

/// Repeats a system call that a signal interrupts.
fn retry_interrupted<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

fn malformed() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "malformed request")
}

/// The outcome of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    /// Exit code of the program.
    pub code: u8,
    /// True if the server ends after this task: it has become large, or processes of the task live on.
    pub last: bool,
    /// Peak resident memory of the task's processes, KiB; 0 if it is unknown.
    #[serde(with = "postcard::fixint::le")]
    pub peak_kib: u64,
}

/// Sends a reply to the request with this ticket. The calling process must ignore `SIGPIPE`.
///
/// # Errors
/// The pipe fails.
pub fn send_reply(pipe: &PipeWriter, ticket: Ticket, reply: Reply) -> io::Result<()> {
    let mut pipe = pipe;
    let mut message = [0; REPLY_BYTES];
    postcard::to_slice(&(reply, ticket), &mut message).map_err(io::Error::other)?;
    pipe.write_all(&message)
}

/// Waits for the reply to the request with this ticket. Returns `None` if the server has ended without one.
///
/// # Errors
/// The pipe fails. [`ErrorKind::InvalidData`] means that the reply has another ticket, so it is not from the
/// server.
pub fn receive_reply(pipe: &PipeReader, ticket: Ticket) -> io::Result<Option<Reply>> {
    let mut pipe = pipe;
    let mut message = [0; REPLY_BYTES];
    match pipe.read_exact(&mut message) {
        Ok(()) => match postcard::from_bytes::<(Reply, Ticket)>(&message) {
            Ok((reply, found)) if found == ticket => Ok(Some(reply)),
            _ => Err(io::Error::new(
                ErrorKind::InvalidData,
                "not the reply to this request",
            )),
        },
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

/// Greets the executor. Returns the server's ends of the pipes.
///
/// # Errors
/// The socket fails, or no pipe can be made.
pub fn send_greeting(socket: impl AsFd) -> io::Result<PipeEnds> {
    let (read, requests) = io::pipe()?;
    let (replies, write) = io::pipe()?;
    send_descriptors(socket, &GREETING, &[replies.as_raw_fd(), requests.as_raw_fd()])?;
    Ok(PipeEnds { read, write })
}

/// Waits for the greeting. Returns the executor's ends of the pipes, or `None` if anything else arrives.
///
/// # Errors
/// The socket fails.
pub fn receive_greeting(socket: impl AsFd) -> io::Result<Option<PipeEnds>> {
    let mut message = [0; GREETING.len()];
    let (count, descriptors) = match receive_descriptors(socket, &mut message) {
        Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(None),
        received => received?,
    };
    let Ok([replies, requests]) = <[OwnedFd; 2]>::try_from(descriptors) else {
        return Ok(None);
    };
    Ok((count == message.len() && message == GREETING).then(|| PipeEnds {
        read: replies.into(),
        write: requests.into(),
    }))
}

#[cfg(test)]
mod tests;
