//! Requests of tools to tasks that run: finds the attempt, asks it, and passes the answer on.

use std::sync::mpsc::SyncSender;

use nix::sys::signal::Signal;
use pmc_control::{Answer, Output, PushRequest, RedirectRequest, StacksRequest, StreamOutput, TapRequest};
use pmc_dag::{Dag, Stdin, Task, TaskId};

use super::Run;
use super::redirects::refusal;
use crate::control::{Reply, Target, deliverer};
use crate::protocol;
use crate::protocol::{
    AnswerBody, AttemptAnswer, AttemptRequest, Chunk, Rank, ReadRequest, RequestBody, SubmitId, ToWorker,
    WriteAnswer, WriteRequest,
};
use crate::requests::{AttemptHandle, PendingRequest, PendingRequests};
use crate::scheduler::Outbox as _;
use crate::stacks::{self, Traced};
use crate::transport::MasterTransport;

/// An attempt, and what is asked of it.
pub(super) struct TaskRequest {
    target: Target,
    body: RequestBody,
}

/// Why there is no attempt to ask.
#[derive(Debug, thiserror::Error)]
enum NoAttempt {
    #[error("the DAG has no task {0}")]
    NoTask(String),
    #[error("the run has no worker {0}")]
    NoWorker(u32),
    #[error("the task {task} does not run: it is {state}")]
    NotRunning { task: String, state: String },
    #[error("the task {task} cannot run any more: {failed} has failed")]
    Blocked { task: String, failed: String },
}

impl NoAttempt {
    /// The answer to a tool that can ask again when the task runs.
    fn or_not_yet(self) -> Box<Answer> {
        match self {
            Self::NotRunning { task, state } => match &*state {
                "done" | "failed" => ended(&task).into(),
                _ => Answer::NotYet(state).into(),
            },
            other => other.into(),
        }
    }
}

impl From<NoAttempt> for Box<Answer> {
    fn from(none: NoAttempt) -> Self {
        Self::new(Answer::Refused(none.to_string()))
    }
}

/// Requests of tools to tasks.
#[derive(Debug, Default)]
pub(super) struct Requests(pub(super) PendingRequests);

impl Requests {
    /// Asks an attempt. The tool gets the answer when it comes; that of a worker thread comes at once.
    pub(super) fn ask<T: MasterTransport>(
        &mut self,
        run: &mut Run<'_, T>,
        asked: Result<TaskRequest, Box<Answer>>,
        answer: SyncSender<Reply>,
    ) {
        let TaskRequest { target, body } = match asked {
            Ok(asked) => asked,
            Err(refusal) => {
                // A tool that has gone needs no answer.
                let _ = answer.send(Reply::Answer(*refusal));
                return;
            }
        };
        let (worker, submit) = (Rank(target.worker), SubmitId(target.attempt));
        if let Some(attempt) = run.out.transport.attempt_of(worker) {
            if let RequestBody::Stacks { all_threads } = body {
                let leader = attempt.leader(submit);
                stacks::trace(leader, all_threads, move |found| {
                    let _ = answer.send(Reply::Answer(stacks_or_reason(found)));
                });
                return;
            }
            let _ = answer.send(answer_at_once(attempt, target, &body));
            return;
        }
        let number = self.0.add(PendingRequest {
            target,
            is_read: matches!(body, RequestBody::Read(_)),
            answer,
        });
        let request = AttemptRequest { number, submit, body };
        run.out.send(worker, ToWorker::Request(Box::new(request)));
    }

    /// Passes the answer of a worker on.
    pub(super) fn note_answer(&mut self, from: Rank, answer: AttemptAnswer) {
        let Some(PendingRequest {
            target, answer: to, ..
        }) = self.0.take(from, answer.number)
        else {
            return;
        };
        let reply = match answer.body {
            AnswerBody::Read(chunks) => {
                if chunks.iter().any(|chunk| !chunk.bytes.is_empty()) {
                    self.0.note_output();
                }
                output(&target, chunks.map(stream_of))
            }
            AnswerBody::Written(taken) => Reply::Answer(describe(&target, taken)),
            AnswerBody::Redirected(answer) => Reply::Redirected(target, answer),
            AnswerBody::Stacks(found) => Reply::Answer(stacks_or_reason(found.map(|stacks| *stacks))),
        };
        let _ = to.send(reply);
    }
}

impl<T: MasterTransport> Run<'_, T> {
    /// Returns the DAG that a request is about, and the number of its first task. `None` if it has ended.
    pub(super) fn dag_of(&self, guest: Option<u32>) -> Option<(&Dag, u32)> {
        let Some(at) = guest else {
            return Some((&self.out.dags.root.dag, 0));
        };
        let joined = self.out.dags.joined.get(at as usize)?.as_ref()?;
        Some((&joined.run.dag, *self.out.dags.bases.get(at as usize)?))
    }

    /// Finds a task of the DAG that a request is about.
    pub(super) fn find_task(&self, guest: Option<u32>, name: &str) -> Option<TaskId> {
        let (dag, base) = self.dag_of(guest)?;
        Some(TaskId(dag.find(name.as_bytes())?.0 + base))
    }

    /// Returns a line of the DAG that a request is about.
    fn line(&self, guest: Option<u32>, name: &str) -> Result<Task<'_>, NoAttempt> {
        let found = self.dag_of(guest).zip(self.find_task(guest, name));
        let ((dag, base), task) = found.ok_or_else(|| NoAttempt::NoTask(name.to_owned()))?;
        Ok(dag.task(TaskId(task.0 - base)))
    }

    /// Returns the attempt that a tool knows from an earlier answer, or the one that runs.
    fn find_attempt(
        &self,
        guest: Option<u32>,
        name: &str,
        known: Option<(u32, u64)>,
    ) -> Result<Target, NoAttempt> {
        let no_task = || NoAttempt::NoTask(name.to_owned());
        let task = self.find_task(guest, name).ok_or_else(no_task)?;
        let (worker, attempt) = match known {
            Some((worker, attempt)) if worker > 0 && worker <= self.out.transport.workers() => {
                (worker, attempt)
            }
            Some((worker, _)) => return Err(NoAttempt::NoWorker(worker)),
            None => self.attempt_of(task).ok_or_else(|| {
                let name = name.to_owned();
                match self.master.failed_before(task) {
                    Some(failed) => NoAttempt::Blocked { task: name, failed },
                    None => NoAttempt::NotRunning {
                        task: name,
                        state: self.master.task_status(task).state,
                    },
                }
            })?,
        };
        Ok(Target {
            task: name.to_owned(),
            worker,
            attempt,
        })
    }

    /// Returns worker and number of the attempt of a task that runs.
    pub(super) fn attempt_of(&self, task: TaskId) -> Option<(u32, u64)> {
        let running = self.master.assignments().find(|(_, running, _)| *running == task);
        running.map(|(rank, _, submit)| (rank.0, submit.0))
    }

    /// Returns what a request for captured output asks.
    pub(super) fn read_request(
        &self,
        guest: Option<u32>,
        request: &TapRequest,
    ) -> Result<TaskRequest, Box<Answer>> {
        let target = self.find_attempt(guest, &request.task, request.attempt)?;
        let body = RequestBody::Read(ReadRequest {
            after: request.after,
            is_own: request.is_own,
            may_wait: request.may_wait,
        });
        Ok(TaskRequest { target, body })
    }

    /// Returns what a request asks that passes input to a task. A worker takes as much as the pipe of the
    /// task has room for, and the tool pushes the rest again. So input waits nowhere in memory, even if the
    /// task never reads it.
    pub(super) fn write_request(
        &self,
        guest: Option<u32>,
        request: PushRequest,
    ) -> Result<TaskRequest, Box<Answer>> {
        let name = &request.task;
        if self.line(guest, name)?.stdin != Some(&Stdin::Push) {
            let reason = format!("task {name} has no standard input (start it with --stdin push)");
            return Err(Answer::NotSupported(reason).into());
        }
        let target = match (self.find_attempt(guest, name, None), request.attempt) {
            (Ok(running), Some(known)) if known != (running.worker, running.attempt) => {
                return Err(ended(name).into());
            }
            (Err(_), Some(_)) => return Err(ended(name).into()),
            (running, _) => running.map_err(NoAttempt::or_not_yet)?,
        };
        let body = RequestBody::Write(WriteRequest {
            bytes: request.bytes,
            is_end: request.is_end,
        });
        Ok(TaskRequest { target, body })
    }

    /// Returns what a request for output asks that a tool gets instead of the files.
    pub(super) fn redirect_request(
        &self,
        guest: Option<u32>,
        request: RedirectRequest,
    ) -> Result<TaskRequest, Box<Answer>> {
        let name = &request.task;
        let line = self.line(guest, name)?;
        let messages = [line.failure_messages, line.success_messages];
        // An attempt that is known has begun with a relay, or without.
        if request.attempt.is_none()
            && let Some(reason) = refusal(name, line.command, messages)
        {
            return Err(Answer::NotSupported(reason).into());
        }
        let target = self.find_attempt(guest, name, request.attempt);
        let body = RequestBody::Redirect(protocol::RedirectRequest {
            by: deliverer(&request),
            may_wait: request.may_wait,
            poll: request.poll,
        });
        Ok(TaskRequest {
            target: target.map_err(NoAttempt::or_not_yet)?,
            body,
        })
    }

    /// Returns what a request for stacks asks.
    pub(super) fn stacks_request(
        &self,
        guest: Option<u32>,
        request: &StacksRequest,
    ) -> Result<TaskRequest, Box<Answer>> {
        let target = self.find_attempt(guest, &request.task, Some(request.attempt))?;
        let body = RequestBody::Stacks {
            all_threads: request.all_threads,
        };
        Ok(TaskRequest { target, body })
    }

    /// Says which workers take part in the running attempt of a task, and where they are.
    pub(super) fn workers_of(&self, guest: Option<u32>, task: &str) -> Answer {
        match self.find_attempt(guest, task, None) {
            Err(none) => *Box::<Answer>::from(none),
            Ok(Target { worker, attempt, .. }) => Answer::Workers {
                attempt,
                workers: self.master.taking_part(Rank(worker), SubmitId(attempt)),
            },
        }
    }

    /// Sends a signal to an attempt.
    pub(super) fn signal(&mut self, worker: Rank, submit: SubmitId, signal: i32) {
        if let Some(attempt) = self.out.transport.attempt_of(worker) {
            attempt.signal(submit, signal);
            return;
        }
        self.send_unanswered(worker, submit, RequestBody::Signal(signal));
    }

    /// Sends an attempt the signal by which it is to save itself.
    pub(super) fn notify(&mut self, worker: Rank, submit: SubmitId, signal: i32) {
        if let Some(attempt) = self.out.transport.attempt_of(worker) {
            attempt.notify(submit, signal);
            return;
        }
        self.send_unanswered(worker, submit, RequestBody::Notify(signal));
    }

    fn send_unanswered(&mut self, worker: Rank, submit: SubmitId, body: RequestBody) {
        let request = AttemptRequest {
            number: 0,
            submit,
            body,
        };
        self.out.send(worker, ToWorker::Request(Box::new(request)));
    }

    /// Sends a signal to the task that a tool names.
    pub(super) fn kill(&mut self, guest: Option<u32>, name: &str, signal: i32) -> Answer {
        if Signal::try_from(signal).is_err() {
            return Answer::Refused(format!("there is no signal {signal}"));
        }
        let Target { worker, attempt, .. } = match self.find_attempt(guest, name, None) {
            Ok(target) => target,
            Err(none) => return Answer::Refused(none.to_string()),
        };
        tracing::info!("Asked to send signal {signal} to task {name}");
        self.signal(Rank(worker), SubmitId(attempt), signal);
        Answer::Done(format!("signal {signal} is sent to the task {name}"))
    }

    /// Returns the running tasks that take input from tools.
    pub(super) fn input_tasks(&self, guest: Option<u32>) -> Vec<String> {
        let Some((dag, base)) = self.dag_of(guest) else {
            return Vec::new();
        };
        let running = self.master.assignments().map(|(_, task, _)| task);
        // Tasks of sub-workflows take no input from tools.
        let running = running.filter_map(|task| Some(TaskId(task.0.checked_sub(base)?)));
        let running = running.filter(|task| task.index() < dag.len());
        let taking = running.filter(|task| dag.task(*task).stdin == Some(&Stdin::Push));
        taking
            .map(|task| String::from_utf8_lossy(dag.name(task)).into_owned())
            .collect()
    }
}

/// Asks an attempt of a worker that is a thread of this process.
fn answer_at_once(attempt: &dyn AttemptHandle, target: Target, body: &RequestBody) -> Reply {
    let submit = SubmitId(target.attempt);
    match body {
        RequestBody::Signal(signal) => {
            attempt.signal(submit, *signal);
            Reply::Answer(Answer::Done(String::new()))
        }
        RequestBody::Notify(signal) => {
            attempt.notify(submit, *signal);
            Reply::Answer(Answer::Done(String::new()))
        }
        RequestBody::Read(read) => {
            let captures = attempt.captures(submit, read.is_own).unwrap_or_default();
            let file = |file: Option<_>| file.map_or(StreamOutput::None, StreamOutput::File);
            output(&target, captures.map(file))
        }
        RequestBody::Write(WriteRequest { bytes, is_end }) => {
            Reply::Answer(describe(&target, attempt.write(submit, bytes, *is_end)))
        }
        // It takes a while: see [`Requests::ask`].
        RequestBody::Stacks { .. } => Reply::Answer(ended(&target.task)),
        RequestBody::Redirect(_) => match attempt.relay(submit) {
            Ok(relay) => Reply::Relay(target, relay),
            Err(none) => Reply::Redirected(target, none),
        },
    }
}

fn output(target: &Target, streams: [StreamOutput; 2]) -> Reply {
    Reply::Output(Output {
        worker: target.worker,
        attempt: target.attempt,
        streams,
    })
}

fn stream_of(Chunk { position, bytes }: Chunk) -> StreamOutput {
    if bytes.is_empty() {
        StreamOutput::None
    } else {
        StreamOutput::Bytes { position, bytes }
    }
}

fn describe(target: &Target, taken: WriteAnswer) -> Answer {
    let task = &target.task;
    match taken {
        WriteAnswer::Taken(count) => Answer::Taken {
            worker: target.worker,
            attempt: target.attempt,
            count,
        },
        // It is about to start.
        WriteAnswer::NotPushed => Answer::NotYet("running".to_owned()),
        WriteAnswer::Complete => Answer::Refused(format!("the standard input of task {task} had its end")),
        WriteAnswer::Closed => Answer::Refused(format!("task {task} has closed its standard input")),
        WriteAnswer::Ended => ended(task),
    }
}

fn stacks_or_reason(found: Traced) -> Answer {
    found.map_or_else(Answer::Refused, Answer::Stacks)
}

fn ended(task: &str) -> Answer {
    Answer::Refused(format!("the attempt of task {task} has ended"))
}
