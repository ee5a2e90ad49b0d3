//! Hosts and workers of the model.

use std::collections::BTreeSet;

use pmc_dag::Request;

use super::model::{Model, State};
use crate::protocol::{Rank, Registration};

/// Free resources of a host.
pub(super) struct ModelHost {
    pub(super) memory_mb: u64,
    pub(super) cpus: u32,
    /// Workers that may get a task now.
    pub(super) slots: u32,
    /// Workers that run nothing.
    pub(super) idle: u32,
    pub(super) workers: u32,
    pub(super) capacity: Registration,
    pub(super) numbers: BTreeSet<u32>,
    pub(super) gpus: BTreeSet<u32>,
    /// GPUs that no task has taken.
    pub(super) free_gpus: u32,
}

/// A worker of a model.
pub(super) struct ModelWorker {
    pub(super) host: String,
    pub(super) member: Member,
}

/// State of a worker, as the scheduler knows it from events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) gone: bool,
    pub(super) silent: bool,
    pub(super) leaving: bool,
}

impl Member {
    pub(super) fn takes_tasks(self) -> bool {
        self == Self::default()
    }
}

impl ModelHost {
    fn new(capacity: &Registration) -> Self {
        Self {
            memory_mb: capacity.memory_mb,
            cpus: capacity.threads,
            slots: 0,
            idle: 0,
            workers: 0,
            numbers: (0..capacity.threads).collect(),
            gpus: (0..capacity.gpus).collect(),
            free_gpus: capacity.gpus,
            capacity: capacity.clone(),
        }
    }

    pub(super) fn could_take(&self, request: Request) -> bool {
        let all = &self.capacity;
        self.workers > 0
            && self.suits(request)
            && all.memory_mb >= request.memory_mb
            && all.threads >= request.cpus
            && all.gpus >= request.gpus
    }

    pub(super) fn fits(&self, request: Request) -> bool {
        self.suits(request)
            && self.memory_mb >= request.memory_mb
            && self.cpus >= request.cpus
            && self.free_gpus >= request.gpus
    }

    fn suits(&self, request: Request) -> bool {
        request.anywhere || !self.capacity.away
    }
}

impl Model {
    /// Adds a worker that registers.
    pub(super) fn join(&mut self, rank: Rank, registration: &Registration) {
        let new = || ModelHost::new(registration);
        let host = self.hosts.entry(registration.host.clone()).or_insert_with(new);
        if host.workers == 0 {
            *host = new();
        }
        host.capacity.away |= registration.away;
        host.workers += 1;
        host.slots += 1;
        host.idle += 1;
        let worker = ModelWorker {
            host: registration.host.clone(),
            member: Member::default(),
        };
        self.workers.insert(rank, worker);
    }

    /// Changes what a worker is. It must not have gone.
    pub(super) fn change(&mut self, rank: Rank, change: impl FnOnce(&mut Member)) {
        let is_idle = self.is_idle(rank);
        let Some(worker) = self.workers.get_mut(&rank) else {
            return;
        };
        let before = worker.member;
        change(&mut worker.member);
        let after = worker.member;
        let Some(host) = self.hosts.get_mut(&worker.host) else {
            return;
        };
        match (before.takes_tasks(), after.takes_tasks()) {
            (true, false) if is_idle => host.slots -= 1,
            (false, true) if is_idle => host.slots += 1,
            _ => {}
        }
    }

    pub(super) fn member(&self, rank: Rank) -> Member {
        let gone = Member {
            gone: true,
            ..Member::default()
        };
        self.workers.get(&rank).map_or(gone, |worker| worker.member)
    }

    pub(super) fn is_idle(&self, rank: Rank) -> bool {
        !self
            .states
            .iter()
            .any(|state| matches!(state, State::Running(_, at) if *at == rank))
    }

    /// Follows a worker that is gone for good: it runs nothing any more.
    pub(super) fn leave(&mut self, rank: Rank) {
        self.change(rank, |member| member.gone = true);
        let idle = self.is_idle(rank);
        self.check(idle, || format!("{rank:?} is gone, but runs a task"));
        let name = self.host_of(rank);
        if let Some(host) = self.hosts.get_mut(&name) {
            host.workers -= 1;
            host.idle -= 1;
            if host.workers == 0 {
                self.forget_held(&name);
            }
        }
    }

    pub(super) fn host_of(&self, rank: Rank) -> String {
        self.workers
            .get(&rank)
            .map(|worker| worker.host.clone())
            .unwrap_or_default()
    }
}
