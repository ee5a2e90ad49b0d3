//! What the hosts of a round hold for gangs.

use std::collections::BTreeSet;
use std::time::Duration;

use pegasus_mpi_cluster::internals::{Assignment, SubmitId};
use pegasus_mpi_cluster::simulated::GangToken;

use crate::plan::Task;

/// The end of a task that hangs.
pub(crate) const NEVER: Duration = Duration::from_secs(1 << 20);

/// What a host holds for a gang.
pub(crate) struct Member {
    pub(crate) host: usize,
    pub(crate) token: GangToken,
    pub(crate) submit: SubmitId,
    pub(crate) name: Vec<u8>,
    pub(crate) cpus: u32,
    pub(crate) memory: u64,
    pub(crate) is_ending: bool,
    pub(crate) is_cut: bool,
    /// Its host has stood still until its lease was over: the guard ends it now.
    pub(crate) is_doomed: bool,
}

/// The gangs of a round.
#[derive(Default)]
pub(crate) struct Gangs {
    pub(crate) members: Vec<Member>,
    /// All that have ever joined.
    pub(crate) joined: BTreeSet<(usize, GangToken)>,
}

impl Gangs {
    /// Tasks that hold something of hosts where they are members.
    pub(crate) fn held(&self) -> impl Iterator<Item = (&Vec<u8>, Option<GangToken>, usize)> {
        let members = self.members.iter().filter(|member| !member.is_doomed);
        members.map(|member| (&member.name, Some(member.token), member.host))
    }

    /// What they hold: host, CPUs, memory, and the task.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (usize, u32, u64, &Vec<u8>)> {
        let members = self.members.iter();
        members.map(|member| (member.host, member.cpus, member.memory, &member.name))
    }

    /// Says what a gang lacks that begins.
    pub(crate) fn incomplete(&self, task: &Task, assignment: &Assignment) -> Option<String> {
        let name = task.name();
        let (plan, gang) = match (task.gang, &assignment.gang) {
            (None, _) => return None,
            (Some(_), None) => return Some(format!("{name} begins on one host only")),
            (Some(plan), Some(gang)) => (plan, gang),
        };
        let names: BTreeSet<&str> = gang.hosts.iter().map(|host| host.name.as_str()).collect();
        let is_whole = gang.hosts.iter().all(|host| host.ranks == plan.ranks);
        if names.len() != plan.nodes as usize || gang.hosts.len() != names.len() || !is_whole {
            return Some(format!("{name} begins with the wrong hosts: {:?}", gang.hosts));
        }
        let members = gang.hosts.iter().skip(1);
        let mut missing = members.filter(|host| {
            let host = number_of(&host.name);
            host.is_none_or(|host| !self.joined.contains(&(host, gang.token)))
        });
        let missing = missing.next()?;
        Some(format!("{name} begins before {} has joined", missing.name))
    }

    /// Forgets what a host holds. Returns the gangs.
    pub(crate) fn lose(&mut self, host: usize) -> Vec<GangToken> {
        let lost = self.members.extract_if(.., |member| member.host == host);
        lost.map(|member| member.token).collect()
    }

    /// True if no host holds anything.
    pub(crate) fn are_none(&self) -> bool {
        self.members.is_empty()
    }
}

/// The number of a host with this name.
pub(crate) fn number_of(name: &str) -> Option<usize> {
    name.strip_prefix('n')?.parse::<usize>().ok()?.checked_sub(1)
}
