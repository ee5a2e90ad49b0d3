//! The flush: what goes from nodes into the store beside the DAG file, and when.
//!
//! A series is flushed when it is the tenth after the last one that was, but not again within ten minutes;
//! when only one node could hold it, or the store is chosen for all; and, as soon as the run is to end, when
//! it is the newest of its task. Its files are written by a node that sees the store, or by the master, into
//! a directory that does not count. When all are there, the directory gets the name of the series.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{Book, File, KEPT, MAX_FAILURES, MAX_TRANSFERS, Node, NodeId, Orders, Task, TaskKey};
use crate::nodes::SavedFile;

/// Number of series after which the next one is flushed.
const EACH: u64 = 10;

/// Minimum time between two flushes of a task.
const INTERVAL: Duration = Duration::from_secs(600);

/// Pause after a flush that has failed.
const PAUSE: Duration = Duration::from_secs(60);

/// How often the master tries to get a file before a flush is given up.
const MAX_TRIES: u32 = 3;

/// Maximum files that the master gets at a time.
const MAX_OF_MASTER: usize = 4;

/// What is to be done with the store beside a DAG file.
#[derive(Clone, Debug, PartialEq)]
pub enum StoreJob {
    /// Bring a file of a series that is flushed.
    Bring {
        /// The node that does it; `None` for the master.
        by: Option<NodeId>,
        /// Number of the transfer, which [`Book::brought`] gets with its result.
        transfer: u64,
        /// The file.
        file: SavedFile,
        /// Where it is; empty if this node has it.
        sources: Vec<Vec<String>>,
    },
    /// All files of a series are there: it counts from now on.
    Accept {
        /// The id of the store.
        run: String,
        /// Directory of the task.
        task: String,
        /// Number of the series.
        series: u64,
        /// Submit number of the attempt that has written it.
        submit: u64,
    },
    /// Remove the series of a task below a number.
    Remove {
        /// The id of the store.
        run: String,
        /// Directory of the task.
        task: String,
        /// The first series that stays.
        below: u64,
    },
}

/// A transfer into the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Transfer {
    /// Its number: results of others do not count, as they may be of a node that is lost.
    number: u64,
    /// Who writes; `None` for the master.
    by: Option<NodeId>,
    /// Whose file it is.
    from: NodeId,
}

/// Whether the store has a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum InStore {
    #[default]
    No,
    /// It is on its way.
    Coming(Transfer),
    /// It is there, and counts when the others of its series are there, too.
    Arrived,
    /// It counts.
    Kept,
}

/// The flushes of a task.
#[derive(Debug, Default)]
pub(super) struct Flush {
    /// The series that is flushed now, and its place in the queue.
    current: Option<(u64, QueueKey)>,
    /// All of its files have arrived, and it is to be accepted.
    is_accepting: bool,
    /// How often the master could not get a file of it.
    tries: u32,
    /// What the store has.
    kept: BTreeSet<u64>,
    /// When the last flush began.
    begun: Option<Duration>,
    /// When the last flush that has failed ended.
    failed: Option<Duration>,
    /// When the newest series in the store was closed, before that the first of all: seconds since 1970.
    since: Option<f64>,
}

/// What the master counts of transfers.
#[derive(Debug, Default)]
struct OfMaster {
    /// Files that it gets now.
    running: usize,
    /// Number of the last transfer of all.
    last: u64,
}

/// Those that lose most come first.
type QueueKey = (Reverse<u64>, TaskKey);

/// The flushes of all tasks.
#[derive(Debug, Default)]
pub(super) struct Flushes {
    now: Duration,
    /// Number of nodes of which some have not begun, perhaps.
    awaited: usize,
    /// The run is to end: each newest series is flushed.
    are_all: bool,
    queue: BTreeSet<QueueKey>,
    of_master: OfMaster,
    jobs: Vec<StoreJob>,
    /// Counts what has happened.
    progress: u64,
}

impl Flush {
    /// The series that is flushed now.
    pub(super) fn series(&self) -> Option<u64> {
        self.current.as_ref().map(|(series, _)| *series)
    }

    fn is_due(&self, newest: u64, now: Duration) -> bool {
        let since = |at: Option<Duration>, pause| at.is_none_or(|at| now.saturating_sub(at) >= pause);
        let last = self.kept.last().copied().unwrap_or(0);
        newest.saturating_sub(last) >= EACH && since(self.begun, INTERVAL)
    }

    fn rests(&self, now: Duration) -> bool {
        self.failed.is_some_and(|at| now.saturating_sub(at) < PAUSE)
    }
}

/// Begins or ends a transfer on both sides.
fn count(nodes: &mut BTreeMap<NodeId, Node>, of_master: &mut OfMaster, transfer: Transfer, begins: bool) {
    let change = |count: &mut usize| {
        *count = if begins {
            *count + 1
        } else {
            count.saturating_sub(1)
        };
    };
    let Transfer { by, from, .. } = transfer;
    match by {
        None => change(&mut of_master.running),
        Some(by) if by != from => {
            if let Some(node) = nodes.get_mut(&by) {
                change(&mut node.transfers);
            }
        }
        Some(_) => {}
    }
    if let Some(node) = nodes.get_mut(&from) {
        change(&mut node.transfers);
    }
}

impl Book {
    /// Notes the time since some moment that stays the same.
    pub fn set_time(&mut self, now: Duration) {
        self.flushes.now = now;
    }

    /// Notes how many nodes there are. As long as not all have begun, others may hold what one has.
    pub fn await_nodes(&mut self, number: usize) {
        self.flushes.awaited = number;
    }

    /// Takes what is to be done with the store, in this order.
    pub fn take_jobs(&mut self) -> Vec<StoreJob> {
        std::mem::take(&mut self.flushes.jobs)
    }

    /// Flushes the newest series of each task, and newer ones that come: the run is to end.
    pub fn flush_all(&mut self) {
        self.flushes.are_all = true;
        let keys: Vec<TaskKey> = self.tasks.keys().cloned().collect();
        for key in &keys {
            if let Some(task) = self.tasks.get_mut(key) {
                // It is tried once more in any case.
                task.flush.failed = None;
            }
            self.consider_flush(key);
        }
        self.order_flushes();
    }

    /// Number of tasks with a series that is flushed now.
    #[must_use]
    pub fn flushes(&self) -> usize {
        self.flushes.queue.len()
    }

    /// A number that changes when a flush gets on.
    #[must_use]
    pub fn progress(&self) -> u64 {
        self.flushes.progress
    }

    /// Returns the tasks whose newest complete series is not in the store: id of the store, directory.
    pub fn unflushed(&self) -> impl Iterator<Item = (&str, &str)> {
        let of = self.tasks.iter().filter(|(_, task)| {
            let newest = task.newest();
            newest.is_some_and(|newest| !task.flush.kept.contains(&newest))
        });
        of.map(|((run, task), _)| (run.as_str(), task.as_str()))
    }

    /// Notes a file that the store has, as part of a series that counts.
    pub fn in_store(&mut self, file: SavedFile) {
        let key = (file.run.clone(), file.task.clone());
        let task = self.tasks.entry(key).or_default();
        task.all.add(&file);
        task.flush.kept.insert(file.series);
        task.flush.since = Some(task.flush.since.unwrap_or(0.0).max(file.closed));
        let entry = (file.series, file.prefix.clone(), file.rank);
        let known = task.files.entry(entry).or_insert_with(|| File::new(file.clone()));
        if known.file.submit != file.submit {
            // A node has one of an attempt that does not count.
            known.places.clear();
            known.file = file;
        }
        // What is still said to come is counted as a transfer.
        if !matches!(known.in_store, InStore::Coming(_)) {
            known.in_store = InStore::Kept;
        }
    }

    /// Notes that a file was brought into the store, or that it could not be. Returns whether its flush is
    /// given up therefore.
    pub fn brought(&mut self, by: Option<NodeId>, number: u64, file: &SavedFile, is_there: bool) -> bool {
        let key = (file.run.clone(), file.task.clone());
        let entry = (file.series, file.prefix.clone(), file.rank);
        let task = self.tasks.get_mut(&key);
        let Some(known) = task.and_then(|task| task.files.get_mut(&entry)) else {
            return false;
        };
        // Others do not count any more: a node was lost, and the file is brought from another, or by another.
        let InStore::Coming(transfer) = known.in_store else {
            return false;
        };
        if transfer.number != number || transfer.by != by || known.file != *file {
            return false;
        }
        known.in_store = if is_there { InStore::Arrived } else { InStore::No };
        count(&mut self.nodes, &mut self.flushes.of_master, transfer, false);
        self.flushes.progress += 1;
        let mut gives_up = false;
        if !is_there {
            match by.and_then(|by| self.nodes.get_mut(&by)) {
                // Others do it from now on, at last the master.
                Some(node) => node.sees_store = false,
                None => gives_up = self.count_failure(&key),
            }
        }
        self.order_flushes();
        gives_up
    }

    /// Notes that a series counts in the store from now on, or that it could not be accepted.
    pub fn accepted(&mut self, run: &str, task: &str, series: u64, is_there: bool, orders: &mut Orders) {
        let key = (run.to_owned(), task.to_owned());
        self.flushes.progress += 1;
        let Some(task) = self.tasks.get_mut(&key) else {
            return;
        };
        if task.flush.series() != Some(series) {
            return;
        }
        if !is_there {
            self.fail_flush(&key);
            return;
        }
        let mut closed = 0.0_f64;
        for ((number, ..), file) in &mut task.files {
            if *number == series {
                file.in_store = InStore::Kept;
                closed = closed.max(file.file.closed);
            }
        }
        task.flush.since = Some(closed);
        task.flush.kept.insert(series);
        let oldest = task.flush.kept.iter().rev().nth(KEPT - 1).copied();
        if let Some(below) = oldest.filter(|oldest| task.flush.kept.first() < Some(oldest)) {
            task.flush.kept.retain(|number| *number >= below);
            let old = task.files.iter_mut().filter(|((number, ..), _)| *number < below);
            old.for_each(|(_, file)| file.in_store = InStore::No);
            task.forget_missing(below);
            let (run, task) = key.clone();
            self.flushes.jobs.push(StoreJob::Remove { run, task, below });
        }
        self.end_flush(&key);
        self.settle(&key, orders);
        self.consider_flush(&key);
        self.order_flushes();
    }

    /// Begins to flush the newest series of a task, if it is time for that.
    pub(super) fn consider_flush(&mut self, key: &TaskKey) {
        let Self {
            nodes,
            tasks,
            flushes,
            central,
            ..
        } = self;
        let Some(task) = tasks.get_mut(key) else { return };
        let Some(newest) = task.newest() else { return };
        let closed = task.all.get(newest).map_or(0.0, |series| series.closed());
        let since = *task.flush.since.get_or_insert(closed);
        let is_there = task.flush.kept.contains(&newest);
        if task.flush.current.is_some() || is_there || task.flush.rests(flushes.now) {
            return;
        }
        let has_place = |file: &File| {
            let others = nodes.iter().filter(|(_, node)| !node.is_leaving);
            let mut others = others.filter(|(node, _)| !file.places.contains(node));
            file.is_safe(nodes) || (file.failures < MAX_FAILURES && others.next().is_some())
        };
        let can_be_held = nodes.len() < flushes.awaited || task.series(newest).all(has_place);
        if flushes.are_all || central.is_store() || !can_be_held || task.flush.is_due(newest, flushes.now) {
            let ranks = task.series(newest).map(|file| file.file.ranks).max().unwrap_or(1);
            let lost = (closed - since).max(0.0) * f64::from(ranks) * 1e3;
            // Times of the far future are no reason to fail.
            let place = (Reverse(lost as u64), key.clone());
            flushes.queue.insert(place.clone());
            task.flush.current = Some((newest, place));
            task.flush.tries = 0;
            task.flush.begun = Some(flushes.now);
        }
    }

    /// Notes that a node is lost that writes into the store, or whose files are written.
    pub(super) fn lose_flushes(&mut self, lost: NodeId) {
        let Self {
            nodes,
            tasks,
            flushes,
            ..
        } = self;
        for (_, key) in &flushes.queue {
            let files = tasks.get_mut(key).map(|task| task.files.values_mut());
            for file in files.into_iter().flatten() {
                if let InStore::Coming(transfer) = file.in_store
                    && (transfer.by == Some(lost) || transfer.from == lost)
                {
                    count(nodes, &mut flushes.of_master, transfer, false);
                    file.in_store = InStore::No;
                }
            }
        }
    }

    /// Gives up the flush of a task that has failed too often. Returns whether that is so.
    fn count_failure(&mut self, key: &TaskKey) -> bool {
        let Some(task) = self.tasks.get_mut(key) else {
            return false;
        };
        task.flush.tries += 1;
        let gives_up = task.flush.tries >= MAX_TRIES;
        if gives_up {
            self.fail_flush(key);
        }
        gives_up
    }

    /// Gives up the flush of a task.
    fn fail_flush(&mut self, key: &TaskKey) {
        let now = self.flushes.now;
        self.end_flush(key);
        if let Some(task) = self.tasks.get_mut(key) {
            task.flush.failed = Some(now);
        }
    }

    /// Ends the flush of a task. What has not come does not count.
    pub(super) fn end_flush(&mut self, key: &TaskKey) {
        let Self {
            nodes,
            tasks,
            flushes,
            ..
        } = self;
        let Some(task) = tasks.get_mut(key) else { return };
        if let Some((_, place)) = task.flush.current.take() {
            flushes.queue.remove(&place);
        }
        task.flush.is_accepting = false;
        for file in task.files.values_mut() {
            if let InStore::Coming(transfer) = file.in_store {
                count(nodes, &mut flushes.of_master, transfer, false);
            }
            if file.in_store != InStore::Kept {
                file.in_store = InStore::No;
            }
        }
        flushes.progress += 1;
    }

    /// Orders what is to be flushed, as far as nodes have time for it.
    pub(super) fn order_flushes(&mut self) {
        let Self {
            nodes,
            tasks,
            flushes,
            ..
        } = self;
        let mut hopeless = Vec::new();
        for (_, key) in &flushes.queue {
            let Some(task) = tasks.get_mut(key) else { continue };
            let Some(series) = task.flush.series() else {
                continue;
            };
            match order_series(nodes, task, series, &mut flushes.of_master) {
                Ordered::Jobs(jobs) => flushes.jobs.extend(jobs),
                Ordered::All => {
                    let submit = task.series(series).next().map_or(0, |file| file.file.submit);
                    let (run, task) = key.clone();
                    flushes.jobs.push(StoreJob::Accept {
                        run,
                        task,
                        series,
                        submit,
                    });
                }
                Ordered::Nothing => hopeless.push(key.clone()),
            }
        }
        hopeless.iter().for_each(|key| self.fail_flush(key));
    }
}

/// What was ordered for a series.
enum Ordered {
    /// Files that are brought, perhaps none now.
    Jobs(Vec<StoreJob>),
    /// All files have arrived. It is said once.
    All,
    /// A file cannot be had.
    Nothing,
}

fn order_series(
    nodes: &mut BTreeMap<NodeId, Node>,
    task: &mut Task,
    series: u64,
    of_master: &mut OfMaster,
) -> Ordered {
    let mut jobs = Vec::new();
    let mut have_arrived = true;
    let files = task
        .files
        .iter_mut()
        .filter(|((number, ..), _)| *number == series);
    for (_, file) in files {
        have_arrived &= matches!(file.in_store, InStore::Arrived | InStore::Kept);
        if file.in_store != InStore::No {
            continue;
        }
        let can_give = |place: &NodeId| {
            nodes
                .get(place)
                .is_some_and(|node| node.sees_store || !node.addresses.is_empty())
        };
        if !file.places.iter().any(can_give) {
            return Ordered::Nothing;
        }
        if let Some((transfer, sources)) = choose(nodes, file, of_master) {
            count(nodes, of_master, transfer, true);
            file.in_store = InStore::Coming(transfer);
            of_master.last = transfer.number;
            jobs.push(StoreJob::Bring {
                by: transfer.by,
                transfer: transfer.number,
                file: file.file.clone(),
                sources,
            });
        }
    }
    match have_arrived && !task.flush.is_accepting {
        true => {
            task.flush.is_accepting = true;
            Ordered::All
        }
        false => Ordered::Jobs(jobs),
    }
}

/// Returns who brings a file now, and from where.
fn choose(
    nodes: &BTreeMap<NodeId, Node>,
    file: &File,
    of_master: &OfMaster,
) -> Option<(Transfer, Vec<Vec<String>>)> {
    let number = of_master.last + 1;
    let is_free = |node: &Node| !node.is_silent && node.transfers < MAX_TRANSFERS;
    let at = |place: &NodeId| nodes.get(place).filter(|node| is_free(node));
    let mut places = file.places.iter();
    if let Some(own) = places.find(|place| at(place).is_some_and(|node| node.sees_store)) {
        let (by, from) = (Some(*own), *own);
        return Some((Transfer { number, by, from }, Vec::new()));
    }
    let mut places = file.places.iter();
    let from = *places.find(|place| at(place).is_some_and(|node| !node.addresses.is_empty()))?;
    let sources = vec![nodes.get(&from)?.addresses.clone()];
    let mut seeing = nodes
        .iter()
        .filter(|(_, node)| node.sees_store && !node.is_silent)
        .peekable();
    if seeing.peek().is_none() {
        let transfer = Transfer {
            number,
            by: None,
            from,
        };
        return (of_master.running < MAX_OF_MASTER).then_some((transfer, sources));
    }
    let (by, _) = seeing
        .filter(|(_, node)| is_free(node))
        .min_by_key(|(_, node)| node.transfers)?;
    let by = Some(*by);
    Some((Transfer { number, by, from }, sources))
}
