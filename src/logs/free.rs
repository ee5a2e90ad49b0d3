//! What is free of each host in the whole run, and how it changes from record to record.

use rustc_hash::FxHashMap;

use crate::scheduler::Record;

/// How much more or less is free of a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    pub(super) slots: i64,
    pub(super) cpus: i64,
    pub(super) memory_mb: i64,
}

/// What the last records of all DAGs said of each host.
#[derive(Debug, Default)]
pub struct FreeOfHosts {
    hosts: FxHashMap<String, Change>,
}

impl Change {
    fn of(slots: u32, cpus: u32, memory_mb: u64) -> Self {
        Self {
            slots: slots.into(),
            cpus: cpus.into(),
            memory_mb: i64::try_from(memory_mb).unwrap_or(i64::MAX),
        }
    }

    fn since(self, before: Self) -> Self {
        Self {
            slots: self.slots - before.slots,
            cpus: self.cpus - before.cpus,
            memory_mb: self.memory_mb - before.memory_mb,
        }
    }

    fn and(self, more: Self) -> Self {
        Self {
            slots: self.slots.saturating_add(more.slots),
            cpus: self.cpus.saturating_add(more.cpus),
            memory_mb: self.memory_mb.saturating_add(more.memory_mb),
        }
    }
}

impl FreeOfHosts {
    /// Notes a record. Returns what has changed if it says what is free of a host.
    pub fn note(&mut self, record: &Record<'_>) -> Option<Change> {
        match *record {
            Record::Resources {
                host,
                slots,
                cpus,
                memory_mb,
            }
            | Record::Beside {
                host,
                slots,
                cpus,
                memory_mb,
                ..
            } => {
                let now = Change::of(slots, cpus, memory_mb);
                let Some(known) = self.hosts.get_mut(host) else {
                    self.hosts.insert(host.to_owned(), now);
                    return Some(Change::default());
                };
                let before = std::mem::replace(known, now);
                Some(now.since(before))
            }
            Record::Capacity {
                host,
                gone,
                slots,
                cpus,
                memory_mb,
            } => {
                let amount = Change::of(slots, cpus, memory_mb);
                let known = self.hosts.entry(host.to_owned()).or_default();
                *known = match gone {
                    true => known.since(amount),
                    false => known.and(amount),
                };
                None
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resources(slots: u32, cpus: u32) -> Record<'static> {
        Record::Resources {
            host: "n1",
            slots,
            cpus,
            memory_mb: 100,
        }
    }

    fn change(slots: i64, cpus: i64) -> Option<Change> {
        Some(Change {
            slots,
            cpus,
            memory_mb: 0,
        })
    }

    #[test]
    fn changes_are_those_since_the_last_record_of_a_host() {
        let mut free = FreeOfHosts::default();
        assert_eq!(free.note(&resources(2, 8)), change(0, 0));
        assert_eq!(free.note(&resources(1, 5)), change(-1, -3));
        let came = Record::Capacity {
            host: "n1",
            gone: false,
            slots: 1,
            cpus: 0,
            memory_mb: 0,
        };
        assert_eq!(free.note(&came), None);
        assert_eq!(free.note(&resources(3, 8)), change(1, 3));
    }
}
