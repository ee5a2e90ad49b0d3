//! What follows the end of an attempt.

use pmc_dag::TaskId;

use crate::protocol::{Outcome, Rank, TaskResult};
use crate::scheduler::nodes::Member;
use crate::scheduler::run::{Master, Running};
use crate::scheduler::tasks::{Kind, Node, State};
use crate::scheduler::{Eviction, MasterError, Outbox, Record};

impl Master {
    /// Handles [`Event::Finished`](super::Event::Finished).
    pub(super) fn finished(
        &mut self,
        rank: Rank,
        result: &TaskResult,
        out: &mut impl Outbox,
    ) -> Result<(), MasterError> {
        let is_of_gang =
            !self.gangs.are_none() && (self.gangs.has_part(rank) || self.gangs.has_left(rank, result.submit));
        if is_of_gang {
            return self.gang_finished(rank, result, out);
        }
        let slot = (rank.0 as usize)
            .checked_sub(1)
            .and_then(|index| self.slots.get_mut(index))
            .ok_or(MasterError::UnknownRank(rank))?;
        let host = slot.host;
        let Some(running) = slot.running.take_if(|running| running.submit == result.submit) else {
            if slot.member == Member::Gone {
                // The attempt was evicted. Its task runs elsewhere, or will.
                return Ok(());
            }
            let submit = result.submit;
            return Err(MasterError::NotRunning { rank, submit });
        };
        let offered = slot.member.takes_tasks().then_some(rank);
        let (task, outcome) = (running.task, result.outcome);
        let chain = self.nodes[task.index()].chain;
        self.prefill.note_runtime(chain, outcome.runtime);
        self.give_back(host, offered, running);
        self.charge_share(task, outcome.runtime);
        self.summary.runtime = self.summary.runtime.saturating_add(outcome.runtime);

        let submit = result.submit;
        let is_preparation = self.nodes[task.index()].kind == Kind::Prepared;
        let is_evicted = outcome.is_evicted();
        if is_evicted {
            let record = Record::Evicted {
                task,
                submit,
                rank,
                why: Eviction::of(&outcome),
            };
            self.cache_index.fails(host, self.nodes[task.index()].inputs);
            self.evicted(task, record, out);
        } else {
            out.record(self.end_record(task, submit, rank, outcome));
        }
        self.record_resources(host, out);
        if is_evicted {
            // It has neither succeeded nor failed.
        } else if outcome.succeeded() && is_preparation {
            self.nest(task, submit, out);
        } else if outcome.succeeded() {
            self.cache_index.read(host, self.nodes[task.index()].inputs);
            self.note_run_time(task, outcome.runtime);
            self.note_success(task, host);
            self.succeeded(task);
        } else {
            self.cache_index.fails(host, self.nodes[task.index()].inputs);
            self.note_failure(task, host, &outcome);
            self.failed(task, &outcome, out);
        }
        if self.has_prefilled() {
            self.start_prefilled(rank, out);
        }
        if offered.is_none() {
            self.leave_if_idle(rank, out);
        }
        Ok(())
    }

    /// Returns what an attempt held. `rank` is its worker, if that may run another task.
    pub(super) fn give_back(&mut self, host: u32, rank: Option<Rank>, running: Running) {
        let shape = self
            .queue
            .shape(self.queue.shape_of(self.nodes[running.task.index()].chain));
        let task = running.task;
        self.running -= 1;
        self.hosts
            .give_back(host, rank, shape.request, running.block, running.gpus);
        if let Some(category) = shape.category {
            self.leave_category(category);
        }
        self.leave_share(task);
    }

    pub(super) fn succeeded(&mut self, task: TaskId) {
        let summary = self.summary_of(task);
        summary.succeeded += 1;
        summary.done += 1;
        summary.success = summary.done == summary.tasks;
        self.nodes[task.index()].state = State::Done;
        let ready = self.ready.len();
        if task.index() < self.dag.len() {
            release(&mut self.nodes, &mut self.ready, self.dag.children(task), 0);
        } else {
            let (dag, local) = self.locate(task);
            let (children, base) = (dag.children(local).to_vec(), task.0 - local.0);
            release(&mut self.nodes, &mut self.ready, &children, base);
            self.settle_joined(task, self.ready.len() - ready);
        }
    }

    pub(super) fn failed(&mut self, task: TaskId, outcome: &Outcome, out: &mut impl Outbox) {
        self.summary_of(task).failed += 1;
        let (dag, local) = self.locate(task);
        let max_attempts = dag.tries(local).unwrap_or(self.config.max_attempts).max(1);
        let is_final = dag.is_final(local, outcome.status) || self.can_run_nowhere(task, outcome);
        let failures = self.failures.entry(task).or_insert(0);
        *failures += 1;
        if *failures < max_attempts && !is_final {
            self.change_request(task, outcome, out);
            let node = &mut self.nodes[task.index()];
            (node.state, node.place) = (State::Ready, 0);
            self.ready.push(task);
            return;
        }
        self.fail(task);
    }

    /// Notes that a task has failed finally. Those of DAGs that have joined do not count for the limit of
    /// failed tasks: the tasks that these DAGs are do.
    pub(super) fn fail(&mut self, task: TaskId) {
        self.nodes[task.index()].state = State::Failed;
        self.avoidance.forget(task);
        self.summary_of(task).failed_tasks += 1;
        let limit = self.config.max_failures as usize;
        self.summary.max_failures_reached = limit > 0 && self.summary.failed_tasks >= limit;
        self.settle_joined(task, 0);
    }
}

/// Marks the tasks as ready whose last parent is done now. `base` is the number of the first task of their
/// DAG.
fn release(nodes: &mut [Node], ready: &mut Vec<TaskId>, children: &[TaskId], base: u32) {
    for child in children {
        let child = TaskId(child.0 + base);
        let node = &mut nodes[child.index()];
        node.parents_left -= 1;
        if node.parents_left == 0 && node.state == State::Waiting {
            node.state = State::Ready;
            ready.push(child);
        }
    }
}
