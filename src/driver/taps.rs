//! Requests for the captured output of tasks, which workers answer.

use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use pmc_control::{Answer, Output, StreamOutput, TapRequest};

use super::Driver;
use super::asked::{Asked, AskedRequests};
use crate::control::Reply;
use crate::protocol::{Chunk, Rank, SubmitId, Tap, Tapped, ToWorker};
use crate::scheduler::Outbox as _;
use crate::transport::MasterTransport;

/// Time after an answer in which a tool asks for more if it has not seen all.
const ASK_TIME: Duration = Duration::from_millis(300);
/// Maximum time for which tools keep a run that has nothing else to do.
const READ_TIME: Duration = Duration::from_secs(20);

/// Tools that read what workers have.
#[derive(Debug, Default)]
pub(super) struct Taps {
    /// Requests that workers have not answered.
    asked: AskedRequests<()>,
    /// When a tool has got output.
    got_at: Option<Instant>,
    /// When the run had nothing else to do.
    idle_since: Option<Instant>,
    /// Until when the run waits for the next request.
    awaited_until: Option<Instant>,
}

impl Taps {
    /// Returns whether a tool reads captured output of a task that has ended, now that the run has nothing
    /// else to do: that output ends with the workers. A tool that is slow, or stopped, is not waited for.
    pub(super) fn are_busy(&mut self) -> bool {
        let now = Instant::now();
        let idle_since = *self.idle_since.get_or_insert(now);
        let since = now.checked_sub(ASK_TIME).unwrap_or(now);
        let got_at = self.got_at.filter(|at| *at > since);
        let last = got_at.or_else(|| self.asked.has_since(since).then_some(now));
        let until = last.map(|at| (at + ASK_TIME).min(idle_since + READ_TIME));
        self.awaited_until = until.filter(|until| *until > now);
        self.awaited_until.is_some()
    }

    /// Returns when to look again for tools that are waited for.
    pub(super) fn next_check(&self) -> Option<Instant> {
        self.awaited_until
    }
}

/// Why there is no output of a task.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("the DAG has no task {0}")]
    NoTask(String),
    #[error("the task {task} does not run: it is {state}")]
    NotRunning { task: String, state: String },
    #[error("the run has no worker {0}")]
    NoWorker(u32),
}

impl<T: MasterTransport> Driver<'_, T> {
    /// Answers a request for output of a task, or asks the worker that runs it or has run it.
    pub(super) fn tap(&mut self, guest: Option<u32>, request: TapRequest, answer: SyncSender<Reply>) {
        let reply = match self.attempt_of(guest, &request) {
            Err(refusal) => Reply::Answer(Answer::Refused(refusal.to_string())),
            Ok((worker, attempt)) => match self.out.transport.captures(worker, attempt, request.is_own) {
                Some(captures) => Reply::Output(Output {
                    worker: worker.0,
                    attempt: attempt.0,
                    streams: captures.map(|file| file.map_or(StreamOutput::None, StreamOutput::File)),
                }),
                None => return self.ask(worker, attempt, request, answer),
            },
        };
        // A tool that has gone needs no answer.
        let _ = answer.send(reply);
    }

    /// Returns where the task of a request runs, or where its last attempt has run if the tool knows that.
    /// Otherwise returns why that is not known.
    fn attempt_of(&self, guest: Option<u32>, request: &TapRequest) -> Result<(Rank, SubmitId), Refusal> {
        let name = &request.task;
        let Some(task) = self.find_task(guest, name) else {
            return Err(Refusal::NoTask(name.clone()));
        };
        let running = self.master.assignments().find(|(_, running, _)| *running == task);
        let running = running.map(|(rank, _, submit)| (rank, submit));
        match request.attempt {
            None => running.ok_or_else(|| {
                let state = self.master.task_status(task).state;
                let task = name.clone();
                Refusal::NotRunning { task, state }
            }),
            Some((worker, attempt)) if worker > 0 && worker <= self.out.transport.workers() => {
                Ok((Rank(worker), SubmitId(attempt)))
            }
            Some((worker, _)) => Err(Refusal::NoWorker(worker)),
        }
    }

    fn ask(&mut self, worker: Rank, attempt: SubmitId, request: TapRequest, answer: SyncSender<Reply>) {
        let asked = Asked {
            worker,
            attempt,
            about: (),
            answer,
        };
        let tap = Tap {
            number: self.taps.asked.add(asked),
            submit: attempt,
            after: request.after,
            is_own: request.is_own,
            may_wait: request.may_wait,
        };
        self.out.send(worker, ToWorker::Tap(Box::new(tap)));
    }

    /// Passes the answer of a worker on.
    pub(super) fn note_tapped(&mut self, tapped: Tapped) {
        let Some(asked) = self.taps.asked.take(tapped.number) else {
            return;
        };
        if tapped.chunks.iter().any(|chunk| !chunk.bytes.is_empty()) {
            self.taps.got_at = Some(Instant::now());
        }
        let streams = tapped.chunks.map(|Chunk { position, bytes }| {
            if bytes.is_empty() {
                StreamOutput::None
            } else {
                StreamOutput::Bytes { position, bytes }
            }
        });
        let output = Output {
            worker: asked.worker.0,
            attempt: asked.attempt.0,
            streams,
        };
        let _ = asked.answer.send(Reply::Output(output));
    }
}
