//! Finds tasks by name, with one look at memory for each.
//!
//! A million names do not fit the processor's caches, so what finding takes is waiting for memory. The table keeps
//! most of a hash of 64 bits with each task, so that the name itself need not be looked at, and tells whether two names were alike
//! in all of it. Then, and only then, names are compared. A name that is not there passes for one that is once in 10¹² times.

use std::hash::Hasher as _;
use std::hint::black_box;

use rustc_hash::FxHasher;

use super::TaskNumber;

const EMPTY: u64 = 0;

/// Hash of a name.
pub(crate) fn hash(name: &[u8]) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write(name);
    hasher.finish()
}

/// Open addressing with linear probing. The low bits of a hash say where to look first; a slot has the others, and the
/// number of the task plus one in the place of the low ones.
#[derive(Debug, Default)]
pub(super) struct Index {
    slots: Vec<u64>,
    used: usize,
    /// Two names have hashes that a slot cannot tell apart.
    alike: bool,
}

/// Whether a task could be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Added {
    Yes,
    /// There is one of this name.
    Known,
    /// There is no room: see [`Index::grow`].
    Full,
}

impl Index {
    /// With room for so many tasks.
    pub(super) fn for_tasks(tasks: usize) -> Self {
        let size = (tasks / 3 * 4).max(16).next_power_of_two();
        Self {
            slots: empty(size),
            ..Self::default()
        }
    }

    /// The task with this hash for which `is_it` is true, which need not be asked if only one has it.
    pub(super) fn find(&self, hash: u64, is_it: impl Fn(TaskNumber) -> bool) -> Option<TaskNumber> {
        let mask = (self.slots.len() as u64).checked_sub(1)?;
        let mut at = hash & mask;
        loop {
            let slot = self.slots[at as usize];
            if slot == EMPTY {
                return None;
            }
            if (slot ^ hash) & !mask == 0 {
                let task = number(slot, mask);
                if !self.alike || is_it(task) {
                    return Some(task);
                }
            }
            at = (at + 1) & mask;
        }
    }

    /// Reads the first slot of a hash without waiting for it: a number of such reads in a row overlap, and find the
    /// slots in the cache when it comes to [`Index::find`].
    pub(super) fn touch(&self, hash: u64) {
        if let Some(slot) = self.slots.get(hash as usize & self.slots.len().wrapping_sub(1)) {
            black_box(*slot);
        }
    }

    /// Adds the next task, whose number is that of tasks there are, if `is_it` is not true of one of them.
    pub(super) fn add(&mut self, hash: u64, is_it: impl Fn(TaskNumber) -> bool) -> Added {
        // At most three quarters full, so that probing stays short.
        if (self.used + 1) * 4 > self.slots.len() * 3 {
            return Added::Full;
        }
        let mask = self.slots.len() as u64 - 1;
        let mut at = hash & mask;
        loop {
            let slot = self.slots[at as usize];
            if slot == EMPTY {
                break;
            }
            if (slot ^ hash) & !mask == 0 {
                if is_it(number(slot, mask)) {
                    return Added::Known;
                }
                self.alike = true;
            }
            at = (at + 1) & mask;
        }
        self.used += 1;
        self.slots[at as usize] = (hash & !mask) | self.used as u64;
        Added::Yes
    }

    /// Makes room for as many tasks again. The hashes of all are given anew.
    pub(super) fn grow(&mut self, hashes: impl Iterator<Item = u64>) {
        let size = (self.slots.len() * 2).max(16);
        self.slots = Vec::new();
        let mut larger = Self {
            slots: empty(size),
            ..Self::default()
        };
        for hash in hashes.take(self.used) {
            larger.add(hash, |_| false);
        }
        *self = larger;
    }
}

fn empty(size: usize) -> Vec<u64> {
    vec![EMPTY; size]
}

#[expect(clippy::cast_possible_truncation, reason = "tasks are numbered in 32 bits")]
fn number(slot: u64, mask: u64) -> TaskNumber {
    ((slot & mask) - 1) as TaskNumber
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(hashes: &[u64]) -> Index {
        let mut index = Index::default();
        for (number, hash) in hashes.iter().enumerate() {
            let mut add = || index.add(*hash, |task| task as usize == number);
            if add() == Added::Full {
                index.grow(hashes.iter().copied());
            } else {
                continue;
            }
            assert_eq!(index.add(*hash, |_| false), Added::Yes);
        }
        index
    }

    #[test]
    fn finds_what_was_added() {
        let names: Vec<String> = (0..5000).map(|n| format!("work_ID{n:07}")).collect();
        let hashes: Vec<u64> = names.iter().map(|name| hash(name.as_bytes())).collect();
        let index = index(&hashes);
        assert!(!index.alike);
        for (number, hash) in (0..).zip(&hashes) {
            assert_eq!(index.find(*hash, |_| false), Some(number));
        }
        assert_eq!(index.find(hash(b"work"), |_| true), None);
        assert_eq!(Index::default().find(7, |_| true), None);
    }

    #[test]
    fn names_with_the_same_hash_are_told_apart() {
        let hashes: Vec<u64> = (0..100).map(|n| (n / 10) << 60 | 3).collect();
        let mut index = index(&hashes);
        assert!(index.alike);
        for number in 0..100 {
            let found = index.find(hashes[number as usize], |task| task == number);
            assert_eq!(found, Some(number));
        }
        assert_eq!(index.find(hashes[0], |_| false), None);
        assert_eq!(index.add(hashes[50], |task| task == 55), Added::Known);
    }

    #[test]
    fn room_is_made_in_advance() {
        let mut index = Index::for_tasks(3000);
        let size = index.slots.len();
        for number in 0..3000_u64 {
            assert_eq!(
                index.add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15), |_| false),
                Added::Yes
            );
        }
        assert_eq!(index.slots.len(), size);
    }
}
