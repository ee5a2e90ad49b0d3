//! When tasks that rest between two attempts start again.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

use pmc_dag::TaskId;
use pmc_system::clock;

use super::{Run, RunError};
use crate::protocol::Outcome;
use crate::scheduler::{Event, Rest};
use crate::transport::{MasterTransport, Membership};

/// Tasks that rest.
#[derive(Default)]
pub(super) struct Rests {
    /// Those with a pause, and until when.
    pausing: BinaryHeap<Reverse<(Instant, TaskId)>>,
    /// Those that wait for hosts that are to come.
    for_host: Vec<TaskId>,
}

impl Rests {
    pub(super) fn next(&self) -> Option<Instant> {
        self.pausing.peek().map(|Reverse((until, _))| *until)
    }

    /// Notes before a failure is handled whether hosts are to come, on which the task may succeed.
    pub(super) fn note_hosts<T: MasterTransport>(run: &mut Run<'_, T>, outcome: &Outcome) {
        if !outcome.succeeded() {
            let are_to_come = awaits_hosts(run);
            run.master.expect_hosts(are_to_come);
        }
    }

    /// Lets a task rest whose attempt has just ended, if it is to be tried again later.
    pub(super) fn rest<T: MasterTransport>(
        &mut self,
        run: &mut Run<'_, T>,
        task: TaskId,
    ) -> Result<(), RunError> {
        match run.master.rest_before_retry(task, run.options.retry_delay) {
            None => return Ok(()),
            Some(Rest::UntilHostJoins) => self.for_host.push(task),
            Some(rest @ (Rest::For(pause) | Rest::ForHost(pause))) => {
                let Some(until) = clock::now().checked_add(pause) else {
                    return Ok(());
                };
                self.pausing.push(Reverse((until, task)));
                if rest == Rest::ForHost(pause) {
                    self.for_host.push(task);
                }
            }
        }
        run.handle(Event::Rest(task))
    }

    /// Wakes the tasks that wait for hosts: one has just come.
    pub(super) fn wake_for_host<T: MasterTransport>(&mut self, run: &mut Run<'_, T>) -> Result<(), RunError> {
        std::mem::take(&mut self.for_host)
            .into_iter()
            .try_for_each(|task| run.handle(Event::Wake(task)))
    }

    /// Wakes the tasks whose pause is over, and those that wait for hosts if none are to come any more.
    pub(super) fn wake_tasks<T: MasterTransport>(&mut self, run: &mut Run<'_, T>) -> Result<(), RunError> {
        while self.next().is_some_and(|until| until <= clock::now()) {
            if let Some(Reverse((_, task))) = self.pausing.pop() {
                run.handle(Event::Wake(task))?;
            }
        }
        if !self.for_host.is_empty() && !awaits_hosts(run) {
            self.wake_for_host(run)?;
        }
        Ok(())
    }
}

fn awaits_hosts<T: MasterTransport>(run: &Run<'_, T>) -> bool {
    let membership = run.out.transport.membership();
    membership.is_some_and(Membership::awaits_workers)
}
