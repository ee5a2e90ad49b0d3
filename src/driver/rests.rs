//! When tasks that rest between two attempts start again.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

use pmc_dag::TaskId;
use pmc_system::clock;

use super::{Run, RunError};
use crate::scheduler::Event;
use crate::transport::MasterTransport;

/// Tasks that rest, and until when.
#[derive(Default)]
pub(super) struct Rests(BinaryHeap<Reverse<(Instant, TaskId)>>);

impl Rests {
    pub(super) fn next(&self) -> Option<Instant> {
        self.0.peek().map(|Reverse((until, _))| *until)
    }

    /// Lets a task rest whose attempt has just ended, if it is to be tried again after a pause.
    pub(super) fn rest<T: MasterTransport>(
        &mut self,
        run: &mut Run<'_, T>,
        task: TaskId,
    ) -> Result<(), RunError> {
        let Some(delay) = run.options.retry_delay else {
            return Ok(());
        };
        let failures = run.master.failures_before_retry(task);
        let until = clock::now().checked_add(delay.after(failures));
        if failures > 0
            && let Some(until) = until
        {
            run.handle(Event::Rest(task))?;
            self.0.push(Reverse((until, task)));
        }
        Ok(())
    }

    /// Wakes the tasks whose pause is over.
    pub(super) fn wake_tasks<T: MasterTransport>(&mut self, run: &mut Run<'_, T>) -> Result<(), RunError> {
        while self.next().is_some_and(|until| until <= clock::now()) {
            if let Some(Reverse((_, task))) = self.0.pop() {
                run.handle(Event::Wake(task))?;
            }
        }
        Ok(())
    }
}
