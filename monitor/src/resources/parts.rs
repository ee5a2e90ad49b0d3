//! Hosts of a run with sub-workflows. The log of each DAG has the use of the hosts by its own tasks.

use super::{Host, HostNumber, Hosts, NO_HOST};
use crate::events::{Micros, SECOND};

impl Hosts {
    /// Takes the use of all hosts up to a time. The log is read no further.
    pub(crate) fn settle(&mut self, hosts: Vec<Host>) {
        self.hosts = hosts;
        self.hosts.iter_mut().for_each(|host| host.present = false);
    }

    /// Adds the use of hosts by another DAG of the run. Returns the numbers that they have here.
    pub(crate) fn add_use(&mut self, others: &[Host]) -> Vec<HostNumber> {
        others.iter().map(|other| self.add_use_of(other)).collect()
    }

    fn add_use_of(&mut self, other: &Host) -> HostNumber {
        let is_known = self.known.contains_key(other.name.as_bytes());
        let Some(number) = self.host(other.name.as_bytes()) else {
            return NO_HOST;
        };
        let host = &mut self.hosts[usize::from(number)];
        if is_known {
            host.slot_seconds += other.slot_seconds;
            host.cpu_seconds += other.cpu_seconds;
            host.memory_seconds += other.memory_seconds;
            host.started += other.started;
            // The peaks of several DAGs need not come at one time.
            host.peak_slots = host.peak_slots.max(other.peak_slots);
            host.peak_cpus = host.peak_cpus.max(other.peak_cpus);
            host.peak_memory_mb = host.peak_memory_mb.max(other.peak_memory_mb);
        } else {
            *host = other.clone();
            host.present = false;
        }
        number
    }
}

impl Host {
    /// Removes a slot that has come for a sub-workflow, from its start to its end; without an end, it is
    /// there `now`.
    pub(crate) fn remove_slot(&mut self, start: Micros, end: Option<Micros>, now: Micros) {
        let seconds = end.unwrap_or(now).saturating_sub(start).max(0) as f64 / SECOND as f64;
        self.slot_seconds = (self.slot_seconds - seconds).max(0.0);
        self.slot_seconds_there = (self.slot_seconds_there - seconds).max(0.0);
        self.started = self.started.saturating_sub(1);
        if end.is_none() {
            self.capacity.slots = self.capacity.slots.saturating_sub(1);
        }
    }
}
