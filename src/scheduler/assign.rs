//! Gives ready tasks to workers.

use std::mem;

use pmc_dag::{TaskId, prefetch};

use crate::protocol::{Assignment, SubmitId, ToWorker};
use crate::scheduler::hosts::Grant;
use crate::scheduler::run::{Master, Phase, Running};
use crate::scheduler::tasks::{NO_TASK, State};
use crate::scheduler::{Outbox, Record};

/// So many tasks before one is queued, its chain is asked for.
const PREFETCH: usize = 8;

impl Master {
    /// Queues all tasks that have become ready, then starts as many as fit. Does nothing before
    /// the start, after a drain, and when too many tasks have failed.
    pub fn schedule(&mut self, out: &mut impl Outbox) {
        if self.phase != Phase::Started {
            return;
        }
        if self.is_stopped() {
            self.retract_all(out);
            return;
        }
        let mut ready = mem::take(&mut self.ready);
        for (at, task) in ready.iter().copied().enumerate() {
            if let Some(later) = ready.get(at + PREFETCH) {
                self.queue.prefetch_chain(self.nodes[later.index()].chain);
            }
            if at == 0 {
                // Where priorities differ, it may well be the first to start.
                self.dag.prefetch_task(task);
            }
            self.last_submit += 1;
            let submit = SubmitId(self.last_submit);
            out.record(Record::Queued(task, submit));
            self.queue.push(&mut self.nodes, task, submit);
            self.nodes[task.index()].state = State::Queued;
        }
        // The room is used again.
        ready.clear();
        self.ready = ready;
        while self.hosts.free_slots() > 0 && self.queue.len() > 0 {
            let Some(shape) = self
                .queue
                .best(|cpus, gpus| self.hosts.most_free_memory(cpus, gpus))
            else {
                break;
            };
            let request = self.queue.shape(shape).request;
            // The queue has just been told that there is room, so all three succeed.
            let Some(host) = self.hosts.find(request) else {
                break;
            };
            let Some(grant) = self.hosts.take(host, request) else {
                break;
            };
            let Some((task, submit)) = self.queue.pop(&self.nodes, shape) else {
                break;
            };
            // The next of this shape are likely to start soon, and in a large DAG all that is known of
            // them is far away. Where the line is stands in the entry, so that one comes after the other.
            let (next, second) = self.queue.next_two(&self.nodes, shape);
            if let Some(next) = next {
                self.dag.prefetch_task(next);
            }
            if let Some(second) = second {
                prefetch(&self.nodes[second.index()]);
                self.dag.prefetch_entry(second);
            }
            let assignment = self.assignment(task, submit, &grant);
            let rank = grant.rank;
            self.started(task, submit, host, grant, out);
            out.send(rank, ToWorker::Run(Box::new(assignment)));
        }
        self.prefill(out);
    }

    /// What a worker needs to know to run a task.
    pub(super) fn assignment(&self, task: TaskId, submit: SubmitId, grant: &Grant) -> Assignment {
        let line = self.dag.task(task);
        Assignment {
            submit,
            name: line.name.to_vec(),
            id: line.id.map(<[u8]>::to_vec),
            command: line.command.to_vec(),
            memory_mb: line.memory_mb,
            cpus: line.cpus,
            cpu_set: grant.block.clone().map_or_else(Vec::new, Iterator::collect),
            gpu_set: grant.gpus.numbers().collect(),
            runtime_limit: line.runtime_limit,
            pipe_forwards: line.pipe_forwards.to_vec(),
            file_forwards: line.file_forwards.to_vec(),
        }
    }

    /// Takes note of a task that runs now.
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
        out.record(Record::Started(task, submit, rank));
        self.record_resources(host, out);
        let node = &mut self.nodes[task.index()];
        node.state = State::Running;
        let shape = self.queue.shape_of(node.chain);
        let children = self.dag.child_range(task);
        let first_child = self.dag.children_at(children.clone()).first();
        self.slots[rank.0 as usize - 1].running = Some(Running {
            task,
            submit,
            block,
            gpus,
            shape,
            first_child: first_child.map_or(NO_TASK, |child| child.0),
            children,
        });
        self.running += 1;
        self.summary.submitted += 1;
        self.prefill.note_start(rank);
    }
}
