//! Carries out what the scheduler decides: sends messages, writes logs, calls the observer.

use std::collections::BTreeMap;

use pmc_dag::{Request, TaskId};
use pmc_status::memory;

use super::assignment::assignment;
use super::away::{Away, carried};
use super::bad_hosts::AttemptEnd;
use super::dag_run::{DagRun, name_of};
use super::dags::Dags;
use super::gangs::{Gangs, token};
use super::redirects::WaitingRedirects;
use super::{Observer, RunEvent, TaskEnd};
use crate::logs::FreeOfHosts;
use crate::options::{Options, Stdio};
use crate::protocol::{
    GangHost, GangStart, Membership, Outcome, Output, Part, Place, Rank, SubmitId, ToWorker,
};
use crate::scheduler::{Eviction, GangParts, Outbox, Record, Start};
use crate::transport::{MasterTransport, TransportError};

pub(super) struct DriverOutbox<'a, T> {
    pub(super) transport: &'a mut T,
    /// Messages that wait until the logs are written: no attempt begins before they name it, so that its
    /// files have the number that readers of the logs expect, also if the master is killed in between.
    held: Vec<(Rank, ToWorker)>,
    /// The DAGs of the run.
    pub(super) dags: Dags,
    /// The DAG of the last record about a task.
    current: Option<usize>,
    free: FreeOfHosts,
    /// Sub-workflows that need their DAGs now.
    pub(super) nested: Vec<(TaskId, SubmitId)>,
    pub(super) observer: &'a mut Observer<'a>,
    /// First error of the transport. The scheduler has no use for it.
    pub(super) error: Option<TransportError>,
    /// An attempt has failed since this was last reset.
    pub(super) attempt_failed: bool,
    /// Hosts of the workers, for messages of the level trace.
    pub(super) hosts: BTreeMap<Rank, String>,
    /// Attempts that have ended, if somebody wants to know.
    pub(super) ends: Vec<AttemptEnd>,
    pub(super) notes_ends: bool,
    /// Attempts of the run's own tasks that have ended, if tools wait for the ends of tasks.
    pub(super) finals: Vec<(TaskId, Outcome)>,
    /// Tools that redirect tasks from their first byte.
    pub(super) waiting_redirects: WaitingRedirects,
    pub(super) away: Away,
    pub(super) gangs: Gangs,
    pub(super) options: &'a Options,
}

impl<'a, T> DriverOutbox<'a, T> {
    pub(super) fn new(
        transport: &'a mut T,
        root: DagRun,
        observer: &'a mut Observer<'a>,
        options: &'a Options,
    ) -> Self {
        Self {
            transport,
            held: Vec::new(),
            dags: Dags::new(root),
            current: None,
            free: FreeOfHosts::default(),
            nested: Vec::new(),
            observer,
            error: None,
            attempt_failed: false,
            hosts: BTreeMap::new(),
            ends: Vec::new(),
            notes_ends: false,
            finals: Vec::new(),
            waiting_redirects: WaitingRedirects::default(),
            away: Away::default(),
            gangs: Gangs::default(),
            options,
        }
    }

    /// Writes to the logs of its DAG that an attempt has ended with the run.
    pub(super) fn log_cut_off(&mut self, task: TaskId, submit: SubmitId, rank: Rank) {
        let (segment, task) = self.dags.locate(task);
        self.dags.touch(segment);
        if let Some(run) = self.dags.get(segment) {
            let why = Eviction::Interrupted;
            run.logs.record(&Record::Evicted {
                task,
                submit,
                rank,
                why,
            });
        }
    }

    /// Writes a warning to the log, and shows it to the user.
    pub(super) fn warn(&mut self, text: &str) {
        tracing::warn!("{text}");
        (self.observer)(&RunEvent::Notice(text));
    }

    fn ended(&mut self, segment: Option<usize>, task: TaskId, rank: Rank, outcome: Outcome) {
        let Some(run) = self.dags.get(segment) else {
            return;
        };
        let shown = name_of(&run.label, &run.dag, task);
        if outcome.succeeded() {
            tracing::debug!("Task {shown} finished with exitcode 0");
            run.failed.remove(&task);
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
            let failure = run.failed.entry(task).or_default();
            failure.status = outcome.status;
            failure.attempts += 1;
            self.attempt_failed = true;
        }
        if let Some(used) = outcome.memory {
            if used.out_of_memory {
                let reason = outcome.reason().map(|reason| reason.to_string());
                tracing::error!("Task {shown} ran {}", reason.unwrap_or_default());
            } else if used.is_excess() {
                run.memory_excess.add(&shown, used);
            }
        }
        if segment.is_none() {
            let end = TaskEnd::new(run.dag.name(task), rank, outcome, &self.options.dag);
            (self.observer)(&RunEvent::Ended(end));
        }
    }

    fn started(&mut self, segment: Option<usize>, task: TaskId, rank: Rank) {
        let Some(run) = self.dags.get(segment) else {
            return;
        };
        if let Some(host) = self.hosts.get(&rank) {
            let changed = run.changed.get(&task).copied();
            let Request { cpus, memory_mb, .. } = changed.unwrap_or_else(|| run.dag.request(task));
            tracing::trace!(
                "Scheduling task {} on host {host}, slot {} (CPUs: {cpus}, memory: {})",
                run.name(task),
                rank.0,
                memory(memory_mb)
            );
        }
        tracing::debug!("Submitting task {} to slot {}", run.name(task), rank.0);
        if segment.is_none() {
            let task = run.dag.name(task);
            (self.observer)(&RunEvent::Started { task, rank });
        }
    }
}

/// Returns the parts of a request that are not as before, for people.
fn differing(request: Request, before: Request) -> String {
    let mut parts = Vec::new();
    if request.memory_mb != before.memory_mb {
        parts.push(format!("{} of memory", memory(request.memory_mb)));
    }
    if request.cpus != before.cpus {
        parts.push(format!("{} CPUs", request.cpus));
    }
    if request.gpus != before.gpus {
        parts.push(format!("{} GPUs", request.gpus));
    }
    parts.join(" and ")
}

impl<T: MasterTransport> DriverOutbox<'_, T> {
    /// Asks the members of a gang to join it.
    pub(super) fn ask_to_join(&mut self, gang: GangParts) {
        let GangParts {
            task,
            submit,
            is_exclusive,
            parts,
        } = gang;
        let token = match token() {
            Ok(token) => token,
            Err(error) => {
                // None joins, and the scheduler hears of it when their time is over.
                tracing::error!("There are no random numbers for a gang: {error}");
                return;
            }
        };
        let (segment, local) = self.dags.locate(task);
        let Some(run) = self.dags.get(segment) else {
            return;
        };
        let name = run.dag.name(local).to_vec();
        let place: Option<Box<Place>> = run.place.clone().map(Box::new);
        let shown = run.name(local);
        let named: Vec<&str> = parts.iter().map(|part| part.host.as_str()).collect();
        tracing::debug!("Task {shown} gets the hosts {}", pmc_hosts::compress(&named));
        let hosts = parts.iter().map(|part| GangHost {
            name: part.host.clone(),
            ranks: part.ranks,
            addresses: Vec::new(),
        });
        let start = GangStart {
            token,
            hosts: hosts.collect(),
            exclusive: is_exclusive,
        };
        let ranks = parts.iter().map(|part| part.rank).collect();
        self.gangs.begin(submit, start, ranks);
        for part in parts.into_iter().skip(1) {
            let membership = Membership {
                submit,
                token,
                task: name.clone(),
                part: Part {
                    ranks: part.ranks,
                    cpus: part.grant.cpus,
                    memory_mb: part.grant.memory_mb,
                    cpu_set: part.grant.cpu_set,
                    gpu_set: part.grant.gpu_set,
                },
                place: place.clone(),
            };
            self.send_message(part.rank, ToWorker::Join(Box::new(membership)));
        }
    }

    /// Sends a message with the next [`DriverOutbox::send_held`].
    pub(super) fn send_message(&mut self, to: Rank, message: ToWorker) {
        self.held.push((to, message));
    }

    /// Sends all messages that wait. To be called when the logs are written.
    pub(super) fn send_held(&mut self) {
        for (to, message) in self.held.drain(..) {
            if let Err(error) = self.transport.send(to, message) {
                self.error.get_or_insert(error);
            }
        }
    }
}

impl<T: MasterTransport> Outbox for DriverOutbox<'_, T> {
    fn start(&mut self, start: Start) {
        let (rank, (segment, task)) = (start.rank, self.dags.locate(start.task));
        // A DAG that has ended starts no more tasks.
        let Some(run) = self.dags.get(segment) else {
            return;
        };
        let (line, place) = (run.dag.task(task), run.place.as_ref());
        let output = if self.away.has(rank) {
            Output::Away(carried(&line, place, &self.options.dag))
        } else if let Stdio::Merged { .. } = self.options.stdio {
            Output::Merged
        } else {
            let numbers = run
                .numbers
                .as_ref()
                .filter(|all| all.is_packed() && segment.is_none());
            numbers.map_or(Output::Own, |numbers| Output::Packed(numbers.of(task)))
        };
        let gang = self.gangs.start(start.submit);
        let mut assignment = assignment(&line, start, place, output);
        assignment.gang = gang;
        assignment.restarts = run.restarts.of(task);
        if segment.is_none() {
            self.waiting_redirects.redirect(&mut assignment);
        }
        self.send_message(rank, ToWorker::Run(Box::new(assignment)));
    }

    fn join(&mut self, gang: GangParts) {
        self.ask_to_join(gang);
    }

    fn leave(&mut self, from: Rank, submit: SubmitId) {
        self.send_message(from, ToWorker::Leave { submit });
    }

    fn send(&mut self, to: Rank, message: ToWorker) {
        self.send_message(to, message);
    }

    #[expect(clippy::too_many_lines, reason = "an arm for each record")]
    fn record(&mut self, record: Record<'_>) {
        let number = record.task();
        if let Record::Ended { submit, .. } | Record::Evicted { submit, .. } = record {
            self.gangs.forget(submit);
        }
        let (segment, record) = match number {
            None => (self.current, record),
            Some(number) => {
                let (segment, task) = self.dags.locate(number);
                self.current = segment;
                (segment, record.renumbered(task))
            }
        };
        if let Record::Capacity { .. } = record {
            self.free.note(&record);
            self.dags.all().for_each(|run| run.logs.record(&record));
            return;
        }
        self.dags.touch(segment);
        let change = self.free.note(&record);
        let Some(run) = self.dags.get(segment) else {
            return;
        };
        if let Some(change) = change {
            run.logs.change(change);
        }
        run.logs.record(&record);
        run.restarts.note(&record);
        if let Some(numbers) = &mut run.numbers {
            match &record {
                Record::Queued(task, _) => numbers.submitted(*task),
                Record::Started(task, _, rank) if self.away.has(*rank) => numbers.begun(&run.dag, *task),
                Record::Adopted(task, _) => numbers.adopted(&run.dag, *task),
                Record::Evicted { task, .. } => numbers.lost(&run.dag, *task),
                Record::Ended { task, outcome, .. } if outcome.evictions > 0 => {
                    numbers.lost(&run.dag, *task);
                }
                _ => {}
            }
        }
        match record {
            Record::Resources { .. } | Record::Beside { .. } | Record::Capacity { .. } => {}
            Record::Adopted(task, _) => tracing::info!("Task {} still runs", run.name(task)),
            Record::Evicted { task, why, .. } if why != Eviction::Lost => {
                if why == Eviction::Saved {
                    tracing::info!("Task {} has saved itself; it will run again", run.name(task));
                } else {
                    tracing::warn!(
                        "Task {} was ended with the batch job; it will run again",
                        run.name(task)
                    );
                }
                if segment.is_none() {
                    (self.observer)(&RunEvent::Evicted {
                        task: run.dag.name(task),
                        why,
                    });
                }
            }
            Record::Evicted { task, rank, why, .. } => {
                tracing::warn!(
                    "Task {} was lost with worker {}; it will run again",
                    run.name(task),
                    rank.0
                );
                if segment.is_none() {
                    (self.observer)(&RunEvent::Evicted {
                        task: run.dag.name(task),
                        why,
                    });
                }
            }
            Record::NewRequest {
                task,
                request,
                before,
            } => {
                tracing::warn!(
                    "Task {} gets {} in its next attempt",
                    run.name(task),
                    differing(request, before)
                );
                run.changed.insert(task, request);
            }
            Record::ExpressionSkipped {
                task,
                request,
                reason,
            } => {
                tracing::warn!(
                    "Task {}: the expression for {request} is skipped, and the old request stays: {reason}",
                    run.name(task)
                );
            }
            Record::RequestCapped { task, shortage } => {
                tracing::warn!(
                    "Task {}: no host has what its expressions ask for: {shortage}. It gets no more than that",
                    run.name(task)
                );
            }
            Record::Queued(task, _) => {
                tracing::debug!("Queueing task {}", run.name(task));
                if segment.is_none() {
                    (self.observer)(&RunEvent::Queued {
                        task: run.dag.name(task),
                    });
                }
            }
            Record::Fragmented(task, _) => {
                tracing::warn!(
                    "CPU fragmentation detected when scheduling task {}: not setting affinity",
                    run.name(task)
                );
            }
            Record::HeldBack(task, _) => {
                let name = run.name(task);
                tracing::debug!("Task {name} is held back: it would not end before the time is over");
            }
            Record::Started(task, _, rank) => self.started(segment, task, rank),
            Record::Nested(task, submit) => {
                let is_prepared = run.dag.subdag(task).is_some_and(|subdag| subdag.is_prepared);
                self.nested.extend(number.map(|number| (number, submit)));
                if segment.is_none() && !is_prepared {
                    let (task, rank) = (run.dag.name(task), Rank(0));
                    (self.observer)(&RunEvent::Started { task, rank });
                }
            }
            Record::Prepared {
                task, rank, outcome, ..
            } => {
                if !outcome.succeeded() {
                    self.ended(segment, task, rank, outcome);
                }
            }
            Record::Ended {
                task, rank, outcome, ..
            } => {
                if self.notes_ends
                    && let Some(number) = number
                {
                    self.ends.extend(AttemptEnd::new(number, rank, &outcome));
                }
                if self.options.serve.is_some() {
                    self.finals.push((task, outcome));
                }
                self.ended(segment, task, rank, outcome);
            }
        }
    }
}
