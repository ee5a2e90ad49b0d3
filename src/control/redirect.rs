//! Redirects: the run's side of a connection whose tool gets output of a task instead of the files.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use pmc_dag::reason;

use super::connection::send_answer;
use super::{Answer, Portion, PortionHead, RedirectAnswer, RedirectRequest, Relay, Reply, Target};

/// Time for which an attempt of this process may wait for output before it answers.
const PATIENCE: Duration = Duration::from_millis(500);
/// The same if the tool could go meanwhile.
const SHORT_PATIENCE: Duration = Duration::from_millis(50);
/// Milliseconds until a file that takes nothing is tried again.
const RETRY_MS: u16 = 50;
/// Bytes that are written to a file at a time.
const CHUNK: usize = 64 << 10;
/// Number of the device that takes everything.
const NULL_DEVICE: u64 = (1 << 8) | 3;

/// A redirect of a connection that goes on.
pub(super) struct Redirecting {
    request: RedirectRequest,
    /// The relay, if the task runs in this process.
    relay: Option<(Target, Relay)>,
}

/// What the run answers to a poll.
enum Polled {
    Answer(Answer),
    Redirected(Target, RedirectAnswer),
}

/// Has the driver answer a request.
pub(super) type Ask<'a> = &'a dyn Fn(RedirectRequest) -> Reply;

impl Redirecting {
    pub(super) fn new(request: RedirectRequest) -> Self {
        Self { request, relay: None }
    }

    /// Returns whether this is the redirect of a request.
    pub(super) fn is_of(&self, request: &RedirectRequest) -> bool {
        let own = &self.request;
        own.task == request.task && own.poll.claim.token == request.poll.claim.token
    }

    fn poll(&mut self, patience: Duration, ask: Ask<'_>) -> Polled {
        if self.relay.is_none() {
            match ask(self.request.clone()) {
                Reply::Relay(target, relay) => self.relay = Some((target, relay)),
                Reply::Redirected(target, answer) => return Polled::Redirected(target, answer),
                Reply::Answer(answer) => return Polled::Answer(answer),
                Reply::Output(_) => return Polled::Answer(Answer::Refused("there is no answer".to_owned())),
            }
        }
        let patience = if self.request.may_wait {
            patience
        } else {
            Duration::ZERO
        };
        match &self.relay {
            Some((target, relay)) => {
                Polled::Redirected(target.clone(), relay.poll(&self.request.poll, patience))
            }
            None => Polled::Answer(Answer::Refused("there is no answer".to_owned())),
        }
    }

    /// Answers a poll of the tool. Returns whether the redirect goes on.
    ///
    /// # Errors
    /// The tool has gone.
    pub(super) fn answer(
        &mut self,
        stream: &UnixStream,
        request: RedirectRequest,
        ask: Ask<'_>,
    ) -> io::Result<bool> {
        self.request = request;
        match self.poll(PATIENCE, ask) {
            Polled::Answer(answer) => send_answer(stream, &answer).map(|()| false),
            Polled::Redirected(target, answer) => {
                let goes_on = matches!(answer, RedirectAnswer::Portions(_));
                send(stream, &target, answer)?;
                Ok(goes_on)
            }
        }
    }

    /// Ends the redirect, because the tool has gone.
    pub(super) fn end(&mut self, ask: Ask<'_>) {
        self.request.poll.is_end = true;
        self.request.may_wait = false;
        // It may have ended before.
        let _ = self.poll(Duration::ZERO, ask);
    }

    /// Writes output to files until the redirect ends or the tool does.
    ///
    /// # Errors
    /// The tool does not take an answer.
    pub(super) fn write_to(
        &mut self,
        stream: &UnixStream,
        files: [Option<File>; 2],
        ask: Ask<'_>,
    ) -> io::Result<()> {
        let files = match files.map(|file| file.map(open)) {
            [Some(Ok(out)), Some(Ok(err))] => [out, err],
            _ => {
                let refused = "the output of a task can be redirected to pipes and regular files only";
                return send_answer(stream, &Answer::Refused(refused.to_owned()));
            }
        };
        self.request.may_wait = false;
        let mut has_begun = false;
        loop {
            if has_begun && has_gone(stream) {
                self.request.poll.is_end = true;
            }
            let (target, answer) = match self.poll(SHORT_PATIENCE, ask) {
                Polled::Answer(answer) => {
                    if has_begun {
                        self.end(ask);
                    }
                    return send_answer(stream, &answer);
                }
                Polled::Redirected(target, answer) => (target, answer),
            };
            self.request.attempt = Some((target.worker, target.attempt));
            let RedirectAnswer::Portions(portions) = answer else {
                return send(stream, &target, answer);
            };
            if !std::mem::replace(&mut has_begun, true) {
                send(stream, &target, RedirectAnswer::Portions(Box::default()))?;
                self.request.may_wait = true;
            }
            match self.write(&files, &portions) {
                Ok([false, false]) => {}
                Ok(is_full) => wait(stream, &files, is_full),
                // Nobody reads what the tool prints.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => self.request.poll.is_end = true,
                Err(error) => {
                    self.end(ask);
                    let text = format!(
                        "cannot write the output of task {}: {}",
                        target.task,
                        reason(&error)
                    );
                    return send_answer(stream, &Answer::Refused(text));
                }
            }
        }
    }

    /// Writes what the files take without a wait. Returns which of them take no more.
    fn write(&mut self, files: &[File; 2], portions: &[Portion; 2]) -> io::Result<[bool; 2]> {
        let mut is_full = [false; 2];
        for (at, portion) in portions.iter().enumerate() {
            let delivered = &mut self.request.poll.delivered[at];
            // Output that was dropped comes no more.
            *delivered = (*delivered).max(portion.offset);
            for chunk in portion.bytes.chunks(CHUNK) {
                match (&files[at]).write(chunk) {
                    Ok(count) => {
                        *delivered += count as u64;
                        if count < chunk.len() {
                            break;
                        }
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => break,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        is_full[at] = true;
                        break;
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(is_full)
    }
}

/// Returns whether output can be written to a file without a wait.
#[must_use]
pub fn is_suitable(file: &File) -> bool {
    file.metadata().is_ok_and(|data| {
        let kind = data.file_type();
        kind.is_file() || kind.is_fifo() || kind.is_char_device() && data.rdev() == NULL_DEVICE
    })
}

/// Takes a file that writes never wait for. A pipe is opened anew: its flags are those of the tool, and of
/// others that have it.
fn open(file: File) -> io::Result<File> {
    if !is_suitable(&file) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    if !file.metadata()?.file_type().is_fifo() {
        return Ok(file);
    }
    let mut options = OpenOptions::new();
    options.write(true).custom_flags(libc::O_NONBLOCK);
    options.open(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// Returns whether the tool has gone or ends the redirect.
fn has_gone(stream: &UnixStream) -> bool {
    let mut polled = [PollFd::new(stream.as_fd(), PollFlags::POLLIN)];
    matches!(poll(&mut polled, PollTimeout::ZERO), Ok(1..))
}

/// Waits until a file that is full takes something, or the tool has gone.
fn wait(stream: &UnixStream, files: &[File; 2], is_full: [bool; 2]) {
    let mut polled = vec![PollFd::new(stream.as_fd(), PollFlags::POLLIN)];
    let full = files.iter().zip(is_full).filter(|(_, is_full)| *is_full);
    polled.extend(full.map(|(file, _)| PollFd::new(file.as_fd(), PollFlags::POLLOUT)));
    let _ = poll(&mut polled, PollTimeout::from(RETRY_MS));
}

/// Sends what becomes of a poll.
fn send(mut stream: &UnixStream, target: &Target, answer: RedirectAnswer) -> io::Result<()> {
    let task = &target.task;
    let (portions, over) = match answer {
        RedirectAnswer::Portions(portions) => (*portions, None),
        RedirectAnswer::Over(over) => (Default::default(), Some(over)),
        RedirectAnswer::TakenBy(tool) => {
            let text = format!("the output of task {task} goes to another tool: {tool}");
            return send_answer(stream, &Answer::Refused(text));
        }
        RedirectAnswer::NoRelay => {
            let text = format!(
                "the output of task {task} cannot be redirected (start it with --io relay, or attach with --tail before \
                 it starts)"
            );
            return send_answer(stream, &Answer::NotSupported(text));
        }
        RedirectAnswer::NotYet => return send_answer(stream, &Answer::NotYet("running".to_owned())),
        RedirectAnswer::Ended => {
            let text = format!("the attempt of task {task} has ended");
            return send_answer(stream, &Answer::Refused(text));
        }
    };
    let streams = portions.each_ref().map(|portion| PortionHead {
        offset: portion.offset,
        length: portion.bytes.len(),
        times: portion.times.clone(),
        dropped: portion.dropped,
    });
    let head = Answer::Redirected {
        worker: target.worker,
        attempt: target.attempt,
        streams,
        over,
    };
    send_answer(stream, &head)?;
    for portion in &portions {
        stream.write_all(&portion.bytes)?;
    }
    Ok(())
}
