//! Tasks that are tried again go to other hosts than those on which they failed.
//!
//! A broken host is often a fast one: it fails its tasks at once, and so it always has a free slot. Without
//! this, it would use up the attempts of all tasks that wait.
//!
//! A task avoids the hosts on which it has failed, the latest ones first, as long as another host could run
//! it. Sometimes that one is busy, and only an avoided one has room. Then the task waits, and others overtake
//! it:
//!
//! * without end, if tasks like it have succeeded on another host, or run on one. Then it is likely that the
//!   host is at fault;
//! * else for [`MOMENT`]. Then it is likely that the task is.
//!
//! While hosts are to come, a task that has failed on all that are there waits for the next one, for
//! [`MOMENT`] at most: a broken host may be the first to come.
//!
//! Tasks like it are those with the same request and category in the DAG. Attempts that failed for a reason
//! of their own (their memory, lost workers) say nothing about their hosts.
//!
//! The scheduler has no clock: [`Master::advance`] gets the time.

use std::time::Duration;

use pmc_dag::{Request, TaskId};
use rustc_hash::FxHashMap;

use crate::protocol::{EndCause, Outcome};
use crate::scheduler::queue::{AvoidId, Shape, ShapeId};
use crate::scheduler::run::Master;

/// How long a task waits for another host that may fail it as well.
pub const MOMENT: Duration = Duration::from_secs(5);

/// Maximum hosts that a task avoids.
const MAX_HOSTS: usize = 8;

/// Number of hosts that are remembered because tasks of a kind have succeeded there.
pub(super) const MAX_SUCCEEDED: usize = 4;

/// Stands for no host.
const NO_HOST: u32 = u32::MAX;

/// Where tasks have failed and succeeded.
#[derive(Debug, Default)]
pub(super) struct Avoidance {
    /// Hosts on which tasks that are not done have failed, the latest one last.
    failed_on: FxHashMap<TaskId, Vec<u32>>,
    /// Hosts on which the programs of tasks that are not done are missing or cannot be executed.
    cannot_run_on: FxHashMap<TaskId, Vec<u32>>,
    /// Hosts on which tasks have succeeded, by kind, the latest one first.
    succeeded_on: Vec<[u32; MAX_SUCCEEDED]>,
    /// Hosts are to come that have not.
    more_to_come: bool,
    /// Hosts may have gone since this was last looked at.
    must_look: bool,
    /// The time, since some fixed moment.
    now: Duration,
}

impl Avoidance {
    /// Notes that hosts may have gone.
    pub(super) fn look_again(&mut self) {
        self.must_look = true;
    }

    /// Forgets where a task has failed.
    pub(super) fn forget(&mut self, task: TaskId) {
        if !self.failed_on.is_empty() {
            self.failed_on.remove(&task);
        }
        if !self.cannot_run_on.is_empty() {
            self.cannot_run_on.remove(&task);
        }
    }

    fn succeeds(&mut self, kind: ShapeId, host: u32) {
        let kind = kind.index();
        if self.succeeded_on.len() <= kind {
            self.succeeded_on.resize(kind + 1, [NO_HOST; MAX_SUCCEEDED]);
        }
        let hosts = &mut self.succeeded_on[kind];
        if hosts[0] != host {
            let known = hosts.iter().position(|other| *other == host);
            hosts[..=known.unwrap_or(MAX_SUCCEEDED - 1)].rotate_right(1);
            hosts[0] = host;
        }
    }
}

impl Master {
    /// Takes the time since some fixed moment. To be called before [`Master::schedule`].
    pub fn advance(&mut self, now: Duration) {
        self.avoidance.now = self.avoidance.now.max(now);
    }

    /// The time, as [`Master::advance`] was told.
    pub(super) fn now(&self) -> Duration {
        self.avoidance.now
    }

    /// Returns when [`Master::schedule`] may start more tasks even if no event comes before.
    #[must_use]
    pub fn next_time(&self) -> Option<Duration> {
        if self.is_stopped() || self.held {
            return None;
        }
        let avoided = self.queue.used_sets().map(|(_, _, until)| until).min();
        avoided.into_iter().chain(self.reserved_until()).min()
    }

    /// True if other hosts that take tasks could run what this one could.
    #[must_use]
    pub fn can_spare(&self, host: &str) -> bool {
        let Some(number) = self.hosts.number(host) else {
            return false;
        };
        let requests = self.queue.shapes().iter().map(|shape| shape.request);
        let mut own = requests.filter(|request| self.hosts.get(number).could_take(*request));
        own.all(|request| self.has_other_host(request, &[number]))
    }

    /// Returns a number that tasks have in common which request the same in the DAG.
    #[must_use]
    pub fn kind_of(&self, task: TaskId) -> usize {
        self.kind(task).index()
    }

    fn kind(&self, task: TaskId) -> ShapeId {
        let chain = self.nodes[task.index()].chain;
        self.queue.shape(self.queue.shape_of(chain)).kind
    }

    pub(super) fn note_success(&mut self, task: TaskId, host: u32) {
        let kind = self.kind(task);
        self.avoidance.succeeds(kind, host);
        self.avoidance.forget(task);
        self.cache_index.forget_saved(task);
    }

    /// Notes that a host did not join a gang.
    pub(super) fn note_refusal(&mut self, task: TaskId, host: u32) {
        let hosts = self.avoidance.failed_on.entry(task).or_default();
        hosts.retain(|other| *other != host);
        hosts.push(host);
        let old = hosts.len().saturating_sub(MAX_HOSTS);
        hosts.drain(..old);
    }

    pub(super) fn note_failure(&mut self, task: TaskId, host: u32, outcome: &Outcome) {
        if outcome.cause == Some(EndCause::CannotRun) {
            let hosts = self.avoidance.cannot_run_on.entry(task).or_default();
            if !hosts.contains(&host) {
                hosts.push(host);
            }
        }
        let is_only_host = self.hosts.all().len() < 2 && !self.avoidance.more_to_come;
        if outcome.has_own_cause() || is_only_host {
            return;
        }
        self.note_refusal(task, host);
    }

    /// Notes whether hosts are to come that have not. To be called before a failure is handled.
    pub fn expect_hosts(&mut self, are_to_come: bool) {
        self.avoidance.more_to_come = are_to_come;
    }

    /// True if the program of a task was missing in an attempt that ended so, and no host is left or to come
    /// on which it may be there.
    pub(super) fn can_run_nowhere(&self, task: TaskId, outcome: &Outcome) -> bool {
        outcome.cause == Some(EndCause::CannotRun)
            && !self.avoidance.more_to_come
            && self.is_missing_on_all(task)
    }

    /// True if the program of a task was missing on each host that is there and could run it.
    pub(super) fn is_missing_on_all(&self, task: TaskId) -> bool {
        let hosts = self.avoidance.cannot_run_on.get(&task);
        hosts.is_some_and(|hosts| !self.has_other_host(self.request(task), hosts))
    }

    /// True if a task has failed on each host that is there and could run it, and others are to come.
    pub(super) fn may_succeed_on_others(&self, task: TaskId) -> bool {
        let hosts = self.avoidance.failed_on.get(&task);
        self.avoidance.more_to_come
            && hosts.is_some_and(|hosts| !self.has_other_host(self.request(task), hosts))
    }

    /// Lets a task that is queued next avoid the hosts on which it has failed.
    pub(super) fn avoid(&mut self, task: TaskId) {
        let Some(failed_on) = self.avoidance.failed_on.get(&task) else {
            return;
        };
        let chain = self.nodes[task.index()].chain;
        let shape = self.queue.shape(self.queue.shape_of(chain));
        let mut hosts = failed_on.as_slice();
        // If it has failed on all that could run it, the latest ones count.
        while !hosts.is_empty() && !self.has_others(shape, hosts) {
            hosts = &hosts[1..];
        }
        let is_gang = shape.gang.is_some();
        let mut hosts = hosts.to_vec();
        hosts.sort_unstable();
        let set = match hosts.is_empty() {
            true => AvoidId::NONE,
            false => self
                .queue
                .avoid_set(hosts, self.avoidance.now.saturating_add(MOMENT)),
        };
        self.nodes[task.index()].chain = self.queue.avoiding(&self.nodes, chain, set);
        if is_gang {
            // The number of the set may have been that of other hosts.
            self.gangs.try_again();
        }
    }

    /// True if enough hosts without these could run tasks of a shape.
    fn has_others(&self, shape: &Shape, hosts: &[u32]) -> bool {
        match shape.gang {
            None => self.has_other_host(shape.request, hosts),
            Some(id) => self.has_hosts_for_gang(self.gangs.kind(id), shape.request, hosts),
        }
    }

    /// True if a host could run a task, takes tasks or is only silent, and is none of these.
    fn has_other_host(&self, request: Request, hosts: &[u32]) -> bool {
        let stays = |host: u32| {
            let ranks = self.hosts.get(host).ranks.iter();
            ranks
                .map(|rank| self.slots[rank.0 as usize - 1].member)
                .any(super::nodes::Member::stays)
        };
        (0..).zip(self.hosts.all()).any(|(number, host)| {
            !hosts.contains(&number) && host.could_take(request) && !host.named_only && stays(number)
        })
    }

    /// Lets tasks run where they have failed, if no other host is there any more, or if they have waited for
    /// a moment and nothing speaks for other hosts.
    pub(super) fn release_avoided(&mut self) {
        let must_look = std::mem::take(&mut self.avoidance.must_look);
        let now = self.avoidance.now;
        let sets = self.queue.used_sets();
        let sets: Vec<(AvoidId, bool)> = sets
            .filter(|(_, _, until)| must_look || *until <= now)
            .map(|(id, _, until)| (id, until <= now))
            .collect();
        for (id, is_due) in sets {
            let hosts = self.queue.avoided_hosts(id);
            let shapes = || self.queue.shapes_avoiding(id);
            let has_others = shapes().all(|shape| self.has_others(shape, hosts));
            let waits_on =
                has_others && (!is_due || shapes().any(|shape| self.speaks_for_others(shape.kind, hosts)));
            if is_due || !waits_on {
                let until = waits_on.then(|| now.saturating_add(MOMENT));
                self.queue.avoid_until(id, until);
                self.gangs.try_again();
            }
        }
    }

    /// True if tasks of a kind have succeeded or run on a host that is there and none of these. Linear in the
    /// workers.
    fn speaks_for_others(&self, kind: ShapeId, hosts: &[u32]) -> bool {
        let is_other = |host: u32| host != NO_HOST && !hosts.contains(&host);
        let succeeded_on = self.avoidance.succeeded_on.get(kind.index());
        let mut others = succeeded_on.into_iter().flatten().filter(|host| is_other(**host));
        let has_succeeded = others.any(|host| !self.hosts.get(*host).ranks.is_empty());
        has_succeeded
            || self.assignments().any(|(rank, task, _)| {
                is_other(self.slots[rank.0 as usize - 1].host) && self.kind(task) == kind
            })
    }
}
