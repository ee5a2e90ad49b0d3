//! Requests that pass input to tasks.
//!
//! A worker takes as much as the pipe of the task has room for, and the tool pushes the rest again. So input
//! waits nowhere in memory, even if the task never reads it.

use std::sync::mpsc::SyncSender;

use pmc_control::{Answer, PushRequest};
use pmc_dag::{Stdin, TaskId};

use super::Driver;
use super::asked::{Asked, AskedRequests};
use crate::control::Reply;
use crate::protocol::{Input, InputAnswer, InputTaken, Rank, SubmitId, ToWorker};
use crate::scheduler::Outbox as _;
use crate::transport::MasterTransport;

/// Requests that workers have not answered, with the names of the tasks.
pub(super) type Inputs = AskedRequests<String>;

impl<T: MasterTransport> Driver<'_, T> {
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

    /// Passes input to a task, or has its worker do that.
    pub(super) fn push(&mut self, guest: Option<u32>, request: PushRequest, answer: SyncSender<Reply>) {
        let (worker, attempt) = match self.target(guest, &request) {
            Ok(target) => target,
            Err(refusal) => {
                // A tool that has gone needs no answer.
                let _ = answer.send(Reply::Answer(*refusal));
                return;
            }
        };
        let PushRequest {
            task, bytes, is_end, ..
        } = request;
        if let Some(taken) = self.out.transport.push(worker, attempt, &bytes, is_end) {
            let _ = answer.send(Reply::Answer(describe(&task, (worker, attempt), taken)));
            return;
        }
        let asked = Asked {
            worker,
            attempt,
            about: task,
            answer,
        };
        let input = Input {
            number: self.inputs.add(asked),
            submit: attempt,
            bytes,
            is_end,
        };
        self.out.send(worker, ToWorker::Input(Box::new(input)));
    }

    /// Returns where the task of a request runs, or why it takes no input.
    fn target(&self, guest: Option<u32>, request: &PushRequest) -> Result<(Rank, SubmitId), Box<Answer>> {
        let name = &request.task;
        let found = self.dag_of(guest).zip(self.find_task(guest, name));
        let Some(((dag, base), task)) = found else {
            return Err(Answer::Refused(format!("the DAG has no task {name}")).into());
        };
        if dag.task(TaskId(task.0 - base)).stdin != Some(&Stdin::Push) {
            let reason = format!("task {name} has no standard input (start it with --stdin push)");
            return Err(Answer::NotSupported(reason).into());
        }
        let running = self.master.assignments().find(|(_, running, _)| *running == task);
        match (request.attempt, running) {
            (None, Some((rank, _, submit))) => Ok((rank, submit)),
            (Some(known), Some((rank, _, submit))) if known == (rank.0, submit.0) => Ok((rank, submit)),
            (Some(_), _) => Err(ended(name).into()),
            (None, None) => {
                let state = self.master.task_status(task).state;
                let refusal = match &*state {
                    "done" | "failed" => ended(name),
                    _ => Answer::NotYet(state),
                };
                Err(refusal.into())
            }
        }
    }

    /// Passes the answer of a worker on.
    pub(super) fn note_input(&mut self, taken: InputTaken) {
        if let Some(asked) = self.inputs.take(taken.number) {
            let reply = describe(&asked.about, (asked.worker, asked.attempt), taken.answer);
            let _ = asked.answer.send(Reply::Answer(reply));
        }
    }
}

fn describe(task: &str, (worker, attempt): (Rank, SubmitId), taken: InputAnswer) -> Answer {
    match taken {
        InputAnswer::Taken(count) => Answer::Taken {
            worker: worker.0,
            attempt: attempt.0,
            count,
        },
        // It is about to start.
        InputAnswer::NotPushed => Answer::NotYet("running".to_owned()),
        InputAnswer::Complete => Answer::Refused(format!("the standard input of task {task} had its end")),
        InputAnswer::Closed => Answer::Refused(format!("task {task} has closed its standard input")),
        InputAnswer::Ended => ended(task),
    }
}

fn ended(task: &str) -> Answer {
    Answer::Refused(format!("the attempt of task {task} has ended"))
}
