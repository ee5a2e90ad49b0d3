//! A set of small numbers that finds its smallest member quickly.

/// Level 0 holds the members as bits; each other level has a bit for each nonzero word of the level below.
#[derive(Clone, Debug)]
pub(crate) struct BitSet {
    levels: Vec<Vec<u64>>,
}

impl BitSet {
    /// Creates an empty set for numbers below `size`.
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

    #[cfg(test)]
    pub(crate) fn contains(&self, number: usize) -> bool {
        self.levels[0]
            .get(number / 64)
            .is_some_and(|word| word >> (number % 64) & 1 == 1)
    }

    /// Returns the smallest number in the set.
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
        fn bit_set_agrees_with_btree_set(
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
            }
        }
    }

    #[test]
    fn a_set_of_size_zero_is_empty() {
        assert_eq!(BitSet::new(0).first(), None);
    }
}
