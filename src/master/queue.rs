//! Tasks that are ready, indexed by what they ask for.
//!
//! Tasks that ask for the same memory and CPUs are of one *shape*: either the first of them fits
//! somewhere or none does, so only the first is ever looked at. Shapes with the same number of
//! CPUs form a *class*, ordered by memory; a tree over them finds, for a given free memory, the
//! shape whose first task comes first of all.
//!
//! Within a shape tasks are chained through one array, a chain per priority, so a ready task costs
//! 12 bytes wherever it is.

use std::collections::BTreeMap;

use pmc_dag::TaskId;
use rustc_hash::FxHashMap;

use crate::message::SubmitId;

/// Rank of a ready task: larger is taken first. Priority decides, then age.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key(u128);

impl Key {
    /// Less than every key of a task.
    const NONE: Self = Self(0);

    fn new(priority: i64, submit: u64) -> Self {
        // Shifts i64 to u64 in order; submit numbers begin at 1 and never come near the maximum.
        let priority = (priority as u64) ^ (1 << 63);
        Self(u128::from(priority) << 64 | u128::from(!submit))
    }
}

/// Number of a shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShapeId(u32);

#[derive(Debug)]
pub(crate) struct Shape {
    pub(crate) memory_mb: u64,
    pub(crate) cpus: u32,
    class: u32,
    /// Position in the class.
    leaf: u32,
    /// First and last task of each priority.
    chains: BTreeMap<i64, (u32, u32)>,
}

/// Shapes with one number of CPUs.
#[derive(Debug)]
struct Class {
    cpus: u32,
    /// Ascending by memory.
    shapes: Vec<ShapeId>,
    memories: Vec<u64>,
    /// Key of each shape's first task.
    keys: Vec<Key>,
    /// Tournament over the keys: a node is the position of the winner among its leaves.
    winners: Vec<u32>,
}

const NO_TASK: u32 = u32::MAX;

/// All ready tasks that have a submit number.
#[derive(Debug)]
pub(crate) struct Queue {
    shapes: Vec<Shape>,
    classes: Vec<Class>,
    shape_of: Vec<ShapeId>,
    /// Next task in the chain.
    next: Vec<u32>,
    /// Submit number of the last time the task was queued.
    submits: Vec<u64>,
    len: usize,
}

impl Queue {
    /// `requests` gives memory and CPUs of each task.
    pub(crate) fn new(requests: impl ExactSizeIterator<Item = (u64, u32)>) -> Self {
        let tasks = requests.len();
        let mut shapes: Vec<Shape> = Vec::new();
        let mut known = FxHashMap::default();
        let shape_of = requests
            .map(|(memory_mb, cpus)| {
                *known.entry((memory_mb, cpus)).or_insert_with(|| {
                    shapes.push(Shape {
                        memory_mb,
                        cpus,
                        class: 0,
                        leaf: 0,
                        chains: BTreeMap::new(),
                    });
                    ShapeId(shapes.len() as u32 - 1)
                })
            })
            .collect();
        let classes = classify(&mut shapes);
        Self {
            shapes,
            classes,
            shape_of,
            next: vec![NO_TASK; tasks],
            submits: vec![0; tasks],
            len: 0,
        }
    }

    pub(crate) fn shapes(&self) -> &[Shape] {
        &self.shapes
    }

    pub(crate) fn shape(&self, shape: ShapeId) -> &Shape {
        &self.shapes[shape.0 as usize]
    }

    /// Position of a task's shape in [`Queue::shapes`].
    pub(crate) fn shape_number(&self, task: TaskId) -> usize {
        self.shape_of[task.index()].0 as usize
    }

    pub(crate) fn shape_of(&self, task: TaskId) -> &Shape {
        self.shape(self.shape_of[task.index()])
    }

    /// Number of tasks in the queue.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Adds a task that is not in the queue. Submit numbers must be given in ascending order.
    pub(crate) fn push(&mut self, task: TaskId, priority: i64, submit: SubmitId) {
        let id = self.shape_of[task.index()];
        self.next[task.index()] = NO_TASK;
        self.submits[task.index()] = submit.0;
        self.len += 1;
        let chains = &mut self.shapes[id.0 as usize].chains;
        if let Some((_, last)) = chains.get_mut(&priority) {
            self.next[*last as usize] = task.0;
            *last = task.0;
        } else {
            chains.insert(priority, (task.0, task.0));
            self.update(id);
        }
    }

    /// Takes the first task of a shape.
    pub(crate) fn pop(&mut self, id: ShapeId) -> Option<(TaskId, SubmitId)> {
        let mut chain = self.shapes[id.0 as usize].chains.last_entry()?;
        let (first, last) = *chain.get();
        if first == last {
            chain.remove();
        } else {
            chain.get_mut().0 = self.next[first as usize];
        }
        self.len -= 1;
        self.update(id);
        Some((TaskId(first), SubmitId(self.submits[first as usize])))
    }

    /// The shape whose first task comes first of all that fit. `most_free_memory` says, for a
    /// number of CPUs, how much memory can be had together with them; nothing if the CPUs cannot.
    pub(crate) fn best(&self, most_free_memory: impl Fn(u32) -> Option<u64>) -> Option<ShapeId> {
        let mut best = None;
        let mut best_key = Key::NONE;
        for class in &self.classes {
            // What cannot win needs no look at the hosts.
            if class.keys[class.winners[1] as usize] <= best_key {
                continue;
            }
            let Some(memory_mb) = most_free_memory(class.cpus) else {
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

    fn update(&mut self, id: ShapeId) {
        let shape = &self.shapes[id.0 as usize];
        let key = shape
            .chains
            .last_key_value()
            .map_or(Key::NONE, |(priority, (first, _))| {
                Key::new(*priority, self.submits[*first as usize])
            });
        let (class, leaf) = (shape.class as usize, shape.leaf as usize);
        self.classes[class].set(leaf, key);
    }

    /// Checks the chains and the trees; gives all tasks of the queue.
    pub(crate) fn check(&self) -> Result<Vec<TaskId>, String> {
        let mut tasks = Vec::new();
        for (number, shape) in self.shapes.iter().enumerate() {
            let mut expected = Key::NONE;
            for (priority, (first, last)) in &shape.chains {
                expected = Key::new(*priority, self.submits[*first as usize]);
                let mut at = *first;
                loop {
                    tasks.push(TaskId(at));
                    if self.shape_of[at as usize].0 as usize != number {
                        return Err(format!("task {at} is queued under another shape"));
                    }
                    if at == *last {
                        break;
                    }
                    let next = self.next[at as usize];
                    if next == NO_TASK || tasks.len() > self.len {
                        return Err(format!("the chain of shape {number} does not end as it says"));
                    }
                    if self.submits[at as usize] >= self.submits[next as usize] {
                        return Err(format!("tasks {at} and {next} are in wrong order"));
                    }
                    at = next;
                }
            }
            let class = &self.classes[shape.class as usize];
            if class.keys[shape.leaf as usize] != expected {
                return Err(format!(
                    "shape {number} has another first task than its class says"
                ));
            }
        }
        for class in &self.classes {
            let best = class.keys.iter().max().copied().unwrap_or(Key::NONE);
            if class.keys[class.winners[1] as usize] != best {
                return Err(format!("the class of {} CPUs has another first task", class.cpus));
            }
        }
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

/// Orders the shapes into classes.
fn classify(shapes: &mut [Shape]) -> Vec<Class> {
    let mut order: Vec<u32> = (0..shapes.len() as u32).collect();
    order.sort_unstable_by_key(|id| (shapes[*id as usize].cpus, shapes[*id as usize].memory_mb));
    let mut classes: Vec<Class> = Vec::new();
    for id in order {
        let shape = &mut shapes[id as usize];
        if classes.last().is_none_or(|class| class.cpus != shape.cpus) {
            classes.push(Class {
                cpus: shape.cpus,
                shapes: Vec::new(),
                memories: Vec::new(),
                keys: Vec::new(),
                winners: Vec::new(),
            });
        }
        shape.class = classes.len() as u32 - 1;
        if let Some(class) = classes.last_mut() {
            shape.leaf = class.shapes.len() as u32;
            class.shapes.push(ShapeId(id));
            class.memories.push(shape.memory_mb);
        }
    }
    for class in &mut classes {
        class.set_up();
    }
    classes
}

impl Class {
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
        self.keys[leaf] = key;
        let mut node = (self.keys.len() + leaf) / 2;
        while node >= 1 {
            self.winners[node] = self.winner(self.winners[2 * node], self.winners[2 * node + 1]);
            node /= 2;
        }
    }

    /// The winner among the shapes that need at most so much memory.
    fn best(&self, memory_mb: u64) -> Option<usize> {
        let root = self.winners[1];
        if self
            .memories
            .get(root as usize)
            .is_some_and(|needs| *needs <= memory_mb)
        {
            return Some(root as usize);
        }
        let count = self.memories.partition_point(|needs| *needs <= memory_mb);
        // Leaves `0..count`, from the right: whole subtrees on the way up.
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
