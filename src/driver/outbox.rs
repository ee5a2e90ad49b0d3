//! Carries out what the scheduler decides: sends messages, writes logs, calls the observer.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use pmc_dag::{Dag, Request, TaskId};

use super::bad_hosts::AttemptEnd;
use super::numbers::AttemptNumbers;
use super::report::Failure;
use super::{MemoryExcess, Observer, RunEvent, TaskEnd};
use crate::database::OutcomeReporter;
use crate::logs::Logs;
use crate::protocol::{Outcome, Rank, SubmitId, ToWorker};
use crate::scheduler::{Outbox, Record};
use crate::transport::{MasterTransport, TransportError};

pub(super) struct DriverOutbox<'a, T> {
    pub(super) transport: &'a mut T,
    pub(super) logs: Logs,
    pub(super) dag: Arc<Dag>,
    pub(super) observer: &'a mut Observer<'a>,
    /// First error of the transport. The scheduler has no use for it.
    pub(super) error: Option<TransportError>,
    /// Tasks whose latest attempt failed.
    pub(super) failed: BTreeMap<TaskId, Failure>,
    pub(super) reporter: Option<OutcomeReporter>,
    /// An attempt has failed since this was last reset.
    pub(super) attempt_failed: bool,
    pub(super) memory_excess: MemoryExcess,
    /// Memory of tasks that request more than in the DAG, in MB.
    raised: BTreeMap<TaskId, u64>,
    /// Hosts of the workers, for messages of the level trace.
    pub(super) hosts: BTreeMap<Rank, String>,
    /// Set if the output of attempts goes into packs.
    pub(super) numbers: Option<AttemptNumbers>,
    /// Attempts that have ended, if somebody wants to know.
    pub(super) ends: Vec<AttemptEnd>,
    pub(super) notes_ends: bool,
    dag_file: &'a Path,
}

impl<'a, T> DriverOutbox<'a, T> {
    pub(super) fn new(
        transport: &'a mut T,
        logs: Logs,
        dag: Arc<Dag>,
        observer: &'a mut Observer<'a>,
        dag_file: &'a Path,
    ) -> Self {
        Self {
            transport,
            logs,
            dag,
            observer,
            error: None,
            failed: BTreeMap::new(),
            reporter: None,
            attempt_failed: false,
            memory_excess: MemoryExcess::default(),
            raised: BTreeMap::new(),
            hosts: BTreeMap::new(),
            numbers: None,
            ends: Vec::new(),
            notes_ends: false,
            dag_file,
        }
    }

    fn ended(&mut self, task: TaskId, submit: SubmitId, rank: Rank, outcome: Outcome) {
        if self.notes_ends {
            self.ends.extend(AttemptEnd::new(task, rank, &outcome));
        }
        if let Some(reporter) = &mut self.reporter {
            reporter.ended(rank, submit, self.dag.task(task), &outcome);
        }
        let name = self.dag.name(task);
        let shown = String::from_utf8_lossy(name);
        if outcome.succeeded() {
            tracing::debug!("Task {shown} finished with exitcode 0");
            self.failed.remove(&task);
        } else {
            if outcome.evictions > 0 {
                tracing::error!(
                    "Task {shown} failed: {} of its workers were lost (--crash-limit)",
                    outcome.evictions
                );
            } else if outcome.not_forwarded {
                tracing::error!("Task {shown} failed due to collective I/O errors");
            } else {
                tracing::error!("Task {shown} failed with exitcode {}", outcome.status);
            }
            let failure = self.failed.entry(task).or_default();
            failure.status = outcome.status;
            failure.attempts += 1;
            self.attempt_failed = true;
        }
        if let Some(used) = outcome.memory {
            if used.out_of_memory {
                tracing::error!("Task {shown} ran {}", used.describe());
            } else {
                self.memory_excess.add(&shown, used);
            }
        }
        let end = TaskEnd::new(name, rank, outcome, self.dag_file);
        (self.observer)(&RunEvent::Ended(end));
    }
}

impl<T: MasterTransport> Outbox for DriverOutbox<'_, T> {
    fn send(&mut self, to: Rank, mut message: ToWorker) {
        if let (ToWorker::Run(assignment), Some(numbers)) = (&mut message, &self.numbers) {
            let task = self.dag.find(&assignment.name);
            assignment.packed = task.map(|task| numbers.of(task));
        }
        if let Err(error) = self.transport.send(to, message) {
            self.error.get_or_insert(error);
        }
    }

    fn record(&mut self, record: Record<'_>) {
        // The reporter must know of an end before the log is written, which `flush` does later.
        self.logs.record(&record);
        if let (Record::Queued(task, _) | Record::Adopted(task, _), Some(numbers)) =
            (&record, &mut self.numbers)
        {
            numbers.submitted(*task);
        }
        let name = |task| String::from_utf8_lossy(self.dag.name(task));
        match record {
            Record::Resources { .. } | Record::Capacity { .. } => {}
            Record::Adopted(task, _) => tracing::info!("Task {} still runs", name(task)),
            Record::Evicted { task, rank, .. } => {
                tracing::warn!(
                    "Task {} was lost with worker {}; it will run again",
                    name(task),
                    rank.0
                );
                (self.observer)(&RunEvent::Lost {
                    task: self.dag.name(task),
                });
            }
            Record::MoreMemory { task, memory_mb } => {
                tracing::warn!(
                    "Task {} gets {memory_mb} MiB of memory in its next attempt",
                    name(task)
                );
                self.raised.insert(task, memory_mb);
            }
            Record::Queued(task, _) => {
                tracing::debug!("Queueing task {}", name(task));
                (self.observer)(&RunEvent::Queued {
                    task: self.dag.name(task),
                });
            }
            Record::Fragmented(task, _) => {
                tracing::warn!(
                    "CPU fragmentation detected when scheduling task {}: not setting affinity",
                    name(task)
                );
            }
            Record::Started(task, _, rank) => {
                if let Some(host) = self.hosts.get(&rank) {
                    let Request { cpus, memory_mb, .. } = self.dag.request(task);
                    let memory_mb = self.raised.get(&task).copied().unwrap_or(memory_mb);
                    tracing::trace!(
                        "Scheduling task {} on host {host}, slot {} (CPUs: {cpus}, memory: {memory_mb} MiB)",
                        name(task),
                        rank.0
                    );
                }
                tracing::debug!("Submitting task {} to slot {}", name(task), rank.0);
                (self.observer)(&RunEvent::Started {
                    task: self.dag.name(task),
                    rank,
                });
            }
            Record::Ended {
                task,
                submit,
                rank,
                outcome,
            } => self.ended(task, submit, rank, outcome),
        }
    }
}
