//! Free GPUs of hosts.

use std::collections::BTreeSet;

/// Maximum number of GPUs of a host that are used.
pub(crate) const MAX_GPUS: u32 = 64;

/// A set of GPUs of one host, counted from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GpuSet(u64);

impl GpuSet {
    /// The first `count` GPUs.
    pub(crate) fn first(count: u32) -> Self {
        Self(u64::MAX.checked_shr(u64::BITS - count.min(MAX_GPUS)).unwrap_or(0))
    }

    pub(crate) fn len(self) -> u32 {
        self.0.count_ones()
    }

    /// Numbers of the GPUs.
    pub(crate) fn numbers(self) -> impl Iterator<Item = u32> {
        (0..MAX_GPUS).filter(move |gpu| self.0 >> gpu & 1 == 1)
    }

    /// Removes and returns the first `count` GPUs. There must be that many.
    pub(crate) fn take(&mut self, count: u32) -> Self {
        let mut taken = 0;
        for _ in 0..count {
            let lowest = self.0 & self.0.wrapping_neg();
            taken |= lowest;
            self.0 &= !lowest;
        }
        Self(taken)
    }

    /// Removes and returns those of these GPUs that are in the set, and more up to `count`. There must be
    /// that many.
    pub(crate) fn take_these(&mut self, gpus: &[u32], count: u32) -> Self {
        let listed = gpus.iter().filter(|gpu| **gpu < MAX_GPUS);
        let mut taken = Self(listed.fold(0, |set, gpu| set | 1 << gpu) & self.0).take(count);
        self.0 &= !taken.0;
        taken.put_back(self.take(count - taken.len()));
        taken
    }

    /// Adds GPUs that were taken.
    pub(crate) fn put_back(&mut self, other: Self) {
        self.0 |= other.0;
    }

    /// True if both sets have a common GPU.
    #[cfg(test)]
    pub(crate) fn overlaps(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

/// Hosts with a free slot and free GPUs, by number of free GPUs.
#[derive(Debug, Default)]
pub(crate) struct GpuIndex {
    by_free: Vec<BTreeSet<u32>>,
}

impl GpuIndex {
    /// Makes room for a host with this many GPUs.
    pub(crate) fn grow(&mut self, gpus: u32) {
        let len = gpus.min(MAX_GPUS) as usize + 1;
        if self.by_free.len() < len {
            self.by_free.resize(len, BTreeSet::new());
        }
    }

    pub(crate) fn insert(&mut self, host: u32, free: u32) {
        if free > 0 {
            self.by_free[free as usize].insert(host);
        }
    }

    pub(crate) fn remove(&mut self, host: u32, free: u32) {
        if free > 0 {
            self.by_free[free as usize].remove(&host);
        }
    }

    /// Hosts with at least this many free GPUs, those with the fewest first.
    pub(crate) fn with(&self, gpus: u32) -> impl Iterator<Item = u32> + '_ {
        self.by_free.iter().skip(gpus as usize).flatten().copied()
    }

    /// True if the index has this host with exactly this number of free GPUs.
    #[cfg(test)]
    pub(crate) fn contains(&self, host: u32, free: u32) -> bool {
        self.by_free
            .iter()
            .enumerate()
            .all(|(count, hosts)| hosts.contains(&host) == (count > 0 && count == free as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_taken_and_put_back() {
        assert_eq!(GpuSet::first(0).len(), 0);
        assert_eq!(GpuSet::first(64).len(), 64);
        assert_eq!(GpuSet::first(65).len(), 64);
        let mut free = GpuSet::first(4);
        let two = free.take(2);
        assert_eq!(two.numbers().collect::<Vec<_>>(), [0, 1]);
        let one = free.take(1);
        assert_eq!(one.numbers().collect::<Vec<_>>(), [2]);
        free.put_back(two);
        assert_eq!(free.numbers().collect::<Vec<_>>(), [0, 1, 3]);
        assert!(!free.overlaps(one));
        let these = free.take_these(&[3, 2, 99], 2);
        assert_eq!(these.numbers().collect::<Vec<_>>(), [0, 3]);
        assert_eq!(free.numbers().collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn the_host_with_the_fewest_free_gpus_comes_first() {
        let mut index = GpuIndex::default();
        index.grow(4);
        index.grow(1);
        index.insert(7, 4);
        index.insert(8, 1);
        index.insert(9, 2);
        index.insert(3, 0);
        assert_eq!(index.with(1).collect::<Vec<_>>(), [8, 9, 7]);
        assert_eq!(index.with(3).collect::<Vec<_>>(), [7]);
        assert_eq!(index.with(5).next(), None);
        index.remove(7, 4);
        assert_eq!(index.with(3).next(), None);
        assert!(index.contains(9, 2) && !index.contains(7, 4));
    }
}
