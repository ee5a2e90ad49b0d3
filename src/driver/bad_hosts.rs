//! Sets hosts aside on which tasks fail that succeed elsewhere, and those whose host script fails.
//!
//! A broken node is often a fast one: it fails its tasks at once, and so gets most of them. But a task may
//! also fail by its own fault. So a failure counts against a host only when the next success of the same task
//! is elsewhere, and a task that succeeds on the host clears it.

use std::collections::{BTreeMap, BTreeSet};

use pmc_dag::TaskId;

use super::{Driver, RunError, RunEvent};
use crate::control::NodeStatus;
use crate::protocol::{Outcome, Rank};
use crate::scheduler::Event;
use crate::transport::MasterTransport;

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
    /// Where a task has failed last.
    failed_on: BTreeMap<TaskId, String>,
    /// Tasks that failed on a host since one succeeded there, and succeeded elsewhere.
    against: BTreeMap<String, u32>,
    /// Hosts that were set aside.
    aside: BTreeSet<String>,
}

impl AttemptEnd {
    /// `None` if the end says nothing about the host.
    pub(super) fn new(task: TaskId, rank: Rank, outcome: &Outcome) -> Option<Self> {
        let has_own_cause = outcome.evictions > 0
            || outcome.not_forwarded
            || outcome.memory.is_some_and(|used| used.out_of_memory);
        let end = Self {
            task,
            rank,
            succeeded: outcome.succeeded(),
        };
        (!has_own_cause).then_some(end)
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
        self.failed_on.is_empty() && self.against.is_empty()
    }

    /// Notes the end of an attempt. Returns the host against which there is enough now.
    fn note(&mut self, task: TaskId, host: &str, succeeded: bool) -> Option<String> {
        if !succeeded {
            self.failed_on.insert(task, host.to_owned());
            return None;
        }
        self.against.remove(host);
        let failed_on = self.failed_on.remove(&task).filter(|other| other != host)?;
        let count = self.against.entry(failed_on.clone()).or_insert(0);
        *count += 1;
        let is_enough = self.limit > 0 && *count >= self.limit;
        is_enough.then_some(failed_on)
    }

    /// Marks the hosts that were set aside.
    pub(super) fn mark(&self, nodes: &mut [NodeStatus]) {
        for node in nodes {
            if node.state != "working" && self.aside.contains(&node.host) {
                "set aside".clone_into(&mut node.state);
            }
        }
    }
}

impl<T: MasterTransport> Driver<'_, T> {
    /// Sets hosts aside after the attempts that have ended.
    pub(super) fn judge_hosts(&mut self) -> Result<(), RunError> {
        for end in std::mem::take(&mut self.out.ends) {
            if end.succeeded && self.bad_hosts.knows_no_failure() {
                continue;
            }
            let Some(host) = self.master.host_of(end.rank).map(str::to_owned) else {
                continue;
            };
            if let Some(bad) = self.bad_hosts.note(end.task, &host, end.succeeded) {
                self.set_aside(&bad)?;
            }
        }
        Ok(())
    }

    /// Sets a host aside whose host script has failed. Ends the run if no other host is there or is to come.
    pub(super) fn note_unprepared(&mut self, from: Rank, message: String) -> Result<(), RunError> {
        let Some(host) = self.master.host_of(from).map(str::to_owned) else {
            return Ok(());
        };
        let ranks = self.master.workers_of(&host);
        let is_last = ranks.len() == self.master.workers() as usize;
        if is_last && !self.out.transport.awaits_workers() {
            return Ok(self.master.handle(Event::Failed(from, message), &mut self.out)?);
        }
        for rank in ranks {
            self.master.handle(Event::Retire(rank), &mut self.out)?;
        }
        if self.bad_hosts.aside.insert(host.clone()) {
            self.say(&format!("The host {host} is set aside: {message}"));
        }
        Ok(())
    }

    /// Writes a warning to the log, and shows it to the user.
    fn say(&mut self, text: &str) {
        tracing::warn!("{text}");
        (self.out.observer)(&RunEvent::Notice(text));
    }

    /// Starts no more tasks on a host, unless it is the last one.
    fn set_aside(&mut self, bad: &str) -> Result<(), RunError> {
        let nodes = self.master.node_statuses();
        let has_others = nodes
            .iter()
            .any(|node| node.host != bad && node.state == "working");
        let ranks = self.master.workers_of(bad);
        if !has_others || ranks.is_empty() {
            return Ok(());
        }
        for rank in ranks {
            self.master.handle(Event::Retire(rank), &mut self.out)?;
        }
        self.bad_hosts.against.remove(bad);
        self.bad_hosts.aside.insert(bad.to_owned());
        let text = format!(
            "The host {bad} is set aside: {} tasks in a row failed there and succeeded elsewhere (--bad-host-limit)",
            self.bad_hosts.limit
        );
        self.say(&text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_failures_that_succeed_elsewhere_count() {
        let mut hosts = BadHosts::new(2);
        let task = TaskId;
        for (n, host, succeeded) in [
            (0, "bad", false),
            (0, "bad", false),
            (0, "good", true),
            // A success clears the host.
            (1, "bad", true),
            (2, "bad", false),
            (2, "good", true),
            // This task fails everywhere.
            (3, "bad", false),
            (3, "good", false),
            // This one succeeds in the end where it has failed.
            (4, "good", false),
            (4, "good", true),
            (5, "bad", false),
        ] {
            assert_eq!(hosts.note(task(n), host, succeeded), None, "{n}");
        }
        assert_eq!(hosts.note(task(5), "good", true).as_deref(), Some("bad"));
        let mut never = BadHosts::new(0);
        for n in 0..10 {
            assert_eq!(never.note(task(n), "bad", false), None);
            assert_eq!(never.note(task(n), "good", true), None);
        }
    }
}
