//! Reads ahead of a tool that has much captured output to read: while it takes a portion, the next ones are
//! on their way from the worker.

use std::collections::VecDeque;

use pmc_control::{Output, Position, StreamOutput, TapRequest};

use super::Reply;
use super::server::PendingAnswer;

/// Portions that are on their way. They wait in the memory of this process, and of the agent.
const MAX_AHEAD: usize = 4;
/// A portion with this many bytes is one of many.
const LARGE_CHUNK: usize = 128 << 10;

/// Portions that the tool has not asked for.
#[derive(Default)]
pub(super) struct ReadAhead {
    asked: VecDeque<PendingAnswer>,
    /// The next request to send.
    next: Option<TapRequest>,
    /// Bytes that each portion has of each stream.
    steps: [u64; 2],
}

impl ReadAhead {
    /// Answers a request. `ask` has the driver do so.
    pub(super) fn answer(&mut self, request: TapRequest, ask: &dyn Fn(TapRequest) -> PendingAnswer) -> Reply {
        if let Some(output) = self.take(&request) {
            match lengths(&output) == self.steps {
                true => self.fill(ask),
                // The end of what there is, for now.
                false => self.stop(),
            }
            return Reply::Output(output);
        }
        let reply = ask(request.clone()).wait();
        if let Reply::Output(output) = &reply {
            self.begin(request, output);
            self.fill(ask);
        }
        reply
    }

    /// Returns a portion that is the answer to a request. Without one, there is none ahead any more.
    fn take(&mut self, request: &TapRequest) -> Option<Output> {
        let is_same = |next: &TapRequest| {
            (&next.task, next.attempt, next.is_own) == (&request.task, request.attempt, request.is_own)
        };
        let asked = match &self.next {
            Some(next) if is_same(next) => self.asked.pop_front(),
            _ => None,
        };
        match asked.map(PendingAnswer::wait) {
            Some(Reply::Output(output)) if goes_on(request, &output) => Some(output),
            _ => {
                self.stop();
                None
            }
        }
    }

    fn stop(&mut self) {
        self.asked.clear();
        self.next = None;
    }

    /// Decides what to ask for after an answer.
    fn begin(&mut self, request: TapRequest, output: &Output) {
        self.steps = lengths(output).map(|length| if length >= LARGE_CHUNK as u64 { length } else { 0 });
        if self.steps == [0, 0] {
            return;
        }
        let mut next = request;
        next.attempt = Some((output.worker, output.attempt));
        // What has not been written yet is not waited for.
        next.may_wait = false;
        for (after, stream) in next.after.iter_mut().zip(&output.streams) {
            if let StreamOutput::Bytes { position, bytes } = stream {
                *after = end(*position, bytes);
            }
        }
        self.next = Some(next);
    }

    fn fill(&mut self, ask: &dyn Fn(TapRequest) -> PendingAnswer) {
        let Some(next) = &mut self.next else { return };
        while self.asked.len() < MAX_AHEAD {
            self.asked.push_back(ask(next.clone()));
            for (after, step) in next.after.iter_mut().zip(self.steps) {
                after.offset = after.offset.saturating_add(step);
            }
        }
    }
}

/// Returns the number of bytes of each stream.
fn lengths(output: &Output) -> [u64; 2] {
    output.streams.each_ref().map(|stream| match stream {
        StreamOutput::Bytes { bytes, .. } => bytes.len() as u64,
        _ => 0,
    })
}

fn end(position: Position, bytes: &[u8]) -> Position {
    Position {
        offset: position.offset.saturating_add(bytes.len() as u64),
        ..position
    }
}

/// Returns whether an answer has something new for the tool that sends this request, and nothing is missing
/// before it. What the tool has already, it leaves out.
fn goes_on(request: &TapRequest, output: &Output) -> bool {
    let mut is_new = false;
    for (after, stream) in request.after.iter().zip(&output.streams) {
        match stream {
            StreamOutput::None => {}
            StreamOutput::Bytes { position, bytes } => {
                if position.file != after.file || position.offset > after.offset {
                    return false;
                }
                is_new |= end(*position, bytes).offset > after.offset;
            }
            StreamOutput::File(_) => return false,
        }
    }
    is_new
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::control::server::answered;

    /// What a worker has of standard output, in portions of at most 200 KiB.
    struct Worker {
        written: u64,
        asked: RefCell<Vec<(u64, bool)>>,
    }

    impl Worker {
        fn ask(&self, request: &TapRequest) -> PendingAnswer {
            let after = request.after[0];
            self.asked.borrow_mut().push((after.offset, request.may_wait));
            let length = self.written.saturating_sub(after.offset).min(200 << 10);
            let stream = match length {
                0 => StreamOutput::None,
                length => StreamOutput::Bytes {
                    position: Position { file: 7, ..after },
                    bytes: vec![b'x'; length as usize],
                },
            };
            answered(Reply::Output(Output {
                worker: 1,
                attempt: 2,
                streams: [stream, StreamOutput::None],
            }))
        }
    }

    fn request(offset: u64) -> TapRequest {
        let known = offset > 0;
        TapRequest {
            task: "t".into(),
            attempt: known.then_some((1, 2)),
            after: [
                Position {
                    file: if known { 7 } else { 0 },
                    offset,
                },
                Position::default(),
            ],
            is_own: false,
            may_wait: true,
        }
    }

    /// Has the next portion, and returns the number of bytes after it.
    fn answer(ahead: &mut ReadAhead, worker: &Worker, offset: u64) -> u64 {
        let reply = ahead.answer(request(offset), &|request| worker.ask(&request));
        let Reply::Output(output) = reply else {
            panic!("{reply:?}")
        };
        match &output.streams[0] {
            StreamOutput::Bytes { position, bytes } => {
                assert!(position.offset <= offset);
                position.offset + bytes.len() as u64
            }
            _ => offset,
        }
    }

    #[test]
    fn all_of_a_long_output_comes_in_order_and_ahead() {
        let mut worker = Worker {
            written: 2_100 << 10,
            asked: RefCell::default(),
        };
        let (mut ahead, mut offset, mut portions) = (ReadAhead::default(), 0, 0);
        while offset < worker.written {
            let next = answer(&mut ahead, &worker, offset);
            assert!(next > offset, "{offset}");
            (offset, portions) = (next, portions + 1);
        }
        assert_eq!((offset, portions), (worker.written, 11));
        // Only the first one waited for the worker; beyond the end, nothing waits there.
        let waited = |worker: &Worker| worker.asked.borrow().iter().filter(|(_, waits)| *waits).count();
        assert_eq!(waited(&worker), 1);
        assert_eq!(worker.asked.borrow().len(), 11 + 3);
        // At the end, the tool waits as it likes, and sees what comes.
        assert_eq!(answer(&mut ahead, &worker, offset), offset);
        assert_eq!(waited(&worker), 2);
        worker.written += 10;
        assert_eq!(answer(&mut ahead, &worker, offset), offset + 10);
    }

    #[test]
    fn a_tool_that_wants_something_else_gets_that() {
        let worker = Worker {
            written: 1 << 30,
            asked: RefCell::default(),
        };
        let mut ahead = ReadAhead::default();
        let first = answer(&mut ahead, &worker, 0);
        // It has read less, or more, than it was given.
        for offset in [1, first / 2, 600 << 10, 10 << 20] {
            let next = answer(&mut ahead, &worker, offset);
            assert!(next > offset && next <= offset + (200 << 10), "{offset} {next}");
        }
        let mut other = request(first);
        other.task = "u".into();
        let before = worker.asked.borrow().len();
        let _ = ahead.answer(other, &|request| worker.ask(&request));
        assert_eq!(worker.asked.borrow()[before], (first, true));
    }

    #[test]
    fn short_output_is_not_read_ahead() {
        let worker = Worker {
            written: 100 << 10,
            asked: RefCell::default(),
        };
        assert_eq!(answer(&mut ReadAhead::default(), &worker, 0), 100 << 10);
        assert_eq!(worker.asked.borrow().len(), 1);
    }
}
