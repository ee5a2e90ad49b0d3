//! Short tasks that are sent to a worker before it has ended the one it runs.
//!
//! A worker that hears of its next task only after it has told of its last one waits for two
//! messages each time. Where tasks take a few milliseconds, that is a large part of the run.
//! So a worker gets a few tasks in advance, which take over the memory and the CPUs of
//! the one before. It begins them in the order in which they were sent, without asking.
//!
//! This must not change what runs when, beyond those few milliseconds:
//!
//! * No slot is free; all tasks in the queue ask for the same as the one that runs, and have one
//!   priority; no task of the DAG has a higher one, so that none can come to overtake them.
//! * Tasks like this one have taken a few milliseconds at most.
//! * A worker whose task takes longer gives back what it has not begun. So does one that is told to
//!   ([`ToWorker::Recall`]), because nothing more is to be started.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use pmc_dag::TaskId;

use crate::protocol::{Rank, SubmitId, ToWorker};
use crate::scheduler::hosts::Grant;
use crate::scheduler::run::Master;
use crate::scheduler::tasks::State;
use crate::scheduler::{MasterError, Outbox};

/// How much work a worker has in advance.
const ENOUGH: Duration = Duration::from_millis(8);

/// The longest tasks that are sent in advance.
const SHORT: Duration = Duration::from_millis(5);

/// Most tasks that a worker has in advance.
const MOST: u32 = 16;

/// A task that was sent to a worker which has not begun it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ahead {
    pub(super) task: TaskId,
    pub(super) submit: SubmitId,
}

/// What one worker has in advance. Most have nothing, and then it takes no room.
#[derive(Debug, Default)]
#[expect(clippy::box_collection, reason = "a worker is to fit into a cache line")]
pub(super) struct AheadQueue(Option<Box<VecDeque<Ahead>>>);

static NOTHING: VecDeque<Ahead> = VecDeque::new();

impl Deref for AheadQueue {
    type Target = VecDeque<Ahead>;

    fn deref(&self) -> &VecDeque<Ahead> {
        self.0.as_deref().unwrap_or(&NOTHING)
    }
}

impl DerefMut for AheadQueue {
    fn deref_mut(&mut self) -> &mut VecDeque<Ahead> {
        self.0.get_or_insert_default()
    }
}

/// Which tasks were sent in advance, and what is needed to decide that.
#[derive(Debug, Default)]
pub(super) struct AheadState {
    enabled: bool,
    /// Number of tasks that were sent and not begun.
    count: usize,
    /// Workers that have begun a task since the last `schedule`.
    hungry: Vec<Rank>,
    /// Mean run time of recent executions, by chain of the queue.
    recent: Vec<Option<Duration>>,
    recalled: bool,
}

impl AheadState {
    /// Tasks may be sent in advance at all.
    pub(super) fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// A worker has begun a task.
    pub(super) fn begun(&mut self, rank: Rank) {
        if self.enabled {
            self.hungry.push(rank);
        }
    }

    /// An execution of a task of this chain has ended.
    pub(super) fn ended(&mut self, chain: u32, runtime: Duration) {
        if !self.enabled {
            return;
        }
        let chain = chain as usize;
        if self.recent.len() <= chain {
            self.recent.resize(chain + 1, None);
        }
        let mean = self.recent[chain].map_or(runtime, |mean| mean / 4 * 3 + runtime / 4);
        self.recent[chain] = Some(mean);
    }

    /// How many tasks of this chain a worker is to have in advance.
    fn depth(&self, chain: u32) -> u32 {
        let recent = self.recent.get(chain as usize).copied().flatten();
        match recent {
            Some(mean) if mean <= SHORT => {
                let mean = mean.max(Duration::from_micros(1));
                ((ENOUGH.as_nanos() / mean.as_nanos()) as u32).clamp(1, MOST)
            }
            _ => 0,
        }
    }
}

impl Master {
    /// Lets workers have short tasks in advance; for workers that give them back.
    #[must_use]
    pub fn sending_ahead(mut self) -> Self {
        self.ahead.enabled = true;
        self
    }

    /// Some worker has a task in advance.
    #[must_use]
    pub fn has_sent_ahead(&self) -> bool {
        self.ahead.count > 0
    }

    /// Sends tasks in advance to the workers that have begun one.
    pub(super) fn send_ahead(&mut self, out: &mut impl Outbox) {
        let hungry = std::mem::take(&mut self.ahead.hungry);
        if hungry.is_empty() || self.hosts.free_slots() > 0 {
            return;
        }
        let Some(chain) = self.queue.only_chain() else {
            return;
        };
        let shape = self.queue.shape_of(chain);
        // GPUs, and CPUs beyond the first, come with numbers, which may be others each time.
        let request = self.queue.shape(shape).request;
        let narrow = request.cpus <= 1 && request.gpus == 0;
        if !narrow || !self.queue.is_highest(chain) {
            return;
        }
        let depth = self.ahead.depth(chain) as usize;
        for rank in hungry {
            let index = rank.0 as usize - 1;
            let Some(running) = &self.slots[index].running else {
                continue;
            };
            if self.queue.shape_of(self.nodes[running.task.index()].chain) != shape {
                continue;
            }
            // Towards the end all workers are to have work.
            let share = self.queue.len().div_ceil(self.slots.len());
            while self.slots[index].ahead.len() < depth.min(share) {
                let Some((task, submit)) = self.queue.pop(&self.nodes, shape) else {
                    return;
                };
                self.nodes[task.index()].state = State::Ahead;
                self.slots[index].ahead.push_back(Ahead { task, submit });
                self.ahead.count += 1;
                let assignment = self.assignment(task, submit, &Grant::plain(rank));
                out.send(rank, ToWorker::Run(Box::new(assignment)));
            }
        }
    }

    /// A worker has ended a task: it has begun the next one that it has, if any.
    pub(super) fn begin_next(&mut self, rank: Rank, out: &mut impl Outbox) {
        let slot = &mut self.slots[rank.0 as usize - 1];
        let host = slot.host;
        let Some(Ahead { task, submit }) = slot.ahead.pop_front() else {
            return;
        };
        self.ahead.count -= 1;
        let shape = self
            .queue
            .shape(self.queue.shape_of(self.nodes[task.index()].chain));
        self.hosts.take_slot(host, rank, shape.request);
        self.started(task, submit, host, Grant::plain(rank), out);
    }

    /// A worker gives back tasks that it has not begun.
    pub(super) fn returned(&mut self, rank: Rank, submits: &[SubmitId]) -> Result<(), MasterError> {
        let slot = (rank.0 as usize)
            .checked_sub(1)
            .and_then(|index| self.slots.get_mut(index))
            .ok_or(MasterError::UnknownRank(rank))?;
        let unknown = submits
            .iter()
            .find(|submit| !slot.ahead.iter().any(|ahead| ahead.submit == **submit));
        if let Some(submit) = unknown {
            let submit = *submit;
            return Err(MasterError::NotRunning { rank, submit });
        }
        let (back, kept): (Vec<Ahead>, Vec<Ahead>) = slot
            .ahead
            .iter()
            .partition(|ahead| submits.contains(&ahead.submit));
        *slot.ahead = kept.into();
        self.ahead.count -= back.len();
        for Ahead { task, submit } in back {
            self.queue.put_back(&mut self.nodes, task, submit);
            self.nodes[task.index()].state = State::Queued;
        }
        Ok(())
    }

    /// Nothing more is to be started: asks for what was sent in advance.
    pub(super) fn recall(&mut self, out: &mut impl Outbox) {
        if self.ahead.count == 0 || self.ahead.recalled {
            return;
        }
        self.ahead.recalled = true;
        for (rank, slot) in (1..).zip(&self.slots) {
            if !slot.ahead.is_empty() {
                out.send(Rank(rank), ToWorker::Recall);
            }
        }
    }

    /// Checks the tasks that were sent in advance.
    pub(super) fn check_ahead(&self) -> Result<Vec<TaskId>, String> {
        let mut tasks = Vec::new();
        for slot in &self.slots {
            if slot.running.is_none() && !slot.ahead.is_empty() {
                return Err("a worker that runs nothing has tasks in advance".to_owned());
            }
            tasks.extend(slot.ahead.iter().map(|ahead| ahead.task));
        }
        if tasks.len() != self.ahead.count {
            return Err(format!(
                "{} tasks in advance, but {} counted",
                tasks.len(),
                self.ahead.count
            ));
        }
        Ok(tasks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_short_tasks_are_sent_in_advance() {
        let mut state = AheadState {
            enabled: true,
            ..AheadState::default()
        };
        assert_eq!(state.depth(3), 0, "nothing is known");
        state.ended(3, Duration::from_millis(2));
        assert_eq!((state.depth(3), state.depth(0)), (4, 0));
        state.ended(3, Duration::ZERO);
        state.ended(1, Duration::ZERO);
        assert_eq!((state.depth(3), state.depth(1)), (5, MOST));
        state.ended(3, Duration::from_secs(1));
        assert_eq!(state.depth(3), 0);
    }
}
