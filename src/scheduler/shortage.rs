//! What the hosts lack for a task that none of them can run.

use std::fmt;

use pmc_dag::Request;
use pmc_status::memory;

use crate::scheduler::hosts::Host;

/// What a host lacks for a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// The host that comes closest.
    pub host: String,
    /// What the task requests.
    pub requested: Amounts,
    /// What the host has.
    pub available: Amounts,
}

/// Resources of a host or a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amounts {
    /// Memory in MiB.
    pub memory_mib: u64,
    /// CPUs.
    pub cpus: u32,
    /// GPUs.
    pub gpus: u32,
}

impl Amounts {
    /// Returns how much of a request there is, over all resources: 3 if there is enough of each.
    fn share_of(self, requested: Amounts) -> f64 {
        let share = |available: u64, requested: u64| match requested {
            0 => 1.0,
            _ => (available as f64 / requested as f64).min(1.0),
        };
        share(self.memory_mib, requested.memory_mib)
            + share(self.cpus.into(), requested.cpus.into())
            + share(self.gpus.into(), requested.gpus.into())
    }
}

impl Shortage {
    /// Returns what the host lacks that comes closest to a request. `None` without hosts. Of equal ones, it
    /// is the first.
    pub(super) fn of<'h>(hosts: impl Iterator<Item = &'h Host>, request: Request) -> Option<Self> {
        let requested = Amounts {
            memory_mib: request.memory_mb,
            cpus: request.cpus,
            gpus: request.gpus,
        };
        let mut closest: Option<(f64, Self)> = None;
        for host in hosts {
            let available = Amounts {
                memory_mib: host.memory_mb,
                cpus: host.cpus,
                gpus: host.gpus,
            };
            let share = available.share_of(requested);
            if closest.as_ref().is_none_or(|(best, _)| share > *best) {
                let host = host.name.clone();
                let shortage = Self {
                    host,
                    requested,
                    available,
                };
                closest = Some((share, shortage));
            }
        }
        closest.map(|(_, shortage)| shortage)
    }
}

impl fmt::Display for Shortage {
    /// Names what is short only: `it requests 8 CPUs, and n1, which comes closest, has 4`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let short = |amount: fn(Amounts) -> u64| amount(self.available) < amount(self.requested);
        let list = |of: Amounts| {
            let mut parts = Vec::new();
            if short(|amounts| amounts.memory_mib) {
                parts.push(format!("{} of memory", memory(of.memory_mib)));
            }
            if short(|amounts| amounts.cpus.into()) {
                parts.push(format!("{} CPUs", of.cpus));
            }
            if short(|amounts| amounts.gpus.into()) {
                parts.push(format!("{} GPUs", of.gpus));
            }
            parts.join(" and ")
        };
        write!(
            f,
            "it requests {}, and the host that comes closest, {}, has {}",
            list(self.requested),
            self.host,
            list(self.available)
        )
    }
}
