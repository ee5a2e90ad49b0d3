//! Assigns ready tasks to workers.

use std::cmp::Reverse;
use std::mem;

use pmc_dag::TaskId;

use crate::protocol::{Rank, SubmitId};
use crate::scheduler::hosts::{Grant, Room};
use crate::scheduler::run::{Master, Phase, Running};
use crate::scheduler::shares::ShareId;
use crate::scheduler::tasks::{Kind, State};
use crate::scheduler::{Granted, Outbox, Record, Start};

impl Master {
    /// Queues all tasks that have become ready, then starts as many as fit. Does nothing before
    /// the start, during a hold, after a drain, and when too many tasks have failed.
    pub fn schedule(&mut self, out: &mut impl Outbox) {
        if self.phase != Phase::Started {
            return;
        }
        if self.is_stopped() || self.held {
            self.retract_all(out);
            if self.is_stopped() && !self.gangs.hold_nothing() {
                self.stop_joining(out);
            }
            return;
        }
        self.release_avoided();
        let mut ready = mem::take(&mut self.ready);
        let mut kept = Vec::new();
        for task in ready.drain(..) {
            if self.nodes[task.index()].state != State::Ready {
                // It was adopted, or is expected to be.
                continue;
            }
            if self.is_withdrawn(task) {
                self.withdraw(task);
                continue;
            }
            self.last_submit += 1;
            let submit = SubmitId(self.last_submit);
            out.record(Record::Queued(task, submit));
            if self.nodes[task.index()].kind == Kind::Subdag {
                self.summary_of(task).submitted += 1;
                self.nest(task, submit, out);
                continue;
            }
            let node = &mut self.nodes[task.index()];
            (node.submit, node.state) = (submit.0, State::Queued);
            if self.take_place(task) {
                self.avoid(task);
                self.queue.push(&mut self.nodes, task);
            } else {
                kept.push(task);
            }
        }
        // Each goes to the front of those that were put back before it.
        kept.sort_unstable_by_key(|task| Reverse(self.nodes[task.index()].place));
        for task in kept {
            self.avoid(task);
            self.queue.put_back(&mut self.nodes, task);
        }
        // Keeps the allocation.
        self.ready = ready;
        if self.queue.has_gangs() {
            // They need the slots.
            self.retract_all(out);
            self.start_beside_gangs(out);
            return;
        }
        self.no_gang_waits();
        while self.start_next(Room::Unreserved, out).is_some() {}
        self.prefill(out);
    }

    /// Gives a task the last place in the order of queued tasks. Returns false if it has one.
    pub(super) fn take_place(&mut self, task: TaskId) -> bool {
        let place = &mut self.nodes[task.index()].place;
        let is_new = *place == 0;
        if is_new {
            self.last_place = self.last_place.saturating_add(1);
            *place = self.last_place;
        }
        is_new
    }

    /// Starts the first task that fits, or holds it back. Returns `None` if there is no such task.
    pub(super) fn start_next(&mut self, room: Room, out: &mut impl Outbox) -> Option<()> {
        let is_full = self.shares.is_empty() && self.has_max_jobs();
        if self.hosts.free_slots() == 0 || self.queue.len() == 0 || is_full {
            return None;
        }
        let shape = self.next_shape(room)?;
        let request = self.queue.shape(shape).request;
        // `best` has found room, so the next two calls succeed.
        let (task, host) = self.choose(shape, request, room)?;
        if self.hold_back(task, out) {
            return Some(());
        }
        self.start_on(task, host, out)
    }

    /// Starts a queued task on a host on which it fits.
    pub(super) fn start_on(&mut self, task: TaskId, host: u32, out: &mut impl Outbox) -> Option<()> {
        let grant = self.hosts.take(host, self.request(task))?;
        self.queue.remove(&mut self.nodes, task);
        let submit = SubmitId(self.nodes[task.index()].submit);
        let start = self.start_of(task, submit, &grant);
        self.started(task, submit, host, grant, out);
        out.start(start);
        Some(())
    }

    /// True if as many tasks run as the first DAG allows.
    pub(super) fn has_max_jobs(&self) -> bool {
        self.dag
            .max_jobs()
            .is_some_and(|limit| self.running_of(ShareId::default()) >= limit as usize)
    }

    /// Says what a worker is to run.
    pub(super) fn start_of(&self, task: TaskId, submit: SubmitId, grant: &Grant) -> Start {
        let request = self.request(task);
        Start {
            task,
            submit,
            rank: grant.rank,
            attempt: self.failures.get(&task).map_or(1, |failures| failures + 1),
            grant: Granted {
                memory_mb: request.memory_mb,
                cpus: request.cpus,
                cpu_set: grant.block.clone().map_or_else(Vec::new, Iterator::collect),
                gpu_set: grant.gpus.numbers().collect(),
            },
        }
    }

    /// Records that a task runs now.
    pub(super) fn started(
        &mut self,
        task: TaskId,
        submit: SubmitId,
        host: u32,
        grant: Grant,
        out: &mut impl Outbox,
    ) {
        let Grant {
            rank,
            block,
            gpus,
            fragmented,
        } = grant;
        if fragmented {
            out.record(Record::Fragmented(task, submit));
        }
        let running = Running {
            task,
            submit,
            block,
            gpus,
        };
        self.runs_on((rank, host), running, out);
        self.running += 1;
        self.enter_share(task);
        if let Some(category) = self.category_of(task) {
            self.enter_category(category);
        }
        self.prefill.note_start(rank);
    }

    /// Records that a command runs in a slot of a host.
    pub(super) fn runs_on(&mut self, (rank, host): (Rank, u32), running: Running, out: &mut impl Outbox) {
        let Running { task, submit, .. } = running;
        out.record(Record::Started(task, submit, rank));
        self.record_resources(host, out);
        let inputs = self.nodes[task.index()].inputs;
        self.cache_index.starts(host, task, inputs);
        self.nodes[task.index()].state = State::Running;
        self.slots[rank.0 as usize - 1].running = Some(running);
        self.gangs.note_begin(rank, self.now());
        self.summary_of(task).submitted += 1;
    }
}
