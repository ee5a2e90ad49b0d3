//! The wire format between the executor and its task server: one pair of sockets and two pipes.
//!
//! The server makes the pipes and sends the executor's ends over the socket with [`GREETING`]. For each task
//! the executor writes one [`Request`], and the server answers with one [`Reply`] when the task has ended.
//! Requests and replies go through the pipes: a round trip takes half as long as over a socket. Descriptors
//! cannot go through a pipe, so they precede the request over the socket, as `SCM_RIGHTS` of one byte. A
//! request without descriptors reuses the streams of the request before. Each request has a [`Ticket`], and
//! only a reply with the same ticket counts: a task might find a way to write into the pipe.
//!
//! Lengths and numbers are 32 bits, little endian. A request is the number of descriptors, the length of the
//! rest, the ticket, the tool, and then the fields in order, each as a list with its number of entries.
//! Executor and server come from one installation, so the greeting changes with every change of the format.

pub mod peers;

use std::ffi::OsString;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStringExt;

use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};

/// Name of the server program, which lies beside `pegasus-kickstart`. Its standard input is the socket. Its
/// standard output is a pipe that the executor closes to cancel the running task.
pub const SERVER_NAME: &str = "pegasus-kickstart-server";

/// The first message of a server.
pub const GREETING: [u8; 8] = *b"pmc-ks08";

/// Maximum descriptors sent with a message: a limit of the kernel.
pub const MAX_DESCRIPTORS: usize = 253;

/// Maximum bytes of a request: more than any system allows for arguments and environment.
const MAX_REQUEST: usize = 64 << 20;

/// Bytes of the number of descriptors, which precedes a request.
const COUNT_BYTES: usize = 4;

/// Bytes read at first; most requests are shorter.
const TYPICAL_REQUEST: usize = 2 << 10;

/// Maximum entries for which a list reserves memory at once.
const TYPICAL_ENTRIES: usize = 16;

/// Bytes of a reply.
const REPLY_BYTES: usize = 10 + TICKET_BYTES;

/// Bytes of a ticket.
const TICKET_BYTES: usize = 24;

/// One side's ends of the two pipes.
#[derive(Debug)]
pub struct PipeEnds {
    /// Messages of the other side.
    pub read: PipeReader,
    /// Messages of this side.
    pub write: PipeWriter,
}

/// Names a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ticket {
    /// Counts the requests of an executor's worker.
    pub number: u64,
    /// Random bytes, so that no other process can forge a reply.
    pub token: [u8; 16],
}

impl Ticket {
    fn to_bytes(self) -> [u8; TICKET_BYTES] {
        let mut bytes = [0; TICKET_BYTES];
        bytes[..8].copy_from_slice(&self.number.to_le_bytes());
        bytes[8..].copy_from_slice(&self.token);
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (number, token) = bytes.split_first_chunk()?;
        Some(Self {
            number: u64::from_le_bytes(*number),
            token: token.try_into().ok()?,
        })
    }
}

/// The program that a task calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tool {
    /// `pegasus-kickstart`.
    #[default]
    Kickstart,
    /// `pegasus-lite`.
    Lite,
}

impl Tool {
    /// All programs; the place of one is its number in a request.
    pub const ALL: [Self; 2] = [Self::Kickstart, Self::Lite];

    /// Name of the program.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Kickstart => "pegasus-kickstart",
            Self::Lite => "pegasus-lite",
        }
    }
}

/// A task as the executor describes it.
#[derive(Clone, Copy, Debug)]
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
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut message = vec![0; 4];
        message.extend_from_slice(&self.ticket.to_bytes());
        let tool = Tool::ALL.iter().position(|&tool| tool == self.tool);
        put(&mut message, tool.unwrap_or(0));
        for list in [self.words, self.variables] {
            put(&mut message, list.len());
            for entry in list {
                put(&mut message, entry.len());
                message.extend_from_slice(entry);
            }
        }
        put(&mut message, self.cpus.len());
        for cpu in self.cpus {
            message.extend_from_slice(&cpu.to_le_bytes());
        }
        put(&mut message, self.directory.len());
        message.extend_from_slice(self.directory);
        let length = u32::try_from(message.len() - 4).unwrap_or(u32::MAX);
        message[..4].copy_from_slice(&length.to_le_bytes());
        message
    }
}

fn put(message: &mut Vec<u8>, number: usize) {
    // `send_request` refuses a message that is too long.
    message.extend_from_slice(&u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes());
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
#[derive(Debug, Default)]
pub struct Received<'a> {
    /// As [`Request::ticket`].
    pub ticket: Ticket,
    /// As [`Request::tool`].
    pub tool: Tool,
    /// As [`Request::words`].
    pub words: Vec<OsString>,
    /// As [`Request::variables`].
    pub variables: Vec<&'a [u8]>,
    /// As [`Request::cpus`].
    pub cpus: Vec<u32>,
    /// As [`Request::directory`].
    pub directory: &'a [u8],
    /// Standard input, output and error; `None` means those of the request before.
    pub streams: Option<[OwnedFd; 3]>,
    /// Descriptors of the pipes. The job inherits them as 3, 4, … in this order.
    pub descriptors: Vec<OwnedFd>,
    /// Size of the message in bytes.
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
    let mut head = Reader(message);
    let mut number = || head.number().unwrap_or(0) as usize;
    let (count, length) = (number(), number());
    if length > MAX_REQUEST || count > MAX_DESCRIPTORS {
        return Err(malformed());
    }
    message.resize((HEAD + length).max(message.len()), 0);
    fill(message, HEAD + length)?;
    if filled > HEAD + length {
        return Err(malformed());
    }
    let mut received = Reader(&message[HEAD..HEAD + length])
        .request()
        .ok_or_else(malformed)?;
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

/// Decodes a message; `None` where it ends too early.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(bytes)
    }

    fn number(&mut self) -> Option<u32> {
        let bytes = self.bytes(4)?.try_into().ok()?;
        Some(u32::from_le_bytes(bytes))
    }

    fn texts<T>(&mut self, make: impl Fn(&'a [u8]) -> T) -> Option<Vec<T>> {
        let count = self.number()? as usize;
        let mut texts = Vec::with_capacity(count.min(TYPICAL_ENTRIES));
        for _ in 0..count {
            let length = self.number()? as usize;
            texts.push(make(self.bytes(length)?));
        }
        Some(texts)
    }

    fn text(&mut self) -> Option<&'a [u8]> {
        let length = self.number()? as usize;
        self.bytes(length)
    }

    fn request(mut self) -> Option<Received<'a>> {
        let received = Received {
            ticket: Ticket::from_bytes(self.bytes(TICKET_BYTES)?)?,
            tool: *Tool::ALL.get(self.number()? as usize)?,
            words: self.texts(|word| OsString::from_vec(word.to_vec()))?,
            variables: self.texts(|variable| variable)?,
            cpus: (0..self.number()?)
                .map(|_| self.number())
                .collect::<Option<_>>()?,
            directory: self.text()?,
            ..Received::default()
        };
        self.0.is_empty().then_some(received)
    }
}

/// The outcome of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Exit code of the program.
    pub code: u8,
    /// True if the server ends after this task: it has become large, or processes of the task live on.
    pub last: bool,
    /// Peak resident memory of the task's processes, KiB; 0 if it is unknown.
    pub peak_kib: u64,
}

/// Sends a reply to the request with this ticket. The calling process must ignore `SIGPIPE`.
///
/// # Errors
/// The pipe fails.
pub fn send_reply(pipe: &PipeWriter, ticket: Ticket, reply: Reply) -> io::Result<()> {
    let mut pipe = pipe;
    let mut message = [0; REPLY_BYTES];
    (message[0], message[1]) = (reply.code, u8::from(reply.last));
    message[2..10].copy_from_slice(&reply.peak_kib.to_le_bytes());
    message[10..].copy_from_slice(&ticket.to_bytes());
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
        Ok(()) => {
            let (reply, found) = message.split_at(REPLY_BYTES - TICKET_BYTES);
            if Ticket::from_bytes(found) != Some(ticket) {
                return Err(io::Error::new(
                    ErrorKind::InvalidData,
                    "not the reply to this request",
                ));
            }
            let mut peak_kib = [0; 8];
            peak_kib.copy_from_slice(&reply[2..]);
            Ok(Some(Reply {
                code: reply[0],
                last: reply[1] != 0,
                peak_kib: u64::from_le_bytes(peak_kib),
            }))
        }
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
