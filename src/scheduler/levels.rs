//! Hosts with a free slot, by free CPUs and free memory.

use std::collections::BTreeSet;

use crate::scheduler::max_tree::MaxTree;

/// Choice among several hosts that fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// The host with the most free CPUs. Good if no task needs more than one CPU.
    Spread,
    /// The host with the fewest free CPUs, which leaves room for tasks that need many.
    Pack,
}

/// Levels of free CPUs, ascending. Each holds its hosts, ordered by free memory. A tree over the levels holds
/// the maximum of free memory for ranges of levels.
#[derive(Debug)]
pub(crate) struct Levels {
    members: Vec<BTreeSet<(u64, u32)>>,
    most_memory: MaxTree,
}

impl Levels {
    /// This number of levels without hosts.
    pub(crate) fn new(levels: usize) -> Self {
        Self {
            members: vec![BTreeSet::new(); levels],
            most_memory: MaxTree::new(levels),
        }
    }

    pub(crate) fn insert(&mut self, level: usize, memory_mb: u64, host: u32) {
        self.members[level].insert((memory_mb, host));
        self.update(level);
    }

    pub(crate) fn remove(&mut self, level: usize, memory_mb: u64, host: u32) {
        self.members[level].remove(&(memory_mb, host));
        self.update(level);
    }

    fn update(&mut self, level: usize) {
        let most = self.members[level].last().map(|(memory, _)| *memory);
        self.most_memory.set(level, most);
    }

    /// Returns the most free memory of a host from this level on.
    pub(crate) fn most_memory(&self, first: usize) -> Option<u64> {
        self.most_memory.max_from(first)
    }

    /// Returns a host from this level on with so much free memory.
    pub(crate) fn find(&self, first: usize, memory_mb: u64, placement: Placement) -> Option<u32> {
        let level = match placement {
            Placement::Pack => self.most_memory.first_from(first, memory_mb),
            Placement::Spread => self.most_memory.last_from(first, memory_mb),
        }?;
        let (_, host) = self.members[level].range((memory_mb, 0)..).next()?;
        Some(*host)
    }

    /// Returns the levels of a host, each with its free memory there.
    #[cfg(test)]
    pub(crate) fn places_of(&self, host: u32) -> Vec<(usize, u64)> {
        let members = self.members.iter().enumerate();
        let places = members.flat_map(|(level, members)| {
            let own = members.iter().filter(|(_, member)| *member == host);
            own.map(move |(memory, _)| (level, *memory)).collect::<Vec<_>>()
        });
        places.collect()
    }

    /// Checks that the tree agrees with the hosts.
    #[cfg(test)]
    pub(crate) fn check(&self) -> Result<(), String> {
        for (level, members) in self.members.iter().enumerate() {
            if self.most_memory.leaf(level) != members.last().map(|(memory, _)| *memory) {
                return Err(format!("level {level} and the tree have different memory"));
            }
        }
        Ok(())
    }
}
