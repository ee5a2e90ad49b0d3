//! The `.resource` log of a run with sub-workflows or guests: each DAG has its own.
//!
//! Readers pair the lines with the starts and ends in the main log of the same DAG: a start takes a slot of a
//! host, an end frees one. So the lines say what would be free if the other DAGs of the run did not exist.
//! The command that makes the DAG of a sub-workflow is no attempt in the main log: its slot leaves the host
//! for a while. The sub-workflow itself is one, and has no slot: one comes to a host for it.

use std::collections::BTreeMap;
use std::time::Duration;

use monitord_compat::resource_log::{self, Free};
use pmc_control::NodeStatus;
use pmc_dag::{Dag, Request};

use crate::protocol::Rank;
use crate::scheduler::Record;

/// What is free of a host.
#[derive(Clone, Copy, Debug, Default)]
struct Amount {
    slots: u32,
    cpus: u32,
    memory_mb: u64,
}

/// What the next line is about.
#[derive(Clone, Copy, Debug)]
enum Change {
    /// An attempt starts.
    Start(Request),
    /// An attempt ends.
    End(Request),
    /// The command that makes a DAG starts.
    Leave(Request),
    /// This command ends.
    Return(Request),
}

/// What is free of each host.
#[derive(Debug, Default)]
pub(super) struct OwnResources {
    hosts: BTreeMap<String, Amount>,
    change: Option<Change>,
}

impl Amount {
    fn of(request: Request) -> Self {
        Self {
            slots: 1,
            cpus: request.cpus,
            memory_mb: request.memory_mb,
        }
    }

    fn take(&mut self, other: Self) {
        self.slots = self.slots.saturating_sub(other.slots);
        self.cpus = self.cpus.saturating_sub(other.cpus);
        self.memory_mb = self.memory_mb.saturating_sub(other.memory_mb);
    }

    fn give(&mut self, other: Self) {
        self.slots = self.slots.saturating_add(other.slots);
        self.cpus = self.cpus.saturating_add(other.cpus);
        self.memory_mb = self.memory_mb.saturating_add(other.memory_mb);
    }

    fn on(self, host: &str) -> Free<'_> {
        Free {
            host,
            slots: self.slots,
            cpus: self.cpus,
            memory_mb: self.memory_mb,
        }
    }
}

impl OwnResources {
    /// What is free of hosts on which only tasks of this DAG run.
    pub(super) fn of(nodes: &[NodeStatus]) -> Self {
        let free = |node: &NodeStatus| Amount {
            slots: node.slots.saturating_sub(node.busy),
            cpus: node.free_cpus,
            memory_mb: node.free_memory_mib,
        };
        let hosts = nodes.iter().map(|node| (node.host.clone(), free(node)));
        Self {
            hosts: hosts.collect(),
            change: None,
        }
    }

    /// Adds the lines for a record, and notes what the next one is about.
    pub(super) fn record(&mut self, lines: &mut Vec<u8>, now: Duration, dag: &Dag, record: &Record<'_>) {
        match *record {
            Record::Resources {
                host,
                slots,
                cpus,
                memory_mb,
            } => {
                let amount = Amount {
                    slots,
                    cpus,
                    memory_mb,
                };
                self.free(lines, now, host, amount);
            }
            Record::Capacity {
                host,
                gone,
                slots,
                cpus,
                memory_mb,
            } => {
                let amount = Amount {
                    slots,
                    cpus,
                    memory_mb,
                };
                let own = self.hosts.entry(host.to_owned()).or_default();
                if gone {
                    own.take(amount);
                } else {
                    own.give(amount);
                }
                resource_log::capacity(lines, now, gone, amount.on(host));
            }
            Record::Started(task, ..) => {
                let request = dag.request(task);
                self.change = Some(match dag.subdag(task) {
                    None => Change::Start(request),
                    Some(_) => Change::Leave(request),
                });
            }
            Record::Evicted { task, .. } if dag.subdag(task).is_none() => {
                self.change = Some(Change::End(dag.request(task)));
            }
            Record::Evicted { task, .. } | Record::Prepared { task, .. } => {
                self.change = Some(Change::Return(dag.request(task)));
            }
            Record::Ended { rank: Rank(0), .. } => self.nested(lines, now, false),
            Record::Ended { task, .. } => self.change = Some(Change::End(dag.request(task))),
            _ => {}
        }
    }

    /// Adds the line for what the last record said of a host. The first line of a host is as it is.
    fn free(&mut self, lines: &mut Vec<u8>, now: Duration, host: &str, amount: Amount) {
        let Some(own) = self.hosts.get_mut(host) else {
            self.hosts.insert(host.to_owned(), amount);
            resource_log::line(lines, now, amount.on(host));
            return;
        };
        match self.change.take() {
            None => {}
            Some(Change::Start(request)) => {
                own.take(Amount::of(request));
                resource_log::line(lines, now, own.on(host));
            }
            Some(Change::End(request)) => {
                own.give(Amount::of(request));
                resource_log::line(lines, now, own.on(host));
            }
            Some(Change::Leave(request)) => {
                own.take(Amount::of(request));
                resource_log::capacity(lines, now, true, Amount::of(request).on(host));
            }
            Some(Change::Return(request)) => {
                own.give(Amount::of(request));
                resource_log::capacity(lines, now, false, Amount::of(request).on(host));
            }
        }
    }

    /// Adds the lines for a sub-workflow that begins, or has ended.
    pub(super) fn nested(&mut self, lines: &mut Vec<u8>, now: Duration, begins: bool) {
        let Some((host, own)) = self.hosts.iter().next() else {
            return;
        };
        let slot = Amount {
            slots: 1,
            ..Amount::default()
        };
        if begins {
            resource_log::capacity(lines, now, false, slot.on(host));
            resource_log::line(lines, now, own.on(host));
        } else {
            let mut with_slot = *own;
            with_slot.give(slot);
            resource_log::line(lines, now, with_slot.on(host));
            resource_log::capacity(lines, now, true, slot.on(host));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_hosts_do_not_overflow() {
        let most = Amount {
            slots: u32::MAX,
            cpus: u32::MAX,
            memory_mb: u64::MAX,
        };
        let mut amount = most;
        amount.give(most);
        let (slots, cpus, memory_mb) = (amount.slots, amount.cpus, amount.memory_mb);
        assert_eq!((slots, cpus, memory_mb), (u32::MAX, u32::MAX, u64::MAX));
        amount.take(most);
        amount.take(most);
        assert_eq!((amount.slots, amount.cpus, amount.memory_mb), (0, 0, 0));
    }
}
