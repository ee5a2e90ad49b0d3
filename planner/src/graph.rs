//! Lists of numbered things in one array, and directed acyclic graphs: adjacency, order, depth. Everything is
//! linear.

use std::marker::PhantomData;

use crate::ids::Id;

/// A list for each number, all in one array. One allocation per list would make visits in any order slow.
#[derive(Clone, Debug)]
pub(crate) struct Lists<I, T> {
    /// Where each list starts, and where the next one will.
    start: Vec<u32>,
    all: Vec<T>,
    of: PhantomData<I>,
}

impl<I, T> Default for Lists<I, T> {
    fn default() -> Self {
        Lists::with_capacity(0, 0)
    }
}

impl<I, T> Lists<I, T> {
    /// Creates an empty collection with room for a number of lists and of items.
    pub(crate) fn with_capacity(lists: usize, items: usize) -> Self {
        let mut start = Vec::with_capacity(lists + 1);
        start.push(0);
        Lists {
            start,
            all: Vec::with_capacity(items),
            of: PhantomData,
        }
    }
    /// Adds an item to the current list.
    pub(crate) fn push(&mut self, item: T) {
        self.all.push(item);
    }
    /// The current list.
    pub(crate) fn current(&mut self) -> &mut [T] {
        let start = self.start.last().map_or(0, |&start| start as usize);
        &mut self.all[start..]
    }
    /// Ends the current list. The next one has the next number.
    pub(crate) fn end(&mut self) {
        self.start.push(self.all.len() as u32);
    }
    /// Returns the number of lists.
    pub(crate) fn len(&self) -> usize {
        self.start.len() - 1
    }
}

impl<I: Id, T> Lists<I, T> {
    /// Returns the list of a number.
    pub(crate) fn of(&self, id: I) -> &[T] {
        let id = id.index();
        &self.all[self.start[id] as usize..self.start[id + 1] as usize]
    }
}

impl<I: Id, T: Copy> Lists<I, T> {
    /// Creates `count` lists from pairs of a number and an item of its list. A list has the order of the
    /// pairs.
    pub(crate) fn grouped(count: usize, pairs: impl Iterator<Item = (I, T)> + Clone) -> Self {
        let mut start = vec![0u32; count + 1];
        let mut any = None;
        for (id, item) in pairs.clone() {
            start[id.index() + 1] += 1;
            any = Some(item);
        }
        for n in 0..count {
            start[n + 1] += start[n];
        }
        let mut next = start.clone();
        let mut all = any.map_or_else(Vec::new, |item| vec![item; start[count] as usize]);
        for (id, item) in pairs {
            let place = &mut next[id.index()];
            all[*place as usize] = item;
            *place += 1;
        }
        Lists {
            start,
            all,
            of: PhantomData,
        }
    }
}

/// Parents and children of every node.
#[derive(Clone, Debug)]
pub(crate) struct Graph<N> {
    parents: Lists<N, N>,
    children: Lists<N, N>,
    /// Every edge goes from a lower to a higher number.
    forward: bool,
}

impl<N> Default for Graph<N> {
    fn default() -> Self {
        Graph {
            parents: Lists::default(),
            children: Lists::default(),
            forward: true,
        }
    }
}

impl<N: Id> Graph<N> {
    /// Creates a graph from (parent, child) pairs without duplicates.
    pub(crate) fn new(nodes: usize, edges: &[(N, N)]) -> Self {
        Graph {
            parents: Lists::grouped(nodes, edges.iter().map(|&(p, c)| (c, p))),
            children: Lists::grouped(nodes, edges.iter().copied()),
            forward: edges.iter().all(|(p, c)| p < c),
        }
    }
    /// Returns the number of nodes.
    pub(crate) fn len(&self) -> usize {
        self.parents.len()
    }
    /// All nodes by number.
    pub(crate) fn nodes(&self) -> impl DoubleEndedIterator<Item = N> + ExactSizeIterator + Clone + use<N> {
        N::first(self.len())
    }
    /// Parents of a node.
    pub(crate) fn parents(&self, node: N) -> &[N] {
        self.parents.of(node)
    }
    /// Children of a node.
    pub(crate) fn children(&self, node: N) -> &[N] {
        self.children.of(node)
    }
    /// Nodes without parents, by number.
    pub(crate) fn roots(&self) -> impl Iterator<Item = N> {
        self.nodes().filter(|&node| self.parents(node).is_empty())
    }
    /// Returns the number of parents of each node.
    pub(crate) fn parent_counts(&self) -> Vec<u32> {
        self.nodes().map(|node| self.parents(node).len() as u32).collect()
    }
    /// All nodes, parents before children, in an order that goes through memory in large steps as seldom as
    /// it can: by number where that will do, else down from each root as far as possible. `None` if there is
    /// a cycle.
    pub(crate) fn order(&self) -> Option<Vec<N>> {
        if self.forward {
            return Some(self.nodes().collect());
        }
        let mut waiting = self.parent_counts();
        let mut order = Vec::with_capacity(self.len());
        let mut ready = Vec::new();
        for root in self.roots() {
            ready.push(root);
            while let Some(node) = ready.pop() {
                order.push(node);
                for &child in self.children(node).iter().rev() {
                    let left = &mut waiting[child.index()];
                    *left -= 1;
                    if *left == 0 {
                        ready.push(child);
                    }
                }
            }
        }
        (order.len() == self.len()).then_some(order)
    }
    /// Returns all nodes, parents before children, by generation. `None` if there is a cycle.
    pub(crate) fn topological(&self) -> Option<Vec<N>> {
        let mut waiting = self.parent_counts();
        let mut order: Vec<N> = self.roots().collect();
        let mut done = 0;
        while let Some(&node) = order.get(done) {
            done += 1;
            for &child in self.children(node) {
                let left = &mut waiting[child.index()];
                *left -= 1;
                if *left == 0 {
                    order.push(child);
                }
            }
        }
        (order.len() == self.len()).then_some(order)
    }
    /// Returns the nodes of a cycle, each followed by one of its parents. `None` if there is no cycle.
    pub(crate) fn find_cycle(&self) -> Option<Vec<N>> {
        if self.order().is_some() {
            return None;
        }
        let mut waiting = self.parent_counts();
        let mut ready: Vec<N> = self.roots().collect();
        while let Some(node) = ready.pop() {
            for &child in self.children(node) {
                let left = &mut waiting[child.index()];
                *left -= 1;
                if *left == 0 {
                    ready.push(child);
                }
            }
        }
        // Every waiting node has a waiting parent, so the walk upwards meets some node twice.
        let is_waiting = |node: &N| waiting[node.index()] > 0;
        let mut place: Vec<Option<usize>> = vec![None; self.len()];
        let mut path = vec![self.nodes().find(is_waiting)?];
        loop {
            let &node = path.last()?;
            if let Some(start) = place[node.index()].replace(path.len() - 1) {
                path.pop();
                return Some(path.split_off(start));
            }
            path.push(*self.parents(node).iter().rfind(|parent| is_waiting(parent))?);
        }
    }
    /// Returns the length of the longest path from a root to each node, 0 for roots; `order` is topological.
    pub(crate) fn depths(&self, order: &[N]) -> Vec<u32> {
        let mut depth = vec![0u32; self.len()];
        for &node in order {
            let below = depth[node.index()] + 1;
            for &child in self.children(node) {
                let d = &mut depth[child.index()];
                *d = (*d).max(below);
            }
        }
        depth
    }
}

/// Groups nodes by depth, sorted by number within a depth.
pub(crate) fn by_depth<N: Id>(depths: &[u32]) -> Vec<Vec<N>> {
    let mut groups: Vec<Vec<N>> = Vec::new();
    for (node, &depth) in N::first(depths.len()).zip(depths) {
        let depth = depth as usize;
        if groups.len() <= depth {
            groups.resize(depth + 1, Vec::new());
        }
        groups[depth].push(node);
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_and_depth_of_a_diamond() {
        let graph = Graph::<u32>::new(4, &[(3, 1), (3, 0), (1, 2), (0, 2)]);
        let order = graph.topological().expect("no cycle");
        assert_eq!(order, [3, 1, 0, 2]);
        assert_eq!(graph.depths(&order), [1, 1, 2, 0]);
        assert_eq!(
            by_depth::<u32>(&graph.depths(&order)),
            [vec![3], vec![0, 1], vec![2]]
        );
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
            let graph = Graph::<u32>::new(6, &edges);
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
        assert!(Graph::<u32>::new(3, &[(0, 1), (1, 2), (2, 1)]).order().is_none());
        assert!(Graph::<u32>::new(3, &[(0, 1), (1, 1)]).order().is_none());
        assert!(
            Graph::<u32>::new(3, &[(0, 1), (1, 2), (2, 1)])
                .topological()
                .is_none()
        );
        assert_eq!(Graph::<u32>::new(0, &[]).topological(), Some(vec![]));
        let cycle = Graph::<u32>::new(5, &[(0, 1), (1, 2), (2, 3), (3, 1), (3, 4)]).find_cycle();
        assert_eq!(cycle, Some(vec![1, 3, 2]));
        assert_eq!(Graph::<u32>::new(3, &[(2, 0), (0, 1)]).find_cycle(), None);
    }
}
