//! How the model follows messages and records.

use super::{Model, State};
use crate::protocol::{Rank, ToWorker};
use crate::scheduler::{Outbox, Record};

impl Outbox for Model {
    fn send(&mut self, to: Rank, message: ToWorker) {
        if matches!(message, ToWorker::Shutdown) {
            let leaving = self.member(to).leaving;
            self.check(leaving, || format!("{to:?} is shut down"));
            self.leave(to);
        }
        if let ToWorker::Run(assignment) = &message {
            let task = self.by_name.get(&assignment.name).copied();
            if let Some(task) = task
                && self.states[task.index()] == State::Queued(assignment.submit)
            {
                self.prefill(task, assignment.submit, to);
                self.sent.push((to, message));
                return;
            }
            let state = task.map(|task| self.states[task.index()]);
            self.check(state == Some(State::Running(assignment.submit, to)), || {
                format!("{to:?} is sent {:?} without record", assignment.submit)
            });
            let host = self.host_of(to);
            for cpu in &assignment.cpu_set {
                let free = self
                    .hosts
                    .get_mut(&host)
                    .is_some_and(|host| host.numbers.remove(cpu));
                self.check(free, || format!("CPU {cpu} of {host} is given to two tasks"));
            }
            for gpu in &assignment.gpu_set {
                let free = self
                    .hosts
                    .get_mut(&host)
                    .is_some_and(|host| host.gpus.remove(gpu));
                self.check(free, || format!("GPU {gpu} of {host} is given to two tasks"));
            }
            let requested = task.map_or(0, |task| self.request(task).gpus);
            self.check(assignment.gpu_set.len() == requested as usize, || {
                format!(
                    "{:?} gets {:?} of {requested} GPUs",
                    assignment.submit, assignment.gpu_set
                )
            });
            self.held_gpus
                .insert(assignment.submit, assignment.gpu_set.clone());
            if !assignment.cpu_set.is_empty() {
                self.held.insert(assignment.submit, assignment.cpu_set.clone());
            }
        }
        self.sent.push((to, message));
    }

    fn record(&mut self, record: Record<'_>) {
        match record {
            Record::Queued(task, submit) => self.queue(task, submit),
            Record::Started(task, submit, rank) => self.start(task, submit, rank),
            Record::Ended {
                task,
                submit,
                rank,
                outcome,
            } => self.end(task, submit, rank, outcome),
            Record::Prepared {
                task,
                submit,
                rank,
                outcome,
            } => {
                let is_prepared = self.fact(task).subdag == Some(true);
                self.check(is_prepared, || format!("{task:?} makes no DAG"));
                if outcome.succeeded() {
                    self.leave_worker(task, submit, rank);
                    self.states[task.index()] = State::Prepared(submit);
                    self.prepared += 1;
                } else {
                    self.end(task, submit, rank, outcome);
                }
            }
            Record::Nested(task, submit) => self.nest(task, submit),
            Record::Adopted(task, submit) => self.adopt(task, submit),
            Record::Evicted {
                task,
                submit,
                rank,
                is_lost,
            } => self.evict(task, submit, rank, is_lost),
            Record::Resources {
                host,
                slots,
                cpus,
                memory_mb,
            } => {
                let known = self.hosts.get(host).map(|h| (h.idle, h.cpus, h.memory_mb));
                self.check(known == Some((slots, cpus, memory_mb)), || {
                    format!("{host} reports {slots}, {cpus}, {memory_mb}, not {known:?}")
                });
            }
            Record::Capacity { host, slots, .. } => {
                let known = self.hosts.contains_key(host);
                self.check(known && slots == 1, || format!("{slots} slots of {host}"));
            }
            Record::MoreMemory { task, memory_mb } => {
                let before = self.request(task).memory_mb;
                self.check(memory_mb > before, || format!("{task:?} gets no more memory"));
                self.raised.insert(task, memory_mb);
            }
            Record::Fragmented(task, _) => {
                let cpus = self.fact(task).request.cpus;
                self.check(cpus > 1, || format!("{task:?} with {cpus} CPUs needs no block"));
            }
        }
    }
}
