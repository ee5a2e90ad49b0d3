//! Parts of hosts: what a gang holds of each, and what is reserved for one.

use std::ops::Range;

use pmc_dag::Request;
use rustc_hash::FxHashMap;

use super::{Grant, Host, Hosts, Index, Scale};
use crate::protocol::Rank;
use crate::scheduler::gpus::GpuSet;

/// What a gang holds of a host, or is to hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PartRequest {
    pub(crate) ranks: u32,
    /// For all ranks of the part together.
    pub(crate) request: Request,
    /// It is the whole host.
    pub(crate) is_whole: bool,
}

/// What is reserved.
#[derive(Debug)]
pub(super) struct Reserved {
    /// By host.
    parts: FxHashMap<u32, PartRequest>,
    /// These hosts, with all that is free there.
    index: Index,
}

impl Reserved {
    pub(super) fn new(scale: &Scale) -> Self {
        Self {
            parts: FxHashMap::default(),
            index: Index::new(scale),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    pub(super) fn index(&self) -> &Index {
        &self.index
    }

    pub(super) fn index_mut(&mut self) -> &mut Index {
        &mut self.index
    }
}

/// What is free on a host with a free slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Free {
    pub(crate) cpus: u32,
    pub(crate) memory_mb: u64,
    pub(crate) gpus: u32,
}

impl Free {
    pub(crate) fn holds(self, request: Request) -> bool {
        self.cpus >= request.cpus && self.memory_mb >= request.memory_mb && self.gpus >= request.gpus
    }

    /// What is free again when this is given back.
    pub(crate) fn of(request: Request) -> Self {
        Self {
            cpus: request.cpus,
            memory_mb: request.memory_mb,
            gpus: request.gpus,
        }
    }

    /// Returns how many ranks fit that request this each.
    pub(crate) fn ranks(self, request: Request) -> u32 {
        let times = |free: u64, each: u64| free.checked_div(each).unwrap_or(u64::MAX);
        let fit = times(self.cpus.into(), request.cpus.into())
            .min(times(self.memory_mb, request.memory_mb))
            .min(times(self.gpus.into(), request.gpus.into()));
        u32::try_from(fit).unwrap_or(u32::MAX)
    }
}

impl PartRequest {
    /// Returns what this number of ranks gets of a host, on which it fits.
    pub(crate) fn new(host: &Host, ranks: u32, request: Request, is_whole: bool) -> Self {
        let request = match is_whole {
            true => Request {
                memory_mb: host.memory_mb,
                cpus: host.cpus,
                gpus: host.gpus,
                ..request
            },
            false => Request {
                memory_mb: request.memory_mb.saturating_mul(ranks.into()),
                cpus: request.cpus.saturating_mul(ranks),
                gpus: request.gpus.saturating_mul(ranks),
                ..request
            },
        };
        Self {
            ranks,
            request,
            is_whole,
        }
    }
}

impl Host {
    /// All that it has.
    pub(crate) fn all(&self) -> Free {
        Free {
            cpus: self.cpus,
            memory_mb: self.memory_mb,
            gpus: self.gpus,
        }
    }

    /// What is free for tasks that name no host; `None` if nothing can start.
    pub(crate) fn free(&self) -> Option<Free> {
        self.free_for_named().filter(|_| !self.named_only)
    }

    /// What is free for tasks that name this host; `None` if nothing can start.
    pub(crate) fn free_for_named(&self) -> Option<Free> {
        (!self.free_slots.is_empty() && !self.is_whole).then_some(Free {
            cpus: self.free_cpus,
            memory_mb: self.free_memory_mb,
            gpus: self.free_gpus.len(),
        })
    }
}

impl Hosts {
    /// What is free on a host beyond what is reserved there; `None` if nothing can start.
    pub(super) fn unreserved(&self, index: u32) -> Option<Free> {
        self.beyond_reserved(index, self.get(index).free()?)
    }

    /// What of this is not reserved for a gang.
    pub(super) fn beyond_reserved(&self, index: u32, free: Free) -> Option<Free> {
        let host = self.get(index);
        if self.reserved.is_empty() {
            return Some(free);
        }
        let Some(part) = self.reserved.parts.get(&index) else {
            return Some(free);
        };
        // The gang takes a slot, too.
        (!part.is_whole && host.free_slots.len() > 1).then(|| Free {
            cpus: free.cpus.saturating_sub(part.request.cpus),
            memory_mb: free.memory_mb.saturating_sub(part.request.memory_mb),
            gpus: free.gpus.saturating_sub(part.request.gpus),
        })
    }

    /// Reserves these parts, and nothing else any more.
    pub(crate) fn reserve(&mut self, parts: impl IntoIterator<Item = (u32, PartRequest)>) {
        for host in self.reserved.parts.keys().copied().collect::<Vec<_>>() {
            self.set_reserved(host, None);
        }
        for (host, part) in parts {
            self.set_reserved(host, Some(part));
        }
    }

    fn set_reserved(&mut self, host: u32, part: Option<PartRequest>) {
        self.leave(host);
        match part {
            Some(part) => self.reserved.parts.insert(host, part),
            None => self.reserved.parts.remove(&host),
        };
        self.enter(host);
        self.note_change(host);
    }

    /// True if something is reserved on a host.
    pub(crate) fn is_reserved(&self, index: u32) -> bool {
        !self.reserved.is_empty() && self.reserved.parts.contains_key(&index)
    }

    /// Takes a part and a slot of a host on which they are free, also if they are reserved.
    pub(crate) fn take_part(&mut self, index: u32, part: &PartRequest) -> Option<Grant> {
        self.change(index, |host| {
            let rank = host.free_slots.pop_front()?;
            Some(host.hold(rank, part, None))
        })
    }

    /// Takes a part of a host for a gang that has it already, as far as it is free. Of the numbers, those
    /// that are given and free are taken.
    pub(crate) fn adopt_part(
        &mut self,
        index: u32,
        rank: Rank,
        part: &mut PartRequest,
        (cpus, gpus): (&[u32], &[u32]),
    ) -> Grant {
        self.withhold(index, rank);
        self.change(index, |host| {
            let request = &mut part.request;
            request.cpus = request.cpus.min(host.free_cpus);
            request.memory_mb = request.memory_mb.min(host.free_memory_mb);
            request.gpus = request.gpus.min(host.free_gpus.len());
            part.is_whole &= host.busy == 0;
            host.hold(rank, part, Some((cpus, gpus)))
        })
    }

    /// Gives back a part. `rank` is its worker, if that may run another task.
    pub(crate) fn give_back_part(
        &mut self,
        index: u32,
        rank: Option<Rank>,
        part: &PartRequest,
        (block, gpus): (Option<Range<u32>>, GpuSet),
    ) {
        self.change(index, |host| host.is_whole &= !part.is_whole);
        self.give_back(index, rank, part.request, block, gpus);
    }
}

impl Host {
    /// Counts a part that a worker holds from now on. Its ranks get numbers of CPUs even if it has only one
    /// CPU: others would share it.
    fn hold(&mut self, rank: Rank, part: &PartRequest, held: Option<(&[u32], &[u32])>) -> Grant {
        let Request { cpus, gpus, .. } = part.request;
        self.count(part.request);
        self.is_whole |= part.is_whole;
        let (block, gpus) = match held {
            None => (self.cpu_set.take(cpus), self.free_gpus.take(gpus)),
            Some((numbers, held)) => {
                let is_same = numbers.len() == cpus as usize;
                let block = is_same.then(|| self.cpu_set.take_block(numbers)).flatten();
                (block, self.free_gpus.take_these(held, gpus))
            }
        };
        Grant {
            rank,
            fragmented: cpus > 0 && block.is_none() && held.is_none(),
            block,
            gpus,
        }
    }
}
