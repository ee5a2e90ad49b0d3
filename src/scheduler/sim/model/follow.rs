//! How the model follows messages and records.

use super::{Model, Sent, State};
use crate::protocol::{Rank, SubmitId, ToWorker};
use crate::scheduler::{Eviction, GangParts, Granted, Outbox, Record, Start};

impl Outbox for Model {
    fn start(&mut self, start: Start) {
        let Start {
            task, submit, rank, ..
        } = start;
        let state = self.states[task.index()];
        if state == State::Queued(submit) {
            self.prefill(task, submit, rank);
            self.sent.push(Sent::Start(start));
            return;
        }
        self.check(state == State::Running(submit, rank), || {
            format!("{rank:?} is sent {submit:?} without record")
        });
        let host = self.host_of(rank);
        let Granted { cpu_set, gpu_set, .. } = &start.grant;
        for cpu in cpu_set {
            let host_state = self.hosts.get_mut(&host);
            let free = host_state.is_some_and(|host| host.numbers.remove(cpu));
            self.check(free, || format!("CPU {cpu} of {host} is given to two tasks"));
        }
        for gpu in gpu_set {
            let host_state = self.hosts.get_mut(&host);
            let free = host_state.is_some_and(|host| host.gpus.remove(gpu));
            self.check(free, || format!("GPU {gpu} of {host} is given to two tasks"));
        }
        let requested = self.request(task).gpus;
        self.check(gpu_set.len() == requested as usize, || {
            format!("{submit:?} gets {gpu_set:?} of {requested} GPUs")
        });
        self.held_gpus.insert(submit, gpu_set.clone());
        if !cpu_set.is_empty() {
            self.held.insert(submit, cpu_set.clone());
        }
        self.sent.push(Sent::Start(start));
    }

    fn join(&mut self, gang: GangParts) {
        self.check(false, || format!("{gang:?} is no task of this DAG"));
    }

    fn leave(&mut self, from: Rank, submit: SubmitId) {
        self.check(false, || format!("{from:?} is to leave {submit:?}"));
    }

    fn send(&mut self, to: Rank, message: ToWorker) {
        if matches!(message, ToWorker::Shutdown) {
            let leaving = self.member(to).leaving;
            self.check(leaving, || format!("{to:?} is shut down"));
            self.leave(to);
        }
        self.sent.push(Sent::Message(to, message));
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
                why,
            } => self.evict(task, submit, rank, why == Eviction::Lost),
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
            Record::Beside { .. } => self.check(false, || "no task has several hosts".to_owned()),
            Record::Capacity { host, slots, .. } => {
                let known = self.hosts.contains_key(host);
                self.check(known && slots == 1, || format!("{slots} slots of {host}"));
            }
            Record::NewRequest {
                task,
                request,
                before,
            } => {
                let known = self.request(task);
                self.check(before == known && request != before, || {
                    format!("{task:?} requests {request:?} after {before:?}, not {known:?}")
                });
                self.changed.insert(task, request);
            }
            Record::ExpressionSkipped { .. } | Record::RequestCapped { .. } => {}
            Record::Fragmented(task, _) => {
                let cpus = self.request(task).cpus;
                self.check(cpus > 1, || format!("{task:?} with {cpus} CPUs needs no block"));
            }
        }
    }
}
