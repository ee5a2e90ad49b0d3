//! Who has which file: what the master knows of the checkpoints on nodes, and what it orders therefore.
//!
//! A state machine without a clock or a socket. A file is *safe* when two nodes have it, a series when all of
//! its files are. Of each task, the newest complete series is made safe; the two newest safe ones and all
//! newer ones are kept. Nodes tell what they have as often as they like: the same words twice change nothing.

use std::collections::{BTreeMap, BTreeSet};

use super::{GivenFile, MasterSays, SavedFile};
use crate::{AllSeries, Prefix};

/// Number of a node: the first rank of its workers.
pub type NodeId = u32;

/// Orders to nodes, in the order in which they are sent.
pub type Orders = Vec<(NodeId, MasterSays)>;

/// Maximum files that a node gets at a time, and that it gives.
const MAX_TRANSFERS: usize = 2;

/// Number of safe series that are kept.
const KEPT: usize = 2;

/// The store and the directory of a task.
type TaskKey = (String, String);

/// A file within a task: series, prefix, rank.
type FileKey = (u64, Prefix, u32);

/// Who has which file.
#[derive(Debug, Default)]
pub struct Book {
    nodes: BTreeMap<NodeId, Node>,
    tasks: BTreeMap<TaskKey, Task>,
    /// Tasks of which a file waits for a copy.
    waiting: BTreeSet<TaskKey>,
}

#[derive(Debug, Default)]
struct Node {
    addresses: Vec<String>,
    is_silent: bool,
    /// Bytes of the files that it has.
    bytes: u64,
    /// Files that it gets or gives now.
    transfers: usize,
}

#[derive(Debug, Default)]
struct Task {
    all: AllSeries,
    files: BTreeMap<FileKey, File>,
    /// The attempt that has connected last, and the highest series before it.
    attempt: Option<(u64, u64)>,
    /// The newest series that was said to be safe.
    said_safe: u64,
}

#[derive(Debug)]
struct File {
    file: SavedFile,
    places: BTreeSet<NodeId>,
    /// Who gets a copy from whom.
    coming: Option<(NodeId, NodeId)>,
}

impl File {
    fn is_safe(&self) -> bool {
        self.places.len() >= 2
    }
}

impl Task {
    /// Returns the files of a series.
    fn series(&self, number: u64) -> impl Iterator<Item = &File> {
        let files = self.files.iter();
        files
            .filter(move |((series, ..), _)| *series == number)
            .map(|(_, file)| file)
    }

    fn is_safe(&self, number: u64) -> bool {
        self.series(number).all(File::is_safe)
    }
}

impl Book {
    /// Returns whether there is nothing in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty() && self.tasks.is_empty()
    }

    /// Notes a node, and where others find it. What it has said before does not hold.
    pub fn begin(&mut self, node: NodeId, addresses: Vec<String>, orders: &mut Orders) {
        self.lose(node, orders);
        let new = Node {
            addresses,
            ..Node::default()
        };
        self.nodes.insert(node, new);
        self.order_copies(orders);
    }

    /// The nodes that have begun.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> {
        self.nodes.keys().copied()
    }

    /// Notes that a node does not answer, or that it does again.
    pub fn silence(&mut self, node: NodeId, is_silent: bool, orders: &mut Orders) {
        if let Some(node) = self.nodes.get_mut(&node) {
            node.is_silent = is_silent;
        }
        self.order_copies(orders);
    }

    /// Notes that a node is lost, with all that it has.
    pub fn lose(&mut self, node: NodeId, orders: &mut Orders) {
        if self.nodes.remove(&node).is_none() {
            return;
        }
        let Self {
            nodes,
            tasks,
            waiting,
        } = self;
        for (key, task) in tasks {
            for file in task.files.values_mut() {
                let ended = file
                    .coming
                    .take_if(|(to, from)| *to == node || *from == node)
                    .is_some_and(|transfer| end_transfer(nodes, transfer));
                if file.places.remove(&node) || ended {
                    waiting.insert(key.clone());
                }
            }
        }
        self.order_copies(orders);
    }

    /// Notes that an attempt has connected with its node.
    fn begin_attempt(&mut self, key: TaskKey, submit: u64, last: u64) {
        let task = self.tasks.entry(key).or_default();
        task.attempt = Some((submit, last));
    }

    /// Notes that a node has a file.
    pub fn has(&mut self, node: NodeId, file: SavedFile, orders: &mut Orders) {
        let Some(holder) = self.nodes.get_mut(&node) else {
            return;
        };
        let key = (file.run.clone(), file.task.clone());
        let task = self.tasks.entry(key.clone()).or_default();
        let is_stale = task
            .attempt
            .is_some_and(|(submit, last)| file.series > last && file.submit != submit);
        if is_stale {
            // A node that was away had it. An attempt that did not know it has gone on from an older series,
            // and its own series have these numbers.
            orders.push((node, MasterSays::Discard(file)));
            return;
        }
        task.all.add(&file);
        let entry = (file.series, file.prefix.clone(), file.rank);
        let known = task.files.entry(entry).or_insert_with(|| File {
            file: file.clone(),
            places: BTreeSet::new(),
            coming: None,
        });
        if known.places.insert(node) {
            holder.bytes = holder.bytes.saturating_add(file.bytes);
        }
        if let Some(transfer) = known.coming.take_if(|(to, _)| *to == node) {
            end_transfer(&mut self.nodes, transfer);
        }
        self.waiting.insert(key.clone());
        self.settle(&key, orders);
        self.order_copies(orders);
    }

    /// Notes that a node has a file no more, or could not get it.
    pub fn has_not(&mut self, node: NodeId, file: &SavedFile, orders: &mut Orders) {
        let key = (file.run.clone(), file.task.clone());
        let entry = (file.series, file.prefix.clone(), file.rank);
        let task = self.tasks.get_mut(&key);
        let Some(known) = task.and_then(|task| task.files.get_mut(&entry)) else {
            return;
        };
        if known.places.remove(&node)
            && let Some(holder) = self.nodes.get_mut(&node)
        {
            holder.bytes = holder.bytes.saturating_sub(file.bytes);
        }
        let failed = known.coming.take_if(|(to, _)| *to == node);
        if let Some(transfer) = failed {
            end_transfer(&mut self.nodes, transfer);
            // Its disk is full, perhaps: others come first from now on.
            if let Some(holder) = self.nodes.get_mut(&node) {
                holder.bytes = u64::MAX;
            }
        }
        self.waiting.insert(key);
        self.order_copies(orders);
    }

    /// Notes that a series is not to be given any more.
    pub fn withhold(&mut self, run: &str, task: &str, series: u64, reason: String) {
        if let Some(task) = self.tasks.get_mut(&(run.to_owned(), task.to_owned())) {
            task.all.withhold(series, reason);
        }
    }

    /// Returns the highest series of a task, and the newest one all of whose files can be had, for an attempt
    /// on a node that has connected. `flushed` is the highest series of the task in the store beside the DAG
    /// file.
    pub fn want(
        &mut self,
        node: NodeId,
        (run, task): (&str, &str),
        submit: u64,
        flushed: u64,
    ) -> (u64, Option<(u64, Vec<GivenFile>)>) {
        let key = (run.to_owned(), task.to_owned());
        let known = self.tasks.get(&key);
        let last = known.map_or(0, |task| task.all.last()).max(flushed);
        let series = known.and_then(|task| {
            let good = task.all.good().into_iter().rev();
            good.filter_map(|number| Some((number, self.sources(task, number, node)?)))
                .next()
        });
        self.begin_attempt(key, submit, last);
        (last, series)
    }

    /// Returns where the files of a series are, if all of them can be had.
    fn sources(&self, task: &Task, number: u64, node: NodeId) -> Option<Vec<GivenFile>> {
        let given = task.series(number).map(|file| {
            let others = file.places.iter().filter(|place| **place != node);
            let sources = others.filter_map(|place| self.address(*place)).collect();
            let given = GivenFile {
                file: file.file.clone(),
                is_here: file.places.contains(&node),
                sources,
            };
            (given.is_here || !given.sources.is_empty()).then_some(given)
        });
        given.collect()
    }

    /// Returns where a node is found, if it answers.
    fn address(&self, node: NodeId) -> Option<Vec<String>> {
        let node = self.nodes.get(&node).filter(|node| !node.is_silent)?;
        Some(node.addresses.clone()).filter(|addresses| !addresses.is_empty())
    }

    /// Returns the newest series of a task all of whose files can be had, if it is newer than another one.
    #[must_use]
    pub fn newest(&self, run: &str, task: &str, than: u64) -> Option<(u64, Vec<GivenFile>)> {
        let task = self.tasks.get(&(run.to_owned(), task.to_owned()))?;
        let good = task.all.good().into_iter().rev();
        good.take_while(|number| *number > than)
            .filter_map(|number| Some((number, self.sources(task, number, NodeId::MAX)?)))
            .next()
    }

    /// Directories of the tasks that have saved something in a store.
    pub fn tasks(&self, run: &str) -> impl Iterator<Item = &str> {
        let of = self.tasks.keys().filter(move |(of, _)| of == run);
        of.map(|(_, task)| task.as_str())
    }

    /// Forgets a task: it is done. Nodes remove what they have of it.
    pub fn done(&mut self, run: &str, task: &str, orders: &mut Orders) {
        let key = (run.to_owned(), task.to_owned());
        self.waiting.remove(&key);
        if self.tasks.contains_key(&key) {
            self.remove_below(&key, u64::MAX, orders);
            self.tasks.remove(&key);
            self.order_copies(orders);
        }
    }

    /// Says that a series is safe, and removes those that are not needed any more.
    fn settle(&mut self, key: &TaskKey, orders: &mut Orders) {
        let Some(task) = self.tasks.get_mut(key) else {
            return;
        };
        let safe: Vec<u64> = task.all.good();
        let safe: Vec<u64> = safe.into_iter().filter(|number| task.is_safe(*number)).collect();
        let newest = safe.last().copied().unwrap_or(0);
        if newest > task.said_safe {
            task.said_safe = newest;
            let places: BTreeSet<NodeId> = task
                .series(newest)
                .flat_map(|file| file.places.iter().copied())
                .collect();
            let (run, task) = key.clone();
            orders.extend(places.into_iter().map(|node| {
                let (run, task) = (run.clone(), task.clone());
                let series = newest;
                (node, MasterSays::Safe { run, task, series })
            }));
        }
        let oldest = safe.len().checked_sub(KEPT).and_then(|at| safe.get(at));
        if let Some(oldest) = oldest.copied() {
            self.remove_below(key, oldest, orders);
        }
    }

    /// Has nodes remove the series of a task below a number.
    fn remove_below(&mut self, key: &TaskKey, below: u64, orders: &mut Orders) {
        let Self { nodes, tasks, .. } = self;
        let Some(task) = tasks.get_mut(key) else { return };
        let mut receivers = BTreeSet::new();
        task.files.retain(|(series, ..), file| {
            if *series >= below {
                return true;
            }
            for place in &file.places {
                receivers.insert(*place);
                if let Some(node) = nodes.get_mut(place) {
                    node.bytes = node.bytes.saturating_sub(file.file.bytes);
                }
            }
            if let Some(transfer) = file.coming {
                receivers.insert(transfer.0);
                end_transfer(nodes, transfer);
            }
            false
        });
        let old: Vec<u64> = task.all.iter().map(|(number, _)| number).collect();
        old.into_iter()
            .filter(|number| *number < below)
            .for_each(|number| task.all.remove(number));
        let (run, task) = key;
        orders.extend(receivers.into_iter().map(|node| {
            let (run, task) = (run.clone(), task.clone());
            (node, MasterSays::Drop { run, task, below })
        }));
    }

    /// Orders copies, as far as nodes have time for them.
    fn order_copies(&mut self, orders: &mut Orders) {
        let Self {
            nodes,
            tasks,
            waiting,
        } = self;
        waiting.retain(|key| {
            let Some(task) = tasks.get_mut(key) else {
                return false;
            };
            let Some(newest) = task.all.good().pop() else {
                return false;
            };
            let mut waits = false;
            let files = task
                .files
                .iter_mut()
                .filter(|((series, ..), _)| *series == newest);
            for (_, file) in files {
                if !file.is_safe() && file.coming.is_none() {
                    match order_copy(nodes, file) {
                        Some(order) => orders.push(order),
                        None => waits = true,
                    }
                }
            }
            waits
        });
    }
}

/// Notes that a transfer has ended. Always true.
fn end_transfer(nodes: &mut BTreeMap<NodeId, Node>, (to, from): (NodeId, NodeId)) -> bool {
    for node in [to, from] {
        if let Some(node) = nodes.get_mut(&node) {
            node.transfers = node.transfers.saturating_sub(1);
        }
    }
    true
}

/// Orders a copy of a file on the node that has least, if there is one that can get it now.
fn order_copy(nodes: &mut BTreeMap<NodeId, Node>, file: &mut File) -> Option<(NodeId, MasterSays)> {
    let is_free = |node: &Node| !node.is_silent && node.transfers < MAX_TRANSFERS;
    let gives = |node: &Node| is_free(node) && !node.addresses.is_empty();
    let from = file
        .places
        .iter()
        .copied()
        .find(|place| nodes.get(place).is_some_and(gives))?;
    let others = nodes.iter().filter(|(node, _)| !file.places.contains(node));
    let free = others.filter(|(_, node)| is_free(node));
    let to = free
        .min_by_key(|(_, node)| (node.bytes, node.transfers))
        .map(|(node, _)| *node)?;
    let sources = nodes.get(&from).map(|node| vec![node.addresses.clone()])?;
    for node in [to, from] {
        if let Some(node) = nodes.get_mut(&node) {
            node.transfers += 1;
        }
    }
    file.coming = Some((to, from));
    let file = file.file.clone();
    Some((to, MasterSays::Copy { file, sources }))
}

#[cfg(test)]
mod tests;
