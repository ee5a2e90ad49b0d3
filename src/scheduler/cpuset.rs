//! CPU numbers of a host, granted to tasks in blocks.

use std::ops::Range;

/// Maximum CPU numbers of a host. `--host-cpus` may claim any number of CPUs.
const MAX_NUMBERS: u32 = 1 << 16;

/// CPU numbers of one host.
///
/// Assumes that numbers count the threads of a core first, then the cores of a socket, then the sockets.
/// Tasks with one CPU get no number: the operating system places them.
#[derive(Clone, Debug)]
pub(crate) struct CpuSet {
    threads_per_core: u32,
    threads_per_socket: u32,
    threads: u32,
    /// Allocated with the first block, because most workflows need none.
    taken: Vec<bool>,
}

impl CpuSet {
    pub(crate) fn new(threads: u32, cores: u32, sockets: u32) -> Self {
        Self {
            threads_per_core: (threads / cores.max(1)).max(1),
            threads_per_socket: (threads / sockets.max(1)).max(1),
            threads: threads.min(MAX_NUMBERS),
            taken: Vec::new(),
        }
    }

    /// Takes the first free block of `count` numbers. A block of at least a socket begins at a socket, one of
    /// at least a core begins at a core, and others begin anywhere.
    pub(crate) fn take(&mut self, count: u32) -> Option<Range<u32>> {
        if count == 0 || count > self.threads {
            return None;
        }
        if self.taken.is_empty() {
            self.taken = vec![false; self.threads as usize];
        }
        let step = if count >= self.threads_per_socket {
            self.threads_per_socket
        } else if count >= self.threads_per_core {
            self.threads_per_core
        } else {
            1
        };
        let mut start = 0;
        while start + count <= self.threads {
            let block = &self.taken[start as usize..(start + count) as usize];
            let Some(last_taken) = block.iter().rposition(|taken| *taken) else {
                self.mark(start..start + count, true);
                return Some(start..start + count);
            };
            // The next boundary after the last taken number.
            start = (start + last_taken as u32 + 1).next_multiple_of(step);
        }
        None
    }

    /// Takes these numbers, if they are a free block.
    pub(crate) fn take_block(&mut self, numbers: &[u32]) -> Option<Range<u32>> {
        let first = *numbers.first()?;
        let end = first.checked_add(numbers.len() as u32)?;
        if end > self.threads || !(first..end).eq(numbers.iter().copied()) {
            return None;
        }
        if self.taken.is_empty() {
            self.taken = vec![false; self.threads as usize];
        }
        if self.taken[first as usize..end as usize].contains(&true) {
            return None;
        }
        self.mark(first..end, true);
        Some(first..end)
    }

    /// Returns a block.
    pub(crate) fn release(&mut self, block: Range<u32>) {
        self.mark(block, false);
    }

    /// True if all numbers of a block are taken.
    #[cfg(test)]
    pub(crate) fn is_taken(&self, block: &Range<u32>) -> bool {
        self.taken
            .get(block.start as usize..block.end as usize)
            .is_some_and(|b| b.iter().all(|t| *t))
    }

    /// Number of taken numbers.
    #[cfg(test)]
    pub(crate) fn count_taken(&self) -> usize {
        self.taken.iter().filter(|taken| **taken).count()
    }

    fn mark(&mut self, block: Range<u32>, taken: bool) {
        self.taken[block.start as usize..block.end as usize].fill(taken);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_begin_at_sockets_cores_or_anywhere() {
        // Two sockets of four cores of two threads.
        let mut cpus = CpuSet::new(16, 8, 2);
        assert_eq!(cpus.take(3), Some(0..3), "more than a core: at a core");
        assert_eq!(cpus.take(2), Some(4..6), "a core: 3 is in the middle of one");
        assert_eq!(cpus.take(8), Some(8..16), "a socket");
        assert_eq!(cpus.take(2), Some(6..8));
        assert_eq!(cpus.take(2), None, "only 3 is free");
        cpus.release(0..3);
        assert_eq!(cpus.take(4), Some(0..4));
        assert_eq!(cpus.count_taken(), 16);
    }

    #[test]
    fn less_than_a_core_begins_anywhere() {
        let mut cpus = CpuSet::new(16, 4, 1);
        assert_eq!(cpus.take(2), Some(0..2));
        assert_eq!(cpus.take(3), Some(2..5));
        assert_eq!(cpus.take(4), Some(8..12));
    }

    #[test]
    fn the_last_block_may_be_a_part_of_a_core() {
        let mut cpus = CpuSet::new(5, 2, 1);
        assert_eq!(cpus.take_block(&[0]), Some(0..1));
        assert_eq!(cpus.take(3), Some(2..5));
        cpus.release(2..5);
        assert_eq!(cpus.take_block(&[4]), Some(4..5));
        assert_eq!(cpus.take(3), None, "there is no boundary behind 4");
        assert_eq!(cpus.take(2), Some(2..4));
    }

    #[test]
    fn a_block_must_be_contiguous() {
        let mut cpus = CpuSet::new(6, 6, 1);
        let blocks: Vec<_> = (0..3).map(|_| cpus.take(2).unwrap()).collect();
        cpus.release(blocks[0].clone());
        cpus.release(blocks[2].clone());
        assert_eq!(cpus.take(4), None);
        assert_eq!(cpus.take(2), Some(0..2));
    }

    #[test]
    fn a_block_of_given_numbers_is_taken_if_it_is_free() {
        let mut cpus = CpuSet::new(8, 8, 1);
        assert_eq!(cpus.take_block(&[2, 3, 4]), Some(2..5));
        assert_eq!(cpus.take_block(&[4, 5]), None, "4 is taken");
        assert_eq!(cpus.take_block(&[6, 5]), None, "no block");
        assert_eq!(cpus.take_block(&[7, 8]), None, "the host has no CPU 8");
        assert_eq!(cpus.take_block(&[u32::MAX]), None);
        assert_eq!(cpus.take_block(&[]), None);
        assert_eq!(cpus.take(3), Some(5..8));
    }

    #[test]
    fn hosts_with_odd_numbers_are_accepted() {
        assert_eq!(CpuSet::new(0, 0, 0).take(1), None);
        assert_eq!(CpuSet::new(3, 0, 0).take(2), Some(0..2));
        assert_eq!(CpuSet::new(3, 9, 9).take(3), Some(0..3));
        assert_eq!(CpuSet::new(u32::MAX, 1, 1).take(u32::MAX), None);
        assert_eq!(CpuSet::new(4, 1, 1).take(0), None);
    }
}
