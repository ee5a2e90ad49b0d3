//! Who holds what, and whether that may be.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;

use pmc_dag::{Dag, Layout, Request, TaskId};
use testutils::Random;

use crate::protocol::{Rank, Registration, SubmitId, ToWorker};
use crate::scheduler::{GangParts, Granted, Master, Outbox, Record, Start};

/// What a worker says, or what happens to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Report {
    Ended(SubmitId),
    Joined(SubmitId),
    Refused(SubmitId),
    Left(SubmitId),
}

/// What a worker holds.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) submit: SubmitId,
    pub(super) task: TaskId,
    pub(super) amount: Amount,
    pub(super) cpus: Vec<u32>,
    pub(super) gpus: Vec<u32>,
    /// A gang that it has not joined.
    pub(super) is_pending: bool,
    /// Its command runs here.
    pub(super) runs: bool,
    /// It is asked to join a gang.
    pub(super) is_member: bool,
}

impl Held {
    /// The lead of a gang that does not come together is told nothing.
    pub(super) fn is_unasked(&self) -> bool {
        !self.runs && !self.is_member
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Amount {
    pub(super) memory_mb: u64,
    pub(super) cpus: u32,
    pub(super) gpus: u32,
}

pub(super) struct Model {
    pub(super) dag: Arc<Dag>,
    pub(super) hosts: BTreeMap<Rank, String>,
    pub(super) capacity: BTreeMap<String, Registration>,
    pub(super) held: BTreeMap<Rank, Held>,
    pub(super) gone: BTreeSet<Rank>,
    /// To the scheduler, by time.
    pub(super) arriving: BinaryHeap<Reverse<(u64, Rank, Report)>>,
    pub(super) now: u64,
    pub(super) random: Random,
    pub(super) done: BTreeSet<TaskId>,
    pub(super) failed: BTreeSet<TaskId>,
    /// Attempts of each task that run or may run.
    pub(super) active: BTreeMap<TaskId, SubmitId>,
    /// How long each task takes.
    pub(super) times: Vec<u64>,
    pub(super) gangs_started: u64,
    pub(super) mistake: Option<String>,
}

impl Model {
    pub(super) fn check(&mut self, ok: bool, mistake: impl FnOnce() -> String) {
        if !ok && self.mistake.is_none() {
            self.mistake = Some(mistake());
        }
    }

    /// Gives a worker something, and checks that it is free.
    pub(super) fn hold(&mut self, rank: Rank, held: Held) {
        let host = self.hosts[&rank].clone();
        let of_host = self.held.iter().filter(|(rank, _)| self.hosts[rank] == host);
        let mut sum = held.amount;
        let mut clash = None;
        let mut is_whole = false;
        for (other, known) in of_host {
            sum.memory_mb += known.amount.memory_mb;
            sum.cpus += known.amount.cpus;
            sum.gpus += known.amount.gpus;
            is_whole |= self.dag.gang(known.task).is_some_and(|gang| gang.exclusive);
            let shares = |a: &[u32], b: &[u32]| a.iter().any(|number| b.contains(number));
            if shares(&known.cpus, &held.cpus) || shares(&known.gpus, &held.gpus) || *other == rank {
                clash = Some(format!("{rank:?} gets {held:?} beside {known:?}"));
            }
        }
        let capacity = &self.capacity[&host];
        let fits =
            sum.memory_mb <= capacity.memory_mb && sum.cpus <= capacity.threads && sum.gpus <= capacity.gpus;
        let gone = self.gone.contains(&rank);
        self.check(fits, || format!("{host} is oversubscribed by {held:?}"));
        self.check(clash.is_none(), || clash.unwrap_or_default());
        self.check(!gone, || format!("{rank:?} is gone and gets {held:?}"));
        self.check(!is_whole, || {
            format!("{held:?} starts on {host}, which is taken as a whole")
        });
        self.held.insert(rank, held);
    }

    pub(super) fn later(&mut self, rank: Rank, after: u64, report: Report) {
        self.arriving.push(Reverse((self.now + after, rank, report)));
    }
}

pub(super) fn amount(request: Request, ranks: u32) -> Amount {
    Amount {
        memory_mb: request.memory_mb * u64::from(ranks),
        cpus: request.cpus * ranks,
        gpus: request.gpus * ranks,
    }
}

impl Outbox for Model {
    fn join(&mut self, gang: GangParts) {
        let GangParts {
            task, submit, parts, ..
        } = gang;
        let dag = Arc::clone(&self.dag);
        let needs = dag.gang(task).unwrap();
        let request = dag.request(task);
        let ranks: Vec<u32> = parts.iter().map(|part| part.ranks).collect();
        let right = match needs.layout {
            Layout::Packed { .. } => ranks.is_sorted_by(|a, b| a >= b),
            layout => (0..)
                .zip(&ranks)
                .all(|(host, ranks)| layout.ranks_of(host) == Some(*ranks)),
        };
        let sum: u32 = ranks.iter().sum();
        let hosts: BTreeSet<&String> = parts.iter().map(|part| &part.host).collect();
        let allowed = needs.on.is_empty() || hosts.iter().all(|host| needs.on.contains(host));
        let is_right = right && sum == needs.layout.ranks() && hosts.len() == parts.len() && allowed;
        let text = format!("{parts:?} for {needs:?}");
        self.check(is_right, || text);
        let before = self.active.insert(task, submit);
        self.check(before.is_none(), || {
            format!("{task:?} has two attempts: {before:?}, {submit:?}")
        });
        for (number, part) in parts.into_iter().enumerate() {
            let granted = Amount {
                memory_mb: part.grant.memory_mb,
                cpus: part.grant.cpus,
                gpus: part.grant.gpu_set.len() as u32,
            };
            let capacity = &self.capacity[&part.host];
            let expected = match needs.exclusive {
                true => Amount {
                    memory_mb: capacity.memory_mb,
                    cpus: capacity.threads,
                    gpus: capacity.gpus,
                },
                false => amount(request, part.ranks),
            };
            self.check(granted == expected, || {
                format!("{granted:?} instead of {expected:?}")
            });
            self.hold(
                part.rank,
                Held {
                    submit,
                    task,
                    amount: granted,
                    cpus: part.grant.cpu_set,
                    gpus: part.grant.gpu_set,
                    is_pending: number > 0,
                    runs: false,
                    is_member: number > 0,
                },
            );
            if number > 0 {
                let after = self.random.below(8);
                let report = match self.random.one_in(12) {
                    true => Report::Refused(submit),
                    false => Report::Joined(submit),
                };
                self.later(part.rank, after, report);
            }
        }
    }

    fn leave(&mut self, from: Rank, submit: SubmitId) {
        let after = 1 + self.random.below(8);
        let runs = self
            .held
            .get(&from)
            .is_some_and(|held| held.submit == submit && held.runs);
        // The lead may answer with its result, too.
        let report = match runs && self.random.one_in(2) {
            true => Report::Ended(submit),
            false => Report::Left(submit),
        };
        self.later(from, after, report);
    }

    fn start(&mut self, start: Start) {
        let Start {
            task,
            submit,
            rank,
            grant,
            ..
        } = start;
        let time = self.times[task.index()];
        if self.dag.gang(task).is_some() {
            let pending = self
                .held
                .values()
                .any(|held| held.submit == submit && held.is_pending);
            self.check(!pending, || format!("{task:?} starts before all have joined"));
            let holds = self.held.get_mut(&rank).filter(|held| held.submit == submit);
            let is_lead = holds.map(|held| held.runs = true).is_some();
            self.check(is_lead, || format!("{rank:?} is no lead of {submit:?}"));
            self.gangs_started += 1;
        } else {
            let before = self.active.insert(task, submit);
            self.check(before.is_none(), || {
                format!("{task:?} has two attempts: {before:?}, {submit:?}")
            });
            let Granted { cpu_set, gpu_set, .. } = grant;
            let request = self.dag.request(task);
            self.hold(
                rank,
                Held {
                    submit,
                    task,
                    amount: amount(request, 1),
                    cpus: cpu_set,
                    gpus: gpu_set,
                    is_pending: false,
                    runs: true,
                    is_member: false,
                },
            );
        }
        self.later(rank, 1 + time, Report::Ended(submit));
    }

    fn send(&mut self, to: Rank, message: ToWorker) {
        if matches!(message, ToWorker::Shutdown) {
            self.held.retain(|rank, held| *rank != to || !held.is_unasked());
            let holds = self.held.contains_key(&to);
            self.check(!holds, || format!("{to:?} is shut down, but holds something"));
            self.gone.insert(to);
        }
    }

    fn record(&mut self, record: Record<'_>) {
        match record {
            Record::Ended {
                task,
                submit,
                outcome,
                ..
            } => {
                let known = self.active.remove(&task);
                self.check(known == Some(submit), || {
                    format!("{submit:?} of {task:?} ended, not {known:?}")
                });
                if outcome.succeeded() {
                    self.done.insert(task);
                } else {
                    self.all_have_left(submit);
                    self.failed.insert(task);
                }
            }
            Record::Evicted { task, submit, .. } => {
                let known = self.active.remove(&task);
                self.check(known == Some(submit), || {
                    format!("{submit:?} of {task:?} lost, not {known:?}")
                });
                self.all_have_left(submit);
            }
            _ => {}
        }
    }
}

impl Model {
    fn all_have_left(&mut self, submit: SubmitId) {
        self.held
            .retain(|_, held| held.submit != submit || !held.is_unasked());
        let left = self.held.iter().find(|(_, held)| held.submit == submit);
        let left = left.map(|(rank, _)| *rank);
        self.check(left.is_none(), || {
            format!("{submit:?} has ended, but {left:?} holds a part")
        });
    }

    /// A gang that did not come together counts no more.
    pub(super) fn forget_unbegun(&mut self, master: &Master) {
        let held: BTreeSet<SubmitId> = self.held.values().map(|held| held.submit).collect();
        self.active
            .retain(|_, submit| held.contains(submit) || master.task_of_gang(*submit).is_some());
    }
}
