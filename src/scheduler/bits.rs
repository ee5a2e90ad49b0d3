//! A set of small numbers that knows its smallest member at once.

/// Bits in words, and for each level a bit per word of the level below that is not zero.
#[derive(Clone, Debug)]
pub(crate) struct BitSet {
    levels: Vec<Vec<u64>>,
}

impl BitSet {
    /// An empty set for numbers below `size`.
    pub(crate) fn new(size: usize) -> Self {
        let mut levels = Vec::new();
        let mut words = size;
        loop {
            words = words.div_ceil(64);
            levels.push(vec![0; words]);
            if words <= 1 {
                return Self { levels };
            }
        }
    }

    pub(crate) fn insert(&mut self, mut number: usize) {
        for level in &mut self.levels {
            let word = &mut level[number / 64];
            let was_empty = *word == 0;
            *word |= 1 << (number % 64);
            if !was_empty {
                return;
            }
            number /= 64;
        }
    }

    pub(crate) fn remove(&mut self, mut number: usize) {
        for level in &mut self.levels {
            let word = &mut level[number / 64];
            *word &= !(1 << (number % 64));
            if *word != 0 {
                return;
            }
            number /= 64;
        }
    }

    pub(crate) fn contains(&self, number: usize) -> bool {
        self.levels[0]
            .get(number / 64)
            .is_some_and(|word| word >> (number % 64) & 1 == 1)
    }

    /// The smallest number in the set that is larger than this one.
    pub(crate) fn after(&self, number: usize) -> Option<usize> {
        let mut at = number;
        for (depth, level) in self.levels.iter().enumerate() {
            let rest = level.get(at / 64)? & (u64::MAX << (at % 64) << 1);
            at /= 64;
            if rest != 0 {
                let mut found = at * 64 + rest.trailing_zeros() as usize;
                for lower in self.levels[..depth].iter().rev() {
                    found = found * 64 + lower[found].trailing_zeros() as usize;
                }
                return Some(found);
            }
        }
        None
    }

    /// The smallest number in the set.
    pub(crate) fn first(&self) -> Option<usize> {
        let mut at = 0;
        for level in self.levels.iter().rev() {
            let word = *level.get(at)?;
            if word == 0 {
                return None;
            }
            at = at * 64 + word.trailing_zeros() as usize;
        }
        Some(at)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_agrees_with_a_tree(
            size in prop_oneof![Just(1_usize), Just(64), Just(65), Just(5000)],
            changes in proptest::collection::vec((any::<bool>(), 0_usize..5000), 0..80),
        ) {
            let mut set = BitSet::new(size);
            let mut model = BTreeSet::new();
            for (insert, number) in changes {
                let number = number % size;
                if insert {
                    set.insert(number);
                    model.insert(number);
                } else {
                    set.remove(number);
                    model.remove(&number);
                }
                prop_assert_eq!(set.first(), model.first().copied());
                prop_assert_eq!(set.contains(number), insert);
                prop_assert_eq!(set.after(number), model.range(number + 1..).next().copied());
            }
        }
    }

    #[test]
    fn a_set_for_nothing_is_empty() {
        assert_eq!(BitSet::new(0).first(), None);
    }
}
