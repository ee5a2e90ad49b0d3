//! Sets hosts aside on which tasks fail that succeed elsewhere, and those whose host script fails.
//!
//! A broken node is often a fast one: it fails its tasks at once, and so gets most of them. But a task may
//! also fail by its own fault. So failures count against a host only if they are of different tasks that have
//! not failed elsewhere, and if, since the first of them, these tasks or tasks like them have succeeded
//! elsewhere. A task that succeeds on the host clears it. While everything fails, no host is to blame.

use std::collections::{BTreeMap, BTreeSet};

use pmc_control::NodeStatus;
use pmc_dag::TaskId;

use super::{Run, RunError};
use crate::protocol::{Outcome, Rank};
use crate::scheduler::Event;
use crate::transport::{MasterTransport, Membership};

/// Maximum failures that are kept of a host, beyond the limit.
const MAX_KEPT: usize = 64;

/// The end of an attempt.
#[derive(Clone, Copy, Debug)]
pub(super) struct AttemptEnd {
    task: TaskId,
    rank: Rank,
    succeeded: bool,
}

/// What is held against hosts.
#[derive(Debug, Default)]
pub(super) struct BadHosts {
    /// Failures in a row after which a host is set aside; 0 means never.
    limit: u32,
    /// Where tasks have failed that have not succeeded since.
    failed_on: BTreeMap<TaskId, BTreeSet<String>>,
    /// What has failed on each host since a task succeeded there.
    streaks: BTreeMap<String, Streak>,
    /// Number of ends that were noted.
    ends: u64,
    /// The number of the latest success of each kind of task.
    succeeded_at: BTreeMap<usize, u64>,
    /// Hosts that were set aside.
    aside: BTreeSet<String>,
}

/// Failures in a row on a host.
#[derive(Debug, Default)]
struct Streak {
    failures: Vec<Failure>,
    /// The number of the first failure.
    since: u64,
}

/// A task that has failed on one host only.
#[derive(Debug)]
struct Failure {
    task: TaskId,
    kind: usize,
    /// It has succeeded elsewhere.
    is_confirmed: bool,
}

impl AttemptEnd {
    /// `None` if the end says nothing about the host.
    pub(super) fn new(task: TaskId, rank: Rank, outcome: &Outcome) -> Option<Self> {
        let end = Self {
            task,
            rank,
            succeeded: outcome.succeeded(),
        };
        (!outcome.has_own_cause()).then_some(end)
    }
}

impl Streak {
    fn confirmed(&self) -> usize {
        self.failures
            .iter()
            .filter(|failure| failure.is_confirmed)
            .count()
    }

    /// Number of failures for which the host is likely to be at fault.
    fn count(&self, succeeded_at: &BTreeMap<usize, u64>) -> usize {
        // On this host, none has succeeded since.
        let elsewhere = |kind: usize| succeeded_at.get(&kind).is_some_and(|at| *at > self.since);
        let counts = |failure: &&Failure| failure.is_confirmed || elsewhere(failure.kind);
        self.failures.iter().filter(counts).count()
    }
}

impl BadHosts {
    pub(super) fn new(limit: u32) -> Self {
        Self {
            limit,
            ..Self::default()
        }
    }

    /// True if no task has failed, so that a success changes nothing.
    fn knows_no_failure(&self) -> bool {
        self.failed_on.is_empty() && self.streaks.is_empty()
    }

    /// Notes the end of an attempt of a task of this kind. Returns the hosts against which there is enough
    /// now.
    fn note(&mut self, task: TaskId, kind: usize, host: &str, succeeded: bool) -> Vec<String> {
        self.ends += 1;
        if succeeded {
            self.note_success(task, kind, host)
        } else {
            self.note_failure(task, kind, host)
        }
    }

    fn note_success(&mut self, task: TaskId, kind: usize, host: &str) -> Vec<String> {
        self.streaks.remove(host);
        self.succeeded_at.insert(kind, self.ends);
        let mut bad = Vec::new();
        for other in self.failed_on.remove(&task).unwrap_or_default() {
            let Some(streak) = self.streaks.get_mut(&other) else {
                continue;
            };
            let same = streak.failures.iter_mut().find(|failure| failure.task == task);
            if let Some(failure) = same {
                failure.is_confirmed = true;
                // Other failures may be those of a fault that is over: they count when the next task fails.
                if self.limit > 0 && streak.confirmed() >= self.limit as usize {
                    bad.push(other);
                }
            }
        }
        bad
    }

    fn note_failure(&mut self, task: TaskId, kind: usize, host: &str) -> Vec<String> {
        let failed_on = self.failed_on.entry(task).or_default();
        let is_first = failed_on.is_empty();
        let has_failed_here = !failed_on.insert(host.to_owned());
        if !is_first && !has_failed_here {
            // The task is at fault.
            for other in failed_on.iter() {
                if let Some(streak) = self.streaks.get_mut(other) {
                    streak.failures.retain(|failure| failure.task != task);
                }
            }
        }
        let new = || Streak {
            since: self.ends,
            ..Streak::default()
        };
        let streak = self.streaks.entry(host.to_owned()).or_insert_with(new);
        if is_first {
            let old = streak
                .failures
                .len()
                .saturating_sub(self.limit as usize + MAX_KEPT);
            streak.failures.drain(..old);
            streak.failures.push(Failure {
                task,
                kind,
                is_confirmed: false,
            });
        }
        let is_enough = self.limit > 0 && streak.count(&self.succeeded_at) >= self.limit as usize;
        is_enough.then(|| host.to_owned()).into_iter().collect()
    }

    /// Marks the hosts that were set aside.
    pub(super) fn mark(&self, nodes: &mut [NodeStatus]) {
        for node in nodes {
            if !matches!(&*node.state, "working" | "reserved") && self.aside.contains(&node.host) {
                "set aside".clone_into(&mut node.state);
            }
        }
    }
}

impl BadHosts {
    /// Sets hosts aside after the attempts that have ended.
    pub(super) fn judge<T: MasterTransport>(&mut self, run: &mut Run<'_, T>) -> Result<(), RunError> {
        for end in std::mem::take(&mut run.out.ends) {
            if end.succeeded && self.knows_no_failure() {
                continue;
            }
            let Some(host) = run.master.host_of(end.rank).map(str::to_owned) else {
                continue;
            };
            let kind = run.master.kind_of(end.task);
            for bad in self.note(end.task, kind, &host, end.succeeded) {
                self.set_aside(run, &bad)?;
            }
        }
        Ok(())
    }

    /// Sets a host aside whose host script has failed. Ends the run if no other host is there or is to come.
    pub(super) fn note_unprepared<T: MasterTransport>(
        &mut self,
        run: &mut Run<'_, T>,
        from: Rank,
        message: String,
    ) -> Result<(), RunError> {
        let Some(host) = run.master.host_of(from).map(str::to_owned) else {
            return Ok(());
        };
        let ranks = run.master.workers_of(&host);
        let is_last = ranks.len() == run.master.workers() as usize;
        let membership = run.out.transport.membership();
        if is_last && !membership.is_some_and(Membership::awaits_workers) {
            return run.handle(Event::Failed(from, message));
        }
        for rank in ranks {
            run.handle(Event::Retire(rank))?;
        }
        if self.aside.insert(host.clone()) {
            run.out.warn(&format!("The host {host} is set aside: {message}"));
        }
        Ok(())
    }

    /// Starts no more tasks on a host, unless others cannot run what it could.
    fn set_aside<T: MasterTransport>(&mut self, run: &mut Run<'_, T>, bad: &str) -> Result<(), RunError> {
        let ranks = run.master.workers_of(bad);
        if !run.master.can_spare(bad) || ranks.is_empty() {
            return Ok(());
        }
        for rank in ranks {
            run.handle(Event::Retire(rank))?;
        }
        self.streaks.remove(bad);
        self.aside.insert(bad.to_owned());
        let text = format!(
            "The host {bad} is set aside: {} tasks in a row failed there, and they or tasks like them succeeded elsewhere (--bad-host-limit)",
            self.limit
        );
        run.out.warn(&text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Notes the ends of attempts of tasks of one kind.
    fn note(hosts: &mut BadHosts, ends: &[(u32, &str, bool)]) -> Vec<String> {
        let ends = ends.iter();
        ends.flat_map(|(task, host, succeeded)| hosts.note(TaskId(*task), 0, host, *succeeded))
            .collect()
    }

    #[test]
    fn tasks_that_succeed_elsewhere_count() {
        let mut hosts = BadHosts::new(2);
        let ends = [
            (0, "bad", false),
            (0, "bad", false),
            (0, "good", true),
            // A success clears the host.
            (1, "bad", true),
            (2, "bad", false),
            (2, "good", true),
            // This one succeeds in the end where it has failed.
            (4, "good", false),
            (4, "good", true),
        ];
        assert_eq!(note(&mut hosts, &ends), [""; 0]);
        assert_eq!(note(&mut hosts, &[(5, "bad", false)]), ["bad"]);
        let mut never = BadHosts::new(0);
        for n in 0..10 {
            assert_eq!(note(&mut never, &[(n, "bad", false), (n, "good", true)]), [""; 0]);
        }
    }

    #[test]
    fn tasks_that_have_not_failed_elsewhere_yet_count() {
        let mut hosts = BadHosts::new(3);
        let ends = [(0, "bad", false), (1, "bad", false), (10, "good", true)];
        assert_eq!(note(&mut hosts, &ends), [""; 0]);
        assert_eq!(note(&mut hosts, &[(2, "bad", false)]), ["bad"]);
        // Those that fail elsewhere, too, do not.
        let mut hosts = BadHosts::new(2);
        let ends = [
            (0, "bad", false),
            (10, "good", true),
            (0, "good", false),
            (1, "bad", false),
            (1, "good", false),
            (2, "bad", false),
        ];
        assert_eq!(note(&mut hosts, &ends), [""; 0]);
        assert_eq!(
            note(&mut hosts, &[(11, "good", true), (3, "bad", false)]),
            ["bad"]
        );
    }

    #[test]
    fn a_fault_of_all_hosts_is_held_against_none() {
        let mut hosts = BadHosts::new(2);
        let all = (0..30).map(|n| (n, ["a", "b", "c"][n as usize % 3], false));
        let all: Vec<_> = all.collect();
        assert_eq!(note(&mut hosts, &all), [""; 0]);
        // It is over.
        let after = [(30, "a", true), (31, "b", true), (32, "c", true)];
        assert_eq!(note(&mut hosts, &after), [""; 0]);
    }

    #[test]
    fn tasks_of_another_kind_prove_nothing() {
        let mut hosts = BadHosts::new(2);
        for n in 0..5 {
            assert_eq!(hosts.note(TaskId(n), 1, "a", false), [""; 0]);
            assert_eq!(hosts.note(TaskId(100 + n), 2, "b", true), [""; 0]);
        }
    }
}
