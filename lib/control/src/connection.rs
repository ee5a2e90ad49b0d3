//! What goes over the socket: a line of JSON in each direction. The answer to a request for output goes on
//! with the bytes, or comes with the open files.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};

use crate::{Answer, Output, StreamHead, StreamOutput};

/// Maximum files that come with a portion of bytes, and that wait to be taken.
const MAX_FILES: usize = 4;
/// Bytes of one read.
const CHUNK: usize = 64 << 10;
/// Bytes for which there is memory before they have come.
const MAX_RESERVED: usize = 1 << 20;

/// Sends an answer.
///
/// # Errors
/// The peer does not take it.
pub fn send_answer(stream: &UnixStream, answer: &Answer) -> io::Result<()> {
    let mut text = serde_json::to_vec(answer)?;
    text.push(b'\n');
    send_bytes(stream, &text)
}

/// Sends output of a task.
///
/// # Errors
/// The peer does not take it.
pub fn send_output(stream: &UnixStream, output: &Output) -> io::Result<()> {
    let files: Vec<RawFd> = output.streams.iter().filter_map(descriptor).collect();
    let mut text = serde_json::to_vec(&Answer::Output {
        worker: output.worker,
        attempt: output.attempt,
        streams: output.streams.each_ref().map(head),
    })?;
    text.push(b'\n');
    send_with(stream, &text, &files)?;
    for chunk in &output.streams {
        if let StreamOutput::Bytes { bytes, .. } = chunk {
            send_bytes(stream, bytes)?;
        }
    }
    Ok(())
}

/// Sends a line with open files.
///
/// # Errors
/// The peer does not take it.
pub fn send_with_files(stream: &UnixStream, text: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
    let files: Vec<RawFd> = files.iter().map(BorrowedFd::as_raw_fd).collect();
    send_with(stream, text, &files)
}

fn send_with(stream: &UnixStream, text: &[u8], files: &[RawFd]) -> io::Result<()> {
    let rights = [ControlMessage::ScmRights(files)];
    let rights: &[ControlMessage<'_>] = if files.is_empty() { &[] } else { &rights };
    let sent = sendmsg::<()>(
        stream.as_raw_fd(),
        &[IoSlice::new(text)],
        rights,
        MsgFlags::MSG_NOSIGNAL,
        None,
    )?;
    send_bytes(stream, &text[sent..])
}

/// Sends bytes, within the time of the connection for one write: a peer that takes a byte now and then
/// does not hold up this process.
///
/// # Errors
/// The peer does not take them.
pub fn send_bytes(mut stream: &UnixStream, mut bytes: &[u8]) -> io::Result<()> {
    let limit = Limit::start(stream.write_timeout()?);
    while !bytes.is_empty() {
        limit.check()?;
        match stream.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(sent) => bytes = &bytes[sent..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The end of a wait that consists of several ones.
struct Limit(Option<Instant>);

impl Limit {
    /// A limit from now on; `None` for none.
    fn start(time: Option<Duration>) -> Self {
        Self(time.and_then(|time| Instant::now().checked_add(time)))
    }

    fn check(&self) -> io::Result<()> {
        match self.0 {
            Some(end) if Instant::now() > end => Err(io::ErrorKind::TimedOut.into()),
            _ => Ok(()),
        }
    }
}

fn descriptor(output: &StreamOutput) -> Option<RawFd> {
    match output {
        StreamOutput::File(file) => Some(file.as_raw_fd()),
        _ => None,
    }
}

fn head(output: &StreamOutput) -> StreamHead {
    match output {
        StreamOutput::None => StreamHead::None,
        StreamOutput::File(_) => StreamHead::File,
        StreamOutput::Bytes { position, bytes } => StreamHead::Bytes {
            position: *position,
            length: bytes.len(),
        },
    }
}

/// The receiving end of a connection.
#[derive(Debug)]
pub struct Receiver {
    stream: UnixStream,
    /// What was received and not taken.
    bytes: VecDeque<u8>,
    files: VecDeque<OwnedFd>,
}

impl Receiver {
    /// Receives from a connection.
    #[must_use]
    pub fn new(stream: UnixStream) -> Self {
        Self {
            stream,
            bytes: VecDeque::new(),
            files: VecDeque::new(),
        }
    }

    /// Returns the connection.
    #[must_use]
    pub fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// Returns the next line, without its end. It has at most `max` bytes. The time of the connection for one
    /// read is that for the whole line.
    ///
    /// # Errors
    /// The connection ends before, the line is longer, or it takes too long.
    pub fn line(&mut self, max: usize) -> io::Result<Vec<u8>> {
        let mut searched = 0;
        let mut limit = None;
        loop {
            if let Some(at) = self.bytes.range(searched..).position(|byte| *byte == b'\n') {
                let mut line: Vec<u8> = self.bytes.drain(..=searched + at).collect();
                line.pop();
                return Ok(line);
            }
            searched = self.bytes.len();
            if searched > max {
                return Err(io::ErrorKind::InvalidData.into());
            }
            match &limit {
                None => limit = Some(Limit::start(self.stream.read_timeout()?)),
                Some(limit) => limit.check()?,
            }
            self.receive()?;
        }
    }

    /// Returns the next line as [`Self::line`] does, or `None` if the connection ends before it.
    ///
    /// # Errors
    /// The connection ends inside it, or it is longer.
    pub fn next_line(&mut self, max: usize) -> io::Result<Option<Vec<u8>>> {
        match self.line(max) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && self.bytes.is_empty() => Ok(None),
            line => line.map(Some),
        }
    }

    /// Returns this number of bytes. The time of the connection for one read is that for all of them.
    ///
    /// # Errors
    /// The connection ends before, or they take too long.
    pub fn take(&mut self, count: usize) -> io::Result<Vec<u8>> {
        let (first, second) = self.bytes.as_slices();
        let from_first = first.len().min(count);
        let from_second = second.len().min(count - from_first);
        let mut bytes = Vec::with_capacity(count.min(MAX_RESERVED));
        bytes.extend_from_slice(&first[..from_first]);
        bytes.extend_from_slice(&second[..from_second]);
        self.bytes.drain(..bytes.len());
        // Files come with lines only, so the rest can be read without looking for them.
        let limit = Limit::start(self.stream.read_timeout()?);
        let mut filled = bytes.len();
        while filled < count {
            limit.check()?;
            if filled == bytes.len() {
                bytes.resize(count.min(filled + MAX_RESERVED), 0);
            }
            filled += match (&self.stream).read(&mut bytes[filled..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
                read => read?,
            };
        }
        Ok(bytes)
    }

    /// Returns the next file that came with what was received.
    pub fn file(&mut self) -> Option<File> {
        self.files.pop_front().map(File::from)
    }

    fn receive(&mut self) -> io::Result<()> {
        let mut buffer = [0; CHUNK];
        let mut rights = nix::cmsg_space!([RawFd; MAX_FILES]);
        let received = {
            let mut slices = [IoSliceMut::new(&mut buffer)];
            let flags = MsgFlags::MSG_CMSG_CLOEXEC;
            let received = recvmsg::<()>(self.stream.as_raw_fd(), &mut slices, Some(&mut rights), flags);
            let message = match received {
                // A read with a time limit is not taken up again after a signal, such as that of a child.
                Err(Errno::EINTR) => return Ok(()),
                received => received?,
            };
            for rights in message.cmsgs()? {
                if let ControlMessageOwned::ScmRights(descriptors) = rights {
                    self.files.extend(descriptors.into_iter().map(own));
                }
            }
            message.bytes
        };
        // Each is a descriptor of this process.
        if self.files.len() > MAX_FILES {
            return Err(io::ErrorKind::InvalidData.into());
        }
        if received == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.bytes.extend(&buffer[..received]);
        Ok(())
    }
}

/// Takes a descriptor that was received.
#[expect(unsafe_code, reason = "nix returns the numbers of descriptors")]
fn own(descriptor: RawFd) -> OwnedFd {
    // SAFETY: the system has just made it for this process, and nothing else has it.
    unsafe { OwnedFd::from_raw_fd(descriptor) }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::fd::AsFd as _;

    use super::*;
    use crate::Position;

    /// A tool that sends file after file would take all descriptors of the run.
    #[test]
    fn only_a_few_files_wait_to_be_taken() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let file = tempfile::tempfile().unwrap();
        for _ in 0..20 {
            send_with_files(&ours, b"x", &[file.as_fd(), file.as_fd()]).unwrap();
        }
        let mut receiver = Receiver::new(theirs);
        let error = receiver.line(1000).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert!(receiver.files.len() <= MAX_FILES + 2);
    }

    /// A peer that sends or takes a byte now and then is given up as soon as one that does nothing.
    #[test]
    fn a_peer_that_drips_is_given_up() {
        const TIME: Duration = Duration::from_millis(200);
        let drip = |mut peer: UnixStream| {
            std::thread::spawn(move || {
                let mut rest = [0; 1000];
                while peer.write_all(b"x").is_ok() && peer.read(&mut rest).is_ok_and(|read| read > 0) {
                    std::thread::sleep(TIME / 20);
                }
            })
        };
        let pair = || {
            let (ours, theirs) = UnixStream::pair().unwrap();
            ours.set_read_timeout(Some(TIME)).unwrap();
            ours.set_write_timeout(Some(TIME)).unwrap();
            // What drips reads only after a byte that is read here.
            (&ours).write_all(&[0; 100_000]).unwrap();
            (Receiver::new(ours), drip(theirs))
        };
        let is_given_up = |ended: io::Result<()>| {
            let kind = ended.unwrap_err().kind();
            matches!(kind, io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock)
        };
        let begun = Instant::now();
        let (mut receiver, first) = pair();
        assert!(is_given_up(receiver.line(1000).map(drop)));
        drop(receiver);
        let (mut receiver, second) = pair();
        assert!(is_given_up(receiver.take(1 << 20).map(drop)));
        drop(receiver);
        let (receiver, third) = pair();
        assert!(is_given_up(send_bytes(receiver.stream(), &vec![0; 10 << 20])));
        drop(receiver);
        assert!(begun.elapsed() < 20 * TIME, "{:?}", begun.elapsed());
        for thread in [first, second, third] {
            thread.join().unwrap();
        }
    }

    #[test]
    fn files_and_bytes_arrive() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"captured").unwrap();
        std::io::Seek::rewind(&mut file).unwrap();
        let position = Position { file: 7, offset: 3 };
        let output = Output {
            worker: 1,
            attempt: 2,
            streams: [
                StreamOutput::File(file),
                StreamOutput::Bytes {
                    position,
                    bytes: b"a\nb".to_vec(),
                },
            ],
        };
        send_output(&ours, &output).unwrap();
        send_answer(&ours, &Answer::Done("x".into())).unwrap();
        drop(ours);
        let mut receiver = Receiver::new(theirs);
        let line = receiver.line(1000).unwrap();
        assert!(String::from_utf8(line).unwrap().contains("\"length\":3"));
        let mut text = String::new();
        receiver.file().unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "captured");
        assert!(receiver.file().is_none());
        assert_eq!(receiver.take(3).unwrap(), b"a\nb");
        assert_eq!(receiver.line(1000).unwrap(), b"{\"done\":\"x\"}");
        assert!(receiver.line(1000).is_err());
    }
}
