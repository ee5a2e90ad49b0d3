//! Transitive reduction: removes redundant parents of clean-up jobs.

use crate::graph::Graph;
use crate::ids::Id;

/// Generations that the search compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Depth {
    /// Every second generation, as in Pegasus. Some redundant edges stay, and the edges equal those of
    /// Pegasus.
    Second,
    /// Every generation.
    Every,
}

/// Drops parents that are ancestors of another parent. Memory is linear in the nodes of the graph, time in
/// the parents.
pub(crate) struct Reduction<'g, N> {
    graph: &'g Graph<N>,
    depths: &'g [u32],
    depth: Depth,
    marks: Vec<Marks>,
    round: u32,
    stack: Vec<N>,
    needed: Vec<N>,
}

/// For each node, the last round in which a statement was true.
#[derive(Clone, Copy, Debug, Default)]
struct Marks {
    /// It is a parent of the clean-up job.
    parent: u32,
    /// It is an ancestor of a parent, and not needed.
    dropped: u32,
    /// Its parents are compared.
    reached: u32,
    /// Its parents are reached.
    passed: u32,
}

/// Maximum edges visited per parent. A redundant edge is harmless, so longer searches stop; the step stays
/// linear.
const SEARCH_PER_PARENT: usize = 256;

impl<'g, N: Id> Reduction<'g, N> {
    /// Creates a reduction for a graph and the depths of its nodes.
    pub(crate) fn new(graph: &'g Graph<N>, depths: &'g [u32], depth: Depth) -> Self {
        Reduction {
            graph,
            depths,
            depth,
            marks: vec![Marks::default(); graph.len()],
            round: 0,
            stack: Vec::new(),
            needed: Vec::new(),
        }
    }
    /// Returns the needed parents, in order.
    pub(crate) fn needed(&mut self, parents: &[N]) -> &[N] {
        self.needed.clear();
        if let [parent] = parents {
            self.needed.push(*parent);
            return &self.needed;
        }
        self.round += 1;
        let round = self.round;
        let graph = self.graph;
        let top = parents
            .iter()
            .map(|&p| self.depths[p.index()])
            .min()
            .unwrap_or_default();
        for &p in parents {
            self.marks[p.index()].parent = round;
        }
        let mut budget = SEARCH_PER_PARENT * parents.len();
        self.stack.clear();
        for &p in parents {
            self.reach(p, top);
        }
        'search: while let Some(node) = self.stack.pop() {
            for &above in graph.parents(node) {
                if budget == 0 {
                    break 'search;
                }
                budget -= 1;
                let marks = &mut self.marks[above.index()];
                if marks.parent == round {
                    marks.dropped = round;
                } else if self.depth == Depth::Second && marks.passed != round {
                    marks.passed = round;
                    let next = graph.parents(above);
                    budget = budget.saturating_sub(next.len());
                    for &node in next {
                        self.reach(node, top);
                    }
                }
                if self.depth == Depth::Every {
                    self.reach(above, top);
                }
            }
        }
        let is_needed = |p: &N| self.marks[p.index()].dropped != round;
        self.needed.extend(parents.iter().copied().filter(is_needed));
        &self.needed
    }
    /// Visits the parents of a node, unless none of them can matter.
    fn reach(&mut self, node: N, top: u32) {
        let marks = &mut self.marks[node.index()];
        if marks.reached != self.round && self.depths[node.index()] > top {
            marks.reached = self.round;
            self.stack.push(node);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parent_above_another_one_is_not_needed() {
        // 0 → 1 → 2 → 3 → 4, 0 → 5
        let graph = Graph::<u32>::new(6, &[(0, 1), (1, 2), (2, 3), (3, 4), (0, 5)]);
        let order = graph.topological().expect("no cycle");
        let depths = graph.depths(&order);
        let mut reduction = Reduction::new(&graph, &depths, Depth::Second);
        assert_eq!(reduction.needed(&[0, 1]), [1]);
        assert_eq!(reduction.needed(&[0, 3]), [3]);
        assert_eq!(reduction.needed(&[0, 5]), [5]);
        assert_eq!(reduction.needed(&[3, 5]), [3, 5]);
        assert_eq!(reduction.needed(&[0, 1, 2, 3, 5]), [3, 5]);
        assert_eq!(reduction.needed(&[2]), [2]);
    }

    #[test]
    fn every_second_generation_is_ignored() {
        let graph = Graph::<u32>::new(5, &[(0, 1), (1, 2), (2, 3), (3, 4)]);
        let order = graph.topological().expect("no cycle");
        let depths = graph.depths(&order);
        let mut reduction = Reduction::new(&graph, &depths, Depth::Second);
        assert_eq!(reduction.needed(&[2, 4]), [2, 4]);
        assert_eq!(reduction.needed(&[1, 4]), [4]);
        assert_eq!(reduction.needed(&[0, 4]), [0, 4]);
        assert_eq!(reduction.needed(&[0, 1, 4]), [4]);
    }

    #[test]
    fn every_generation_is_looked_at() {
        let graph = Graph::<u32>::new(6, &[(0, 1), (1, 2), (2, 3), (3, 4), (0, 5)]);
        let order = graph.topological().expect("no cycle");
        let depths = graph.depths(&order);
        let mut reduction = Reduction::new(&graph, &depths, Depth::Every);
        assert_eq!(reduction.needed(&[2, 4]), [4]);
        assert_eq!(reduction.needed(&[0, 4]), [4]);
        assert_eq!(reduction.needed(&[0, 4, 5]), [4, 5]);
        assert_eq!(reduction.needed(&[5, 0]), [5]);
    }

    fn needed(depth: Depth, nodes: usize, edges: &[(u32, u32)], parents: &[u32]) -> Vec<u32> {
        let graph = Graph::<u32>::new(nodes, edges);
        let order = graph.topological().expect("no cycle");
        let depths = graph.depths(&order);
        Reduction::new(&graph, &depths, depth).needed(parents).to_vec()
    }

    #[test]
    fn a_search_ends_after_256_edges_for_each_parent() {
        let chain: Vec<(u32, u32)> = (0..1000).map(|node| (node, node + 1)).collect();
        for (depth, parent, expected) in [
            (Depth::Every, 500, vec![500]),
            (Depth::Every, 512, vec![512]),
            (Depth::Every, 513, vec![0, 513]),
            (Depth::Second, 511, vec![511]),
            (Depth::Second, 513, vec![0, 513]),
        ] {
            assert_eq!(
                needed(depth, 1001, &chain, &[0, parent]),
                expected,
                "{depth:?}, {parent}"
            );
        }
    }

    #[test]
    fn no_node_is_searched_twice() {
        // The path from the upper parent, 0 → 1 → last, is searched after a lattice, which has very many
        // paths: 2 → layers of four nodes, each below all of the layer before → last.
        const LAYERS: u32 = 10;
        let node = |layer: u32, place: u32| 3 + layer * 4 + place;
        let last = node(LAYERS, 0);
        let mut edges = vec![(0, 1), (1, last)];
        for place in 0..4 {
            edges.push((2, node(0, place)));
            edges.push((node(LAYERS - 1, place), last));
            for layer in 1..LAYERS {
                edges.extend((0..4).map(|above| (node(layer - 1, above), node(layer, place))));
            }
        }
        assert_eq!(
            needed(Depth::Every, last as usize + 1, &edges, &[0, last]),
            [last]
        );
    }

    #[test]
    fn nothing_above_the_uppermost_parent_is_searched() {
        // 0 → 1 → 2 → last, and 0 and many others → 3 → last. The parents are 1 and last.
        let last = 1000;
        let mut edges = vec![(0, 1), (1, 2), (2, last), (3, last)];
        edges.extend((4..last).chain([0]).map(|other| (other, 3)));
        assert_eq!(needed(Depth::Every, 1001, &edges, &[1, last]), [last]);
    }
}
