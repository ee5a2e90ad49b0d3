//! Answers requests of other processes.

use std::path::Path;
use std::time::{Duration, Instant, UNIX_EPOCH};

use monitord_compat::run_end::DrainedBy;
use pmc_control::{Answer, Request, RunLimits};
use pmc_system::clock;
use signal_hook::consts::SIGUSR1;

use crate::control::{Pending, Reply};
use crate::transport::MasterTransport;

use super::guests::Submission;
use super::serving::takes_no_tasks;
use super::{Driver, RunError};

impl<T: MasterTransport> Driver<'_, T> {
    /// Answers all requests that have come, and begins to drain when it is time.
    pub(super) fn answer_requests(&mut self) -> Result<(), RunError> {
        while let Some(pending) = self.control.take() {
            self.answer(pending)?;
        }
        if self.drain_at.is_some_and(|at| at <= clock::now()) {
            self.drain_at = None;
            self.drain_now()?;
        }
        Ok(())
    }

    fn answer(&mut self, pending: Pending) -> Result<(), RunError> {
        let Pending {
            request,
            answer,
            guest,
        } = pending;
        let reply = match request {
            Request::Nodes => Answer::Nodes(self.host_statuses()),
            Request::Limits => Answer::Limits(self.limits()),
            Request::Why { task } => match self.run.find_task(guest, &task) {
                Some(task) => Answer::Task(self.run.master.task_status(task)),
                None => no_task(&task),
            },
            Request::Drain { after_seconds } => match guest {
                None => self.drain_after(after_seconds)?,
                Some(at) => self.run.drain_guest(at as usize, after_seconds)?,
            },
            Request::Submit { dag, weight } => {
                let submission = Submission { weight, answer };
                self.subworkflows.submit(&self.run, Path::new(&dag), submission);
                return Ok(());
            }
            Request::Add(add) => return self.add_tasks(add, answer),
            Request::Ends { tasks } => match &self.serving {
                Some(serving) => serving.ends_of(&self.run, &tasks),
                None => takes_no_tasks(),
            },
            Request::NextEnds { from } => match &mut self.serving {
                Some(serving) => {
                    serving.follow(&self.run, from, answer);
                    return Ok(());
                }
                None => takes_no_tasks(),
            },
            Request::Cancel { tasks } => match &mut self.serving {
                Some(serving) => serving.cancel(&mut self.run, &tasks),
                None => takes_no_tasks(),
            },
            Request::Stop => match &mut self.serving {
                Some(serving) => serving.stop(),
                None => takes_no_tasks(),
            },
            Request::DrainNode { host } => self.drain_node(&host)?,
            Request::ReserveNodes { hosts, is_reserved } => self.reserve_nodes(&hosts, is_reserved),
            Request::NodeGone { host } => self.give_up_node(&host)?,
            Request::KillOnHost { host, signal } => self.run.kill_on_host(&host, signal),
            Request::Kill { task, signal } => self.run.kill(guest, &task, signal),
            Request::Tap(request) => {
                let asked = self.run.read_request(guest, &request);
                self.requests.ask(&mut self.run, asked, answer);
                return Ok(());
            }
            Request::InputTasks => Answer::Tasks(self.run.input_tasks(guest)),
            Request::Push(request) => {
                let asked = self.run.write_request(guest, request);
                self.requests.ask(&mut self.run, asked, answer);
                return Ok(());
            }
            Request::Redirect(request) => {
                let asked = self.run.redirect_request(guest, request);
                self.requests.ask(&mut self.run, asked, answer);
                return Ok(());
            }
            Request::Workers { task } => self.run.workers_of(guest, &task),
            Request::Stacks(request) => {
                let asked = self.run.stacks_request(guest, &request);
                self.requests.ask(&mut self.run, asked, answer);
                return Ok(());
            }
            Request::Tail(_) if guest.is_some() => Answer::Refused(
                "in a workflow that was handed to another run, only tasks that run can be redirected"
                    .to_owned(),
            ),
            Request::Tail(request) => self.run.out.waiting_redirects.tail(request),
        };
        // A tool that has gone needs no answer.
        let _ = answer.send(Reply::Answer(reply));
        Ok(())
    }

    fn limits(&self) -> RunLimits {
        let left = |end: Instant| end.saturating_duration_since(clock::now()).as_secs();
        RunLimits {
            wall_seconds_left: self.run.time.stop_at().map(left),
            drains: self.run.drain.is_some(),
        }
    }

    /// Lets tools on other hosts know what ends the run although tasks are left, if that has changed.
    pub(super) fn tell_limits(&mut self) {
        let limits = (self.run.time.stop_at(), self.run.drain.is_some());
        if std::mem::replace(&mut self.told_limits, limits) == limits {
            return;
        }
        if let Some(server) = &mut self.server {
            let left = |end: Instant| end.saturating_duration_since(clock::now());
            let since_epoch = |end| {
                clock::system_time()
                    .checked_add(left(end))?
                    .duration_since(UNIX_EPOCH)
                    .ok()
            };
            let stops_at = limits.0.and_then(since_epoch);
            server.note_limits(stops_at.map(|at| at.as_secs()), limits.1);
        }
    }

    fn drain_after(&mut self, seconds: Option<u64>) -> Result<Answer, RunError> {
        let Some(seconds) = seconds.filter(|seconds| *seconds > 0) else {
            self.drain_now()?;
            return Ok(Answer::Done(match self.run.master.running() {
                0 => "no more tasks start; none runs, so that the run ends".to_owned(),
                1 => "no more tasks start; the run ends when the one that runs has ended".to_owned(),
                running => {
                    format!("no more tasks start; the run ends when the {running} that run have ended")
                }
            }));
        };
        let Some(at) = clock::now().checked_add(Duration::from_secs(seconds)) else {
            return Ok(Answer::Refused(format!("{seconds} seconds are too long")));
        };
        self.drain_at = Some(at);
        Ok(Answer::Done(format!("no more tasks start in {seconds} seconds")))
    }

    fn drain_now(&mut self) -> Result<(), RunError> {
        if self.run.drain.is_some() {
            return Ok(());
        }
        tracing::info!("Asked to drain");
        // As after this signal.
        self.run.begin_drain((DrainedBy::User, SIGUSR1), None)
    }
}

fn no_task(name: &str) -> Answer {
    Answer::Refused(format!("the DAG has no task {name}"))
}
