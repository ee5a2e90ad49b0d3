//! Who has which file: what the master knows of the checkpoints on nodes, and what it orders therefore.
//!
//! A state machine without a clock or a socket. A file is *safe* when two nodes have it, or the store beside
//! the DAG file; a series when all of its files are. Of each task, the newest complete series is made safe;
//! the two newest safe ones and all newer ones are kept. Nodes tell what they have as often as they like: the
//! same words twice change nothing. What goes into the store decides [`flush`].

mod central;
mod flush;

use std::collections::{BTreeMap, BTreeSet};

use self::central::Central;
use self::flush::{Flush, Flushes, InStore};
use super::{GivenFile, MasterSays, SavedFile};
use crate::{AllSeries, Prefix};

pub use self::flush::StoreJob;

/// Number of a node: the first rank of its workers.
pub type NodeId = u32;

/// Orders to nodes, in the order in which they are sent.
pub type Orders = Vec<(NodeId, MasterSays)>;

/// Maximum files that a node gets at a time, and that it gives.
const MAX_TRANSFERS: usize = 2;

/// How often nodes could not get a file before no more are asked to, until another node comes.
const MAX_FAILURES: u32 = 8;

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
    flushes: Flushes,
    central: Central,
    /// Where nodes find the files of the store that do not see it.
    store_addresses: Vec<String>,
}

#[derive(Debug, Default)]
struct Node {
    addresses: Vec<String>,
    is_silent: bool,
    /// It is to end soon: what only it has is lost then.
    is_leaving: bool,
    /// It can write into the store.
    sees_store: bool,
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
    flush: Flush,
}

#[derive(Debug)]
struct File {
    file: SavedFile,
    places: BTreeSet<NodeId>,
    /// Who gets a copy from whom.
    coming: Option<(NodeId, NodeId)>,
    in_store: InStore,
    /// How often a node could not get it.
    failures: u32,
}

impl File {
    fn new(file: SavedFile) -> Self {
        Self {
            file,
            places: BTreeSet::new(),
            coming: None,
            in_store: InStore::No,
            failures: 0,
        }
    }

    /// Returns whether nobody has it.
    fn is_lost(&self) -> bool {
        self.places.is_empty() && self.in_store == InStore::No
    }

    /// Returns whether the loss of any node leaves the file.
    fn is_safe(&self, nodes: &BTreeMap<NodeId, Node>) -> bool {
        self.in_store == InStore::Kept || self.lasting(nodes) >= 2
    }

    /// Number of nodes that have it, and that do not end soon.
    fn lasting(&self, nodes: &BTreeMap<NodeId, Node>) -> usize {
        let lasts = |place: &&NodeId| nodes.get(place).is_some_and(|node| !node.is_leaving);
        self.places.iter().filter(lasts).count()
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

    /// Returns the newest series that may be given, and all of whose files are somewhere.
    fn newest(&self) -> Option<u64> {
        let is_there = |number: &u64| self.series(*number).all(|file| !file.is_lost());
        self.all.good().into_iter().rev().find(is_there)
    }

    /// Forgets the files below a number that are nowhere, and series that have no others.
    fn forget_missing(&mut self, below: u64) {
        self.files
            .retain(|(series, ..), file| *series >= below || !file.is_lost());
        let kept: BTreeSet<u64> = self.files.keys().map(|(series, ..)| *series).collect();
        let all: Vec<u64> = self.all.iter().map(|(number, _)| number).collect();
        let old = all
            .into_iter()
            .filter(|number| *number < below && !kept.contains(number));
        old.for_each(|number| self.all.remove(number));
    }

    fn is_safe(&self, number: u64, nodes: &BTreeMap<NodeId, Node>) -> bool {
        self.series(number).all(|file| file.is_safe(nodes))
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
        for (key, task) in &mut self.tasks {
            for file in task.files.values_mut().filter(|file| file.failures > 0) {
                file.failures = 0;
                self.waiting.insert(key.clone());
            }
        }
        self.order_copies(orders);
        self.order_flushes();
    }

    /// Notes that a node can write into the store.
    pub fn note_sight(&mut self, node: NodeId) {
        if let Some(node) = self.nodes.get_mut(&node) {
            node.sees_store = true;
        }
    }

    /// Notes where nodes find the files of the store that do not see it.
    pub fn serve_store(&mut self, addresses: Vec<String>) {
        self.store_addresses = addresses;
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
        self.order_flushes();
    }

    /// Notes that a node is to end soon: others get what it has.
    pub fn leave(&mut self, node: NodeId, orders: &mut Orders) {
        let Some(leaving) = self.nodes.get_mut(&node).filter(|node| !node.is_leaving) else {
            return;
        };
        leaving.is_leaving = true;
        let has = |task: &Task| task.files.values().any(|file| file.places.contains(&node));
        let of_node = self.tasks.iter().filter(|(_, task)| has(task));
        let keys: Vec<TaskKey> = of_node.map(|(key, _)| key.clone()).collect();
        self.waiting.extend(keys.iter().cloned());
        self.order_copies(orders);
        keys.iter().for_each(|key| self.consider_flush(key));
        self.order_flushes();
    }

    /// Returns the nodes that are to end soon, and whose newest series others have, too.
    #[must_use]
    pub fn free_nodes(&self) -> BTreeSet<NodeId> {
        let leaving = self.nodes.iter().filter(|(_, node)| node.is_leaving);
        let mut free: BTreeSet<NodeId> = leaving.map(|(node, _)| *node).collect();
        if free.is_empty() {
            return free;
        }
        for task in self.tasks.values() {
            let newest = task.newest();
            let files = newest.into_iter().flat_map(|number| task.series(number));
            for file in files.filter(|file| file.in_store != InStore::Kept) {
                if file.lasting(&self.nodes) == 0 {
                    file.places.iter().for_each(|place| _ = free.remove(place));
                }
            }
        }
        free
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
            ..
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
        self.lose_flushes(node);
        self.order_copies(orders);
        self.order_flushes();
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
        let known = task.files.entry(entry).or_insert_with(|| File::new(file.clone()));
        if known.places.insert(node) {
            holder.bytes = holder.bytes.saturating_add(file.bytes);
        }
        if let Some(transfer) = known.coming.take_if(|(to, _)| *to == node) {
            end_transfer(&mut self.nodes, transfer);
        }
        self.waiting.insert(key.clone());
        self.settle(&key, orders);
        self.order_copies(orders);
        self.consider_flush(&key);
        self.order_flushes();
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
            known.failures += 1;
            end_transfer(&mut self.nodes, transfer);
            // Its disk is full, perhaps: others come first from now on.
            if let Some(holder) = self.nodes.get_mut(&node) {
                holder.bytes = u64::MAX;
            }
        }
        self.waiting.insert(key.clone());
        self.order_copies(orders);
        // Perhaps only the store can hold it.
        self.consider_flush(&key);
        self.order_flushes();
    }

    /// Notes that a series is not to be given any more.
    pub fn withhold(&mut self, run: &str, task: &str, series: u64, reason: String) {
        let task = self.tasks.entry((run.to_owned(), task.to_owned()));
        task.or_default().all.withhold(series, reason);
    }

    /// Returns the highest series of a task, and the newest one all of whose files can be had, for an attempt
    /// on a node that has connected.
    pub fn want(
        &mut self,
        node: NodeId,
        (run, task): (&str, &str),
        submit: u64,
    ) -> (u64, Option<(u64, Vec<GivenFile>)>) {
        let key = (run.to_owned(), task.to_owned());
        let known = self.tasks.get(&key);
        let last = known.map_or(0, |task| task.all.last());
        let series = known.and_then(|task| {
            let good = task.all.good().into_iter().rev();
            good.filter_map(|number| Some((number, self.sources(task, number, node)?)))
                .next()
        });
        self.begin_attempt(key, submit, last);
        (last, series)
    }

    /// Returns the nodes that have files of the newest series of a task, and the bytes of all of its files.
    #[must_use]
    pub fn holders(&self, run: &str, task: &str) -> (u64, BTreeSet<NodeId>) {
        let task = self.tasks.get(&(run.to_owned(), task.to_owned()));
        let Some((task, newest)) = task.and_then(|task| Some((task, task.newest()?))) else {
            return (0, BTreeSet::new());
        };
        let bytes = task.series(newest).map(|file| file.file.bytes).sum();
        let nodes = task.series(newest).flat_map(|file| file.places.iter().copied());
        (bytes, nodes.collect())
    }

    /// Returns where the files of a series are, if all of them can be had.
    fn sources(&self, task: &Task, number: u64, node: NodeId) -> Option<Vec<GivenFile>> {
        let given = task.series(number).map(|file| {
            let others = file.places.iter().filter(|place| **place != node);
            let mut sources: Vec<_> = others.filter_map(|place| self.address(*place)).collect();
            let is_in_store = file.in_store == InStore::Kept;
            if is_in_store && !self.store_addresses.is_empty() {
                sources.push(self.store_addresses.clone());
            }
            let sees = is_in_store && self.nodes.get(&node).is_some_and(|node| node.sees_store);
            let given = GivenFile {
                file: file.file.clone(),
                is_here: file.places.contains(&node),
                sources,
            };
            (given.is_here || sees || !given.sources.is_empty()).then_some(given)
        });
        given.collect()
    }

    /// Returns where a node is found, if it answers.
    fn address(&self, node: NodeId) -> Option<Vec<String>> {
        let node = self.nodes.get(&node).filter(|node| !node.is_silent)?;
        Some(node.addresses.clone()).filter(|addresses| !addresses.is_empty())
    }

    /// Forgets a task: it is done. Nodes remove what they have of it.
    pub fn done(&mut self, run: &str, task: &str, orders: &mut Orders) {
        let key = (run.to_owned(), task.to_owned());
        self.waiting.remove(&key);
        if self.tasks.contains_key(&key) {
            self.end_flush(&key);
            self.remove_below(&key, u64::MAX, orders);
            self.tasks.remove(&key);
            self.order_copies(orders);
            self.order_flushes();
        }
    }

    /// Says that a series is safe, and removes those that are not needed any more.
    fn settle(&mut self, key: &TaskKey, orders: &mut Orders) {
        let Self { nodes, tasks, .. } = self;
        let Some(task) = tasks.get_mut(key) else {
            return;
        };
        let mut safe: Vec<u64> = task.all.good();
        safe.retain(|number| task.is_safe(*number, nodes));
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
        let oldest = safe.len().checked_sub(KEPT).and_then(|at| safe.get(at)).copied();
        let flushed = task.flush.series();
        if let Some(oldest) = oldest {
            // Nodes keep what is on its way into the store.
            let below = flushed.map_or(oldest, |flushed| flushed.min(oldest));
            self.remove_below(key, below, orders);
        }
    }

    /// Has nodes remove the series of a task below a number. What the store has stays there.
    fn remove_below(&mut self, key: &TaskKey, below: u64, orders: &mut Orders) {
        let Self { nodes, tasks, .. } = self;
        let Some(task) = tasks.get_mut(key) else { return };
        let mut receivers = BTreeSet::new();
        for (_, file) in task.files.iter_mut().filter(|((series, ..), _)| *series < below) {
            for place in &file.places {
                receivers.insert(*place);
                if let Some(node) = nodes.get_mut(place) {
                    node.bytes = node.bytes.saturating_sub(file.file.bytes);
                }
            }
            file.places.clear();
            if let Some(transfer) = file.coming.take() {
                receivers.insert(transfer.0);
                end_transfer(nodes, transfer);
            }
        }
        task.forget_missing(below);
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
            central,
            ..
        } = self;
        if central.is_store() {
            return waiting.clear();
        }
        waiting.retain(|key| {
            let Some(task) = tasks.get_mut(key) else {
                return false;
            };
            let Some(newest) = task.newest() else {
                return false;
            };
            let mut waits = false;
            let files = task
                .files
                .iter_mut()
                .filter(|((series, ..), _)| *series == newest);
            for (_, file) in files {
                if !file.is_safe(nodes) && file.coming.is_none() && file.failures < MAX_FAILURES {
                    match order_copy(nodes, file, central) {
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

/// Orders a copy of a file on a node that was chosen for that, else on the node that has least, if there is
/// one that can get it now.
fn order_copy(
    nodes: &mut BTreeMap<NodeId, Node>,
    file: &mut File,
    central: &Central,
) -> Option<(NodeId, MasterSays)> {
    let is_free = |node: &Node| !node.is_silent && node.transfers < MAX_TRANSFERS;
    let gives = |node: &Node| is_free(node) && !node.addresses.is_empty();
    let from = file
        .places
        .iter()
        .copied()
        .find(|place| nodes.get(place).is_some_and(gives))?;
    let others = nodes.iter().filter(|(node, _)| !file.places.contains(node));
    let free = others.filter(|(_, node)| is_free(node) && !node.is_leaving);
    let lateness = central.lateness(from);
    let to = free
        .min_by_key(|(number, node)| (lateness(**number), node.bytes, node.transfers))
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
