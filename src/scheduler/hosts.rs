//! Hosts, their free resources, and an index that finds a host for a request.
//!
//! Numbers of free CPUs are grouped into levels: see [`Levels`]. A search and an update cost the logarithm of
//! the number of hosts and levels. Once a host is *away*, those that are not have levels of their own, too.
//!
//! What is reserved for a gang is not in the index (`parts`).

mod parts;

use std::collections::VecDeque;
use std::ops::Range;

use pmc_dag::Request;
use rustc_hash::FxHashMap;

use crate::protocol::{Rank, Registration};
use crate::scheduler::Adoption;
use crate::scheduler::cpuset::CpuSet;
use crate::scheduler::gpus::{GpuIndex, GpuSet};
use crate::scheduler::hosts::parts::Reserved;
pub(crate) use crate::scheduler::hosts::parts::{Free, PartRequest};
use crate::scheduler::levels::Levels;

/// Up to this number, each number of free CPUs has its own level.
const FINE_LEVELS: u32 = 1024;

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

    /// Adds an idle worker.
    fn add(&mut self, rank: Rank) {
        self.ranks.push(rank);
        self.free_slots.push_back(rank);
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
    /// Numbers of CPUs above [`FINE_LEVELS`] that tasks request.
    coarse: Vec<u32>,
    /// Smallest number of free CPUs of each level, ascending from 0.
    levels: Vec<u32>,
    /// Up to this number of free CPUs, the number is the level.
    fine: u32,
    all: Levels,
    /// Those that are not away, once a host is.
    near: Option<Levels>,
    gpus: GpuIndex,
    reserved: Reserved,
    /// Counts what was given back or has come.
    gains: u64,
    free_slots: usize,
    placement: Placement,
}

impl Hosts {
    /// Creates the index without hosts. `requests` are all numbers of CPUs that tasks request.
    pub(crate) fn new(requests: &[u32], placement: Placement) -> Self {
        let mut this = Self {
            hosts: Vec::new(),
            by_name: FxHashMap::default(),
            coarse: requests
                .iter()
                .copied()
                .filter(|cpus| *cpus > FINE_LEVELS)
                .collect(),
            levels: Vec::new(),
            fine: 0,
            all: Levels::new(1),
            near: None,
            gpus: GpuIndex::default(),
            reserved: Reserved::default(),
            gains: 0,
            free_slots: 0,
            placement,
        };
        this.set_levels(0);
        this
    }

    /// From now on, tasks go to the fullest host that has room: some request several CPUs.
    pub(crate) fn pack(&mut self) {
        self.placement = Placement::Pack;
    }

    /// Adds numbers of CPUs that tasks request. Linear in the hosts if there is a new one above
    /// [`FINE_LEVELS`].
    pub(crate) fn grow(&mut self, requests: &[u32]) {
        let known = self.coarse.len();
        for cpus in requests {
            if *cpus > FINE_LEVELS && !self.coarse.contains(cpus) {
                self.coarse.push(*cpus);
            }
        }
        if self.coarse.len() > known {
            self.set_levels(self.fine);
        }
    }

    /// Makes levels for hosts with at most this many CPUs, and enters all hosts.
    fn set_levels(&mut self, max_cpus: u32) {
        self.fine = max_cpus.min(FINE_LEVELS);
        self.levels = (0..=self.fine).chain(self.coarse.iter().copied()).collect();
        self.levels.sort_unstable();
        self.levels.dedup();
        self.all = Levels::new(self.levels.len());
        let is_away = |host: &Host| host.away;
        let has_away = self.hosts.iter().any(is_away);
        self.near = has_away.then(|| Levels::new(self.levels.len()));
        for host in 0..self.hosts.len() as u32 {
            self.enter(host);
        }
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
        self.gpus.grow(self.get(index).gpus);
        self.gains += 1;
        self.leave(index);
        let host = &mut self.hosts[index as usize];
        host.add(rank);
        host.away |= registration.away;
        let (cpus, is_first_away) = (host.cpus, host.away && self.near.is_none());
        self.free_slots += 1;
        if cpus > self.fine && self.fine < FINE_LEVELS {
            // Twice as many each time, so that the hosts are entered again a few times only.
            self.set_levels(cpus.max(2 * self.fine));
        } else if is_first_away {
            self.set_levels(self.fine);
        } else {
            self.enter(index);
        }
        (index, is_first)
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
        self.gains += 1;
        self.leave(index);
        self.hosts[index as usize].free_slots.push_back(rank);
        self.free_slots += 1;
        self.enter(index);
    }

    /// Gives no task to an idle worker until it is offered again.
    pub(crate) fn withhold(&mut self, index: u32, rank: Rank) {
        let free = &self.get(index).free_slots;
        if let Some(at) = free.iter().position(|free| *free == rank) {
            self.leave(index);
            self.hosts[index as usize].free_slots.remove(at);
            self.free_slots -= 1;
            self.enter(index);
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

    /// Number of idle workers on all hosts.
    pub(crate) fn free_slots(&self) -> usize {
        self.free_slots
    }

    /// Returns the most free memory among hosts with a free slot that have all else that is requested, except
    /// for the avoided ones.
    pub(crate) fn most_free_memory_without(&mut self, request: Request, avoided: &[u32]) -> Option<u64> {
        self.without(avoided, |hosts| hosts.most_free_memory(request))
    }

    /// Searches as if these hosts had no free slot.
    fn without<R>(&mut self, avoided: &[u32], search: impl FnOnce(&Self) -> R) -> R {
        avoided.iter().for_each(|host| self.leave(*host));
        let found = search(self);
        avoided.iter().for_each(|host| self.enter(*host));
        found
    }

    /// Like [`Hosts::most_free_memory_without`], without avoided hosts.
    pub(crate) fn most_free_memory(&self, request: Request) -> Option<u64> {
        let Request { cpus, gpus, .. } = request;
        if gpus > 0 {
            let able = self.gpus.with(gpus).filter(|host| self.get(*host).suits(request));
            let free = able.filter_map(|host| self.unreserved(host));
            let able = free.filter(|free| free.cpus >= cpus);
            return able.map(|free| free.memory_mb).max();
        }
        self.levels_for(request).most_memory(self.first_level(cpus))
    }

    /// The hosts that a task may run on.
    fn levels_for(&self, request: Request) -> &Levels {
        match &self.near {
            Some(near) if !request.anywhere => near,
            _ => &self.all,
        }
    }

    /// Returns a host with a free slot on which the request fits, none of the avoided ones.
    pub(crate) fn find_without(&mut self, request: Request, avoided: &[u32]) -> Option<u32> {
        self.without(avoided, |hosts| hosts.find(request))
    }

    /// Like [`Hosts::find_without`], without avoided hosts.
    fn find(&self, request: Request) -> Option<u32> {
        let Request {
            gpus,
            cpus,
            memory_mb,
            ..
        } = request;
        if gpus > 0 {
            let mut able = self.gpus.with(gpus);
            return able.find(|host| self.has_room(*host, request));
        }
        let first = self.first_level(cpus);
        self.levels_for(request).find(first, memory_mb, self.placement)
    }

    /// True if a host has a free slot, and the request fits into what is not reserved.
    pub(crate) fn has_room(&self, host: u32, request: Request) -> bool {
        let free = self.unreserved(host);
        self.get(host).suits(request) && free.is_some_and(|free| free.holds(request))
    }

    /// True if a host has a free slot, and the request fits, also into what is reserved.
    pub(crate) fn has_reserved_room(&self, host: u32, request: Request) -> bool {
        let host = self.get(host);
        !host.free_slots.is_empty() && host.can_take(request)
    }

    /// Takes a slot and the requested resources of a host on which they are free.
    pub(crate) fn take(&mut self, index: u32, request: Request) -> Option<Grant> {
        let Request {
            gpus,
            cpus,
            memory_mb,
            ..
        } = request;
        self.leave(index);
        let host = &mut self.hosts[index as usize];
        let rank = host.free_slots.pop_front();
        if rank.is_some() {
            host.free_memory_mb -= memory_mb;
            host.free_cpus -= cpus;
            host.busy += 1;
            self.free_slots -= 1;
        }
        let grant = rank.map(|rank| {
            // Only requests for several CPUs get a block.
            let block = if cpus > 1 { host.cpu_set.take(cpus) } else { None };
            Grant {
                rank,
                fragmented: cpus > 1 && block.is_none(),
                block,
                gpus: host.free_gpus.take(gpus),
            }
        });
        self.enter(index);
        grant
    }

    /// Takes a slot that was just given back, with memory and CPUs, but without numbers.
    pub(crate) fn take_slot(&mut self, index: u32, rank: Rank, request: Request) {
        self.leave(index);
        let host = &mut self.hosts[index as usize];
        if let Some(at) = host.free_slots.iter().position(|free| *free == rank) {
            host.free_slots.remove(at);
            self.free_slots -= 1;
        }
        host.free_memory_mb -= request.memory_mb;
        host.free_cpus -= request.cpus;
        host.busy += 1;
        self.enter(index);
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
        self.take_slot(index, rank, request);
        self.leave(index);
        let host = &mut self.hosts[index as usize];
        let block = if request.cpus > 1 {
            host.cpu_set.take_block(&held.cpus)
        } else {
            None
        };
        let gpus = host.free_gpus.take_these(&held.gpus, request.gpus);
        self.enter(index);
        Some(Grant {
            rank,
            block,
            gpus,
            fragmented: false,
        })
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
        self.gains += 1;
        self.leave(index);
        let host = &mut self.hosts[index as usize];
        if let Some(rank) = rank {
            // Reuses the latest slot first: its worker is waiting for a message now.
            host.free_slots.push_front(rank);
            self.free_slots += 1;
        }
        host.free_memory_mb += request.memory_mb;
        host.free_cpus += request.cpus;
        host.busy -= 1;
        host.free_gpus.put_back(gpus);
        if let Some(block) = block {
            host.cpu_set.release(block);
        }
        self.enter(index);
    }

    /// Returns the first level whose hosts have at least this many free CPUs.
    fn first_level(&self, cpus: u32) -> usize {
        if cpus <= self.fine {
            return cpus as usize;
        }
        self.levels.partition_point(|least| *least < cpus)
    }

    fn level(&self, free_cpus: u32) -> usize {
        if free_cpus <= self.fine {
            return free_cpus as usize;
        }
        // The first level is 0, so the difference is not negative.
        self.levels.partition_point(|least| *least <= free_cpus) - 1
    }

    fn leave(&mut self, index: u32) {
        if let Some(free) = self.unreserved(index) {
            let (level, memory, is_near) = (self.level(free.cpus), free.memory_mb, !self.get(index).away);
            self.all.remove(level, memory, index);
            if let Some(near) = self.near.as_mut().filter(|_| is_near) {
                near.remove(level, memory, index);
            }
            self.gpus.remove(index, free.gpus);
        }
    }

    fn enter(&mut self, index: u32) {
        if let Some(free) = self.unreserved(index) {
            let (level, memory, is_near) = (self.level(free.cpus), free.memory_mb, !self.get(index).away);
            self.all.insert(level, memory, index);
            if let Some(near) = self.near.as_mut().filter(|_| is_near) {
                near.insert(level, memory, index);
            }
            self.gpus.insert(index, free.gpus);
        }
    }

    /// Checks that the index agrees with the hosts.
    #[cfg(test)]
    pub(crate) fn check(&self) -> Result<(), String> {
        let mut slots = 0;
        for (index, host) in (0..).zip(&self.hosts) {
            slots += host.free_slots.len();
            let free = self.unreserved(index);
            let place = free.map(|free| (self.level(free.cpus), free.memory_mb));
            let expected: Vec<_> = place.into_iter().collect();
            let expected_near = if host.away { vec![] } else { expected.clone() };
            let near = self.near.as_ref();
            if near.is_some_and(|near| near.places_of(index) != expected_near) {
                return Err(format!("host {} is near or away, or not", host.name));
            }
            let listed = free.map_or(0, |free| free.gpus);
            if !self.gpus.contains(index, listed) {
                return Err(format!("the GPUs of host {} are indexed wrongly", host.name));
            }
            let indexed = self.all.places_of(index);
            if indexed != expected {
                return Err(format!(
                    "host {} is in levels {indexed:?}, not {expected:?}",
                    host.name
                ));
            }
        }
        if slots != self.free_slots {
            return Err(format!("{slots} free slots, but {} counted", self.free_slots));
        }
        self.near.iter().try_for_each(Levels::check)?;
        self.all.check()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(cpus: u32, memory_mb: u64) -> Request {
        Request {
            anywhere: false,
            gpus: 0,
            cpus,
            memory_mb,
        }
    }

    fn add(hosts: &mut Hosts, name: &str, memory_mb: u64, threads: u32, ranks: &[u32]) {
        let registration = Registration {
            host: name.to_owned(),
            memory_mb,
            threads,
            cores: threads,
            sockets: 1,
            gpus: threads / 4,
            away: false,
        };
        for rank in ranks {
            hosts.add(Rank(*rank), &registration);
            hosts.check().unwrap();
        }
    }

    fn two(placement: Placement) -> Hosts {
        let mut hosts = Hosts::new(&[1, 2], placement);
        add(&mut hosts, "a", 100, 4, &[1, 2]);
        add(&mut hosts, "b", 50, 8, &[3]);
        hosts
    }

    #[test]
    fn resources_are_taken_and_given_back() {
        let mut hosts = two(Placement::Pack);
        assert_eq!(hosts.find(request(1, 60)), Some(0));
        let grant = hosts.take(0, request(2, 60)).unwrap();
        assert_eq!(
            (grant.rank, grant.block.clone(), grant.fragmented),
            (Rank(1), Some(0..2), false)
        );
        hosts.check().unwrap();
        assert_eq!(hosts.find(request(1, 60)), None);
        assert_eq!(hosts.find(request(3, 0)), Some(1));
        assert_eq!(hosts.most_free_memory(request(0, 0)), Some(50));
        hosts.give_back(0, Some(Rank(1)), request(2, 60), grant.block, grant.gpus);
        hosts.check().unwrap();
        assert_eq!(hosts.most_free_memory(request(0, 0)), Some(100));
        assert_eq!(
            hosts.take(0, request(1, 0)).unwrap().rank,
            Rank(1),
            "the slot that was used last"
        );
    }

    #[test]
    fn a_host_without_free_slot_is_not_found() {
        let mut hosts = two(Placement::Pack);
        hosts.take(1, request(0, 0)).unwrap();
        assert_eq!(hosts.find(request(5, 0)), None);
        assert_eq!(hosts.most_free_memory(request(5, 0)), None);
        assert_eq!(hosts.free_slots(), 2);
        hosts.check().unwrap();
    }

    #[test]
    fn packing_and_spreading_choose_by_free_cpus() {
        assert_eq!(two(Placement::Pack).find(request(1, 0)), Some(0));
        assert_eq!(two(Placement::Spread).find(request(1, 0)), Some(1));
        assert_eq!(two(Placement::Spread).find(request(1, 51)), Some(0));
    }

    #[test]
    fn requests_above_the_fine_levels_are_exact() {
        let mut hosts = Hosts::new(&[5500, 7000], Placement::Pack);
        add(&mut hosts, "a", 1, 5000, &[1]);
        add(&mut hosts, "b", 1, 6000, &[2]);
        assert_eq!(hosts.find(request(5500, 0)), Some(1));
        assert_eq!(hosts.find(request(7000, 0)), None);
    }

    #[test]
    fn hosts_come_and_go() {
        let mut hosts = Hosts::new(&[4000], Placement::Pack);
        assert_eq!(hosts.find(request(0, 0)), None);
        for (host, threads) in [("a", 2), ("b", 700), ("c", 3), ("d", 4000)] {
            let rank = threads;
            add(&mut hosts, host, 10, threads, &[rank]);
            assert_eq!(
                hosts.find(request(threads, 10)),
                Some(hosts.all().len() as u32 - 1)
            );
        }
        assert!(hosts.remove(1, Rank(700)), "its only worker");
        hosts.check().unwrap();
        assert_eq!(hosts.find(request(700, 10)), Some(3));
        assert_eq!(hosts.find(request(3, 10)), Some(2));
        add(&mut hosts, "b", 20, 1, &[5000]);
        assert_eq!((hosts.get(1).cpus, hosts.get(1).memory_mb), (1, 20));
        hosts.withhold(1, Rank(5000));
        hosts.check().unwrap();
        assert_eq!(hosts.find(request(1, 20)), None);
        hosts.offer(1, Rank(5000));
        hosts.check().unwrap();
        assert_eq!(hosts.find(request(1, 20)), Some(1));
    }

    #[test]
    fn tasks_that_need_the_directory_run_on_hosts_that_see_it() {
        let mut hosts = two(Placement::Spread);
        let anywhere = |cpus| Request {
            anywhere: true,
            ..request(cpus, 0)
        };
        let away = |host: &str, threads| Registration {
            host: host.to_owned(),
            memory_mb: 200,
            threads,
            cores: threads,
            sockets: 1,
            gpus: 2,
            away: true,
        };
        assert_eq!(hosts.add(Rank(4), &away("c", 16)), (2, true));
        hosts.check().unwrap();
        assert_eq!(
            (hosts.find(request(1, 0)), hosts.find(anywhere(1))),
            (Some(1), Some(2))
        );
        assert_eq!(hosts.most_free_memory(request(1, 0)), Some(100));
        assert_eq!(hosts.most_free_memory(anywhere(1)), Some(200));
        assert_eq!(hosts.find(request(9, 0)), None);
        let on_gpu = |request: Request| Request { gpus: 1, ..request };
        assert_eq!(hosts.most_free_memory(on_gpu(request(9, 0))), None);
        assert_eq!(hosts.find(on_gpu(anywhere(9))), Some(2));
        // One worker that does not see it makes its host one that does not.
        hosts.add(Rank(5), &away("b", 8));
        hosts.check().unwrap();
        assert_eq!(hosts.find(request(5, 0)), None);
        assert!(!hosts.get(1).could_take(request(5, 0)) && hosts.get(1).could_take(anywhere(5)));
        hosts.take(0, request(1, 0)).unwrap();
        hosts.take(2, anywhere(1)).unwrap();
        hosts.check().unwrap();
    }

    #[test]
    fn a_running_task_keeps_its_numbers() {
        let mut hosts = two(Placement::Pack);
        let held = |cpus: &[u32], gpus: &[u32]| Adoption {
            task: pmc_dag::TaskId(0),
            submit: crate::protocol::SubmitId(1),
            cpus: cpus.to_vec(),
            gpus: gpus.to_vec(),
        };
        let wanted = Request {
            gpus: 1,
            ..request(2, 10)
        };
        let grant = hosts.adopt(1, Rank(3), wanted, &held(&[4, 5], &[1])).unwrap();
        assert_eq!(grant.block, Some(4..6));
        assert_eq!(grant.gpus.numbers().collect::<Vec<_>>(), [1]);
        hosts.check().unwrap();
        assert!(hosts.adopt(0, Rank(1), request(5, 0), &held(&[], &[])).is_none());
        let unknown = hosts.adopt(0, Rank(1), wanted, &held(&[9, 7], &[77])).unwrap();
        assert_eq!((unknown.block, unknown.gpus.len()), (None, 1));
        let narrow = hosts.adopt(0, Rank(2), request(1, 0), &held(&[3], &[])).unwrap();
        assert_eq!(narrow.block, None, "one CPU has no number");
        hosts.check().unwrap();
    }
}
