//! Which hosts have which inputs in the caches of lite jobs, so that tasks follow their data.
//!
//! A DAG names inputs of a task that others read, too (`#inputs`). When a task starts, its inputs are on
//! their way to its host. The host *holds* them when its agent says so or, as under MPI nobody says it, when
//! the task has succeeded. After a failure, they are not on their way any more.
//!
//! This is a preference, and nothing waits for it: a task that fits on a host starts at once. Only two
//! choices change, and only if an input of the task that comes next lies on other hosts, but not on the one
//! that it would get:
//!
//! * If hosts that hold more of it have room, it starts on the best one of them.
//! * Else one of the next few tasks of the same request, category and priority starts on that host, if less
//!   has to be fetched for it. The first one keeps its place, and is overtaken only so often. Files on their
//!   way count here, so that tasks that start at the same time share what they fetch. They do not count for
//!   the first choice: it would bring all tasks of a wide level to one host.
//!
//! What a task has saved on nodes counts like an input of its own, so that its next attempt starts where that
//! is.
//!
//! What counts are bytes: those that the host holds, less those that others hold and it does not. What
//! nobody holds comes from the staging site wherever the task runs. A file of unknown size counts as one
//! byte.

use std::borrow::Cow;

use pmc_dag::{Dag, Request, TaskId};
use rustc_hash::FxHashMap;

use crate::protocol::{CacheNews, Rank};
use crate::scheduler::MasterError;
use crate::scheduler::hosts::Room;
use crate::scheduler::queue::ShapeId;
use crate::scheduler::run::Master;

/// Maximum hosts that are looked at for a task, and tasks that are looked at for a host.
const MAX_LOOKS: usize = 64;

/// Maximum tasks that overtake one because their inputs lie nearer.
const MAX_OVERTAKING: u32 = 64;

/// Maximum inputs of a task that count.
const MAX_INPUTS: usize = 64;

/// Maximum files that a host is known to hold. With more, it begins anew: its cache has changed.
const MAX_HELD: usize = 1 << 16;

/// Number of a file.
type FileId = u32;

/// Number of a set of inputs. Set 0 is empty.
pub(super) type InputSet = u32;

/// What hosts hold.
#[derive(Debug)]
pub(super) struct CacheIndex {
    names: FxHashMap<Box<[u8]>, FileId>,
    files: Vec<File>,
    /// Files of each set, ascending.
    sets: Vec<Box<[FileId]>>,
    known_sets: FxHashMap<Box<[FileId]>, InputSet>,
    /// By host. Those after the last one hold nothing.
    hosts: Vec<Holder>,
    /// How many tasks have overtaken one that waits.
    overtaking: FxHashMap<TaskId, u32>,
    /// What tasks that are not done have saved on nodes.
    saved: FxHashMap<TaskId, FileId>,
}

#[derive(Debug, Default)]
struct File {
    /// 0 if it is not known.
    bytes: u64,
    /// Hosts that hold it, or to which it is on its way; the first one in front.
    holders: Vec<u32>,
    /// Number of those that hold it.
    held: u32,
}

#[derive(Debug, Default)]
struct Holder {
    /// Whether it holds the file; else it is on its way.
    files: FxHashMap<FileId, bool>,
}

/// What counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Count {
    /// Files that hosts hold.
    Held,
    /// Also those on their way.
    Coming,
}

impl Default for CacheIndex {
    fn default() -> Self {
        Self {
            names: FxHashMap::default(),
            files: Vec::new(),
            sets: vec![Box::default()],
            known_sets: FxHashMap::default(),
            hosts: Vec::new(),
            overtaking: FxHashMap::default(),
            saved: FxHashMap::default(),
        }
    }
}

impl CacheIndex {
    /// Adds the sets of inputs of a DAG. Returns their numbers here, by their numbers there.
    pub(super) fn add_sets(&mut self, dag: &Dag) -> Vec<InputSet> {
        let mut numbers = vec![0];
        for names in dag.input_sets() {
            let mut set: Vec<FileId> = names.take(MAX_INPUTS).map(|name| self.file(name)).collect();
            set.sort_unstable();
            set.dedup();
            let next = self.sets.len() as InputSet;
            let number = *self.known_sets.entry(set.as_slice().into()).or_insert(next);
            if number == next {
                self.sets.push(set.into());
            }
            numbers.push(number);
        }
        numbers
    }

    fn file(&mut self, name: Cow<'_, [u8]>) -> FileId {
        if let Some(known) = self.names.get(&*name) {
            return *known;
        }
        let file = self.files.len() as FileId;
        self.files.push(File::default());
        self.names.insert(name.into(), file);
        file
    }

    /// Returns the file for what a task has saved. If it is new, the inputs of the task are with it from now
    /// on.
    fn saved_by(&mut self, task: TaskId, inputs: &mut InputSet) -> FileId {
        let next = self.files.len() as FileId;
        let file = *self.saved.entry(task).or_insert(next);
        if file == next {
            self.files.push(File::default());
            // It has the highest number, so the set is still ascending.
            let mut set = self.sets[*inputs as usize].to_vec();
            set.push(file);
            *inputs = self.sets.len() as InputSet;
            self.sets.push(set.into());
        }
        file
    }

    /// Forgets who has what a task has saved: it is done.
    pub(super) fn forget_saved(&mut self, task: TaskId) {
        if !self.saved.is_empty()
            && let Some(file) = self.saved.remove(&task)
        {
            let holders = self.files[file as usize].holders.clone();
            holders.into_iter().for_each(|host| self.remove(host, file));
        }
    }

    /// Returns whether a host holds a file; `None` if it is not even on its way.
    fn has(&self, host: u32, file: FileId) -> Option<bool> {
        self.hosts.get(host as usize)?.files.get(&file).copied()
    }

    fn holder(&mut self, host: u32) -> &mut Holder {
        let index = host as usize;
        if self.hosts.len() <= index {
            self.hosts.resize_with(index + 1, Holder::default);
        }
        &mut self.hosts[index]
    }

    /// Notes that a file is on its way to a host, or there.
    fn add(&mut self, host: u32, id: FileId, is_held: bool) {
        if self.holder(host).files.len() >= MAX_HELD {
            self.forget(host);
        }
        let before = self.holder(host).files.get(&id).copied();
        if before == Some(true) || before == Some(is_held) {
            return;
        }
        self.holder(host).files.insert(id, is_held);
        let file = &mut self.files[id as usize];
        file.held += u32::from(is_held);
        if before.is_none() {
            file.holders.push(host);
        }
    }

    fn remove(&mut self, host: u32, id: FileId) {
        if let Some(was_held) = self.holder(host).files.remove(&id) {
            let file = &mut self.files[id as usize];
            file.held -= u32::from(was_held);
            file.holders.retain(|holder| *holder != host);
        }
    }

    /// Forgets what a host holds: all of its workers are gone.
    pub(super) fn forget(&mut self, host: u32) {
        if self.hosts.len() > host as usize {
            let files: Vec<FileId> = self.holder(host).files.keys().copied().collect();
            files.into_iter().for_each(|file| self.remove(host, file));
        }
    }

    /// Takes what the agent of a host says. Files that no DAG names do not matter.
    fn note(&mut self, host: u32, news: &CacheNews) {
        match news {
            CacheNews::Begins => {
                let files = self.holder(host).files.iter();
                let held: Vec<FileId> = files.filter(|(_, held)| **held).map(|(file, _)| *file).collect();
                held.into_iter().for_each(|file| self.remove(host, file));
            }
            CacheNews::Has { name, bytes } => {
                if let Some(file) = self.names.get(name.as_bytes()).copied() {
                    self.files[file as usize].bytes = *bytes;
                    self.add(host, file, true);
                }
            }
        }
    }

    /// Notes that a task with these inputs starts on a host.
    pub(super) fn starts(&mut self, host: u32, task: TaskId, set: InputSet) {
        if !self.overtaking.is_empty() {
            self.overtaking.remove(&task);
        }
        for at in 0..self.sets[set as usize].len() {
            self.add(host, self.sets[set as usize][at], false);
        }
    }

    /// Notes that a task with these inputs has succeeded on a host.
    pub(super) fn read(&mut self, host: u32, set: InputSet) {
        for at in 0..self.sets[set as usize].len() {
            self.add(host, self.sets[set as usize][at], true);
        }
    }

    /// Notes that a task with these inputs has failed on a host, perhaps before they were there.
    pub(super) fn fails(&mut self, host: u32, set: InputSet) {
        for at in 0..self.sets[set as usize].len() {
            let file = self.sets[set as usize][at];
            if self.has(host, file) == Some(false) {
                self.remove(host, file);
            }
        }
    }

    /// True if an input lies on other hosts or is on its way there, but not on this one.
    fn lacks(&self, host: u32, set: InputSet) -> bool {
        let mut files = self.sets[set as usize].iter();
        files.any(|id| !self.files[*id as usize].holders.is_empty() && self.has(host, *id).is_none())
    }

    /// How many more bytes a host holds than it would have to fetch of what others hold.
    fn score(&self, host: u32, set: InputSet, count: Count) -> i64 {
        let files = self.sets[set as usize].iter();
        files.fold(0, |score: i64, id| {
            let file = &self.files[*id as usize];
            let bytes = i64::try_from(file.bytes.max(1)).unwrap_or(i64::MAX);
            let (is_here, is_somewhere) = match count {
                Count::Held => (self.has(host, *id) == Some(true), file.held > 0),
                Count::Coming => (self.has(host, *id).is_some(), !file.holders.is_empty()),
            };
            match (is_here, is_somewhere) {
                (true, _) => score.saturating_add(bytes),
                (false, true) => score.saturating_sub(bytes),
                (false, false) => score,
            }
        })
    }

    /// Returns a host with room whose score is above that of the given one, the best of those that are
    /// looked at.
    fn better(&self, host: u32, set: InputSet, has_room: impl Fn(u32) -> bool) -> Option<u32> {
        let files = self.sets[set as usize].iter();
        let holders = files.flat_map(|file| &self.files[*file as usize].holders);
        let (mut best, mut best_score) = (None, self.score(host, set, Count::Held));
        for holder in holders.take(MAX_LOOKS).filter(|holder| has_room(**holder)) {
            let score = self.score(*holder, set, Count::Held);
            if score > best_score {
                (best, best_score) = (Some(*holder), score);
            }
        }
        best
    }
}

impl Master {
    /// Handles [`Event::Cache`](super::Event::Cache).
    pub(super) fn note_cache(&mut self, rank: Rank, news: &CacheNews) -> Result<(), MasterError> {
        let slot = self.known_slot(rank)?;
        if slot.member.is_there() {
            let host = slot.host;
            self.cache_index.note(host, news);
        }
        Ok(())
    }

    /// Notes which workers are on hosts that have what a task has saved, and how many bytes that are: its
    /// next attempt prefers these hosts.
    pub fn note_saved(&mut self, task: TaskId, bytes: u64, ranks: &[Rank]) {
        let mut hosts = Vec::new();
        for rank in ranks {
            if let Ok(slot) = self.known_slot(*rank)
                && slot.member.is_there()
            {
                hosts.push(slot.host);
            }
        }
        let inputs = &mut self.nodes[task.index()].inputs;
        let file = self.cache_index.saved_by(task, inputs);
        let before = self.cache_index.files[file as usize].holders.clone();
        for host in before.into_iter().filter(|host| !hosts.contains(host)) {
            self.cache_index.remove(host, file);
        }
        self.cache_index.files[file as usize].bytes = bytes;
        hosts
            .into_iter()
            .for_each(|host| self.cache_index.add(host, file, true));
    }

    /// True if an input of a task lies on other hosts, but not on this one.
    pub(super) fn lacks_inputs(&self, host: u32, task: TaskId) -> bool {
        let set = self.nodes[task.index()].inputs;
        set != 0 && self.cache_index.lacks(host, set)
    }

    /// Returns the task of a shape that starts now, and its host.
    pub(super) fn choose(&mut self, shape: ShapeId, request: Request, room: Room) -> Option<(TaskId, u32)> {
        let avoided = self.queue.avoided_by(shape);
        let host = self.hosts.find_without(request, avoided, room)?;
        let first = self.queue.first(shape)?;
        if !self.lacks_inputs(host, first) {
            return Some((first, host));
        }
        let (hosts, cache_index) = (&self.hosts, &mut self.cache_index);
        let set = self.nodes[first.index()].inputs;
        let has_room = |host| !avoided.contains(&host) && hosts.has_room(host, request, room);
        if let Some(better) = cache_index.better(host, set, has_room) {
            return Some((first, better));
        }
        let (mut best, mut best_score) = (first, cache_index.score(host, set, Count::Coming));
        let mut last_set = set;
        for task in self.queue.next_ones(&self.nodes, shape).take(MAX_LOOKS) {
            let set = self.nodes[task.index()].inputs;
            if set == last_set {
                continue;
            }
            last_set = set;
            let score = cache_index.score(host, set, Count::Coming);
            if score > best_score {
                (best, best_score) = (task, score);
            }
        }
        if best != first {
            let overtaking = cache_index.overtaking.entry(first).or_insert(0);
            if *overtaking >= MAX_OVERTAKING {
                return Some((first, host));
            }
            *overtaking += 1;
        }
        Some((best, host))
    }

    /// Checks that files and hosts agree who holds what.
    #[cfg(test)]
    pub(super) fn check_holdings(&self) -> Result<(), String> {
        let cache_index = &self.cache_index;
        let mut pairs = 0;
        for (id, file) in (0..).zip(&cache_index.files) {
            pairs += file.holders.len();
            let known = || file.holders.iter().filter_map(|host| cache_index.has(*host, id));
            let held = known().filter(|held| *held).count();
            if known().count() != file.holders.len() || held != file.held as usize {
                return Err(format!("file {id} is {file:?}, and {held} hosts hold it"));
            }
        }
        let held: usize = cache_index.hosts.iter().map(|holder| holder.files.len()).sum();
        if held != pairs {
            return Err(format!("hosts hold {held} files, but {pairs} are noted"));
        }
        let is_gone = |host: usize| self.hosts.all()[host].ranks.is_empty();
        let known = cache_index.hosts.iter().enumerate();
        match known
            .filter(|(_, holder)| !holder.files.is_empty())
            .find(|(host, _)| is_gone(*host))
        {
            Some((host, _)) => Err(format!("host {host} is gone, but holds files")),
            None => Ok(()),
        }
    }
}
