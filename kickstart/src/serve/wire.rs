//! What an executor and a server of [`super`] say to each other over a pair of sockets.
//!
//! The server greets with [`GREETING`]. For each task the executor sends one [`Request`], with the descriptors as
//! `SCM_RIGHTS`, and the server answers with one [`Reply`] when everything is over. A request without descriptors
//! is for a task with the same streams as the one before. Lengths and numbers are 32 bits,
//! little endian; a request is its length and then, in the order of the fields, lists with their number of entries.
//! Both sides come from one installation: the greeting changes with every change of the format.

use std::ffi::OsString;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStringExt;

use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recv, recvmsg, send, sendmsg};

/// Name of the program that serves, in the directory of `pegasus-kickstart`; its standard input is the socket, its
/// standard output a pipe that is closed when the running task is not wanted any more.
pub const SERVER_NAME: &str = "pegasus-kickstart-server";

/// First words of a server.
pub const GREETING: [u8; 8] = *b"pmc-ks03";

/// Most descriptors that go with a message: a limit of the kernel.
pub const MOST_DESCRIPTORS: usize = 253;

/// Longest request: more than any system lets a program have as arguments and environment.
const LONGEST: usize = 64 << 20;

/// Bytes of a reply.
const REPLY: usize = 2;

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
/// Those of the socket; the server has not begun the task then.
pub fn send_request(socket: impl AsFd, message: &[u8], descriptors: &[RawFd]) -> io::Result<()> {
    if message.len() > LONGEST {
        return Err(Errno::E2BIG.into());
    }
    let socket = socket.as_fd().as_raw_fd();
    let (vector, rights) = ([IoSlice::new(message)], [ControlMessage::ScmRights(descriptors)]);
    let mut sent = again(|| {
        if descriptors.is_empty() {
            return send(socket, message, MsgFlags::MSG_NOSIGNAL);
        }
        sendmsg::<()>(socket, &vector, &rights, MsgFlags::MSG_NOSIGNAL, None)
    })?;
    while sent < message.len() {
        sent += again(|| send(socket, &message[sent..], MsgFlags::MSG_NOSIGNAL))?;
    }
    Ok(())
}

/// A task as the server gets it.
#[derive(Debug, Default)]
pub struct Received {
    /// As [`Request::words`].
    pub words: Vec<OsString>,
    /// As [`Request::variables`].
    pub variables: Vec<OsString>,
    /// As [`Request::pipes`].
    pub pipes: Vec<OsString>,
    /// As [`Request::cpus`].
    pub cpus: Vec<u32>,
    /// Standard input, output and error, if they are not those of the request before.
    pub streams: Option<[OwnedFd; 3]>,
    /// The descriptors of the pipes.
    pub descriptors: Vec<OwnedFd>,
    /// Bytes of the message.
    pub size: usize,
}

/// Waits for a request; `None` if the executor is gone.
///
/// # Errors
/// Those of the socket, or the message is none.
pub fn receive_request(socket: impl AsFd) -> io::Result<Option<Received>> {
    let mut message = vec![0; 2 << 10];
    let (count, descriptors) = receive_first(socket.as_fd().as_raw_fd(), &mut message)?;
    if count == 0 {
        return Ok(None);
    }
    let mut filled = count;
    let mut fill = |message: &mut [u8], from: usize| -> io::Result<()> {
        while filled < from {
            let socket = socket.as_fd().as_raw_fd();
            match again(|| recv(socket, &mut message[filled..from], MsgFlags::empty()))? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => filled += count,
            }
        }
        Ok(())
    };
    fill(&mut message, 4)?;
    let length = Reader(&message).number().unwrap_or(0) as usize;
    if length > LONGEST {
        return Err(malformed());
    }
    message.resize((length + 4).max(message.len()), 0);
    fill(&mut message, length + 4)?;
    if filled > length + 4 {
        return Err(malformed());
    }
    let mut received = Reader(&message[4..length + 4]).request().ok_or_else(malformed)?;
    if !descriptors.is_empty() {
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

/// The first bytes, with which the descriptors come.
fn receive_first(socket: RawFd, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
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

fn again<T>(mut call: impl FnMut() -> nix::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(Errno::EINTR) => {}
            result => return Ok(result?),
        }
    }
}

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "malformed request")
}

/// Takes a message apart; `None` where it ends too early.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn bytes(&mut self, count: usize) -> Option<&[u8]> {
        let (bytes, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(bytes)
    }

    fn number(&mut self) -> Option<u32> {
        let bytes = self.bytes(4)?.try_into().ok()?;
        Some(u32::from_le_bytes(bytes))
    }

    fn texts(&mut self) -> Option<Vec<OsString>> {
        (0..self.number()?)
            .map(|_| {
                let length = self.number()? as usize;
                Some(OsString::from_vec(self.bytes(length)?.to_vec()))
            })
            .collect()
    }

    fn request(mut self) -> Option<Received> {
        let received = Received {
            words: self.texts()?,
            variables: self.texts()?,
            pipes: self.texts()?,
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
/// Those of the socket.
pub fn send_reply(socket: impl AsFd, reply: Reply) -> io::Result<()> {
    let message = [reply.code, u8::from(reply.last)];
    // So short a message goes at once or not at all.
    again(|| send(socket.as_fd().as_raw_fd(), &message, MsgFlags::MSG_NOSIGNAL)).map(drop)
}

/// Waits for the reply; `None` if the server has ended without one.
///
/// # Errors
/// Those of the socket.
pub fn receive_reply(socket: impl AsFd) -> io::Result<Option<Reply>> {
    let mut message = [0; REPLY];
    Ok(receive_all(socket, &mut message)?.then(|| Reply {
        code: message[0],
        last: message[1] != 0,
    }))
}

/// Greets the executor.
///
/// # Errors
/// Those of the socket.
pub fn greet(socket: impl AsFd) -> io::Result<()> {
    again(|| send(socket.as_fd().as_raw_fd(), &GREETING, MsgFlags::MSG_NOSIGNAL)).map(drop)
}

/// Waits for the greeting; false if something else came, or nothing.
///
/// # Errors
/// Those of the socket.
pub fn receive_greeting(socket: impl AsFd) -> io::Result<bool> {
    let mut message = [0; GREETING.len()];
    Ok(receive_all(socket, &mut message)? && message == GREETING)
}

fn receive_all(socket: impl AsFd, message: &mut [u8]) -> io::Result<bool> {
    let socket = socket.as_fd().as_raw_fd();
    let mut filled = 0;
    while filled < message.len() {
        match again(|| recv(socket, &mut message[filled..], MsgFlags::empty())) {
            Ok(0) => return Ok(false),
            Ok(count) => filled += count,
            // What the server had not read when it ended.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read as _, Write as _};
    use std::os::unix::ffi::OsStrExt as _;
    use std::os::unix::net::UnixStream;

    use proptest::prelude::*;

    use super::*;

    fn sent(request: Request<'_>, descriptors: &[RawFd]) -> io::Result<Option<Received>> {
        let (here, there) = UnixStream::pair().unwrap();
        let message = request.encode();
        std::thread::scope(|scope| {
            scope.spawn(|| send_request(&here, &message, descriptors).unwrap());
            receive_request(&there)
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
            let received = sent(request, &[null.as_raw_fd(); 4]).unwrap().unwrap();
            prop_assert!(received.words.iter().map(|word| word.as_bytes()).eq(words));
            prop_assert!(received.variables.iter().map(|text| text.as_bytes()).eq(variables));
            prop_assert_eq!(&received.cpus, &cpus);
            prop_assert!(received.streams.is_some());
            prop_assert_eq!(received.descriptors.len(), 1);
        }

        #[test]
        fn anything_else_does_no_harm(bytes: Vec<u8>) {
            let (mut here, there) = UnixStream::pair().unwrap();
            here.write_all(&bytes).unwrap();
            drop(here);
            // Without descriptors there are no streams.
            if let Ok(Some(received)) = receive_request(&there) {
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
        let received = sent(request, &[write.as_raw_fd(); 3]).unwrap().unwrap();
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
        let received = sent(request, &[]).unwrap().unwrap();
        assert!(received.streams.is_none() && received.words == ["x"]);
        let null = File::open("/dev/null").unwrap();
        assert!(sent(request, &[null.as_raw_fd(); 2]).is_err());
        let pipe = Request {
            pipes: &[b"P"],
            ..request
        };
        assert!(sent(pipe, &[]).is_err());
    }

    #[test]
    fn replies_and_ends_are_told_apart() {
        let (here, there) = UnixStream::pair().unwrap();
        let reply = Reply {
            code: 143,
            last: true,
        };
        greet(&there).unwrap();
        send_reply(&there, reply).unwrap();
        drop(there);
        assert!(receive_greeting(&here).unwrap());
        assert_eq!(receive_reply(&here).unwrap(), Some(reply));
        assert_eq!(receive_reply(&here).unwrap(), None);
    }
}
