//! Prefill: short tasks that are sent to a worker before its running task ends.
//!
//! Without prefill, a worker waits for two messages between tasks: its result must reach the master, and the
//! next task must reach the worker. Where tasks take a few milliseconds, that is a large part of the run.
//! With prefill, a worker holds a few tasks that take over the memory and CPUs of the running one. It starts
//! them in the order in which they were sent, without asking.
//!
//! Prefill must not change what runs when, beyond those few milliseconds:
//!
//! * It happens only if no slot is free, all queued tasks have the same request and priority as the running
//!   one, and no task of the DAG has a higher priority that could overtake them.
//! * It happens only while one workflow has the run for itself.
//! * It happens only for tasks whose inputs lie on the host, or nowhere (`cache_index`).
//! * It happens only for tasks that recently took a few milliseconds at most.
//! * With a limit of failed tasks, it happens only while the limit holds even if all tasks that were sent
//!   fail. So no prefilled task starts after the last failure that the limit allows, except after later
//!   failures of tasks that were not prefilled.
//! * A worker whose task takes longer gives back the tasks that it has not started. It also does so on
//!   [`ToWorker::Retract`], which is sent when no more tasks may start.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use pmc_dag::TaskId;

use crate::protocol::{Rank, SubmitId, ToWorker};
use crate::scheduler::hosts::Grant;
use crate::scheduler::nodes::Member;
use crate::scheduler::queue::ShapeId;
use crate::scheduler::run::Master;
use crate::scheduler::tasks::State;
use crate::scheduler::{MasterError, Outbox};

/// Work that a worker should hold in prefilled tasks.
const TARGET_WORK: Duration = Duration::from_millis(8);

/// Maximum mean run time of tasks that are prefilled.
const MAX_RUNTIME: Duration = Duration::from_millis(5);

/// Maximum tasks prefilled per worker.
const MAX_PREFILLED: u32 = 16;

/// A task that a worker holds and has not started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Prefilled {
    pub(super) task: TaskId,
    pub(super) submit: SubmitId,
}

/// Prefilled tasks of one worker. Allocates only when there are any.
#[derive(Debug, Default)]
#[expect(clippy::box_collection, reason = "a worker must fit into a cache line")]
pub(super) struct PrefillQueue(Option<Box<VecDeque<Prefilled>>>);

static EMPTY: VecDeque<Prefilled> = VecDeque::new();

impl Deref for PrefillQueue {
    type Target = VecDeque<Prefilled>;

    fn deref(&self) -> &VecDeque<Prefilled> {
        self.0.as_deref().unwrap_or(&EMPTY)
    }
}

impl DerefMut for PrefillQueue {
    fn deref_mut(&mut self) -> &mut VecDeque<Prefilled> {
        self.0.get_or_insert_default()
    }
}

/// Prefill state of all workers.
#[derive(Debug, Default)]
pub(super) struct PrefillState {
    enabled: bool,
    /// Number of prefilled tasks of all workers.
    count: usize,
    /// Workers that have started a task since the last `schedule`.
    needs_prefill: Vec<Rank>,
    /// Mean run time of recent attempts, by chain of the queue.
    mean_runtime: Vec<Option<Duration>>,
    retracted: bool,
}

impl PrefillState {
    /// Lets [`Master::retract_all`] ask once more.
    pub(super) fn allow_retract(&mut self) {
        self.retracted = false;
    }

    /// Notes that a worker has started a task.
    pub(super) fn note_start(&mut self, rank: Rank) {
        if self.enabled {
            self.needs_prefill.push(rank);
        }
    }

    /// Notes the run time of an attempt of a task of this chain.
    pub(super) fn note_runtime(&mut self, chain: u32, runtime: Duration) {
        if !self.enabled {
            return;
        }
        let chain = chain as usize;
        if self.mean_runtime.len() <= chain {
            self.mean_runtime.resize(chain + 1, None);
        }
        let mean = self.mean_runtime[chain].map_or(runtime, |mean| mean / 4 * 3 + runtime / 4);
        self.mean_runtime[chain] = Some(mean);
    }

    /// Returns how many tasks of this chain a worker should hold.
    fn depth(&self, chain: u32) -> u32 {
        let mean = self.mean_runtime.get(chain as usize).copied().flatten();
        match mean {
            Some(mean) if mean <= MAX_RUNTIME => {
                let mean = mean.max(Duration::from_micros(1));
                ((TARGET_WORK.as_nanos() / mean.as_nanos()) as u32).clamp(1, MAX_PREFILLED)
            }
            _ => 0,
        }
    }
}

impl Master {
    /// Enables prefill. All workers must be able to give tasks back.
    #[must_use]
    pub fn with_prefill(mut self) -> Self {
        self.prefill.enabled = true;
        self
    }

    /// True if some worker holds a prefilled task.
    #[must_use]
    pub fn has_prefilled(&self) -> bool {
        self.prefill.count > 0
    }

    /// Prefills the workers that have just started a task.
    pub(super) fn prefill(&mut self, out: &mut impl Outbox) {
        let needs_prefill = std::mem::take(&mut self.prefill.needs_prefill);
        if needs_prefill.is_empty() || self.hosts.free_slots() > 0 || !self.shares.is_empty() {
            return;
        }
        let Some(chain) = self.queue.only_chain() else {
            return;
        };
        let shape = self.queue.shape_of(chain);
        // GPUs, and CPUs beyond the first, have numbers, which may differ for each task.
        let request = self.queue.shape(shape).request;
        let has_no_numbers = request.cpus <= 1 && request.gpus == 0;
        if !has_no_numbers || !self.queue.is_highest(chain) || !self.queue.avoided_by(shape).is_empty() {
            return;
        }
        let depth = self.prefill.depth(chain) as usize;
        for rank in needs_prefill {
            let index = rank.0 as usize - 1;
            let Some(running) = &self.slots[index].running else {
                continue;
            };
            if self.queue.shape_of(self.nodes[running.task.index()].chain) != shape {
                continue;
            }
            // Towards the end, all workers should have work.
            let share = self.queue.len().div_ceil(self.present.max(1) as usize);
            let takes_tasks =
                self.slots[index].member.takes_tasks() && !self.hosts.get(self.slots[index].host).named_only;
            while takes_tasks
                && self.slots[index].prefilled.len() < depth.min(share)
                && self.may_all_fail()
                && !self.next_lacks_inputs(rank, shape)
                && !self.next_lacks_time(shape)
            {
                let Some((task, submit)) = self.queue.pop(&self.nodes, shape) else {
                    return;
                };
                self.nodes[task.index()].state = State::Prefilled;
                self.slots[index].prefilled.push_back(Prefilled { task, submit });
                self.prefill.count += 1;
                out.start(self.start_of(task, submit, &Grant::without_numbers(rank)));
            }
        }
    }

    /// True if an input of the next task of a shape lies on other hosts, but not on that of a worker.
    fn next_lacks_inputs(&self, rank: Rank, shape: ShapeId) -> bool {
        let host = self.slots[rank.0 as usize - 1].host;
        let next = self.queue.first(shape);
        next.is_some_and(|task| self.lacks_inputs(host, task))
    }

    fn next_lacks_time(&self, shape: ShapeId) -> bool {
        let next = self.queue.first(shape);
        next.is_some_and(|task| self.lacks_time(task).is_some())
    }

    /// Returns whether the limit of failed tasks is not reached even if all tasks that were sent fail.
    fn may_all_fail(&self) -> bool {
        let limit = self.config.max_failures as usize;
        limit == 0 || self.summary.failed_tasks + self.running + self.prefill.count < limit
    }

    /// Notes that a worker whose task has ended runs its first prefilled task, if it has any.
    pub(super) fn start_prefilled(&mut self, rank: Rank, out: &mut impl Outbox) {
        let slot = &mut self.slots[rank.0 as usize - 1];
        let host = slot.host;
        let Some(Prefilled { task, submit }) = slot.prefilled.pop_front() else {
            return;
        };
        self.prefill.count -= 1;
        let shape = self
            .queue
            .shape(self.queue.shape_of(self.nodes[task.index()].chain));
        self.hosts.take_slot(host, rank, shape.request);
        self.started(task, submit, host, Grant::without_numbers(rank), out);
    }

    /// Puts tasks that a worker gives back into the queue again.
    pub(super) fn retracted(&mut self, rank: Rank, submits: &[SubmitId]) -> Result<(), MasterError> {
        let slot = (rank.0 as usize)
            .checked_sub(1)
            .and_then(|index| self.slots.get_mut(index))
            .ok_or(MasterError::UnknownRank(rank))?;
        if slot.member == Member::Gone {
            return Ok(());
        }
        let unknown = submits.iter().find(|submit| {
            !slot
                .prefilled
                .iter()
                .any(|prefilled| prefilled.submit == **submit)
        });
        if let Some(submit) = unknown {
            let submit = *submit;
            return Err(MasterError::NotRunning { rank, submit });
        }
        let (back, kept): (Vec<Prefilled>, Vec<Prefilled>) = slot
            .prefilled
            .iter()
            .partition(|prefilled| submits.contains(&prefilled.submit));
        *slot.prefilled = kept.into();
        self.prefill.count -= back.len();
        for Prefilled { task, submit } in back {
            self.nodes[task.index()].submit = submit.0;
            self.queue.put_back(&mut self.nodes, task);
            self.nodes[task.index()].state = State::Queued;
        }
        Ok(())
    }

    /// Asks all workers, once, to give back their prefilled tasks.
    pub(super) fn retract_all(&mut self, out: &mut impl Outbox) {
        if self.prefill.count == 0 || self.prefill.retracted {
            return;
        }
        self.prefill.retracted = true;
        for (rank, slot) in (1..).zip(&self.slots) {
            if !slot.prefilled.is_empty() {
                out.send(Rank(rank), ToWorker::Retract);
            }
        }
    }

    /// Checks the prefilled tasks and returns all of them.
    #[cfg(test)]
    pub(super) fn check_prefill(&self) -> Result<Vec<TaskId>, String> {
        let mut tasks = Vec::new();
        for slot in &self.slots {
            if slot.running.is_none() && !slot.prefilled.is_empty() {
                return Err("an idle worker has prefilled tasks".to_owned());
            }
            tasks.extend(slot.prefilled.iter().map(|prefilled| prefilled.task));
        }
        if tasks.len() != self.prefill.count {
            return Err(format!(
                "{} prefilled tasks, but {} counted",
                tasks.len(),
                self.prefill.count
            ));
        }
        Ok(tasks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_short_tasks_are_prefilled() {
        let mut state = PrefillState {
            enabled: true,
            ..PrefillState::default()
        };
        assert_eq!(state.depth(3), 0, "no run time is known");
        state.note_runtime(3, Duration::from_millis(2));
        assert_eq!((state.depth(3), state.depth(0)), (4, 0));
        state.note_runtime(3, Duration::ZERO);
        state.note_runtime(1, Duration::ZERO);
        assert_eq!((state.depth(3), state.depth(1)), (5, MAX_PREFILLED));
        state.note_runtime(3, Duration::from_secs(1));
        assert_eq!(state.depth(3), 0);
    }
}
