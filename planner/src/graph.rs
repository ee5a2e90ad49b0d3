//! Directed acyclic graphs over dense numbers: adjacency, order, depth. Everything is linear.

/// Neighbours of every node in one array.
#[derive(Clone, Debug, Default)]
pub(crate) struct Adjacency {
    offsets: Vec<u32>,
    targets: Vec<u32>,
}

impl Adjacency {
    /// Creates lists for `n` nodes. `pairs` gives (node, neighbour) and its order is kept per node.
    pub(crate) fn new(n: usize, pairs: impl Iterator<Item = (u32, u32)> + Clone) -> Self {
        let mut offsets = vec![0u32; n + 1];
        for (from, _) in pairs.clone() {
            offsets[from as usize + 1] += 1;
        }
        for i in 0..n {
            offsets[i + 1] += offsets[i];
        }
        let mut next = offsets.clone();
        let mut targets = vec![0u32; offsets[n] as usize];
        for (from, to) in pairs {
            let slot = &mut next[from as usize];
            targets[*slot as usize] = to;
            *slot += 1;
        }
        Adjacency { offsets, targets }
    }
    /// Neighbours of a node.
    pub(crate) fn of(&self, node: u32) -> &[u32] {
        let node = node as usize;
        &self.targets[self.offsets[node] as usize..self.offsets[node + 1] as usize]
    }
}

/// Parents and children of every node.
#[derive(Clone, Debug, Default)]
pub(crate) struct Graph {
    nodes: usize,
    parents: Adjacency,
    children: Adjacency,
    /// Every edge goes from a lower to a higher number.
    forward: bool,
}

impl Graph {
    /// Creates a graph from (parent, child) pairs without duplicates.
    pub(crate) fn new(nodes: usize, edges: &[(u32, u32)]) -> Self {
        Graph {
            nodes,
            parents: Adjacency::new(nodes, edges.iter().map(|&(p, c)| (c, p))),
            children: Adjacency::new(nodes, edges.iter().copied()),
            forward: edges.iter().all(|(p, c)| p < c),
        }
    }
    /// Returns the number of nodes.
    pub(crate) fn len(&self) -> usize {
        self.nodes
    }
    /// Parents of a node.
    pub(crate) fn parents(&self, node: u32) -> &[u32] {
        self.parents.of(node)
    }
    /// Children of a node.
    pub(crate) fn children(&self, node: u32) -> &[u32] {
        self.children.of(node)
    }
    /// All nodes, parents before children, in an order that goes through memory in large steps as seldom as
    /// it can: by number where that will do, else down from each root as far as possible. `None` if there is
    /// a cycle.
    pub(crate) fn order(&self) -> Option<Vec<u32>> {
        let count = u32::try_from(self.nodes).ok()?;
        if self.forward {
            return Some((0..count).collect());
        }
        let mut waiting: Vec<u32> = (0..count).map(|v| self.parents(v).len() as u32).collect();
        let mut order = Vec::with_capacity(self.nodes);
        let mut ready = Vec::new();
        for root in (0..count).filter(|&v| self.parents(v).is_empty()) {
            ready.push(root);
            while let Some(node) = ready.pop() {
                order.push(node);
                for &child in self.children(node).iter().rev() {
                    waiting[child as usize] -= 1;
                    if waiting[child as usize] == 0 {
                        ready.push(child);
                    }
                }
            }
        }
        (order.len() == self.nodes).then_some(order)
    }
    /// Returns all nodes, parents before children, by generation. `None` if there is a cycle.
    pub(crate) fn topological(&self) -> Option<Vec<u32>> {
        let count = u32::try_from(self.nodes).ok()?;
        let mut waiting: Vec<u32> = (0..count).map(|v| self.parents(v).len() as u32).collect();
        let mut order: Vec<u32> = (0..count).filter(|&v| waiting[v as usize] == 0).collect();
        let mut done = 0;
        while let Some(&node) = order.get(done) {
            done += 1;
            for &child in self.children(node) {
                waiting[child as usize] -= 1;
                if waiting[child as usize] == 0 {
                    order.push(child);
                }
            }
        }
        (order.len() == self.nodes).then_some(order)
    }
    /// Returns the length of the longest path from a root to each node, 0 for roots; `order` is topological.
    pub(crate) fn depths(&self, order: &[u32]) -> Vec<u32> {
        let mut depth = vec![0u32; self.nodes];
        for &node in order {
            let below = depth[node as usize] + 1;
            for &child in self.children(node) {
                let d = &mut depth[child as usize];
                *d = (*d).max(below);
            }
        }
        depth
    }
}

/// Groups nodes by depth, sorted by number within a depth.
pub(crate) fn by_depth(depths: &[u32]) -> Vec<Vec<u32>> {
    let mut groups: Vec<Vec<u32>> = Vec::new();
    for (node, &depth) in depths.iter().enumerate() {
        let depth = depth as usize;
        if groups.len() <= depth {
            groups.resize(depth + 1, Vec::new());
        }
        groups[depth].push(node as u32);
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_and_depth_of_a_diamond() {
        let graph = Graph::new(4, &[(3, 1), (3, 0), (1, 2), (0, 2)]);
        let order = graph.topological().expect("no cycle");
        assert_eq!(order, [3, 1, 0, 2]);
        assert_eq!(graph.depths(&order), [1, 1, 2, 0]);
        assert_eq!(by_depth(&graph.depths(&order)), [vec![3], vec![0, 1], vec![2]]);
        assert_eq!(graph.parents(2), [1, 0]);
        assert_eq!(graph.children(3), [1, 0]);
    }

    #[test]
    fn the_near_order_is_one_too() {
        for edges in [
            vec![(0, 1), (1, 2), (0, 4)],
            vec![(3, 1), (3, 0), (1, 2), (0, 2), (4, 3), (2, 5)],
            vec![(5, 0), (4, 0), (5, 1), (1, 0)],
        ] {
            let graph = Graph::new(6, &edges);
            let order = graph.order().expect("no cycle");
            let place = |node: u32| order.iter().position(|&n| n == node);
            assert_eq!(order.len(), 6);
            assert!(
                edges
                    .iter()
                    .all(|&(p, c)| place(p).is_some() && place(p) < place(c)),
                "{order:?}"
            );
            let topological = graph.topological().expect("no cycle");
            assert_eq!(graph.depths(&order), graph.depths(&topological));
        }
    }

    #[test]
    fn a_cycle_has_no_order() {
        assert!(Graph::new(3, &[(0, 1), (1, 2), (2, 1)]).order().is_none());
        assert!(Graph::new(3, &[(0, 1), (1, 1)]).order().is_none());
        assert!(Graph::new(3, &[(0, 1), (1, 2), (2, 1)]).topological().is_none());
        assert_eq!(Graph::new(0, &[]).topological(), Some(vec![]));
    }
}
