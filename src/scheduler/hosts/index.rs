//! Hosts with a free slot, by what is free there.

use pmc_dag::Request;

use super::Free;
use crate::scheduler::gpus::GpuIndex;
use crate::scheduler::levels::{Levels, Placement};

/// Up to this number, each number of free CPUs has its own level.
const FINE_LEVELS: u32 = 1024;

/// Which level a number of free CPUs belongs to.
#[derive(Debug)]
pub(super) struct Scale {
    /// Numbers of CPUs above [`FINE_LEVELS`] that tasks request.
    coarse: Vec<u32>,
    /// Smallest number of free CPUs of each level, ascending from 0.
    levels: Vec<u32>,
    /// Up to this number of free CPUs, the number is the level.
    fine: u32,
}

impl Scale {
    /// `requests` are all numbers of CPUs that tasks request.
    pub(super) fn new(requests: &[u32]) -> Self {
        let mut this = Self {
            coarse: Vec::new(),
            levels: Vec::new(),
            fine: 0,
        };
        this.learn(requests);
        this.reach(0);
        this
    }

    /// Adds numbers of CPUs that tasks request. Returns whether the levels must be made anew.
    pub(super) fn learn(&mut self, requests: &[u32]) -> bool {
        let known = self.coarse.len();
        for cpus in requests {
            if *cpus > FINE_LEVELS && !self.coarse.contains(cpus) {
                self.coarse.push(*cpus);
            }
        }
        self.coarse.len() > known
    }

    /// True if hosts with so many CPUs need more levels.
    pub(super) fn is_too_small(&self, cpus: u32) -> bool {
        cpus > self.fine && self.fine < FINE_LEVELS
    }

    /// Makes the levels anew, for hosts with so many CPUs. They are twice as many each time, so that the
    /// hosts are entered again a few times only.
    pub(super) fn reach(&mut self, cpus: u32) {
        let wanted = if cpus > self.fine {
            cpus.max(2 * self.fine)
        } else {
            self.fine
        };
        self.fine = wanted.min(FINE_LEVELS);
        self.levels = (0..=self.fine).chain(self.coarse.iter().copied()).collect();
        self.levels.sort_unstable();
        self.levels.dedup();
    }

    /// Returns the first level whose hosts have at least this many free CPUs.
    fn first(&self, cpus: u32) -> usize {
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
}

/// Some hosts with a free slot. A search and an update cost the logarithm of the number of hosts and levels.
#[derive(Debug)]
pub(super) struct Index {
    all: Levels,
    /// Those that are not away, once a host is.
    near: Option<Levels>,
    gpus: GpuIndex,
}

/// A host, as an index has it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) host: u32,
    pub(super) free: Free,
    pub(super) is_near: bool,
}

impl Index {
    pub(super) fn new(scale: &Scale) -> Self {
        Self {
            all: Levels::new(scale.levels.len()),
            near: None,
            gpus: GpuIndex::default(),
        }
    }

    /// Makes the levels anew: all hosts must be entered again.
    pub(super) fn set_levels(&mut self, scale: &Scale, has_away: bool) {
        self.all = Levels::new(scale.levels.len());
        self.near = has_away.then(|| Levels::new(scale.levels.len()));
    }

    /// Makes room for a host with this many GPUs.
    pub(super) fn grow(&mut self, gpus: u32) {
        self.gpus.grow(gpus);
    }

    /// True if it knows which hosts are not away.
    pub(super) fn knows_near(&self) -> bool {
        self.near.is_some()
    }

    pub(super) fn remove(&mut self, scale: &Scale, Place { host, free, is_near }: Place) {
        let level = scale.level(free.cpus);
        self.all.remove(level, free.memory_mb, host);
        if let Some(near) = self.near.as_mut().filter(|_| is_near) {
            near.remove(level, free.memory_mb, host);
        }
        self.gpus.remove(host, free.gpus);
    }

    pub(super) fn insert(&mut self, scale: &Scale, Place { host, free, is_near }: Place) {
        let level = scale.level(free.cpus);
        self.all.insert(level, free.memory_mb, host);
        if let Some(near) = self.near.as_mut().filter(|_| is_near) {
            near.insert(level, free.memory_mb, host);
        }
        self.gpus.insert(host, free.gpus);
    }

    /// The hosts that a task may run on.
    fn levels_for(&self, request: Request) -> &Levels {
        match &self.near {
            Some(near) if !request.anywhere => near,
            _ => &self.all,
        }
    }

    /// Returns the most free memory of a host that has all else that is requested. `free` says what the task
    /// may use of a host.
    pub(super) fn most_memory(
        &self,
        scale: &Scale,
        request: Request,
        free: impl Fn(u32) -> Option<Free>,
    ) -> Option<u64> {
        if request.gpus > 0 {
            let able = self.gpus.with(request.gpus).filter_map(free);
            let able = able.filter(|free| free.cpus >= request.cpus);
            return able.map(|free| free.memory_mb).max();
        }
        self.levels_for(request).most_memory(scale.first(request.cpus))
    }

    /// Returns a host on which the request fits. `free` says what the task may use of a host.
    pub(super) fn find(
        &self,
        scale: &Scale,
        request: Request,
        placement: Placement,
        free: impl Fn(u32) -> Option<Free>,
    ) -> Option<u32> {
        if request.gpus > 0 {
            let mut able = self.gpus.with(request.gpus);
            return able.find(|host| free(*host).is_some_and(|free| free.holds(request)));
        }
        let first = scale.first(request.cpus);
        self.levels_for(request).find(first, request.memory_mb, placement)
    }

    /// Checks that it has exactly this of a host.
    #[cfg(test)]
    pub(super) fn check_host(
        &self,
        scale: &Scale,
        host: u32,
        place: Option<Place>,
    ) -> Result<(), &'static str> {
        let expected: Vec<_> = place
            .map(|place| (scale.level(place.free.cpus), place.free.memory_mb))
            .into_iter()
            .collect();
        let is_away = place.is_some_and(|place| !place.is_near);
        let near = self.near.as_ref().map(|near| near.places_of(host));
        if near.is_some_and(|near| near != if is_away { vec![] } else { expected.clone() }) {
            return Err("it is near or away, or not");
        }
        if !self.gpus.contains(host, place.map_or(0, |place| place.free.gpus)) {
            return Err("its GPUs are indexed wrongly");
        }
        match self.all.places_of(host) == expected {
            true => Ok(()),
            false => Err("it is in the wrong level"),
        }
    }

    /// Checks that trees and levels agree.
    #[cfg(test)]
    pub(super) fn check(&self) -> Result<(), String> {
        self.near.iter().try_for_each(Levels::check)?;
        self.all.check()
    }
}
