//! Requests of tools that redirect output of tasks.

use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use pmc_control::{Answer, Claim, RedirectRequest, Request, TAILING, TailRequest};
use pmc_dag::{TaskId, pattern, words};

use super::Driver;
use super::asked::{Asked, AskedRequests};
use crate::control::{Reply, Target, deliverer};
use crate::protocol::{Assignment, Rank, Redirect, Redirected, SubmitId, ToWorker};
use crate::scheduler::Outbox as _;
use crate::transport::MasterTransport;

/// Time for redirects to end before tasks are ended.
const LAST_DELIVERY: Duration = Duration::from_millis(250);
/// Time between two looks.
const LOOK: Duration = Duration::from_millis(1);

/// Requests that workers have not answered, with the names of the tasks.
pub(super) type Redirects = AskedRequests<String>;

/// Tools that wait for tasks.
#[derive(Debug, Default)]
pub(super) struct Tails(Vec<TailRequest>);

impl Tails {
    /// Lets the first tool that waits for a task of the run's own DAG redirect it.
    pub(super) fn claim(&self, assignment: &mut Assignment) {
        if self.0.is_empty() || refusal_of(assignment).is_some() {
            return;
        }
        let matches = |text: &String| pattern::matches(text.as_bytes(), &assignment.name);
        let mut tails = self.0.iter();
        if let Some(tail) = tails.find(|tail| tail.patterns.iter().any(matches)) {
            assignment.claim = Some(Box::new(tail.claim.clone()));
        }
    }
}

/// Returns why the output of a task must be in its files.
fn refusal_of(assignment: &Assignment) -> Option<String> {
    let task = String::from_utf8_lossy(&assignment.name);
    refusal(
        &task,
        &assignment.command,
        [&assignment.failure_messages, &assignment.success_messages],
    )
}

fn refusal(task: &str, command: &[u8], messages: [&[Vec<u8>]; 2]) -> Option<String> {
    if let Some(program) = pmc_calls::recorder(&words::split(command)) {
        return Some(format!(
            "the output of task {task} cannot be redirected: it has the record of {program}; `pmc attach` without \
             --redirect shows what its program prints"
        ));
    }
    let is_checked = messages.iter().any(|messages| !messages.is_empty());
    is_checked.then(|| {
        format!(
            "the output of task {task} cannot be redirected: the task has --success-message or --failure-message"
        )
    })
}

impl<T: MasterTransport> Driver<'_, T> {
    /// Answers a request for output of a task, or asks its worker.
    pub(super) fn redirect(
        &mut self,
        guest: Option<u32>,
        request: RedirectRequest,
        answer: SyncSender<Reply>,
    ) {
        let by = deliverer(&request);
        let (worker, attempt) = match self.redirected(guest, &request) {
            Ok(found) => found,
            Err(refusal) => {
                // A tool that has gone needs no answer.
                let _ = answer.send(Reply::Answer(*refusal));
                return;
            }
        };
        let target = Target {
            task: request.task,
            worker: worker.0,
            attempt: attempt.0,
        };
        match self.out.transport.relay(worker, attempt) {
            Some(Ok(relay)) => {
                let _ = answer.send(Reply::Relay(target, relay));
                return;
            }
            Some(Err(none)) => {
                let _ = answer.send(Reply::Redirected(target, none));
                return;
            }
            None => {}
        }
        let asked = Asked {
            worker,
            attempt,
            about: target.task,
            answer,
        };
        let redirect = Redirect {
            number: self.redirects.add(asked),
            submit: attempt,
            by,
            poll: request.poll,
            may_wait: request.may_wait,
        };
        self.out.send(worker, ToWorker::Redirect(Box::new(redirect)));
    }

    /// Returns where the task of a request runs or has run, or why its output cannot be redirected.
    fn redirected(
        &self,
        guest: Option<u32>,
        request: &RedirectRequest,
    ) -> Result<(Rank, SubmitId), Box<Answer>> {
        let name = &request.task;
        let found = self.dag_of(guest).zip(self.find_task(guest, name));
        let Some(((dag, base), task)) = found else {
            return Err(Answer::Refused(format!("the DAG has no task {name}")).into());
        };
        if let Some((worker, attempt)) = request.attempt {
            return if worker > 0 && worker <= self.out.transport.workers() {
                Ok((Rank(worker), SubmitId(attempt)))
            } else {
                Err(Answer::Refused(format!("the run has no worker {worker}")).into())
            };
        }
        let line = dag.task(TaskId(task.0 - base));
        let messages = [line.failure_messages, line.success_messages];
        if let Some(reason) = refusal(name, line.command, messages) {
            return Err(Answer::NotSupported(reason).into());
        }
        let running = self.master.assignments().find(|(_, running, _)| *running == task);
        if let Some((worker, _, attempt)) = running {
            return Ok((worker, attempt));
        }
        let state = self.master.task_status(task).state;
        Err(match &*state {
            "done" | "failed" => Answer::Refused(format!("the attempt of task {name} has ended")).into(),
            _ => Answer::NotYet(state).into(),
        })
    }

    /// Passes the answer of a worker on.
    pub(super) fn note_redirected(&mut self, redirected: Redirected) {
        let Some(asked) = self.redirects.take(redirected.number) else {
            return;
        };
        let target = Target {
            task: asked.about,
            worker: asked.worker.0,
            attempt: asked.attempt.0,
        };
        let _ = asked.answer.send(Reply::Redirected(target, redirected.answer));
    }

    /// Ends redirects before tasks are ended: only the threads of connections know what was delivered, and it
    /// must not go to a file, too. Waits for them for a moment.
    pub(super) fn end_redirects(&mut self) {
        self.control.end_redirects();
        let end = Instant::now() + LAST_DELIVERY;
        loop {
            let has_redirects = self.control.has_redirects();
            // A redirect passes its last request on before it ends.
            while let Some(pending) = self.control.take() {
                if let Request::Redirect(request) = pending.request {
                    self.redirect(pending.guest, request, pending.answer);
                }
            }
            if !has_redirects || Instant::now() >= end {
                return;
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Notes a tool that waits for tasks, or that it waits no more if it has no pattern.
    pub(super) fn tail(&mut self, request: TailRequest) -> Answer {
        let Claim { token, .. } = request.claim;
        let tails = &mut self.out.tails.0;
        tails.retain(|tail| tail.claim.token != token);
        if !request.patterns.is_empty() {
            tails.push(request);
        }
        Answer::Done(TAILING.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_and_checked_output_stay_in_their_files() {
        let refused = |command: &[u8]| refusal("t", command, [&[], &[]]);
        assert_eq!(refused(b"/bin/sim -x 'a b'"), None);
        let named = b"/bin/sh -c 'sleep 9' pegasus-kickstart";
        assert_eq!(refused(named), None, "an argument is no program");
        let text = refused(b"env A=1 /opt/bin/pegasus-kickstart -n x /bin/sim").unwrap();
        assert!(text.contains("task t cannot be redirected: it has the record of pegasus-kickstart"));
        let messages = [b"no".to_vec()];
        assert!(refusal("t", b"/bin/sim", [&messages, &[]]).is_some());
        assert!(refusal("t", b"/bin/sim", [&[], &messages]).is_some());
    }
}
