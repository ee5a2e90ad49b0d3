//! Which hosts tasks avoid because they failed there.

use std::collections::BTreeMap;
use std::time::Duration;

use pmc_dag::{CategoryId, Request, TaskId};

use super::{Avoided, Model, State};
use crate::protocol::{Outcome, Rank};
use crate::scheduler::avoidance::{MAX_SUCCEEDED, MOMENT};
use crate::scheduler::queue::MAX_SETS;

/// What tasks like each other request in the DAG.
type Likeness = (Request, Option<CategoryId>);

/// Where tasks have failed, and which hosts they avoid for that.
#[derive(Default)]
pub(super) struct Avoidance {
    failed_on: BTreeMap<TaskId, Vec<String>>,
    /// What each queued task avoids.
    avoided: BTreeMap<TaskId, Avoided>,
    /// Until when the tasks that avoid these hosts do so.
    until: BTreeMap<Avoided, Duration>,
    /// The latest ones first.
    succeeded_on: BTreeMap<Likeness, Vec<String>>,
    now: Duration,
    /// Tasks that were queued to avoid hosts.
    pub(in crate::scheduler::sim) avoided_ever: u64,
    /// Sets of hosts that tasks did not avoid any more.
    pub(in crate::scheduler::sim) released: u64,
}

impl Avoidance {
    pub(super) fn now(&self) -> Duration {
        self.now
    }

    pub(super) fn of(&self, task: TaskId) -> Avoided {
        self.avoided.get(&task).cloned().unwrap_or_default()
    }
}

impl Model {
    fn likeness(&self, task: TaskId) -> Likeness {
        (self.fact(task).request, self.fact(task).category)
    }

    /// Follows the end of an attempt.
    pub(super) fn judge(&mut self, task: TaskId, rank: Rank, outcome: &Outcome) {
        let (host, likeness) = (self.host_of(rank), self.likeness(task));
        if outcome.succeeded() {
            let hosts = self.avoidance.succeeded_on.entry(likeness).or_default();
            hosts.retain(|other| *other != host);
            hosts.insert(0, host);
            hosts.truncate(MAX_SUCCEEDED);
            self.avoidance.failed_on.remove(&task);
        } else if !outcome.has_own_cause() {
            let hosts = self.avoidance.failed_on.entry(task).or_default();
            hosts.retain(|other| *other != host);
            hosts.push(host);
        }
    }

    /// Follows a task that starts.
    pub(super) fn stop_avoiding(&mut self, task: TaskId) {
        self.avoidance.avoided.remove(&task);
    }

    fn has_other_host(&self, request: Request, avoided: &[String]) -> bool {
        let stays = |name: &String| {
            let mut own = self.workers.values().filter(|worker| worker.host == *name);
            own.any(|worker| !worker.member.gone && !worker.member.leaving)
        };
        let mut hosts = self.hosts.iter();
        hosts.any(|(name, host)| !avoided.contains(name) && host.could_take(request) && stays(name))
    }

    /// Follows a task that is queued.
    pub(super) fn avoid(&mut self, task: TaskId) {
        let failed_on = self.avoidance.failed_on.get(&task).cloned().unwrap_or_default();
        let request = self.request(task);
        let starts = 0..failed_on.len();
        let start = starts
            .into_iter()
            .find(|start| self.has_other_host(request, &failed_on[*start..]));
        let avoided: Avoided =
            start.map_or_else(Avoided::new, |start| failed_on[start..].iter().cloned().collect());
        if avoided.is_empty() {
            self.avoidance.avoided.remove(&task);
            return;
        }
        let until = self.avoidance.now + MOMENT;
        let is_known = self.waiting_for(&avoided).next().is_some();
        let mut used = self.avoidance.until.clone();
        used.retain(|other, _| self.waiting_for(other).next().is_some());
        if !is_known && used.len() == MAX_SETS {
            self.avoidance.avoided.remove(&task);
            return;
        }
        if !is_known {
            self.avoidance.until = used;
            self.avoidance.until.insert(avoided.clone(), until);
        }
        self.avoidance.avoided.insert(task, avoided);
        self.avoidance.avoided_ever += 1;
    }

    /// The queued tasks that avoid a set.
    fn waiting_for<'m>(&'m self, avoided: &'m Avoided) -> impl Iterator<Item = TaskId> + 'm {
        let own = self
            .avoidance
            .avoided
            .iter()
            .filter(move |(_, own)| *own == avoided);
        let queued = |task: &TaskId| matches!(self.states[task.index()], State::Queued(_));
        own.map(|(task, _)| *task).filter(queued)
    }

    /// Lets tasks no longer avoid hosts for which there is no reason any more.
    pub(in crate::scheduler::sim) fn release(&mut self, now: Duration) {
        self.avoidance.now = self.avoidance.now.max(now);
        if self.stopped {
            return;
        }
        let now = self.avoidance.now;
        for (avoided, until) in self.avoidance.until.clone() {
            let tasks: Vec<TaskId> = self.waiting_for(&avoided).collect();
            let hosts: Vec<String> = avoided.iter().cloned().collect();
            let has_others = tasks
                .iter()
                .all(|task| self.has_other_host(self.request(*task), &hosts));
            let is_due = until <= now;
            if has_others && !is_due {
                continue;
            }
            if has_others && tasks.iter().any(|task| self.speaks_for_others(*task, &avoided)) {
                self.avoidance.until.insert(avoided, now + MOMENT);
                continue;
            }
            for task in tasks {
                let (before, turn) = (self.kind(task), self.turn(task));
                self.queued.entry(before).or_default().remove(&turn);
                self.avoidance.avoided.remove(&task);
                let after = self.kind(task);
                self.queued.entry(after).or_default().insert(turn);
            }
            self.avoidance.until.remove(&avoided);
            self.avoidance.released += 1;
        }
    }

    fn speaks_for_others(&self, task: TaskId, avoided: &Avoided) -> bool {
        let likeness = self.likeness(task);
        let is_there = |host: &String| self.hosts.get(host).is_some_and(|host| host.workers > 0);
        let succeeded_on = self.avoidance.succeeded_on.get(&likeness).into_iter().flatten();
        let mut others = succeeded_on.filter(|host| !avoided.contains(*host));
        let runs = |other: TaskId| match self.states[other.index()] {
            State::Running(_, rank) => !avoided.contains(&self.host_of(rank)),
            _ => false,
        };
        others.any(is_there)
            || self
                .tasks()
                .any(|other| self.likeness(other) == likeness && runs(other))
    }
}
