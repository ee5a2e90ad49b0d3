//! Redirects: the run's side of a connection whose tool gets output of a task instead of the files.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nix::fcntl::{FcntlArg, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use pmc_control::connection::{send_answer, send_bytes};
use pmc_control::{Answer, OutputChunk, OutputChunkHead, RedirectEnd, RedirectRequest, takes_output};
use pmc_dag::reason;

use super::server::PendingAnswer;
use super::{Control, OpenRedirect, RedirectAnswer, Relay, Reply, Target, deliverer};

/// Time for which an attempt of this process may wait for output before it answers.
const OUTPUT_TIMEOUT: Duration = Duration::from_millis(500);
/// The same if the tool could go meanwhile.
const SHORT_OUTPUT_TIMEOUT: Duration = Duration::from_millis(50);
/// Milliseconds until a file that takes nothing is tried again.
const RETRY_MS: u16 = 50;
/// Bytes that are written to a file at a time.
const WRITE_SIZE: usize = 64 << 10;
/// Bytes that the pipe of a tool holds, if the system allows that many.
const PIPE_SIZE: i32 = 1 << 20;
/// Requests that are on their way to a worker while much output comes: so it does not wait for answers.
const MAX_REQUESTS: usize = 4;
/// An answer with this many bytes is one of many.
const LARGE_ANSWER: usize = 64 << 10;

/// A redirect of a connection that goes on.
pub(super) struct Redirecting {
    request: RedirectRequest,
    /// The relay, if the task runs in this process.
    relay: Option<(Target, Relay)>,
    /// Set while the tool has output of which it has not said whether it is delivered.
    open: Option<OpenRedirect>,
}

/// What the run answers to a poll.
enum Polled {
    Answer(Answer),
    Redirected(Target, RedirectAnswer),
    /// The run is about to end its tasks.
    RunEnds,
}

/// Has the driver answer a request.
pub(super) type Ask<'a> = &'a dyn Fn(RedirectRequest) -> PendingAnswer;

impl Redirecting {
    pub(super) fn new(request: RedirectRequest) -> Self {
        Self {
            request,
            relay: None,
            open: None,
        }
    }

    /// Returns whether this is the redirect of a request.
    pub(super) fn is_of(&self, request: &RedirectRequest) -> bool {
        let own = &self.request;
        own.task == request.task && own.poll.options.token == request.poll.options.token
    }

    fn poll(&mut self, patience: Duration, ask: Ask<'_>) -> Polled {
        match &self.relay {
            Some(_) => self.poll_relay(patience),
            None => {
                let reply = ask(self.request.clone()).wait();
                self.polled(reply, patience)
            }
        }
    }

    /// Takes a reply of the driver.
    fn polled(&mut self, reply: Reply, patience: Duration) -> Polled {
        match reply {
            Reply::Relay(target, relay) => {
                self.relay = Some((target, relay));
                self.poll_relay(patience)
            }
            Reply::Redirected(target, answer) => Polled::Redirected(target, answer),
            Reply::Answer(answer) => Polled::Answer(answer),
            Reply::Output(_) => no_answer(),
        }
    }

    fn poll_relay(&self, patience: Duration) -> Polled {
        let Some((target, relay)) = &self.relay else {
            return no_answer();
        };
        let patience = match self.request.may_wait {
            true => patience,
            false => Duration::ZERO,
        };
        let answer = relay.poll(&self.request.poll, deliverer(&self.request), patience);
        Polled::Redirected(target.clone(), answer)
    }

    /// Answers a poll of the tool. Returns whether the redirect goes on.
    ///
    /// # Errors
    /// The tool has gone.
    pub(super) fn answer(
        &mut self,
        stream: &UnixStream,
        request: RedirectRequest,
        control: &Control,
        ask: Ask<'_>,
    ) -> io::Result<bool> {
        self.request = request;
        let before = self.open.take();
        if before.as_ref().is_some_and(OpenRedirect::is_to_end) {
            return self.leave(stream, ask).map(|()| false);
        }
        drop(before);
        match self.poll(OUTPUT_TIMEOUT, ask) {
            Polled::Answer(answer) => send_answer(stream, &answer).map(|()| false),
            Polled::RunEnds => self.leave(stream, ask).map(|()| false),
            Polled::Redirected(target, answer) => {
                let open = control.open_redirect();
                if open.is_to_end() {
                    return self.leave(stream, ask).map(|()| false);
                }
                let goes_on = matches!(answer, RedirectAnswer::Chunks(_));
                self.open = (goes_on && !answer.is_empty()).then_some(open);
                send(stream, &target, answer)?;
                Ok(goes_on)
            }
        }
    }

    /// Ends the redirect because the run is about to end its tasks: sends the worker what was delivered, and
    /// the tool that nothing more comes. The worker's answer would come too late.
    fn leave(&mut self, stream: &UnixStream, ask: Ask<'_>) -> io::Result<()> {
        self.request.poll.is_end = true;
        self.request.may_wait = false;
        match &self.relay {
            Some(_) => drop(self.poll_relay(Duration::ZERO)),
            None => drop(ask(self.request.clone())),
        }
        let (worker, attempt) = self.request.attempt.unwrap_or_default();
        let target = Target {
            task: self.request.task.clone(),
            worker,
            attempt,
        };
        send(
            stream,
            &target,
            RedirectAnswer::Ended(RedirectEnd::TaskEnded, [0, 0]),
        )
    }

    /// Ends the redirect, because the tool has gone.
    pub(super) fn end(&mut self, ask: Ask<'_>) {
        // It may have ended before.
        let _ = self.poll_end(ask);
    }

    fn poll_end(&mut self, ask: Ask<'_>) -> Polled {
        self.request.poll.is_end = true;
        self.request.may_wait = false;
        self.poll(Duration::ZERO, ask)
    }

    /// Writes output to files until the redirect ends or the tool does.
    ///
    /// # Errors
    /// The tool does not take an answer.
    pub(super) fn write_to(
        &mut self,
        stream: &UnixStream,
        files: [Option<File>; 2],
        open: &OpenRedirect,
        ask: Ask<'_>,
    ) -> io::Result<()> {
        let files = match files.map(|file| file.map(open_anew)) {
            [Some(Ok(out)), Some(Ok(err))] => [out, err],
            _ => {
                let refused = "the output of a task can be redirected to pipes and regular files only";
                return send_answer(stream, &Answer::Refused(refused.to_owned()));
            }
        };
        // The first answer brings nothing: it says that the redirect has begun.
        self.request.may_wait = false;
        let target = match self.poll(Duration::ZERO, ask) {
            Polled::Answer(answer) => return send_answer(stream, &answer),
            Polled::Redirected(target, answer @ RedirectAnswer::Chunks(_)) => {
                send(stream, &target, answer)?;
                target
            }
            Polled::Redirected(target, answer) => return send(stream, &target, answer),
            Polled::RunEnds => return self.leave(stream, ask),
        };
        self.request.attempt = Some((target.worker, target.attempt));
        let mut writing = Writing {
            redirecting: self,
            stream,
            files,
            open,
            ask,
            asked: VecDeque::new(),
            chunks: VecDeque::new(),
            is_fast: false,
        };
        match writing.run() {
            Polled::Answer(answer) => {
                self.end(ask);
                send_answer(stream, &answer)
            }
            Polled::Redirected(target, RedirectAnswer::EndRequested) => {
                // Now it is known what was delivered.
                match self.poll_end(ask) {
                    Polled::Answer(answer) => send_answer(stream, &answer),
                    Polled::Redirected(_, answer) => send(stream, &target, answer),
                    Polled::RunEnds => self.leave(stream, ask),
                }
            }
            Polled::RunEnds => self.leave(stream, ask),
            Polled::Redirected(target, answer) => send(stream, &target, answer),
        }
    }
}

fn no_answer() -> Polled {
    Polled::Answer(Answer::Refused("there is no answer".to_owned()))
}

/// Output on its way to the files of a tool. What has come and is not written is held here; it does not count
/// as delivered.
struct Writing<'a> {
    redirecting: &'a mut Redirecting,
    stream: &'a UnixStream,
    files: [File; 2],
    open: &'a OpenRedirect,
    ask: Ask<'a>,
    /// Requests that a worker has not answered.
    asked: VecDeque<PendingAnswer>,
    /// What has come, in the order of the answers.
    chunks: VecDeque<[OutputChunk; 2]>,
    /// Much output comes.
    is_fast: bool,
}

impl Writing<'_> {
    /// Writes until the redirect ends. Returns how.
    fn run(&mut self) -> Polled {
        loop {
            if self.open.is_to_end() {
                return Polled::RunEnds;
            }
            if has_gone(self.stream) {
                return self.redirecting.poll_end(self.ask);
            }
            if let Some(end) = self.receive() {
                return end;
            }
            match self.write() {
                Ok([false, false]) => {}
                Ok(is_full) => wait(self.stream, &self.files, is_full),
                // Nobody reads what the tool prints.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                    return self.redirecting.poll_end(self.ask);
                }
                Err(error) => {
                    let (task, reason) = (&self.redirecting.request.task, reason(&error));
                    let text = format!("cannot write the output of task {task}: {reason}");
                    return Polled::Answer(Answer::Refused(text));
                }
            }
        }
    }

    /// Asks for output, and takes what has come. Waits for it if there is nothing to write. Returns the end
    /// of the redirect.
    fn receive(&mut self) -> Option<Polled> {
        let most = match (self.redirecting.relay.is_some(), self.is_fast) {
            (false, true) => MAX_REQUESTS,
            _ => 1,
        };
        let has_room = self.chunks.len() < most;
        self.redirecting.request.may_wait = has_room;
        let mut patience = match self.chunks.is_empty() {
            true => SHORT_OUTPUT_TIMEOUT,
            false => Duration::ZERO,
        };
        if self.redirecting.relay.is_some() {
            let polled = self.redirecting.poll_relay(patience);
            return self.take(polled);
        }
        // Without room, a request says what was delivered, and may bring the end.
        while self.asked.len() + self.chunks.len() < most || !has_room && self.asked.is_empty() {
            self.asked.push_back((self.ask)(self.redirecting.request.clone()));
        }
        while let Some(reply) = self.asked.front().and_then(|asked| asked.wait_for(patience)) {
            self.asked.pop_front();
            let polled = self.redirecting.polled(reply, Duration::ZERO);
            if let Some(end) = self.take(polled) {
                return Some(end);
            }
            patience = Duration::ZERO;
        }
        None
    }

    /// Takes an answer. Returns the end of the redirect.
    fn take(&mut self, polled: Polled) -> Option<Polled> {
        let Polled::Redirected(_, RedirectAnswer::Chunks(chunks)) = polled else {
            return Some(polled);
        };
        let longest = chunks.iter().map(|chunk| chunk.bytes.len()).max();
        match longest.unwrap_or(0) {
            0 => self.is_fast &= !self.chunks.is_empty(),
            length => {
                self.is_fast = length >= LARGE_ANSWER;
                self.chunks.push_back(*chunks);
            }
        }
        None
    }

    /// Writes what the files take without a wait. Returns which of them take no more.
    fn write(&mut self) -> io::Result<[bool; 2]> {
        let mut is_full = [false; 2];
        for chunks in &mut self.chunks {
            for (at, chunk) in chunks.iter_mut().enumerate() {
                let delivered = &mut self.redirecting.request.poll.delivered[at];
                while !is_full[at] && !chunk.bytes.is_empty() {
                    // Output that was dropped comes no more.
                    *delivered = (*delivered).max(chunk.offset);
                    let from = usize::try_from(*delivered - chunk.offset).unwrap_or(usize::MAX);
                    let Some(left) = chunk.bytes.get(from..).filter(|left| !left.is_empty()) else {
                        chunk.bytes = Vec::new();
                        break;
                    };
                    match (&self.files[at]).write(&left[..left.len().min(WRITE_SIZE)]) {
                        Ok(count) => *delivered = delivered.saturating_add(count as u64),
                        Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => is_full[at] = true,
                        Err(error) => return Err(error),
                    }
                }
            }
        }
        let is_written = |chunks: &[OutputChunk; 2]| chunks.iter().all(|chunk| chunk.bytes.is_empty());
        while self.chunks.front().is_some_and(is_written) {
            self.chunks.pop_front();
        }
        Ok(is_full)
    }
}

/// Takes a file that writes never wait for. A pipe is opened anew: its flags are those of the tool, and of
/// others that have it.
fn open_anew(file: File) -> io::Result<File> {
    if !takes_output(&file) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    if !file.metadata()?.file_type().is_fifo() {
        return Ok(file);
    }
    let mut options = OpenOptions::new();
    options.write(true).custom_flags(libc::O_NONBLOCK);
    let pipe = options.open(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    // A smaller one is slower: the run and the reader wake each other more often.
    if fcntl(&pipe, FcntlArg::F_GETPIPE_SZ).is_ok_and(|size| size < PIPE_SIZE) {
        let _ = fcntl(&pipe, FcntlArg::F_SETPIPE_SZ(PIPE_SIZE));
    }
    Ok(pipe)
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
fn send(stream: &UnixStream, target: &Target, answer: RedirectAnswer) -> io::Result<()> {
    let task = &target.task;
    let (chunks, over): ([OutputChunk; 2], _) = match answer {
        RedirectAnswer::Chunks(chunks) => (*chunks, None),
        RedirectAnswer::Ended(over, dropped) => {
            let chunk = |dropped| OutputChunk {
                dropped,
                ..OutputChunk::default()
            };
            (dropped.map(chunk), Some(over))
        }
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
        // The answer to a last request is another one.
        RedirectAnswer::EndRequested => (Default::default(), Some(RedirectEnd::TooSlow)),
        RedirectAnswer::NotYet => return send_answer(stream, &Answer::NotYet("running".to_owned())),
        RedirectAnswer::NotRunning => {
            let text = format!("the attempt of task {task} has ended");
            return send_answer(stream, &Answer::Refused(text));
        }
    };
    let streams = chunks.each_ref().map(|chunk| OutputChunkHead {
        offset: chunk.offset,
        length: chunk.bytes.len(),
        times: chunk.times.clone(),
        dropped: chunk.dropped,
    });
    let head = Answer::Redirected {
        worker: target.worker,
        attempt: target.attempt,
        streams,
        over,
    };
    send_answer(stream, &head)?;
    for chunk in &chunks {
        send_bytes(stream, &chunk.bytes)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_of_a_tool_is_made_larger_and_never_smaller() {
        for (size, expected) in [(4096, PIPE_SIZE), (PIPE_SIZE, PIPE_SIZE)] {
            let (_reader, writer) = nix::unistd::pipe().unwrap();
            fcntl(&writer, FcntlArg::F_SETPIPE_SZ(size)).unwrap();
            let opened = open_anew(writer.into()).unwrap();
            assert_eq!(fcntl(&opened, FcntlArg::F_GETPIPE_SZ), Ok(expected));
        }
    }
}
