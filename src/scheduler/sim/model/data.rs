//! What hosts hold, and which tasks and hosts may be chosen for that.

use std::collections::{BTreeMap, BTreeSet};

use pmc_dag::TaskId;

use super::{Kind, Model, Turn};
use crate::protocol::{CacheNews, Rank};

/// Maximum tasks that may overtake one, and how far in front of it one of them may be.
const MAX: usize = 64;

/// What hosts hold.
#[derive(Default)]
pub(super) struct Data {
    /// Files, and whether they are there; else they are on their way.
    by_host: BTreeMap<String, BTreeMap<Vec<u8>, bool>>,
    bytes: BTreeMap<Vec<u8>, u64>,
    overtaken: BTreeMap<TaskId, usize>,
    /// Tasks that have overtaken others.
    pub(super) moved: u64,
}

impl Data {
    /// Returns whether a host has a file, also one that is only on its way with `coming`.
    fn has(&self, host: &str, file: &[u8], coming: bool) -> bool {
        let known = self.by_host.get(host).and_then(|files| files.get(file));
        known.is_some_and(|held| *held || coming)
    }

    fn is_somewhere(&self, file: &[u8], coming: bool) -> bool {
        self.by_host.keys().any(|host| self.has(host, file, coming))
    }

    /// Bytes that are there, less those that are elsewhere.
    fn score(&self, inputs: &BTreeSet<Vec<u8>>, host: &str, coming: bool) -> i64 {
        let inputs = inputs.iter().filter(|file| self.is_somewhere(file, coming));
        let scores = inputs.map(|file| {
            let bytes = self.bytes.get(file).copied().unwrap_or(0).max(1) as i64;
            if self.has(host, file, coming) {
                bytes
            } else {
                -bytes
            }
        });
        scores.sum()
    }
}

impl Model {
    /// Follows what an agent says.
    pub(in crate::scheduler::sim) fn cache(&mut self, rank: Rank, news: &CacheNews) {
        if self.member(rank).gone {
            return;
        }
        let host = self.host_of(rank);
        match news {
            CacheNews::Begins => {
                if let Some(files) = self.data.by_host.get_mut(&host) {
                    files.retain(|_, held| !*held);
                }
            }
            CacheNews::Has { name, bytes } => {
                let known = self
                    .facts
                    .iter()
                    .any(|fact| fact.inputs.contains(name.as_bytes()));
                if known {
                    self.data.bytes.insert(name.clone().into(), *bytes);
                    let files = self.data.by_host.entry(host).or_default();
                    files.insert(name.clone().into(), true);
                }
            }
        }
    }

    /// Drops what a host holds, whose workers are gone.
    pub(in crate::scheduler::sim) fn forget_held(&mut self, host: &str) {
        self.data.by_host.remove(host);
    }

    /// Follows the start of a task (`None`), its success or its failure.
    pub(super) fn follow_data(&mut self, task: TaskId, rank: Rank, succeeded: Option<bool>) {
        let host = self.host_of(rank);
        let files = self.data.by_host.entry(host).or_default();
        for file in self.facts[task.index()].inputs.clone() {
            match succeeded {
                None => {
                    files.entry(file).or_insert(false);
                }
                Some(true) => {
                    files.insert(file, true);
                }
                Some(false) if files.get(&file) == Some(&false) => {
                    files.remove(&file);
                }
                Some(false) => {}
            }
        }
    }

    pub(super) fn lacks(&self, task: TaskId, host: &str) -> bool {
        let mut inputs = self.fact(task).inputs.iter();
        inputs.any(|file| self.data.is_somewhere(file, true) && !self.data.has(host, file, true))
    }

    fn score(&self, task: TaskId, host: &str, coming: bool) -> i64 {
        self.data.score(&self.fact(task).inputs, host, coming)
    }

    /// Removes a task that starts from the queue. It must be the first of its kind, or its inputs must lie
    /// nearer to its host. Returns whose turn it was.
    pub(super) fn take_turn(&mut self, task: TaskId, rank: Rank) -> Turn {
        let key = self.turn(task);
        let (kind, host) = (self.kind(task), self.host_of(rank));
        let queued = self.queued.get(&kind).cloned().unwrap_or_default();
        let Some(first) = queued.first().copied() else {
            return self.take_first(task);
        };
        let first_task = first.2;
        let is_avoided = kind.2.contains(&host);
        self.check(!is_avoided, || {
            format!("{task:?} starts on {host}, which it avoids")
        });
        self.check_host(first_task, &kind, &host);
        if first == key {
            self.data.overtaken.remove(&task);
            return self.take_first(task);
        }
        let same_priority = queued.iter().filter(|other| other.0 == first.0);
        let is_near = same_priority.take(MAX + 1).any(|other| *other == key);
        let gains = self.score(task, &host, true) > self.score(first_task, &host, true);
        let lacks = self.lacks(first_task, &host);
        let overtaken = self.data.overtaken.entry(first_task).or_default();
        *overtaken += 1;
        let is_rare = *overtaken <= MAX;
        self.check(is_near && gains && lacks && is_rare, || {
            format!("{task:?} overtakes {first_task:?}: {is_near}, {gains}, {lacks}, {is_rare}")
        });
        self.data.moved += 1;
        self.data.overtaken.remove(&task);
        if let Some(queued) = self.queued.get_mut(&kind) {
            queued.remove(&key);
        }
        first
    }

    /// Checks that no host with room is better for the task whose turn it is.
    fn check_host(&mut self, first: TaskId, (request, _, avoided): &Kind, host: &str) {
        if !self.lacks(first, host) {
            return;
        }
        let score = self.score(first, host, false);
        let hosts = self.hosts.iter().filter(|(name, _)| !avoided.contains(*name));
        let mut room = hosts.filter(|(_, host)| host.slots > 0 && host.fits(*request));
        let better = room.find(|(name, _)| self.score(first, name, false) > score);
        let better = better.map(|(name, _)| name.clone());
        self.check(better.is_none(), || {
            format!("{first:?} should start on {better:?}, not on {host}")
        });
    }
}
