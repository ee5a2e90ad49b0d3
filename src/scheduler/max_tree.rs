//! An array that finds maxima of its ranges quickly.

/// Maxima of ranges of a changing array. `None` is less than every value.
#[derive(Debug)]
pub(crate) struct MaxTree {
    /// Number of leaves, a power of two.
    width: usize,
    /// The root is at 1; the leaves begin at `width`.
    nodes: Vec<Option<u64>>,
}

impl MaxTree {
    /// Creates an array of this length without values.
    pub(crate) fn new(len: usize) -> Self {
        let width = len.next_power_of_two();
        Self {
            width,
            nodes: vec![None; 2 * width],
        }
    }

    #[cfg(test)]
    pub(crate) fn leaf(&self, at: usize) -> Option<u64> {
        self.nodes[self.width + at]
    }

    /// Sets a value.
    pub(crate) fn set(&mut self, at: usize, value: Option<u64>) {
        let mut node = self.width + at;
        self.nodes[node] = value;
        while node > 1 {
            node /= 2;
            let max = self.nodes[2 * node].max(self.nodes[2 * node + 1]);
            if self.nodes[node] == max {
                break;
            }
            self.nodes[node] = max;
        }
    }

    /// Returns the maximum from `start` on.
    pub(crate) fn max_from(&self, start: usize) -> Option<u64> {
        if start >= self.width {
            return None;
        }
        let mut node = self.width + start;
        let mut max = self.nodes[node];
        while node > 1 {
            if node.is_multiple_of(2) {
                max = max.max(self.nodes[node + 1]);
            }
            node /= 2;
        }
        max
    }

    /// Returns the first position from `start` on whose value is at least `least`.
    pub(crate) fn first_from(&self, start: usize, least: u64) -> Option<usize> {
        if start >= self.width {
            return None;
        }
        let fits = |node: usize| self.nodes[node].is_some_and(|max| max >= least);
        let mut node = self.width + start;
        // Goes up until a subtree to the right fits.
        while !fits(node) {
            while !node.is_multiple_of(2) {
                node /= 2;
                if node <= 1 {
                    return None;
                }
            }
            node += 1;
        }
        while node < self.width {
            node = if fits(2 * node) { 2 * node } else { 2 * node + 1 };
        }
        Some(node - self.width)
    }

    /// Returns the last position whose value is at least `least`, if it is not before `start`.
    pub(crate) fn last_from(&self, start: usize, least: u64) -> Option<usize> {
        let fits = |node: usize| self.nodes[node].is_some_and(|max| max >= least);
        if !fits(1) {
            return None;
        }
        let mut node = 1;
        while node < self.width {
            node = if fits(2 * node + 1) {
                2 * node + 1
            } else {
                2 * node
            };
        }
        Some(node - self.width).filter(|at| *at >= start)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_tree_agrees_with_a_scan(
            len in 1_usize..40,
            changes in proptest::collection::vec((0_usize..40, proptest::option::of(0_u64..10)), 0..60),
            start in 0_usize..70,
            least in 0_u64..11,
        ) {
            let mut tree = MaxTree::new(len);
            let mut model = vec![None; len];
            for (at, value) in changes {
                tree.set(at % len, value);
                model[at % len] = value;
            }
            let from = |at: usize| model.iter().enumerate().skip(at);
            let fits = |value: &Option<u64>| value.is_some_and(|v| v >= least);
            prop_assert_eq!(tree.max_from(start), from(start).filter_map(|(_, v)| *v).max());
            let first = from(start).find(|(_, v)| fits(v)).map(|(i, _)| i);
            prop_assert_eq!(tree.first_from(start, least), first);
            let last = from(start).rfind(|(_, v)| fits(v)).map(|(i, _)| i);
            prop_assert_eq!(tree.last_from(start, least), last);
        }
    }
}
