//! Workflows that share a run, and which of them may start a task next.
//!
//! A *guest* is a workflow that joins a run and is not part of another one. It gets a *share* of the slots,
//! as the first workflow has one. Sub-workflows take from the share of the workflow around them.
//!
//! The next task is one of the share that has used the fewest slot-seconds for its weight; within a share,
//! priority and age decide as ever. The scheduler has no clock: it counts the run times of attempts that
//! have ended, and takes their mean for each one that runs. A share that had nothing to start gets no
//! credit for that time.

use std::time::Duration;

use pmc_dag::TaskId;
use pmc_status::FIRST_WEIGHT;

use crate::scheduler::hosts::Room;
use crate::scheduler::queue::ShapeId;
use crate::scheduler::run::Master;
use crate::scheduler::segments::SegmentId;
use crate::scheduler::tasks::State;

/// Number of a workflow among those that share a run. The first one has 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ShareId(pub u32);

/// All shares of a run.
#[derive(Debug, Default)]
pub(super) struct Shares {
    /// Empty as long as no guest has come.
    all: Vec<Share>,
    /// Position of the share that was behind all others with something to start.
    behind: f64,
}

#[derive(Debug)]
struct Share {
    weight: f64,
    /// Its running attempts.
    running: usize,
    /// Its attempts that have ended, and the sum of their run times in seconds.
    ended: u64,
    runtime: f64,
    /// Slot-seconds that count: of attempts that have ended, and for times without anything to start.
    used: f64,
    /// It had something to start when this was last looked at.
    has_work: bool,
    /// No more of its tasks start.
    is_drained: bool,
}

impl Share {
    fn new(weight: u32) -> Self {
        Self {
            weight: f64::from(weight.max(1)),
            running: 0,
            ended: 0,
            runtime: 0.0,
            used: 0.0,
            has_work: false,
            is_drained: false,
        }
    }
}

impl Shares {
    /// True if there is only the first workflow.
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Adds a guest. `running` is the number of running attempts of the first workflow.
    fn add(&mut self, weight: u32, running: usize) -> ShareId {
        if self.all.is_empty() {
            self.all.push(Share {
                running,
                ..Share::new(FIRST_WEIGHT)
            });
        }
        self.all.push(Share::new(weight));
        ShareId(self.all.len() as u32 - 1)
    }

    /// Number of running attempts of a share. `None` if there is only the first workflow.
    pub(super) fn running(&self, share: ShareId) -> Option<usize> {
        self.all.get(share.0 as usize).map(|share| share.running)
    }

    fn is_drained(&self, share: ShareId) -> bool {
        self.all
            .get(share.0 as usize)
            .is_some_and(|share| share.is_drained)
    }

    /// Mean run time of the attempts of a share, or of all as long as none of it has ended; in seconds.
    fn mean_runtime(&self, share: &Share) -> f64 {
        if share.ended > 0 {
            return share.runtime / share.ended as f64;
        }
        let sum: f64 = self.all.iter().map(|share| share.runtime).sum();
        let ended: u64 = self.all.iter().map(|share| share.ended).sum();
        sum / ended.max(1) as f64
    }

    /// How far a share is: slot-seconds for its weight. Without any known run time, slots alone count.
    fn position(&self, share: &Share) -> (f64, f64) {
        let running = share.running as f64;
        let seconds = share.used + running * self.mean_runtime(share);
        (seconds / share.weight, running / share.weight)
    }

    /// Returns the shares with something to start, the one that is furthest behind first.
    fn order(&mut self, has_work: impl Fn(ShareId) -> bool) -> Vec<ShareId> {
        let ids = || (0..self.all.len() as u32).map(ShareId);
        let working: Vec<ShareId> = ids().filter(|share| has_work(*share)).collect();
        let position = |shares: &Self, id: ShareId| shares.position(&shares.all[id.0 as usize]);
        let went_on = working.iter().filter(|id| self.all[id.0 as usize].has_work);
        let least = went_on
            .map(|id| position(self, *id).0)
            .min_by(|a, b| a.total_cmp(b));
        self.behind = least.unwrap_or(self.behind).max(self.behind);
        for id in &working {
            let lag = self.behind - position(self, *id).0;
            let share = &mut self.all[id.0 as usize];
            if !share.has_work && lag > 0.0 {
                share.used += lag * share.weight;
            }
        }
        self.all.iter_mut().for_each(|share| share.has_work = false);
        for id in &working {
            self.all[id.0 as usize].has_work = true;
        }
        let mut order: Vec<((f64, f64), ShareId)> =
            working.into_iter().map(|id| (position(self, id), id)).collect();
        order.sort_by(|((a, a_slots), _), ((b, b_slots), _)| a.total_cmp(b).then(a_slots.total_cmp(b_slots)));
        order.into_iter().map(|(_, id)| id).collect()
    }
}

impl Master {
    /// Adds a share for a guest.
    pub(super) fn add_share(&mut self, weight: u32) -> ShareId {
        self.shares.add(weight, self.running)
    }

    /// The share of a task.
    pub(super) fn share_of(&self, task: TaskId) -> ShareId {
        if self.shares.is_empty() || task.index() < self.dag.len() {
            return ShareId::default();
        }
        self.segments[self.segment_of(task).index()].share
    }

    /// The share of a DAG that has joined.
    #[must_use]
    pub fn share_of_segment(&self, id: SegmentId) -> ShareId {
        self.segments[id.index()].share
    }

    /// True if no more tasks of a share start: see [`Event::DrainShare`](super::Event::DrainShare).
    #[must_use]
    pub fn is_drained(&self, share: ShareId) -> bool {
        self.shares.is_drained(share)
    }

    /// Number of running attempts of a share.
    #[must_use]
    pub fn running_of(&self, share: ShareId) -> usize {
        self.shares.running(share).unwrap_or(self.running)
    }

    /// Counts an attempt that starts.
    pub(super) fn enter_share(&mut self, task: TaskId) {
        let share = self.share_of(task);
        if let Some(share) = self.shares.all.get_mut(share.0 as usize) {
            share.running += 1;
        }
    }

    /// Counts an attempt that has ended, or was lost.
    pub(super) fn leave_share(&mut self, task: TaskId) {
        let share = self.share_of(task);
        if let Some(share) = self.shares.all.get_mut(share.0 as usize) {
            share.running -= 1;
        }
    }

    /// Counts the run time of an attempt that has ended.
    pub(super) fn charge_share(&mut self, task: TaskId, runtime: Duration) {
        let share = self.share_of(task);
        if let Some(share) = self.shares.all.get_mut(share.0 as usize) {
            let seconds = runtime.as_secs_f64();
            share.ended += 1;
            share.runtime += seconds;
            share.used += seconds;
        }
    }

    /// Returns the shape whose first task is to start next, if one fits.
    pub(super) fn next_shape(&mut self, room: Room) -> Option<ShapeId> {
        let order = self.shares_in_order();
        let (queue, hosts) = (&self.queue, &mut self.hosts);
        let mut most_free_memory =
            |request, avoided: &[u32]| hosts.most_free_memory_without(request, avoided, room);
        if self.shares.is_empty() {
            return queue.best(most_free_memory);
        }
        let mut order = order.into_iter();
        order.find_map(|share| self.queue.best_of(Some(share), &mut most_free_memory))
    }

    /// Returns the shares that may start something, the one whose turn it is first. Empty if there is only
    /// the first workflow.
    pub(super) fn shares_in_order(&mut self) -> Vec<ShareId> {
        if self.shares.is_empty() {
            return Vec::new();
        }
        let is_full = self.has_max_jobs();
        let queue = &self.queue;
        let mut order = self.shares.order(|share| queue.has_open(share));
        order.retain(|share| !is_full || *share != ShareId::default());
        order
    }

    /// Handles [`Event::DrainShare`](super::Event::DrainShare): takes back what was queued.
    pub(super) fn drain_share(&mut self, id: ShareId) {
        let Some(share) = self.shares.all.get_mut(id.0 as usize) else {
            return;
        };
        share.is_drained = true;
        self.queue.withdraw(&self.nodes, id);
        let own = self.segments.iter().filter(|segment| segment.share == id);
        let tasks = own.flat_map(|segment| segment.tasks());
        let waits = |task: &TaskId| {
            let state = self.nodes[task.index()].state;
            matches!(state, State::Queued | State::Late)
        };
        let waiting: Vec<TaskId> = tasks.filter(waits).collect();
        for task in waiting {
            self.withdraw(task);
        }
        let nodes = &self.nodes;
        self.run_times
            .retain_late(|task| nodes[task.index()].state == State::Late);
    }

    /// True if a task that became ready does not start any more.
    pub(super) fn is_withdrawn(&self, task: TaskId) -> bool {
        !self.shares.is_empty() && self.shares.is_drained(self.share_of(task))
    }

    /// Leaves a task that could start to the next run of its workflow.
    pub(super) fn withdraw(&mut self, task: TaskId) {
        self.nodes[task.index()].state = State::Waiting;
        self.settle_joined(task, 0);
    }

    /// Checks the number of running attempts of each share.
    #[cfg(test)]
    pub(super) fn check_shares(&self) -> Result<(), String> {
        for (number, share) in (0..).zip(&self.shares.all) {
            let tasks = self.assignments().map(|(_, task, _)| task);
            let running = tasks
                .chain(self.gathering())
                .filter(|task| self.share_of(*task) == ShareId(number))
                .count();
            if running != share.running {
                return Err(format!("{running} attempts of a share run, but it is {share:?}"));
            }
        }
        Ok(())
    }
}
