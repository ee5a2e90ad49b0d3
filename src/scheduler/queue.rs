//! Queued tasks, indexed by request and priority.
//!
//! Tasks with the same request and category form a *shape*. Either the first task of a shape fits on some
//! host or none does, so only the first is examined. While a category is full, its shapes are closed: they
//! take part in no search. Shapes that request the same but for memory form a *class*, ordered by memory.
//! A tree over the class finds, for a given free memory, the shape whose first task must start first.
//!
//! Within a shape, tasks of one priority form a *chain*, linked through the tasks. All chains are known from
//! the DAG; a bit set marks those that are not empty. Only a task that requests other than the DAG says, or
//! that avoids hosts, needs a chain that is made later.
//!
//! Tasks over several hosts, *gangs*, have classes of their own, which take no part in the search for tasks
//! that fit on a host.

mod gangs;
mod grown;
mod key;
mod shares;
mod variants;

use pmc_dag::{CategoryId, Dag, GangId, OptionSet, Request, TaskId};
use rustc_hash::FxHashMap;

pub(crate) use self::gangs::WaitingGang;
use self::key::ChainKey;
pub(crate) use self::variants::AvoidId;
use self::variants::AvoidedHosts;
#[cfg(test)]
pub(crate) use self::variants::MAX_SETS;
use crate::protocol::SubmitId;
use crate::scheduler::bits::BitSet;
use crate::scheduler::shares::ShareId;
use crate::scheduler::tasks::{NO_TASK, Node};

/// Precedence of a queued task: the largest key starts first. Priority decides, then age.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key(u128);

impl Key {
    /// Less than every key of a task.
    const NONE: Self = Self(0);

    fn new(priority: i64, place: u32) -> Self {
        // Maps i64 to u64 in order. No place is as large as the greatest u64.
        let priority = (priority as u64) ^ (1 << 63);
        Self(u128::from(priority) << 64 | u128::from(!u64::from(place)))
    }
}

/// Number of a shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ShapeId(u32);

impl ShapeId {
    /// Position in [`Queue::shapes`].
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

#[derive(Debug)]
pub(crate) struct Shape {
    pub(crate) request: Request,
    /// Category of the tasks, if it has a limit.
    pub(crate) category: Option<CategoryId>,
    /// Its tasks may start.
    pub(crate) is_open: bool,
    /// What its tasks need, if they are gangs.
    pub(crate) gang: Option<GangId>,
    /// The shape of such tasks in the DAG. Only requests and avoided hosts may differ.
    pub(crate) kind: ShapeId,
    class: u32,
    /// Position in the class.
    leaf: u32,
    /// Number of its first chain; the others follow by descending priority.
    first_chain: u32,
    /// Chains that are not empty, counted from the first.
    filled: BitSet,
}

/// Tasks of one shape and priority, in the order of their places. Half a cache line, because each task may
/// have its own chain.
#[derive(Debug)]
#[repr(align(32))]
struct Chain {
    priority: i64,
    shape: ShapeId,
    first: u32,
    last: u32,
    len: u32,
    /// The chain of such tasks that avoid no host.
    base: u32,
}

/// Shapes that request the same but for memory and avoid the same hosts, of one of the workflows that share
/// the run.
#[derive(Debug)]
struct Class {
    share: ShareId,
    avoids: AvoidId,
    gang: Option<GangId>,
    /// What they request, without memory.
    request: Request,
    /// Ascending by memory.
    shapes: Vec<ShapeId>,
    memories: Vec<u64>,
    /// Key of each shape's first task.
    keys: Vec<Key>,
    /// Tournament over the keys: a node is the position of the winner among its leaves.
    winners: Vec<u32>,
}

/// All ready tasks that have a submit number.
#[derive(Debug)]
pub(crate) struct Queue {
    shapes: Vec<Shape>,
    classes: Vec<Class>,
    chains: Vec<Chain>,
    /// Shapes of each category with a limit.
    by_category: Vec<Vec<ShapeId>>,
    /// Chains of tasks that request other than in the DAG, by what their tasks have in common.
    raised: FxHashMap<ChainKey, u32>,
    /// Chains of tasks that avoid hosts, by the chain without that.
    avoiding: FxHashMap<(u32, AvoidId), u32>,
    /// Sets of hosts that tasks avoid. The first one is empty.
    avoided: Vec<AvoidedHosts>,
    /// Chains by what their tasks have in common, once a DAG has joined the run.
    known: FxHashMap<ChainKey, u32>,
    len: usize,
    /// Number of these that are gangs.
    gangs: usize,
    /// Highest priority of all chains.
    highest: i64,
}

impl Queue {
    /// An empty queue, and the chain of each of the DAG's sets of options.
    pub(crate) fn new(dag: &Dag) -> (Self, Vec<u32>) {
        let sets: Vec<OptionSet> = dag.option_sets().collect();
        let mut order: Vec<usize> = (0..sets.len()).collect();
        order.sort_unstable_by_key(|set| {
            let set = sets[*set];
            (
                set.gang,
                set.request,
                set.category,
                std::cmp::Reverse(set.priority),
            )
        });
        let mut this = Self {
            shapes: Vec::new(),
            classes: Vec::new(),
            chains: Vec::new(),
            by_category: vec![Vec::new(); dag.category_limits().len()],
            raised: FxHashMap::default(),
            avoiding: FxHashMap::default(),
            avoided: vec![AvoidedHosts::default()],
            known: FxHashMap::default(),
            len: 0,
            gangs: 0,
            highest: sets.iter().map(|set| set.priority).max().unwrap_or(0),
        };
        let mut chain_of = vec![0; sets.len()];
        for set in order {
            chain_of[set] = this.chain(sets[set]);
        }
        for (number, shape) in this.shapes.iter_mut().enumerate() {
            let chains = this.chains.iter().skip(shape.first_chain as usize);
            let count = chains.take_while(|chain| chain.shape.index() == number).count();
            shape.filled = BitSet::new(count);
        }
        for class in &mut this.classes {
            class.set_up();
        }
        (this, chain_of)
    }

    /// Returns the chain of a set of options, which must not come before the last one in the order of chains.
    fn chain(&mut self, set: OptionSet) -> u32 {
        let OptionSet {
            request,
            category,
            priority,
            gang,
        } = set;
        let other = |class: &Class| !class.holds(gang, request);
        if self.classes.last().is_none_or(other) {
            self.classes
                .push(Class::new(ShareId::default(), AvoidId::NONE, gang, request));
        }
        let other = |shape: &Shape| (shape.gang, shape.request, shape.category) != (gang, request, category);
        if self.shapes.last().is_none_or(other) {
            let id = ShapeId(self.shapes.len() as u32);
            let class = self.classes.len() as u32 - 1;
            let members = &mut self.classes[class as usize];
            self.shapes.push(Shape {
                request,
                category,
                is_open: true,
                gang,
                kind: id,
                class,
                leaf: members.shapes.len() as u32,
                first_chain: self.chains.len() as u32,
                filled: BitSet::new(0),
            });
            members.shapes.push(id);
            members.memories.push(request.memory_mb);
            if let Some(category) = category {
                self.by_category[category.index()].push(id);
            }
        }
        let shape = ShapeId(self.shapes.len() as u32 - 1);
        if self
            .chains
            .last()
            .is_none_or(|chain| (chain.shape, chain.priority) != (shape, priority))
        {
            let chain = Chain {
                priority,
                shape,
                first: NO_TASK,
                last: NO_TASK,
                len: 0,
                base: self.chains.len() as u32,
            };
            self.chains.push(chain);
        }
        self.chains.len() as u32 - 1
    }

    pub(crate) fn shapes(&self) -> &[Shape] {
        &self.shapes
    }

    pub(crate) fn shape(&self, shape: ShapeId) -> &Shape {
        &self.shapes[shape.index()]
    }

    /// Returns the shape of a chain.
    pub(crate) fn shape_of(&self, chain: u32) -> ShapeId {
        self.chains[chain as usize].shape
    }

    /// Number of tasks in the queue.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Adds a task that is not in the queue. Its place must come after all others of its chain.
    pub(crate) fn push(&mut self, nodes: &mut [Node], task: TaskId) {
        let node = &mut nodes[task.index()];
        node.next = NO_TASK;
        let number = node.chain;
        self.change_len(number, 1);
        let chain = &mut self.chains[number as usize];
        if chain.first == NO_TASK {
            chain.first = task.0;
            chain.last = task.0;
            let shape = &mut self.shapes[chain.shape.index()];
            shape.filled.insert((number - shape.first_chain) as usize);
            let id = chain.shape;
            self.update(nodes, id);
        } else {
            nodes[chain.last as usize].next = task.0;
            chain.last = task.0;
        }
    }

    /// Returns the first task of a shape.
    pub(crate) fn first(&self, id: ShapeId) -> Option<TaskId> {
        let shape = &self.shapes[id.index()];
        let chain = &self.chains[shape.first_chain as usize + shape.filled.first()?];
        Some(TaskId(chain.first))
    }

    /// Returns the tasks of a shape that have the priority of the first one and come after it.
    pub(crate) fn next_ones<'n>(&self, nodes: &'n [Node], id: ShapeId) -> impl Iterator<Item = TaskId> + 'n {
        let first = self.first(id);
        let next = |task: &TaskId| Some(TaskId(nodes[task.index()].next)).filter(|next| next.0 != NO_TASK);
        std::iter::successors(first, next).skip(1)
    }

    /// Returns the first task of the closed shapes, which waits for its category. Linear in the number of
    /// shapes.
    pub(crate) fn first_closed(&self, nodes: &[Node]) -> Option<TaskId> {
        let ids = (0..).map(ShapeId);
        let closed = ids.zip(&self.shapes).filter(|(_, shape)| !shape.is_open);
        let (id, _) = closed.max_by_key(|(_, shape)| self.key_of_first(nodes, shape))?;
        self.first(id)
    }

    /// Removes and returns the first task of a shape.
    pub(crate) fn pop(&mut self, nodes: &[Node], id: ShapeId) -> Option<(TaskId, SubmitId)> {
        let shape = &mut self.shapes[id.index()];
        let place = shape.filled.first()?;
        let chain = &mut self.chains[shape.first_chain as usize + place];
        let task = TaskId(chain.first);
        let node = &nodes[task.index()];
        chain.first = node.next;
        if chain.first == NO_TASK {
            chain.last = NO_TASK;
            shape.filled.remove(place);
        }
        self.change_len(node.chain, -1);
        self.update(nodes, id);
        Some((task, SubmitId(node.submit)))
    }

    /// Puts a task that was in the queue back in its old place.
    pub(crate) fn put_back(&mut self, nodes: &mut [Node], task: TaskId) {
        let Node {
            chain: number, place, ..
        } = nodes[task.index()];
        let first = self.chains[number as usize].first;
        if first == NO_TASK {
            self.push(nodes, task);
            return;
        }
        let before = |other: u32| other != NO_TASK && nodes[other as usize].place < place;
        // Its place is near the front: those that wait come after nearly all that were started.
        let mut last = None;
        let mut next = first;
        while before(next) {
            last = Some(next);
            next = nodes[next as usize].next;
        }
        nodes[task.index()].next = next;
        match last {
            Some(last) => nodes[last as usize].next = task.0,
            None => self.chains[number as usize].first = task.0,
        }
        if next == NO_TASK {
            self.chains[number as usize].last = task.0;
        }
        self.change_len(number, 1);
        let shape = self.chains[number as usize].shape;
        self.update(nodes, shape);
    }

    /// Removes a task from anywhere in its chain. Linear in the length of the chain.
    pub(crate) fn remove(&mut self, nodes: &mut [Node], task: TaskId) {
        let number = nodes[task.index()].chain as usize;
        let (mut before, mut at) = (NO_TASK, self.chains[number].first);
        while at != task.0 {
            if at == NO_TASK {
                return;
            }
            (before, at) = (at, nodes[at as usize].next);
        }
        let next = nodes[task.index()].next;
        let chain = &mut self.chains[number];
        if before == NO_TASK {
            chain.first = next;
        } else {
            nodes[before as usize].next = next;
        }
        if next == NO_TASK {
            chain.last = before;
        }
        let id = chain.shape;
        if chain.first == NO_TASK {
            let shape = &mut self.shapes[id.index()];
            shape.filled.remove(number - shape.first_chain as usize);
        }
        self.change_len(number as u32, -1);
        self.update(nodes, id);
    }

    /// Counts tasks that come into a chain, or leave it.
    fn change_len(&mut self, number: u32, change: i32) {
        let chain = &mut self.chains[number as usize];
        chain.len = chain.len.saturating_add_signed(change);
        self.len = self.len.saturating_add_signed(change as isize);
        let &Shape { class, gang, .. } = &self.shapes[chain.shape.index()];
        if gang.is_some() {
            self.gangs = self.gangs.saturating_add_signed(change as isize);
        }
        let avoids = self.classes[class as usize].avoids;
        if avoids != AvoidId::NONE {
            self.avoided[avoids.index()].count(change);
        }
    }

    /// Returns the chain of all queued tasks, if they are of one chain.
    pub(crate) fn only_chain(&self) -> Option<u32> {
        let shape = &self.shapes[self.best(|_, _| Some(u64::MAX))?.index()];
        let chain = shape.first_chain + shape.filled.first()? as u32;
        (self.chains[chain as usize].len as usize == self.len).then_some(chain)
    }

    /// True if no chain of the DAG has a higher priority.
    pub(crate) fn is_highest(&self, chain: u32) -> bool {
        self.chains[chain as usize].priority == self.highest
    }

    /// Returns the shape whose first task must start first among those that fit. `most_free_memory` returns
    /// the most free memory of a host that has all else that is requested, and is none of those that the
    /// tasks avoid; `None` if there is no such host.
    pub(crate) fn best(
        &self,
        most_free_memory: impl FnMut(Request, &[u32]) -> Option<u64>,
    ) -> Option<ShapeId> {
        self.best_of(None, most_free_memory)
    }

    /// Like [`Queue::best`], only among the tasks of a share if there is one.
    pub(crate) fn best_of(
        &self,
        share: Option<ShareId>,
        mut most_free_memory: impl FnMut(Request, &[u32]) -> Option<u64>,
    ) -> Option<ShapeId> {
        let mut best = None;
        let mut best_key = Key::NONE;
        for class in &self.classes {
            if class.gang.is_some() || share.is_some_and(|share| share != class.share) {
                continue;
            }
            // Skips the search of hosts for a class that cannot win.
            if class.keys[class.winners[1] as usize] <= best_key {
                continue;
            }
            let Some(memory_mb) = most_free_memory(class.request, self.avoided_hosts(class.avoids)) else {
                continue;
            };
            let Some(leaf) = class.best(memory_mb) else {
                continue;
            };
            if class.keys[leaf] > best_key {
                best_key = class.keys[leaf];
                best = Some(class.shapes[leaf]);
            }
        }
        best
    }

    /// Lets the tasks of a category start, or wait. Linear in the number of its shapes.
    pub(crate) fn set_open(&mut self, nodes: &[Node], category: CategoryId, is_open: bool) {
        for place in 0..self.by_category[category.index()].len() {
            let id = self.by_category[category.index()][place];
            self.shapes[id.index()].is_open = is_open;
            self.update(nodes, id);
        }
    }

    /// Updates the key of a shape in its class.
    fn update(&mut self, nodes: &[Node], id: ShapeId) {
        let shape = &self.shapes[id.index()];
        let key = self.first_key(nodes, shape);
        self.classes[shape.class as usize].set(shape.leaf as usize, key);
    }

    /// Returns the key of a shape in its class.
    fn first_key(&self, nodes: &[Node], shape: &Shape) -> Key {
        if shape.is_open {
            self.key_of_first(nodes, shape)
        } else {
            Key::NONE
        }
    }

    fn key_of_first(&self, nodes: &[Node], shape: &Shape) -> Key {
        shape.filled.first().map_or(Key::NONE, |place| {
            let chain = &self.chains[shape.first_chain as usize + place];
            Key::new(chain.priority, nodes[chain.first as usize].place)
        })
    }

    /// Checks the chains and the trees and returns all queued tasks.
    #[cfg(test)]
    pub(crate) fn check(&self, nodes: &[Node]) -> Result<Vec<TaskId>, String> {
        let mut tasks = Vec::new();
        for (number, chain) in (0..).zip(&self.chains) {
            let shape = self.shape(chain.shape);
            let filled = shape.filled.contains((number - shape.first_chain) as usize);
            if filled != (chain.first != NO_TASK) {
                return Err(format!(
                    "chain {number} and its shape disagree whether it is filled"
                ));
            }
            let (mut at, mut last, mut place) = (chain.first, NO_TASK, 0);
            let before = tasks.len();
            while at != NO_TASK {
                let node = &nodes[at as usize];
                if node.chain != number || node.place <= place || tasks.len() == self.len {
                    return Err(format!("task {at} is in the wrong place of chain {number}"));
                }
                tasks.push(TaskId(at));
                (last, place, at) = (at, node.place, node.next);
            }
            if chain.last != last || chain.len as usize != tasks.len() - before {
                return Err(format!("chain {number} has the wrong last task or length"));
            }
        }
        for shape in &self.shapes {
            let class = &self.classes[shape.class as usize];
            if class.keys[shape.leaf as usize] != self.first_key(nodes, shape) {
                return Err(format!("{shape:?} and its class have different first tasks"));
            }
        }
        for class in &self.classes {
            let best = class.keys.iter().max().copied().unwrap_or(Key::NONE);
            if class.keys[class.winners[1] as usize] != best {
                let request = class.request;
                return Err(format!("the class of {request:?} has another first task"));
            }
        }
        self.check_avoided()?;
        if tasks.len() != self.len {
            return Err(format!(
                "{} tasks in the queue, but {} counted",
                tasks.len(),
                self.len
            ));
        }
        Ok(tasks)
    }
}

impl Class {
    fn new(share: ShareId, avoids: AvoidId, gang: Option<GangId>, request: Request) -> Self {
        Self {
            share,
            avoids,
            gang,
            request: Request {
                memory_mb: 0,
                ..request
            },
            shapes: Vec::new(),
            memories: Vec::new(),
            keys: Vec::new(),
            winners: Vec::new(),
        }
    }

    /// Returns whether a request is one of this class, but for its share and the hosts that it avoids.
    fn holds(&self, gang: Option<GangId>, request: Request) -> bool {
        let memory_mb = self.request.memory_mb;
        self.gang == gang && self.request == Request { memory_mb, ..request }
    }

    fn set_up(&mut self) {
        let width = self.shapes.len().next_power_of_two();
        self.keys = vec![Key::NONE; width];
        // The leaves are in the second half, their parents before them; the root is at 1.
        self.winners = vec![0; 2 * width];
        for (leaf, node) in self.winners[width..].iter_mut().enumerate() {
            *node = leaf as u32;
        }
        for node in (1..width).rev() {
            self.winners[node] = self.winners[2 * node];
        }
    }

    fn winner(&self, a: u32, b: u32) -> u32 {
        if self.keys[b as usize] > self.keys[a as usize] {
            b
        } else {
            a
        }
    }

    fn set(&mut self, leaf: usize, key: Key) {
        if self.keys[leaf] == key {
            return;
        }
        self.keys[leaf] = key;
        let mut node = (self.keys.len() + leaf) / 2;
        while node >= 1 {
            self.winners[node] = self.winner(self.winners[2 * node], self.winners[2 * node + 1]);
            node /= 2;
        }
    }

    /// Returns the winner among the shapes that request at most this much memory.
    fn best(&self, memory_mb: u64) -> Option<usize> {
        let root = self.winners[1];
        if self
            .memories
            .get(root as usize)
            .is_some_and(|needs| *needs <= memory_mb)
        {
            return Some(root as usize);
        }
        // Fewer than all, or the root would have fit.
        let count = self.memories.partition_point(|needs| *needs <= memory_mb);
        // Combines the subtrees that cover the leaves `0..count`, from the right.
        let mut best: Option<u32> = None;
        let mut end = self.keys.len() + count;
        let mut level_start = self.keys.len();
        while end > level_start {
            if !end.is_multiple_of(2) {
                end -= 1;
                let other = self.winners[end];
                best = Some(best.map_or(other, |best| self.winner(best, other)));
            }
            end /= 2;
            level_start /= 2;
        }
        best.map(|best| best as usize)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_class_finds_the_winner_among_shapes_that_fit(
            mut memories in proptest::collection::vec(0_u64..50, 1..20),
            keys in proptest::collection::vec((0_usize..20, 0_u128..30), 0..60),
            memory_mb in 0_u64..60,
        ) {
            memories.sort_unstable();
            memories.dedup();
            let mut class = Class::new(ShareId::default(), AvoidId::NONE, None, Request::default());
            class.shapes = (0..memories.len() as u32).map(ShapeId).collect();
            class.memories = memories.clone();
            class.set_up();
            let mut model = vec![0; memories.len()];
            for (leaf, key) in keys {
                model[leaf % memories.len()] = key;
                class.set(leaf % memories.len(), Key(key));
            }
            let fitting = (0..memories.len()).filter(|leaf| memories[*leaf] <= memory_mb);
            let expected = fitting.map(|leaf| model[leaf]).max();
            prop_assert_eq!(class.best(memory_mb).map(|leaf| class.keys[leaf].0), expected);
        }
    }

    #[test]
    fn keys_order_by_priority_then_age() {
        let mut keys = [
            (0, 5),
            (i64::MIN, 1),
            (3, 9),
            (0, 4),
            (-1, 1),
            (i64::MAX, 2),
            (3, 2),
        ];
        keys.sort_by_key(|(priority, place)| std::cmp::Reverse(Key::new(*priority, *place)));
        assert_eq!(
            keys,
            [
                (i64::MAX, 2),
                (3, 2),
                (3, 9),
                (0, 4),
                (0, 5),
                (-1, 1),
                (i64::MIN, 1)
            ]
        );
        assert!(Key::new(i64::MIN, u32::MAX) > Key::NONE);
    }
}
