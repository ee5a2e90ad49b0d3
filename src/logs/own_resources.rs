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
use pmc_dag::Dag;

use super::Change;
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
enum About {
    /// An attempt starts or ends.
    Attempt,
    /// The command that makes a DAG starts.
    Leave,
    /// This command ends.
    Return,
}

/// What is free of each host.
#[derive(Debug, Default)]
pub(super) struct OwnResources {
    hosts: BTreeMap<String, Amount>,
    about: Option<About>,
}

impl Amount {
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

    /// Changes it. Returns how much that is.
    fn change(&mut self, by: Change) -> Self {
        let small = |value: i64| u32::try_from(value.unsigned_abs()).unwrap_or(u32::MAX);
        self.slots = changed(self.slots.into(), by.slots)
            .try_into()
            .unwrap_or(u32::MAX);
        self.cpus = changed(self.cpus.into(), by.cpus).try_into().unwrap_or(u32::MAX);
        self.memory_mb = changed(self.memory_mb, by.memory_mb);
        Self {
            slots: small(by.slots),
            cpus: small(by.cpus),
            memory_mb: by.memory_mb.unsigned_abs(),
        }
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

fn changed(value: u64, by: i64) -> u64 {
    value.saturating_add_signed(by)
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
            about: None,
        }
    }

    /// Adds the lines for a record, and notes what the next one is about. `change` is what the record says of
    /// its host if it does.
    pub(super) fn record(
        &mut self,
        lines: &mut Vec<u8>,
        now: Duration,
        dag: &Dag,
        record: &Record<'_>,
        change: Change,
    ) {
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
                self.free(lines, now, host, amount, change);
            }
            Record::Beside { host, .. } => {
                // A line before the first one of its host says nothing.
                if let Some(own) = self.hosts.get_mut(host) {
                    own.change(change);
                    resource_log::beside(lines, now, own.on(host));
                }
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
                self.about = Some(match dag.subdag(task) {
                    None => About::Attempt,
                    Some(_) => About::Leave,
                });
            }
            Record::Evicted { task, .. } if dag.subdag(task).is_none() => self.about = Some(About::Attempt),
            Record::Evicted { .. } | Record::Prepared { .. } => self.about = Some(About::Return),
            Record::Ended { rank: Rank(0), .. } => self.nested(lines, now, false),
            Record::Ended { .. } => self.about = Some(About::Attempt),
            _ => {}
        }
    }

    /// Adds the line for what the last record said of a host. The first line of a host is as it is.
    fn free(&mut self, lines: &mut Vec<u8>, now: Duration, host: &str, amount: Amount, change: Change) {
        let Some(own) = self.hosts.get_mut(host) else {
            self.hosts.insert(host.to_owned(), amount);
            resource_log::line(lines, now, amount.on(host));
            return;
        };
        let Some(about) = self.about.take() else { return };
        let amount = own.change(change);
        match about {
            About::Attempt => resource_log::line(lines, now, own.on(host)),
            About::Leave => resource_log::capacity(lines, now, true, amount.on(host)),
            About::Return => resource_log::capacity(lines, now, false, amount.on(host)),
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
