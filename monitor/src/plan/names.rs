//! Task names, and an index from name to task.

use std::hash::BuildHasher as _;

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use rustc_hash::FxBuildHasher;

use super::TaskNumber;

/// Distinct names, numbered in the order in which they were added.
#[derive(Debug, Default)]
pub(super) struct NameTable {
    /// All names without separators.
    text: Vec<u8>,
    /// End of each name in `text`.
    ends: Vec<u32>,
    index: HashTable<TaskNumber>,
}

impl NameTable {
    /// Makes an empty table with room for `tasks` names.
    pub(super) fn with_capacity(tasks: usize) -> Self {
        Self {
            index: HashTable::with_capacity(tasks),
            ..Self::default()
        }
    }

    pub(super) fn get(&self, task: TaskNumber) -> &[u8] {
        name(&self.text, &self.ends, task)
    }

    pub(super) fn find(&self, name: &[u8]) -> Option<TaskNumber> {
        self.index
            .find(hash(name), |task| self.get(*task) == name)
            .copied()
    }

    /// Adds a name. Returns `None` if it exists or the table is full.
    pub(super) fn add(&mut self, new: &[u8]) -> Option<TaskNumber> {
        let number = TaskNumber::try_from(self.ends.len())
            .ok()
            .filter(|number| *number < TaskNumber::MAX)?;
        let end = u32::try_from(self.text.len() + new.len()).ok()?;
        let (text, ends) = (&self.text, &self.ends);
        let is_equal = |task: &TaskNumber| name(text, ends, *task) == new;
        let rehash = |task: &TaskNumber| hash(name(text, ends, *task));
        match self.index.entry(hash(new), is_equal, rehash) {
            Entry::Occupied(_) => return None,
            Entry::Vacant(place) => place.insert(number),
        };
        self.text.extend_from_slice(new);
        self.ends.push(end);
        Some(number)
    }
}

fn name<'a>(text: &'a [u8], ends: &[u32], task: TaskNumber) -> &'a [u8] {
    let task = task as usize;
    let start = task.checked_sub(1).map_or(0, |before| ends[before]);
    &text[start as usize..ends[task] as usize]
}

fn hash(name: &[u8]) -> u64 {
    FxBuildHasher.hash_one(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn added_names_are_found() {
        let mut table = NameTable::default();
        let name = |number: u32| format!("work_ID{number:07}").into_bytes();
        for number in 0..5000 {
            assert_eq!(table.add(&name(number)), Some(number));
        }
        for number in 0..5000 {
            assert_eq!(table.find(&name(number)), Some(number));
            assert_eq!(table.add(&name(number)), None);
        }
        assert_eq!(table.find(b"work"), None);
        assert_eq!(table.get(4999), name(4999));
    }
}
