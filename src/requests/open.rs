//! The worker's half: requests that have come, and their answers.

use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use pmc_system::clock;

use super::AttemptHandle;
use super::read::ReadFiles;
use crate::bell::Bell;
use crate::protocol::{
    AnswerBody, AttemptAnswer, AttemptRequest, Deliverer, RequestBody, SubmitId, WriteRequest,
};
use crate::stacks::{self, Traced};

/// Time after which a request is answered if nothing has come.
const OUTPUT_TIMEOUT: Duration = Duration::from_millis(500);
/// Interval between looks for output while a tool waits for it, or pushes input.
const WAITING_INTERVAL: Duration = Duration::from_millis(2);
/// The same while a tool redirects output, or has much to read.
const BUSY_INTERVAL: Duration = Duration::from_millis(1);
/// Time after an answer with output in which the tool may ask again.
const NEXT_REQUEST_TIMEOUT: Duration = Duration::from_millis(20);
/// Time after input for a task in which more may come soon.
const NEXT_INPUT_TIMEOUT: Duration = Duration::from_millis(200);

/// Requests that wait for output, and what is known from those before.
#[derive(Debug, Default)]
pub(crate) struct OpenRequests {
    waiting: Vec<Waiting>,
    files: ReadFiles,
    /// Until when a tool may ask for more output.
    busy_until: Option<Instant>,
    /// Until when more input for the task may come soon.
    input_until: Option<Instant>,
}

#[derive(Debug)]
struct Waiting {
    request: AttemptRequest,
    /// Set if a process traces the attempt.
    traced: Option<Receiver<Traced>>,
    until: Instant,
    /// When to look for more files.
    next_look: Instant,
}

impl Waiting {
    /// Returns what the processes of the attempt do, once it is known.
    fn stacks(&self) -> Option<AnswerBody> {
        let found = self.traced.as_ref()?.try_recv().ok()?;
        Some(AnswerBody::Stacks(found.map(Box::new)))
    }
}

/// A redirect: its attempt, and the token of the tool.
type RedirectKey = (SubmitId, u64);

impl OpenRequests {
    /// Takes a request. Returns the answer, unless it may wait or there is none.
    pub(crate) fn take(
        &mut self,
        request: AttemptRequest,
        attempt: &dyn AttemptHandle,
    ) -> Option<AttemptAnswer> {
        let (number, now) = (request.number, clock::now());
        let mut traced = None;
        let may_wait = match &request.body {
            RequestBody::Signal(signal) => {
                attempt.signal(request.submit, *signal);
                return None;
            }
            RequestBody::Notify(signal) => {
                attempt.notify(request.submit, *signal);
                return None;
            }
            RequestBody::Write(WriteRequest { bytes, is_end }) => {
                self.input_until = Some(now + NEXT_INPUT_TIMEOUT);
                let body = AnswerBody::Written(attempt.write(request.submit, bytes, *is_end));
                return Some(AttemptAnswer { number, body });
            }
            RequestBody::Read(read) => read.may_wait,
            RequestBody::Redirect(redirect) => redirect.may_wait,
            RequestBody::Stacks { all_threads } => {
                let (sender, receiver) = sync_channel(1);
                let leader = attempt.leader(request.submit);
                // Nobody waits any more if the worker ends.
                stacks::trace(leader, *all_threads, move |found| drop(sender.send(found)));
                traced = Some(receiver);
                true
            }
        };
        let until = if may_wait { now + OUTPUT_TIMEOUT } else { now };
        self.waiting.push(Waiting {
            request,
            traced,
            until,
            next_look: now,
        });
        None
    }

    /// Returns whether a tool waits for an answer, or may ask soon.
    pub(crate) fn are_open(&self) -> bool {
        !self.waiting.is_empty() || self.busy_until.is_some_and(|until| clock::now() < until)
    }

    /// Returns how long to wait for a message at most while a task runs. `None` if no tool asks for anything.
    pub(crate) fn interval(&self) -> Option<Duration> {
        let now = clock::now();
        let is_before = |until: Option<Instant>| until.is_some_and(|until| now < until);
        let redirects = |waiting: &Waiting| matches!(waiting.request.body, RequestBody::Redirect(_));
        if is_before(self.busy_until) || self.waiting.iter().any(redirects) {
            Some(BUSY_INTERVAL)
        } else {
            let is_waiting = !self.waiting.is_empty() || is_before(self.input_until);
            is_waiting.then_some(WAITING_INTERVAL)
        }
    }

    /// Returns the answers that are due, in the order of the requests. The bell rings when a task writes for
    /// which a redirect waits.
    pub(crate) fn answers(&mut self, attempt: &dyn AttemptHandle, bell: Option<&Bell>) -> Vec<AttemptAnswer> {
        let mut answers = Vec::new();
        if self.waiting.is_empty() && self.files.are_none() {
            return answers;
        }
        let now = clock::now();
        let mut held = Vec::new();
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.retain_mut(|waiting| {
            let body = match waiting.request.body {
                RequestBody::Read(_) => self.read(waiting, attempt, now),
                RequestBody::Stacks { .. } => waiting.stacks(),
                _ => self.redirect(waiting, attempt, bell, (now, &mut held)),
            };
            let number = waiting.request.number;
            let answer = body.map(|body| AttemptAnswer { number, body });
            let is_due = answer.is_some();
            answers.extend(answer);
            !is_due
        });
        self.waiting = waiting;
        self.files.forget_old(now);
        answers
    }

    fn read(
        &mut self,
        waiting: &mut Waiting,
        attempt: &dyn AttemptHandle,
        now: Instant,
    ) -> Option<AnswerBody> {
        let RequestBody::Read(read) = &waiting.request.body else {
            return None;
        };
        let of = (waiting.request.submit, read.is_own);
        let next_look = &mut waiting.next_look;
        let (chunks, is_running) = self.files.next(of, read.after, next_look, attempt, now);
        let has_output = chunks.iter().any(|chunk| !chunk.bytes.is_empty());
        if has_output {
            self.busy_until = Some(now + NEXT_REQUEST_TIMEOUT);
        }
        let is_due = has_output || !is_running || waiting.until <= now;
        is_due.then_some(AnswerBody::Read(chunks))
    }

    /// `held`: redirects with a request that still waits. Output that comes now is for that request: the run
    /// takes the answers in the order of its requests.
    fn redirect(
        &mut self,
        waiting: &Waiting,
        attempt: &dyn AttemptHandle,
        bell: Option<&Bell>,
        (now, held): (Instant, &mut Vec<RedirectKey>),
    ) -> Option<AnswerBody> {
        let RequestBody::Redirect(redirect) = &waiting.request.body else {
            return None;
        };
        let of = (waiting.request.submit, redirect.poll.options.token);
        let by = match redirect.by {
            Deliverer::Run { .. } if held.contains(&of) => Deliverer::Run { has_room: false },
            by => by,
        };
        let answer = match attempt.relay(waiting.request.submit) {
            Ok(relay) => relay.poll_or_ring(&redirect.poll, by, bell),
            Err(answer) => answer,
        };
        if answer.is_empty() && waiting.until > now {
            held.push(of);
            return None;
        }
        self.busy_until = Some(now + NEXT_REQUEST_TIMEOUT);
        Some(AnswerBody::Redirected(answer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Captures, ReadRequest, RedirectAnswer, WriteAnswer};
    use crate::relay::Relay;

    /// An attempt that takes three bytes of input, and has no output.
    struct Fake;

    impl AttemptHandle for Fake {
        fn notify(&self, _: SubmitId, _: i32) {}

        fn signal(&self, _: SubmitId, _: i32) {}

        fn captures(&self, attempt: SubmitId, _: bool) -> Option<Captures> {
            (attempt == SubmitId(3)).then(Captures::default)
        }

        fn leader(&self, _: SubmitId) -> Option<nix::unistd::Pid> {
            None
        }

        fn write(&self, _: SubmitId, bytes: &[u8], _: bool) -> WriteAnswer {
            WriteAnswer::Taken(bytes.len().min(3) as u64)
        }

        fn relay(&self, _: SubmitId) -> Result<Relay, RedirectAnswer> {
            Err(RedirectAnswer::NoRelay)
        }
    }

    fn request(number: u64, submit: u64, body: RequestBody) -> AttemptRequest {
        let submit = SubmitId(submit);
        AttemptRequest { number, submit, body }
    }

    fn read(number: u64, submit: u64, may_wait: bool) -> AttemptRequest {
        let body = ReadRequest {
            after: Default::default(),
            is_own: false,
            may_wait,
        };
        request(number, submit, RequestBody::Read(body))
    }

    #[test]
    fn only_what_waits_for_output_stays_open() {
        let mut open = OpenRequests::default();
        assert_eq!(open.interval(), None);
        assert_eq!(open.take(request(0, 3, RequestBody::Signal(15)), &Fake), None);
        assert!(!open.are_open());
        let write = WriteRequest {
            bytes: b"abcd".to_vec(),
            is_end: true,
        };
        let taken = open.take(request(5, 3, RequestBody::Write(write)), &Fake);
        let body = AnswerBody::Written(WriteAnswer::Taken(3));
        assert_eq!(taken, Some(AttemptAnswer { number: 5, body }));
        assert!(!open.are_open(), "input is answered at once");
        assert_eq!(open.interval(), Some(WAITING_INTERVAL), "more may come");
        for may_wait in [(6, true), (7, false)] {
            assert_eq!(open.take(read(may_wait.0, 3, may_wait.1), &Fake), None);
        }
        // An attempt that does not run writes no more.
        assert_eq!(open.take(read(8, 2, true), &Fake), None);
        // No process is to be traced.
        let all_threads = false;
        assert_eq!(
            open.take(request(9, 2, RequestBody::Stacks { all_threads }), &Fake),
            None
        );
        let answers = open.answers(&Fake, None);
        let numbers: Vec<u64> = answers.iter().map(|answer| answer.number).collect();
        assert_eq!(numbers, [7, 8, 9]);
        assert!(matches!(answers[2].body, AnswerBody::Stacks(Err(_))));
        assert!(open.are_open());
    }
}
