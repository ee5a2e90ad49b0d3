//! Answers requests of other processes.

use std::path::Path;
use std::time::{Duration, Instant};

use pmc_control::{Answer, Request};
use pmc_dag::{Dag, TaskId};
use signal_hook::consts::SIGUSR1;

pub(super) use crate::control::Server;
use crate::control::{Control, Pending, Reply};
use crate::interrupt::Interrupt;
use crate::options::Options;
use crate::scheduler::Event;
use crate::transport::MasterTransport;

use super::guests::Submission;
use super::{Driver, RunError};

/// Listens for requests, if the run has the lock of its DAG: two runs cannot share a socket.
pub(super) fn serve(
    control: &Control,
    has_lock: bool,
    options: &Options,
    interrupt: &Interrupt,
) -> Option<Server> {
    if !has_lock {
        return None;
    }
    let started = Server::start(&options.dag, control.clone(), interrupt);
    let failed = |error: &std::io::Error| {
        tracing::debug!(
            "The run cannot be controlled from outside: {}",
            pmc_dag::reason(error)
        );
    };
    started.inspect_err(failed).ok()
}

impl<T: MasterTransport> Driver<'_, T> {
    /// Answers all requests that have come, and begins to drain when it is time.
    pub(super) fn answer_requests(&mut self) -> Result<(), RunError> {
        while let Some(pending) = self.control.take() {
            self.answer(pending)?;
        }
        if self.drain_at.is_some_and(|at| at <= Instant::now()) {
            self.drain_at = None;
            self.drain_now()?;
        }
        Ok(())
    }

    /// Returns the DAG that a request is about, and the number of its first task. `None` if it has ended.
    pub(super) fn dag_of(&self, guest: Option<u32>) -> Option<(&Dag, u32)> {
        let Some(at) = guest else {
            return Some((&self.out.root.dag, 0));
        };
        let joined = self.out.joined.get(at as usize)?.as_ref()?;
        Some((&joined.run.dag, *self.out.bases.get(at as usize)?))
    }

    /// Finds a task of the DAG that a request is about.
    pub(super) fn find_task(&self, guest: Option<u32>, name: &str) -> Option<TaskId> {
        let (dag, base) = self.dag_of(guest)?;
        Some(TaskId(dag.find(name.as_bytes())?.0 + base))
    }

    fn answer(&mut self, pending: Pending) -> Result<(), RunError> {
        let Pending {
            request,
            answer,
            guest,
        } = pending;
        let reply = match request {
            Request::Nodes => {
                let mut nodes = self.master.node_statuses();
                self.bad_hosts.mark(&mut nodes);
                nodes.extend(self.early_hosts());
                Answer::Nodes(nodes)
            }
            Request::Why { task } => match self.find_task(guest, &task) {
                Some(task) => Answer::Task(self.master.task_status(task)),
                None => no_task(&task),
            },
            Request::Drain { after_seconds } => match guest {
                None => self.drain_after(after_seconds)?,
                Some(at) => self.drain_guest(at as usize, after_seconds)?,
            },
            Request::Submit { dag, weight } => {
                self.submit(Path::new(&dag), Submission { weight, answer });
                return Ok(());
            }
            Request::DrainNode { host } => self.drain_node(&host)?,
            Request::Kill { task, signal } => self.kill(guest, &task, signal),
            Request::Tap(request) => {
                self.ask(self.read_request(guest, &request), answer);
                return Ok(());
            }
            Request::InputTasks => Answer::Tasks(self.input_tasks(guest)),
            Request::Push(request) => {
                self.ask(self.write_request(guest, request), answer);
                return Ok(());
            }
            Request::Redirect(request) => {
                self.ask(self.redirect_request(guest, request), answer);
                return Ok(());
            }
            Request::Tail(_) if guest.is_some() => Answer::Refused(
                "in a workflow that was handed to another run, only tasks that run can be redirected"
                    .to_owned(),
            ),
            Request::Tail(request) => self.tail(request),
        };
        // A tool that has gone needs no answer.
        let _ = answer.send(Reply::Answer(reply));
        Ok(())
    }

    fn drain_after(&mut self, seconds: Option<u64>) -> Result<Answer, RunError> {
        let Some(seconds) = seconds.filter(|seconds| *seconds > 0) else {
            self.drain_now()?;
            let running = self.master.running();
            return Ok(Answer::Done(format!(
                "no more tasks start; the run ends when the {running} that run have ended"
            )));
        };
        let Some(at) = Instant::now().checked_add(Duration::from_secs(seconds)) else {
            return Ok(Answer::Refused(format!("{seconds} seconds are too long")));
        };
        self.drain_at = Some(at);
        Ok(Answer::Done(format!("no more tasks start in {seconds} seconds")))
    }

    fn drain_now(&mut self) -> Result<(), RunError> {
        if self.drain.is_some() {
            return Ok(());
        }
        tracing::info!("Asked to drain");
        // As after this signal.
        self.begin_drain(SIGUSR1, None)
    }

    fn drain_node(&mut self, host: &str) -> Result<Answer, RunError> {
        let ranks = self.master.workers_of(host);
        if ranks.is_empty() {
            return Ok(Answer::Refused(format!(
                "no worker of this run is on the host {host}"
            )));
        }
        if !self.master.is_dynamic() {
            let reason = "only a run with agents can go on without one of its nodes (--agents)";
            return Ok(Answer::Refused(reason.to_owned()));
        }
        for rank in &ranks {
            self.out.transport.release(*rank);
            self.master.handle(Event::Retire(*rank), &mut self.out)?;
        }
        tracing::info!("Asked to drain the node {host}");
        Ok(Answer::Done(format!(
            "no more tasks start on {host}; its {} slots leave when their tasks have ended",
            ranks.len()
        )))
    }
}

fn no_task(name: &str) -> Answer {
    Answer::Refused(format!("the DAG has no task {name}"))
}
