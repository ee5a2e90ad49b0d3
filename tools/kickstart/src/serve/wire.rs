//! What an executor and a server of [`super`] say to each other over a pair of sockets and two pipes.
//!
//! The server makes the pipes and sends the executor's ends of them over the socket with [`GREETING`]. For each task
//! the executor writes one [`Request`], and the server one [`Reply`] when everything is over: a message through a
//! pipe and back takes half as long as over a socket. Descriptors cannot go through a pipe; they are sent over the
//! socket before the request, as `SCM_RIGHTS` of one byte. A request without descriptors is for a task with the same
//! streams as the one before. Lengths and numbers are 32 bits, little endian; a request is the number of descriptors,
//! the length of the rest, and then, in the order of the fields, lists with their number of entries.
//! Both sides come from one installation: the greeting changes with every change of the format.

use std::ffi::OsString;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStringExt;

use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};

/// Name of the program that serves, in the directory of `pegasus-kickstart`; its standard input is the socket, its
/// standard output a pipe that is closed when the running task is not wanted any more.
pub const SERVER_NAME: &str = "pegasus-kickstart-server";

/// First words of a server.
pub const GREETING: [u8; 8] = *b"pmc-ks04";

/// Most descriptors that go with a message: a limit of the kernel.
pub const MOST_DESCRIPTORS: usize = 253;

/// Longest request: more than any system lets a program have as arguments and environment.
const LONGEST: usize = 64 << 20;

/// Bytes before a request: the number of descriptors.
const COUNT: usize = 4;

/// Most requests have fewer bytes.
const USUAL: usize = 2 << 10;

/// Most lists have fewer entries.
const USUAL_COUNT: usize = 16;

/// Bytes of a reply.
const REPLY: usize = 2;

/// What one side has of the two pipes.
#[derive(Debug)]
pub struct Ends {
    /// What the other side says.
    pub read: PipeReader,
    /// What this side says.
    pub write: PipeWriter,
}

/// A task as the executor describes it.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Arguments of kickstart, without its name.
    pub words: &'a [&'a [u8]],
    /// `NAME=value`: variables besides those that the server inherited; later ones count.
    pub variables: &'a [&'a [u8]],
    /// Variables that get the number of a descriptor as their value, for the descriptors after the first three.
    /// `variables` go before. One without a name has a descriptor, too.
    pub pipes: &'a [&'a [u8]],
    /// CPUs to run on; empty for those of the server.
    pub cpus: &'a [u32],
}

impl Request<'_> {
    /// The request as it is sent.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut message = vec![0; 4];
        for list in [self.words, self.variables, self.pipes] {
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
        let length = u32::try_from(message.len() - 4).unwrap_or(u32::MAX);
        message[..4].copy_from_slice(&length.to_le_bytes());
        message
    }
}

fn put(message: &mut Vec<u8>, number: usize) {
    // Too long a message is refused when it is sent.
    message.extend_from_slice(&u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes());
}

/// Sends an encoded request. `descriptors` are standard input, output and error, and those of the pipes; none for
/// the streams that the server was sent last, if there are no pipes.
///
/// # Errors
/// Those of socket and pipe; the server has not begun the task then. The calling process must ignore `SIGPIPE`.
pub fn send_request(
    socket: impl AsFd,
    pipe: &PipeWriter,
    message: &[u8],
    descriptors: &[RawFd],
) -> io::Result<()> {
    if message.len() > LONGEST {
        return Err(Errno::E2BIG.into());
    }
    if !descriptors.is_empty() {
        send_descriptors(socket, &[0], descriptors)?;
    }
    let count = u32::try_from(descriptors.len()).map_err(|_| malformed())?;
    let count = count.to_le_bytes();
    let mut pipe = pipe;
    // So little goes at once.
    let sent = again(|| pipe.write_vectored(&[IoSlice::new(&count), IoSlice::new(message)]))?;
    let rest = sent.checked_sub(COUNT).and_then(|sent| message.get(sent..));
    pipe.write_all(rest.ok_or(ErrorKind::WriteZero)?)
}

/// Sends descriptors with so few bytes that they go at once.
fn send_descriptors(socket: impl AsFd, bytes: &[u8], descriptors: &[RawFd]) -> io::Result<()> {
    let (vector, rights) = ([IoSlice::new(bytes)], [ControlMessage::ScmRights(descriptors)]);
    let socket = socket.as_fd().as_raw_fd();
    again(|| {
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

/// A task as the server gets it.
#[derive(Debug, Default)]
pub struct Received<'a> {
    /// As [`Request::words`].
    pub words: Vec<OsString>,
    /// As [`Request::variables`].
    pub variables: Vec<&'a [u8]>,
    /// As [`Request::pipes`].
    pub pipes: Vec<&'a [u8]>,
    /// As [`Request::cpus`].
    pub cpus: Vec<u32>,
    /// Standard input, output and error, if they are not those of the request before.
    pub streams: Option<[OwnedFd; 3]>,
    /// The descriptors of the pipes.
    pub descriptors: Vec<OwnedFd>,
    /// Bytes of the message.
    pub size: usize,
}

/// Waits for a request; `None` if the executor is gone. The message is gathered in `buffer`.
///
/// # Errors
/// Those of socket and pipe, or the message is none.
pub fn receive_request<'a>(
    socket: impl AsFd,
    pipe: &PipeReader,
    buffer: &'a mut Vec<u8>,
) -> io::Result<Option<Received<'a>>> {
    const HEAD: usize = COUNT + 4;
    let (mut pipe, message) = (pipe, buffer);
    message.resize(USUAL.max(message.len()), 0);
    let mut filled = again(|| pipe.read(message))?;
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
    if length > LONGEST || count > MOST_DESCRIPTORS {
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
    if received.pipes.len() != received.descriptors.len() {
        return Err(malformed());
    }
    received.size = length;
    Ok(Some(received))
}

/// Some bytes, and the descriptors that came with them.
fn receive_descriptors(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let socket = socket.as_fd().as_raw_fd();
    let mut space = cmsg_space!([RawFd; MOST_DESCRIPTORS]);
    let mut descriptors = Vec::new();
    let count = loop {
        let mut vector = [IoSliceMut::new(buffer)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        match recvmsg::<()>(socket, &mut vector, Some(&mut space), flags) {
            Ok(received) => {
                for control in received.cmsgs()? {
                    if let ControlMessageOwned::ScmRights(numbers) = control {
                        #[expect(unsafe_code, reason = "the kernel has just made them for this process")]
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

fn again<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
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

/// Takes a message apart; `None` where it ends too early.
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
        let mut texts = Vec::with_capacity(count.min(USUAL_COUNT));
        for _ in 0..count {
            let length = self.number()? as usize;
            texts.push(make(self.bytes(length)?));
        }
        Some(texts)
    }

    fn request(mut self) -> Option<Received<'a>> {
        let received = Received {
            words: self.texts(|word| OsString::from_vec(word.to_vec()))?,
            variables: self.texts(|variable| variable)?,
            pipes: self.texts(|pipe| pipe)?,
            cpus: (0..self.number()?)
                .map(|_| self.number())
                .collect::<Option<_>>()?,
            ..Received::default()
        };
        self.0.is_empty().then_some(received)
    }
}

/// How a task went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Exit code of kickstart.
    pub code: u8,
    /// The server ends: it has become large, or a process of the task is still there.
    pub last: bool,
}

/// Sends the reply.
///
/// # Errors
/// Those of the pipe. The calling process must ignore `SIGPIPE`.
pub fn send_reply(pipe: &PipeWriter, reply: Reply) -> io::Result<()> {
    let mut pipe = pipe;
    pipe.write_all(&[reply.code, u8::from(reply.last)])
}

/// Waits for the reply; `None` if the server has ended without one.
///
/// # Errors
/// Those of the pipe.
pub fn receive_reply(pipe: &PipeReader) -> io::Result<Option<Reply>> {
    let mut pipe = pipe;
    let mut message = [0; REPLY];
    match pipe.read_exact(&mut message) {
        Ok(()) => Ok(Some(Reply {
            code: message[0],
            last: message[1] != 0,
        })),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

/// Greets the executor. Gives the pipes to hear its requests and to answer.
///
/// # Errors
/// Those of the socket, or no pipe can be made.
pub fn greet(socket: impl AsFd) -> io::Result<Ends> {
    let (read, requests) = io::pipe()?;
    let (replies, write) = io::pipe()?;
    send_descriptors(socket, &GREETING, &[replies.as_raw_fd(), requests.as_raw_fd()])?;
    Ok(Ends { read, write })
}

/// Waits for the greeting; `None` if something else came, or nothing. Gives the pipes to hear the replies and to send
/// requests.
///
/// # Errors
/// Those of the socket.
pub fn receive_greeting(socket: impl AsFd) -> io::Result<Option<Ends>> {
    let mut message = [0; GREETING.len()];
    let (count, descriptors) = match receive_descriptors(socket, &mut message) {
        Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(None),
        received => received?,
    };
    let Ok([replies, requests]) = <[OwnedFd; 2]>::try_from(descriptors) else {
        return Ok(None);
    };
    Ok((count == message.len() && message == GREETING).then(|| Ends {
        read: replies.into(),
        write: requests.into(),
    }))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read as _, Write as _};
    use std::os::unix::ffi::OsStrExt as _;
    use std::os::unix::net::UnixStream;

    use proptest::prelude::*;

    use super::*;

    fn sent<'a>(
        request: Request<'_>,
        descriptors: &[RawFd],
        buffer: &'a mut Vec<u8>,
    ) -> io::Result<Option<Received<'a>>> {
        let (here, there) = UnixStream::pair().unwrap();
        let (read, write) = io::pipe().unwrap();
        let message = request.encode();
        std::thread::scope(|scope| {
            scope.spawn(|| send_request(&here, &write, &message, descriptors).unwrap());
            receive_request(&there, &read, buffer)
        })
    }

    proptest! {
        #[test]
        fn requests_arrive(words: Vec<Vec<u8>>, variables: Vec<Vec<u8>>, cpus: Vec<u32>) {
            let null = File::open("/dev/null").unwrap();
            let refs = |list: &'_ [Vec<u8>]| list.iter().map(|text| text.to_vec()).collect::<Vec<_>>();
            let (words, variables) = (refs(&words), refs(&variables));
            let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
            let variables: Vec<&[u8]> = variables.iter().map(Vec::as_slice).collect();
            let request = Request { words: &words, variables: &variables, pipes: &[b"P"], cpus: &cpus };
            let mut buffer = Vec::new();
            let received = sent(request, &[null.as_raw_fd(); 4], &mut buffer).unwrap().unwrap();
            prop_assert!(received.words.iter().map(|word| word.as_bytes()).eq(words));
            prop_assert!(received.variables == variables);
            prop_assert_eq!(&received.cpus, &cpus);
            prop_assert!(received.streams.is_some());
            prop_assert_eq!(received.descriptors.len(), 1);
        }

        #[test]
        fn anything_else_does_no_harm(bytes: Vec<u8>) {
            let (_, there) = UnixStream::pair().unwrap();
            let (read, mut write) = io::pipe().unwrap();
            write.write_all(&bytes).unwrap();
            drop(write);
            // Without descriptors there are no streams.
            if let Ok(Some(received)) = receive_request(&there, &read, &mut Vec::new()) {
                prop_assert!(received.streams.is_none() && received.pipes.is_empty());
            }
        }
    }

    #[test]
    fn large_requests_and_descriptors_arrive() {
        let (mut read, write) = std::io::pipe().unwrap();
        let word = vec![b'x'; 3 << 20];
        let words: Vec<&[u8]> = vec![&word];
        let request = Request {
            words: &words,
            variables: &[],
            pipes: &[],
            cpus: &[],
        };
        let mut buffer = Vec::new();
        let received = sent(request, &[write.as_raw_fd(); 3], &mut buffer)
            .unwrap()
            .unwrap();
        drop(write);
        assert_eq!(received.words[0].len(), word.len());
        let [stdin, ..] = received.streams.unwrap();
        File::from(stdin).write_all(b"hello").unwrap();
        let mut text = String::new();
        read.read_to_string(&mut text).unwrap();
        assert_eq!(text, "hello");
    }

    #[test]
    fn streams_need_not_be_sent_again() {
        let words: Vec<&[u8]> = vec![b"x"];
        let request = Request {
            words: &words,
            variables: &[],
            pipes: &[],
            cpus: &[],
        };
        let mut buffer = Vec::new();
        let received = sent(request, &[], &mut buffer).unwrap().unwrap();
        assert!(received.streams.is_none() && received.words == ["x"]);
        let null = File::open("/dev/null").unwrap();
        assert!(sent(request, &[null.as_raw_fd(); 2], &mut buffer).is_err());
        let pipe = Request {
            pipes: &[b"P"],
            ..request
        };
        assert!(sent(pipe, &[], &mut buffer).is_err());
    }

    #[test]
    fn replies_and_ends_are_told_apart() {
        let (here, there) = UnixStream::pair().unwrap();
        let reply = Reply {
            code: 143,
            last: true,
        };
        let server = greet(&there).unwrap();
        let executor = receive_greeting(&here).unwrap().unwrap();
        send_reply(&server.write, reply).unwrap();
        assert_eq!(receive_reply(&executor.read).unwrap(), Some(reply));
        drop(server);
        assert_eq!(receive_reply(&executor.read).unwrap(), None);
        assert!(send_request(&here, &executor.write, b"x", &[]).is_err());
    }

    #[test]
    fn other_greetings_are_none() {
        for greeting in [&b"pmc-ks03"[..], b"pmc", b""] {
            let (here, mut there) = UnixStream::pair().unwrap();
            there.write_all(greeting).unwrap();
            drop(there);
            assert!(receive_greeting(&here).unwrap().is_none());
        }
        // With descriptors, but of another version.
        let (here, there) = UnixStream::pair().unwrap();
        send_descriptors(&there, b"pmc-ks99", &[there.as_raw_fd(); 2]).unwrap();
        assert!(receive_greeting(&here).unwrap().is_none());
    }

    #[test]
    fn an_executor_that_is_gone_asks_for_nothing() {
        let (here, there) = UnixStream::pair().unwrap();
        let server = greet(&there).unwrap();
        let executor = receive_greeting(&here).unwrap().unwrap();
        // What it has not finished saying is no request.
        (&executor.write).write_all(&[0; 6]).unwrap();
        drop((here, executor));
        let mut buffer = Vec::new();
        assert!(receive_request(&there, &server.read, &mut buffer).is_err());
        assert!(
            receive_request(&there, &server.read, &mut buffer)
                .unwrap()
                .is_none()
        );
        let reply = Reply { code: 0, last: false };
        let error = send_reply(&server.write, reply).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    }
}
