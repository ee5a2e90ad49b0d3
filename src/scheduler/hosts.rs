//! Hosts, their free resources, and an index that finds a host for a request.
//!
//! Numbers of free CPUs are grouped into levels: see [`Levels`](crate::scheduler::levels::Levels). A search
//! and an update cost the logarithm of the number of hosts and levels (`index`). Once a host is *away*, those
//! that are not have levels of their own, too.
//!
//! What is reserved for a gang is not in the first index; hosts with a reserved part are in a second one,
//! with all that is free there (`parts`). What is looked for where is in `search`.

mod index;
mod parts;
mod search;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::ops::Range;

use pmc_dag::Request;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::protocol::{Rank, Registration};
use crate::scheduler::Adoption;
use crate::scheduler::cpuset::CpuSet;
use crate::scheduler::gpus::GpuSet;
use crate::scheduler::hosts::index::{Index, Place, Scale};
use crate::scheduler::hosts::parts::Reserved;
pub(crate) use crate::scheduler::hosts::parts::{Free, PartRequest};
pub(crate) use crate::scheduler::hosts::search::Room;
pub(crate) use crate::scheduler::levels::Placement;

#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) name: String,
    pub(crate) memory_mb: u64,
    pub(crate) cpus: u32,
    pub(crate) free_memory_mb: u64,
    pub(crate) free_cpus: u32,
    /// Idle workers, the one to be used next in front.
    pub(crate) free_slots: VecDeque<Rank>,
    /// Workers that run a task.
    pub(crate) busy: u32,
    pub(crate) ranks: Vec<Rank>,
    pub(crate) cpu_set: CpuSet,
    pub(crate) gpus: u32,
    pub(crate) free_gpus: GpuSet,
    /// A worker does not see the directory of the DAG file.
    pub(crate) away: bool,
    /// A gang has the whole host: nothing else starts.
    pub(crate) is_whole: bool,
    /// A person has reserved it: only tasks that name it start.
    pub(crate) named_only: bool,
}

impl Host {
    /// Creates a host from the registration of its first worker.
    pub(crate) fn new(registration: &Registration) -> Self {
        Self {
            name: registration.host.clone(),
            memory_mb: registration.memory_mb,
            cpus: registration.threads,
            free_memory_mb: registration.memory_mb,
            free_cpus: registration.threads,
            free_slots: VecDeque::new(),
            busy: 0,
            ranks: Vec::new(),
            cpu_set: CpuSet::new(registration.threads, registration.cores, registration.sockets),
            gpus: GpuSet::first(registration.gpus).len(),
            free_gpus: GpuSet::first(registration.gpus),
            away: registration.away,
            is_whole: false,
            named_only: false,
        }
    }

    /// True if the task may run here at all: the one place where this is decided.
    pub(crate) fn suits(&self, request: Request) -> bool {
        request.anywhere || !self.away
    }

    /// True if the request fits on the idle host.
    pub(crate) fn could_take(&self, request: Request) -> bool {
        self.suits(request)
            && self.memory_mb >= request.memory_mb
            && self.cpus >= request.cpus
            && self.gpus >= request.gpus
    }

    /// True if the request fits now.
    fn can_take(&self, request: Request) -> bool {
        self.suits(request)
            && !self.is_whole
            && self.free_memory_mb >= request.memory_mb
            && self.free_cpus >= request.cpus
            && self.free_gpus.len() >= request.gpus
    }

    /// Number of idle workers for tasks that name no host.
    fn offered(&self) -> usize {
        if self.named_only { 0 } else { self.free_slots.len() }
    }

    /// Adds an idle worker.
    fn add(&mut self, rank: Rank) {
        self.ranks.push(rank);
        self.free_slots.push_back(rank);
    }

    /// Counts memory, CPUs and a worker that a task takes.
    fn count(&mut self, request: Request) {
        self.free_memory_mb -= request.memory_mb;
        self.free_cpus -= request.cpus;
        self.busy += 1;
    }

    /// Takes this slot, memory and CPUs.
    fn take_slot(&mut self, rank: Rank, request: Request) {
        self.free_slots.retain(|free| *free != rank);
        self.count(request);
    }
}

/// Resources that an assignment took.
#[derive(Clone, Debug)]
pub(crate) struct Grant {
    pub(crate) rank: Rank,
    /// CPU numbers, if the task got a block.
    pub(crate) block: Option<Range<u32>>,
    /// GPUs, if the task requested any.
    pub(crate) gpus: GpuSet,
    /// The task got no block of CPUs because the free numbers are scattered.
    pub(crate) fragmented: bool,
}

impl Grant {
    /// A grant without CPU numbers and GPUs.
    pub(crate) fn without_numbers(rank: Rank) -> Self {
        Self {
            rank,
            block: None,
            gpus: GpuSet::default(),
            fragmented: false,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Hosts {
    hosts: Vec<Host>,
    by_name: FxHashMap<String, u32>,
    /// Hosts that a person has reserved.
    named_only: FxHashSet<String>,
    scale: Scale,
    /// What is free beyond what is reserved.
    index: Index,
    reserved: Reserved,
    /// Hosts on which something else is free than before, while somebody wants to know.
    changed: Option<Vec<u32>>,
    /// Counts workers that have come, or that may take no more tasks.
    moves: u64,
    free_slots: usize,
    placement: Placement,
}

impl Hosts {
    /// Creates the index without hosts. `requests` are all numbers of CPUs that tasks request.
    pub(crate) fn new(requests: &[u32], placement: Placement) -> Self {
        let scale = Scale::new(requests);
        Self {
            hosts: Vec::new(),
            by_name: FxHashMap::default(),
            named_only: FxHashSet::default(),
            index: Index::new(&scale),
            reserved: Reserved::new(&scale),
            scale,
            changed: None,
            moves: 0,
            free_slots: 0,
            placement,
        }
    }

    /// From now on, tasks go to the fullest host that has room: some request several CPUs.
    pub(crate) fn pack(&mut self) {
        self.placement = Placement::Pack;
    }

    /// Adds numbers of CPUs that tasks request. Linear in the hosts if there is a new one that needs a level
    /// of its own.
    pub(crate) fn grow(&mut self, requests: &[u32]) {
        if self.scale.learn(requests) {
            self.set_levels(0);
        }
    }

    /// Makes levels for hosts with so many CPUs, and enters all hosts.
    fn set_levels(&mut self, cpus: u32) {
        self.scale.reach(cpus);
        let has_away = self.hosts.iter().any(|host| host.away);
        self.index.set_levels(&self.scale, has_away);
        self.reserved.index_mut().set_levels(&self.scale, has_away);
        for host in 0..self.hosts.len() as u32 {
            self.enter(host);
        }
    }

    /// Changes a host, and where the indexes have it.
    fn change<R>(&mut self, index: u32, change: impl FnOnce(&mut Host) -> R) -> R {
        self.leave(index);
        let host = &mut self.hosts[index as usize];
        let before = host.offered();
        let result = change(host);
        self.free_slots = self.free_slots + host.offered() - before;
        self.enter(index);
        self.note_change(index);
        result
    }

    /// Adds an idle worker, and its host if that has none. Returns the number of the host, and whether the
    /// registration describes it.
    pub(crate) fn add(&mut self, rank: Rank, registration: &Registration) -> (u32, bool) {
        let next = self.hosts.len() as u32;
        let known = self.by_name.get(&registration.host).copied();
        let index = known.unwrap_or(next);
        let is_first = known.is_none_or(|host| self.get(host).ranks.is_empty());
        if known.is_none() {
            self.by_name.insert(registration.host.clone(), index);
            self.hosts.push(Host::new(registration));
        } else if is_first {
            // It has come back, and may be another machine.
            self.hosts[index as usize] = Host::new(registration);
        }
        if is_first {
            self.hosts[index as usize].named_only = self.named_only.contains(&registration.host);
        }
        let gpus = self.get(index).gpus;
        self.index.grow(gpus);
        self.reserved.index_mut().grow(gpus);
        self.moves += 1;
        self.change(index, |host| {
            host.add(rank);
            host.away |= registration.away;
        });
        let host = self.get(index);
        let (cpus, is_first_away) = (host.cpus, host.away && !self.index.knows_near());
        if self.scale.is_too_small(cpus) || is_first_away {
            self.set_levels(cpus);
        }
        (index, is_first)
    }

    /// Lets only tasks start on a host that name it, or others again; also when its workers come later.
    /// Returns its number if it has had workers.
    pub(crate) fn set_named_only(&mut self, name: &str, named_only: bool) -> Option<u32> {
        match named_only {
            true => self.named_only.insert(name.to_owned()),
            false => self.named_only.remove(name),
        };
        let index = self.number(name)?;
        self.moves += 1;
        self.change(index, |host| host.named_only = named_only);
        Some(index)
    }

    /// Takes away a worker that does not run a task. Returns whether it was the last one of its host.
    pub(crate) fn remove(&mut self, index: u32, rank: Rank) -> bool {
        self.withhold(index, rank);
        let ranks = &mut self.hosts[index as usize].ranks;
        ranks.retain(|other| *other != rank);
        ranks.is_empty()
    }

    /// Offers an idle worker that was withheld.
    pub(crate) fn offer(&mut self, index: u32, rank: Rank) {
        self.change(index, |host| host.free_slots.push_back(rank));
    }

    /// Gives no task to an idle worker until it is offered again.
    pub(crate) fn withhold(&mut self, index: u32, rank: Rank) {
        self.moves += 1;
        let free = &self.get(index).free_slots;
        if let Some(at) = free.iter().position(|free| *free == rank) {
            self.change(index, |host| host.free_slots.remove(at));
        }
    }

    /// Changes whenever a worker has come, or may take no more tasks.
    pub(crate) fn moves(&self) -> u64 {
        self.moves
    }

    /// Returns the hosts on which something else may be free than at the last call, and begins to note them;
    /// a host may be named several times.
    pub(crate) fn take_changed(&mut self) -> Vec<u32> {
        self.changed.replace(Vec::new()).unwrap_or_default()
    }

    /// Notes no more which hosts have changed.
    pub(crate) fn stop_noting(&mut self) {
        self.changed = None;
    }

    fn note_change(&mut self, index: u32) {
        if let Some(changed) = &mut self.changed {
            changed.push(index);
        }
    }

    pub(crate) fn all(&self) -> &[Host] {
        &self.hosts
    }

    /// Number of the host with this name.
    pub(crate) fn number(&self, name: &str) -> Option<u32> {
        self.by_name.get(name).copied()
    }

    pub(crate) fn get(&self, host: u32) -> &Host {
        &self.hosts[host as usize]
    }

    /// Number of idle workers on all hosts but those that a person has reserved.
    pub(crate) fn free_slots(&self) -> usize {
        self.free_slots
    }

    /// Takes a slot and the requested resources of a host on which they are free.
    pub(crate) fn take(&mut self, index: u32, request: Request) -> Option<Grant> {
        let Request { gpus, cpus, .. } = request;
        self.change(index, |host| {
            let rank = host.free_slots.pop_front()?;
            host.count(request);
            // Only requests for several CPUs get a block.
            let block = if cpus > 1 { host.cpu_set.take(cpus) } else { None };
            Some(Grant {
                rank,
                fragmented: cpus > 1 && block.is_none(),
                block,
                gpus: host.free_gpus.take(gpus),
            })
        })
    }

    /// Takes a slot that was just given back, with memory and CPUs, but without numbers.
    pub(crate) fn take_slot(&mut self, index: u32, rank: Rank, request: Request) {
        self.change(index, |host| host.take_slot(rank, request));
    }

    /// Takes resources of a host for a task that runs on one of its workers already. Of the numbers, those
    /// that are given and free are taken, and other GPUs if they are too few. Returns `None` if the request
    /// does not fit.
    pub(crate) fn adopt(
        &mut self,
        index: u32,
        rank: Rank,
        request: Request,
        held: &Adoption,
    ) -> Option<Grant> {
        if !self.get(index).can_take(request) {
            return None;
        }
        Some(self.change(index, |host| {
            host.take_slot(rank, request);
            let block = if request.cpus > 1 {
                host.cpu_set.take_block(&held.cpus)
            } else {
                None
            };
            Grant {
                rank,
                block,
                gpus: host.free_gpus.take_these(&held.gpus, request.gpus),
                fragmented: false,
            }
        }))
    }

    /// Returns resources that [`Hosts::take`] took. `rank` is the worker, if it may run another task.
    pub(crate) fn give_back(
        &mut self,
        index: u32,
        rank: Option<Rank>,
        request: Request,
        block: Option<Range<u32>>,
        gpus: GpuSet,
    ) {
        self.change(index, |host| {
            if let Some(rank) = rank {
                // Reuses the latest slot first: its worker is waiting for a message now.
                host.free_slots.push_front(rank);
            }
            host.free_memory_mb += request.memory_mb;
            host.free_cpus += request.cpus;
            host.busy -= 1;
            host.free_gpus.put_back(gpus);
            if let Some(block) = block {
                host.cpu_set.release(block);
            }
        });
    }

    /// Takes a host out of the indexes.
    fn leave(&mut self, index: u32) {
        let (beyond, reserved) = self.places(index);
        if let Some(place) = beyond {
            self.index.remove(&self.scale, place);
        }
        if let Some(place) = reserved {
            self.reserved.index_mut().remove(&self.scale, place);
        }
    }

    /// Puts a host into the indexes.
    fn enter(&mut self, index: u32) {
        let (beyond, reserved) = self.places(index);
        if let Some(place) = beyond {
            self.index.insert(&self.scale, place);
        }
        if let Some(place) = reserved {
            self.reserved.index_mut().insert(&self.scale, place);
        }
    }

    /// What the two indexes have of a host.
    fn places(&self, index: u32) -> (Option<Place>, Option<Place>) {
        let place = |free: Free| Place {
            host: index,
            free,
            is_near: !self.get(index).away,
        };
        let reserved = match self.is_reserved(index) {
            true => self.free_in(index, Room::Free),
            false => None,
        };
        (self.unreserved(index).map(place), reserved.map(place))
    }

    /// Checks that the indexes agree with the hosts.
    #[cfg(test)]
    pub(crate) fn check(&self) -> Result<(), String> {
        let mut slots = 0;
        for (index, host) in (0..).zip(&self.hosts) {
            slots += host.offered();
            let (beyond, reserved) = self.places(index);
            let checked = self.index.check_host(&self.scale, index, beyond);
            let checked =
                checked.and_then(|()| self.reserved.index().check_host(&self.scale, index, reserved));
            checked.map_err(|what| format!("host {}: {what}", host.name))?;
        }
        if slots != self.free_slots {
            return Err(format!("{slots} free slots, but {} counted", self.free_slots));
        }
        self.index.check()?;
        self.reserved.index().check()
    }
}
