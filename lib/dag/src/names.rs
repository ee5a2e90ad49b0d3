//! Index from names to task numbers, without copies of the names.

use std::hash::Hasher;
use std::hint::black_box;

use rustc_hash::FxHasher;

use crate::TaskId;

const EMPTY: u64 = 0;

/// A hash table with open addressing and linear probing. A slot holds 32 bits of the hash and the task number
/// plus one. The caller compares names in the text of the DAG.
#[derive(Default)]
pub(crate) struct NameIndex {
    slots: Vec<u64>,
    used: usize,
}

pub(crate) fn hash(name: &[u8]) -> u32 {
    let mut hasher = FxHasher::default();
    hasher.write(name);
    let hash = hasher.finish();
    (hash >> 32) as u32 ^ hash as u32
}

impl NameIndex {
    /// Returns the task with this hash for which `is_match` is true.
    pub(crate) fn find(&self, hash: u32, mut is_match: impl FnMut(TaskId) -> bool) -> Option<TaskId> {
        if self.slots.is_empty() {
            return None;
        }
        let mask = self.slots.len() - 1;
        let mut at = hash as usize & mask;
        loop {
            let slot = self.slots[at];
            if slot == EMPTY {
                return None;
            }
            if (slot >> 32) as u32 == hash {
                let task = TaskId(slot as u32 - 1);
                if is_match(task) {
                    return Some(task);
                }
            }
            at = (at + 1) & mask;
        }
    }

    /// Makes room for `more` tasks.
    pub(crate) fn reserve(&mut self, more: usize) {
        // At most two thirds full, so that probing stays short.
        while (self.used + more) * 3 >= self.slots.len() * 2 {
            self.grow();
        }
    }

    /// Reads the first slot of this hash. The cache misses of several such reads overlap, and later calls of
    /// [`NameIndex::find`] find the slots in the cache.
    pub(crate) fn touch(&self, hash: u32) {
        if let Some(slot) = self.slots.get(hash as usize & (self.slots.len().wrapping_sub(1))) {
            black_box(*slot);
        }
    }

    /// Returns the first task with this hash.
    pub(crate) fn guess(&self, hash: u32) -> Option<TaskId> {
        self.find(hash, |_| true)
    }

    /// Adds a task with a new name. Its number must be below `u32::MAX`.
    pub(crate) fn insert(&mut self, hash: u32, task: TaskId) {
        self.reserve(1);
        place(&mut self.slots, u64::from(hash) << 32 | u64::from(task.0 + 1));
        self.used += 1;
    }

    fn grow(&mut self) {
        let size = (self.slots.len() * 2).max(16);
        let mut larger = vec![EMPTY; size];
        for &slot in self.slots.iter().filter(|slot| **slot != EMPTY) {
            place(&mut larger, slot);
        }
        self.slots = larger;
    }
}

fn place(slots: &mut [u64], slot: u64) {
    let mask = slots.len() - 1;
    let mut at = (slot >> 32) as usize & mask;
    while slots[at] != EMPTY {
        at = (at + 1) & mask;
    }
    slots[at] = slot;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_with_equal_hashes_are_found() {
        let mut index = NameIndex::default();
        for id in 0..1000 {
            index.insert(id / 10, TaskId(id));
        }
        for id in 0..1000 {
            assert_eq!(index.find(id / 10, |task| task.0 == id), Some(TaskId(id)));
        }
        assert_eq!(index.find(5, |_| false), None);
        assert_eq!(index.find(7777, |_| true), None);
        assert_eq!(NameIndex::default().find(1, |_| true), None);
    }
}
