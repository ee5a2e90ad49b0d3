//! Relays: threads that carry the output of a task to its files, or to a tool that redirects it.
//!
//! Only tasks that ask for it have a relay, and those that start while a tool waits for them: the others
//! write to their files by themselves. The task writes into two pipes. What a tool has delivered counts as
//! gone; when a redirect ends, the rest goes to the file, before what follows.

mod stream;

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd, RawFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::pipe2;
use pmc_control::{OutputChunk, RedirectEnd, RedirectOptions, RedirectPoll};

use crate::bell::Bell;
use crate::protocol::{Deliverer, RedirectAnswer};
use stream::Stream;

/// Bytes of one read.
const READ_SIZE: usize = 256 << 10;
/// Bytes that a pipe holds, if the system allows that many.
const PIPE_SIZE: i32 = 1 << 20;

/// The relay of an attempt, for those who ask for its output.
#[derive(Clone, Debug)]
pub struct Relay {
    shared: Arc<Shared>,
}

/// The running relay of an attempt.
#[derive(Debug)]
pub(crate) struct RelayThread {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// The ends of the pipes for the task.
pub(crate) struct WriteEnds([OwnedFd; 2]);

impl WriteEnds {
    /// Returns the descriptors for standard output and standard error.
    pub(crate) fn descriptors(&self) -> [RawFd; 2] {
        self.0.each_ref().map(OwnedFd::as_raw_fd)
    }
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Something has come, or the relay has ended.
    changed: Condvar,
    /// Wakes the thread.
    wake: File,
}

#[derive(Debug)]
struct State {
    streams: [Stream<File>; 2],
    /// When the attempt ended.
    ended_at: Option<Instant>,
    /// The thread has ended: nothing comes any more.
    is_done: bool,
    error: Option<io::Error>,
    /// Rings when something has come, or the relay has ended.
    bell: Option<Bell>,
}

/// Starts the relay of an attempt whose output goes to these files. A tool may have claimed it.
///
/// # Errors
/// The system refuses pipes or a thread.
pub(crate) fn start(
    files: [&File; 2],
    options: Option<&RedirectOptions>,
) -> io::Result<(RelayThread, WriteEnds)> {
    let [out, err] = files;
    let mut streams = [Stream::new(out.try_clone()?), Stream::new(err.try_clone()?)];
    if let Some(options) = options {
        begin(&mut streams, options, false, Instant::now());
    }
    let (out, err, wake) = (pipe(true)?, pipe(true)?, pipe(false)?);
    fcntl(&wake.1, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    let shared = Arc::new(Shared {
        state: Mutex::new(State {
            streams,
            ended_at: None,
            is_done: false,
            error: None,
            bell: None,
        }),
        changed: Condvar::new(),
        wake: wake.1.into(),
    });
    let carry = {
        let shared = Arc::clone(&shared);
        let pipes = [Some(out.0.into()), Some(err.0.into())];
        move || shared.carry(pipes, &File::from(wake.0))
    };
    let thread = std::thread::Builder::new().name("relay".into()).spawn(carry)?;
    let thread = RelayThread {
        shared,
        thread: Some(thread),
    };
    Ok((thread, WriteEnds([out.1, err.1])))
}

/// Makes a pipe whose reader does not wait.
fn pipe(is_large: bool) -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = pipe2(OFlag::O_CLOEXEC)?;
    fcntl(&read, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    if is_large {
        // A smaller one is slower.
        let _ = fcntl(&write, FcntlArg::F_SETPIPE_SZ(PIPE_SIZE));
    }
    Ok((read, write))
}

fn begin(streams: &mut [Stream<File>; 2], options: &RedirectOptions, by_run: bool, now: Instant) {
    for (stream, wanted) in streams.iter_mut().zip(options.streams) {
        if wanted {
            stream.begin(options, by_run, now);
        }
    }
}

impl RelayThread {
    /// Returns what tools ask.
    pub(crate) fn relay(&self) -> Relay {
        Relay {
            shared: Arc::clone(&self.shared),
        }
    }

    /// Takes note that the attempt has ended: what its pipes hold is carried, and a tool has a moment for the
    /// rest.
    pub(crate) fn end(&self) {
        self.shared.lock().ended_at.get_or_insert_with(Instant::now);
        self.shared.wake();
    }

    /// Waits for the end of the relay, at most `timeout`. True if it has ended.
    pub(crate) fn wait(&self, timeout: Duration) -> bool {
        let is_running = |state: &mut State| !state.is_done;
        let waited = self
            .shared
            .changed
            .wait_timeout_while(self.shared.lock(), timeout, is_running);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.is_done
    }

    /// Returns whether output was sent of which nobody has said whether it is delivered.
    pub(crate) fn is_out(&self) -> bool {
        self.shared.lock().streams.iter().any(Stream::is_out)
    }

    /// Returns why output is missing in a file, if it is.
    pub(crate) fn error(&self) -> Option<io::Error> {
        self.shared.lock().error.take()
    }
}

impl Drop for RelayThread {
    /// Ends the relay at once: what waits for a tool goes to the file.
    fn drop(&mut self) {
        {
            let mut state = self.shared.lock();
            state.ended_at.get_or_insert_with(Instant::now);
            state.end_all(RedirectEnd::TaskEnded);
        }
        self.shared.wake();
        self.thread.take().map(JoinHandle::join);
    }
}

impl Relay {
    /// Answers a poll. Waits for output, at most `patience`. `by` delivers it.
    pub(crate) fn poll(&self, poll: &RedirectPoll, by: Deliverer, patience: Duration) -> RedirectAnswer {
        let until = Instant::now() + patience;
        let mut state = self.shared.lock();
        loop {
            let now = Instant::now();
            let answer = state.poll(poll, by, now);
            // There may be room, or nothing to wait for.
            self.shared.wake();
            let left = until.saturating_duration_since(now);
            if !answer.is_empty() || left.is_zero() {
                return answer;
            }
            let waited = self.shared.changed.wait_timeout(state, left);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The same without waiting. If nothing has come, the bell rings when something comes.
    pub(crate) fn poll_or_ring(
        &self,
        poll: &RedirectPoll,
        by: Deliverer,
        bell: Option<&Bell>,
    ) -> RedirectAnswer {
        let mut state = self.shared.lock();
        let answer = state.poll(poll, by, Instant::now());
        if answer.is_empty() {
            state.bell = bell.cloned();
        }
        drop(state);
        self.shared.wake();
        answer
    }
}

impl State {
    fn poll(&mut self, poll: &RedirectPoll, by: Deliverer, now: Instant) -> RedirectAnswer {
        let by_run = by != Deliverer::Tool;
        let RedirectPoll {
            options,
            delivered,
            is_end,
        } = poll;
        let wanted = |(stream, wanted)| if wanted { Some(stream) } else { None };
        let streams = || self.streams.iter().zip(options.streams).filter_map(wanted);
        if let Some(tool) = streams().find_map(|stream| stream.other_tool(options.token)) {
            return RedirectAnswer::TakenBy(tool.to_owned());
        }
        if !streams().any(|stream| stream.is_of(options.token)) {
            if let Some(over) = streams().find_map(|stream| stream.over(options.token)) {
                return RedirectAnswer::Ended(over, self.dropped(options.token));
            }
            if self.ended_at.is_some() {
                return RedirectAnswer::NotRunning;
            }
            if *is_end {
                return RedirectAnswer::Ended(RedirectEnd::Detached, [0, 0]);
            }
            begin(&mut self.streams, options, by_run, now);
        }
        for (at, delivered) in delivered
            .iter()
            .enumerate()
            .filter(|(at, _)| options.streams[*at])
        {
            self.streams[at].set_by_run(by_run);
            let noted = self.streams[at].note_delivered(*delivered, now, self.ended_at);
            self.note(noted);
        }
        let is_end_requested = self
            .streams
            .iter()
            .any(|stream| stream.is_end_requested(options.token));
        if *is_end {
            self.end_of(
                options.token,
                if is_end_requested {
                    RedirectEnd::TooSlow
                } else {
                    RedirectEnd::Detached
                },
            );
        }
        if let Some(over) = self.streams.iter().find_map(|stream| stream.over(options.token)) {
            // The run may have delivered more of the other stream since it has sent this poll.
            if by_run && self.streams.iter().any(|stream| stream.is_of(options.token)) {
                self.streams
                    .iter_mut()
                    .for_each(|stream| stream.request_end(options.token));
                return RedirectAnswer::EndRequested;
            }
            self.end_of(options.token, over);
            return RedirectAnswer::Ended(over, self.dropped(options.token));
        }
        if is_end_requested {
            return RedirectAnswer::EndRequested;
        }
        let chunks = self
            .streams
            .each_mut()
            .map(|stream| match stream.is_of(options.token) {
                true if by != (Deliverer::Run { has_room: false }) => stream.chunk(),
                _ => OutputChunk::default(),
            });
        RedirectAnswer::Chunks(Box::new(chunks))
    }

    /// Bytes that the last redirect with this token has lost.
    fn dropped(&self, token: u64) -> [u64; 2] {
        self.streams.each_ref().map(|stream| stream.dropped(token))
    }

    /// Ends the redirect with this token.
    fn end_of(&mut self, token: u64, over: RedirectEnd) {
        for at in 0..self.streams.len() {
            if self.streams[at].is_of(token) {
                let ended = self.streams[at].end(over);
                self.note(ended);
            }
        }
    }

    fn end_all(&mut self, over: RedirectEnd) {
        for at in 0..self.streams.len() {
            let ended = self.streams[at].end(over);
            self.note(ended);
        }
    }

    fn note(&mut self, result: io::Result<()>) {
        if let Err(error) = result {
            self.error.get_or_insert(error);
        }
    }

    /// Does what is due. Returns when to call this next.
    fn check(&mut self, now: Instant) -> Option<Instant> {
        let mut next: Option<Instant> = None;
        for at in 0..self.streams.len() {
            match self.streams[at].check(now, self.ended_at) {
                Ok(due) => next = [next, due].into_iter().flatten().min(),
                Err(error) => self.note(Err(error)),
            }
        }
        next
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is valid at every moment, even if a thread panicked.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        // If the pipe is full, the thread wakes anyway.
        let _ = (&self.wake).write(&[0]);
    }

    /// Carries the output until the attempt has ended and nothing is left.
    fn carry(&self, mut pipes: [Option<File>; 2], wake: &File) {
        let mut buffer = vec![0; READ_SIZE];
        loop {
            let (next, room, has_ended) = {
                let mut state = self.lock();
                let next = state.check(Instant::now());
                if state.error.is_some() {
                    // As a full disk does to a task that writes to its files by itself, this ends it.
                    pipes = [None, None];
                }
                let is_left = state.streams.iter().any(Stream::is_waiting);
                if pipes.iter().all(Option::is_none) && !is_left {
                    break;
                }
                let room = state.streams.each_ref().map(Stream::room);
                (next, room, state.ended_at.is_some())
            };
            let wanted = [0, 1].map(|at| pipes[at].is_some() && room[at] > 0);
            // After the end of the attempt, what its pipes hold is all: other processes may hold them open.
            let timeout = match next {
                _ if has_ended && wanted.contains(&true) => PollTimeout::ZERO,
                None => PollTimeout::NONE,
                Some(at) => {
                    // Rounded up, so that it is due then.
                    let left = at.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
                    PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)
                }
            };
            for at in ready(&pipes, wanted, wake, timeout) {
                let Some(pipe) = &mut pipes[at] else { continue };
                // A redirect may have begun during the wait.
                let most = self.lock().streams[at].room().min(buffer.len());
                if most == 0 {
                    continue;
                }
                match pipe.read(&mut buffer[..most]) {
                    Ok(count @ 1..) => self.add(at, &buffer[..count]),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock && !has_ended => {}
                    _ => pipes[at] = None,
                }
            }
        }
        let mut state = self.lock();
        state.end_all(RedirectEnd::TaskEnded);
        state.is_done = true;
        self.tell(&mut state);
    }

    /// Wakes those who wait.
    fn tell(&self, state: &mut State) {
        self.changed.notify_all();
        if let Some(bell) = state.bell.take() {
            bell.ring();
        }
    }

    fn add(&self, at: usize, bytes: &[u8]) {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let time = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let mut state = self.lock();
        let added = state.streams[at].add(bytes, (Instant::now(), time));
        state.note(added);
        self.tell(&mut state);
    }
}

/// Waits until a pipe has data or is closed, or the thread is woken. Returns the pipes to read from: without
/// a wait, all that are wanted.
fn ready(pipes: &[Option<File>; 2], wanted: [bool; 2], mut wake: &File, timeout: PollTimeout) -> Vec<usize> {
    let wanted = (0..2).filter(|at| wanted[*at]);
    let open: Vec<(usize, &File)> = wanted.filter_map(|at| Some((at, pipes[at].as_ref()?))).collect();
    if timeout == PollTimeout::ZERO {
        return open.iter().map(|(at, _)| *at).collect();
    }
    let files = open.iter().map(|(_, pipe)| *pipe).chain([wake]);
    let mut polled: Vec<PollFd<'_>> = files
        .map(|file| PollFd::new(file.as_fd(), PollFlags::POLLIN))
        .collect();
    // Interrupted or not, the caller looks again.
    let _ = poll(&mut polled, timeout);
    let has_event = |polled: &PollFd<'_>| polled.revents().is_some_and(|events| !events.is_empty());
    if polled.last().is_some_and(has_event) {
        let mut bytes = [0; 64];
        let _ = wake.read(&mut bytes);
    }
    let ready = open.iter().zip(&polled).filter(|(_, polled)| has_event(polled));
    ready.map(|((at, _), _)| *at).collect()
}

#[cfg(test)]
mod tests;
