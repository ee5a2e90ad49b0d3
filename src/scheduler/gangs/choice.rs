//! Which hosts a gang gets.

use std::cmp::Reverse;

use pmc_dag::{Gang, Layout, Request, TaskId};
use pmc_system::planted::{Planted, is_planted};

use crate::protocol::SubmitId;
use crate::scheduler::gangs::{GangPart, GangParts, Part, RunningGang, Stage};
use crate::scheduler::hosts::{Free, Host, PartRequest, Room};
use crate::scheduler::queue::ShapeId;
use crate::scheduler::run::Master;
use crate::scheduler::tasks::{NO_TASK, State};
use crate::scheduler::{MasterError, Outbox, Record};

/// A host, and how many ranks fit there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) host: u32,
    pub(super) fit: u32,
}

/// Returns how many ranks each host gets, the most first; `None` if the hosts do not suffice. `candidates`
/// come in the order in which they are to be used, those on which more ranks fit first.
pub(super) fn spread(layout: Layout, candidates: &[Candidate], most_hosts: usize) -> Option<Vec<Candidate>> {
    let mut left = layout.ranks();
    let mut parts = Vec::new();
    for (number, candidate) in (0..).zip(candidates.iter().take(most_hosts)) {
        let ranks = match layout.ranks_of(number) {
            None => candidate.fit.min(left),
            Some(ranks) if ranks <= candidate.fit => ranks,
            Some(_) => return None,
        };
        if ranks == 0 {
            return None;
        }
        parts.push(Candidate {
            host: candidate.host,
            fit: ranks,
        });
        left -= ranks;
        if left == 0 {
            return Some(parts);
        }
    }
    None
}

impl Master {
    /// Number of hosts that a gang may have.
    pub(super) fn most_gang_hosts(&self) -> usize {
        if self.gangs.over_hosts { usize::MAX } else { 1 }
    }

    /// Hosts that a gang may have and on which at least a rank fits, those on which most fit first, then by
    /// number. Without `room`, all counts that they have. Linear in the hosts.
    pub(super) fn candidates(
        &self,
        gang: &Gang,
        request: Request,
        avoided: &[u32],
        room: Option<Room>,
    ) -> Vec<Candidate> {
        let candidate = |number: u32| {
            if avoided.contains(&number) {
                return None;
            }
            let fit = self.ranks_that_fit(number, gang, request, room);
            (fit > 0).then_some(Candidate { host: number, fit })
        };
        let mut candidates: Vec<Candidate> = if gang.on.is_empty() {
            (0..self.hosts.all().len() as u32).filter_map(candidate).collect()
        } else {
            let named = gang.on.iter().filter_map(|name| self.hosts.number(name));
            named.filter_map(candidate).collect()
        };
        candidates.sort_unstable_by_key(|candidate| (Reverse(candidate.fit), candidate.host));
        candidates
    }

    /// Returns how many ranks of a gang fit on a host. Without `room`, all counts that it has.
    pub(super) fn ranks_that_fit(
        &self,
        number: u32,
        gang: &Gang,
        request: Request,
        room: Option<Room>,
    ) -> u32 {
        let host = self.hosts.get(number);
        if host.ranks.is_empty() || !host.suits(request) {
            return 0;
        }
        let ranks = |free: Free| free.ranks(request);
        let is_idle = |host: &Host| host.busy == 0;
        match room {
            None => ranks(host.all()),
            Some(_) if gang.exclusive && !is_idle(host) => 0,
            Some(Room::Unreserved) if gang.exclusive && self.hosts.is_reserved(number) => 0,
            Some(room) => {
                let is_named = host.named_only && gang.on.contains(&host.name);
                self.hosts.free_for(number, room, is_named).map_or(0, ranks)
            }
        }
    }

    /// True if a gang fits on the hosts that are there, without these and if nothing else ran. Linear in the
    /// hosts.
    pub(in crate::scheduler) fn has_hosts_for_gang(
        &self,
        gang: &Gang,
        request: Request,
        without: &[u32],
    ) -> bool {
        let candidates = self.candidates(gang, request, without, None);
        let stays = |candidate: &Candidate| {
            let host = self.hosts.get(candidate.host);
            let mut ranks = host.ranks.iter();
            without.is_empty()
                || host.is_open_to(gang) && ranks.any(|rank| self.slots[rank.0 as usize - 1].member.stays())
        };
        let candidates: Vec<Candidate> = candidates.into_iter().filter(stays).collect();
        spread(gang.layout, &candidates, self.most_gang_hosts()).is_some()
    }

    /// Returns how many hosts a gang needs, and how many are there that could take its ranks.
    pub(in crate::scheduler) fn gang_shortage(&self, gang: &Gang, request: Request) -> (u32, u32) {
        let candidates = self.candidates(gang, request, &[], None);
        let needed = gang.layout.nodes().unwrap_or_else(|| {
            let most = candidates.first().map_or(1, |candidate| candidate.fit);
            gang.layout.ranks().div_ceil(most.max(1))
        });
        let ranks = (0..).zip(&candidates).take_while(|(number, candidate)| {
            gang.layout
                .ranks_of(*number)
                .is_none_or(|ranks| candidate.fit >= ranks)
        });
        (needed, (ranks.count() as u32).min(needed))
    }

    /// True if a task may have several hosts.
    #[must_use]
    pub fn is_gang(&self, task: TaskId) -> bool {
        let chain = self.nodes[task.index()].chain;
        self.queue.shape(self.queue.shape_of(chain)).gang.is_some()
    }

    /// Returns how many hosts a task needs, and how many are there that could take its ranks, if it may have
    /// several. Linear in hosts.
    #[must_use]
    pub fn nodes_of_gang(&self, task: TaskId) -> Option<(u32, u32)> {
        let chain = self.nodes[task.index()].chain;
        let shape = self.queue.shape(self.queue.shape_of(chain));
        Some(self.gang_shortage(self.gangs.kind(shape.gang?), shape.request))
    }

    /// Says that there are too few hosts for a task.
    #[must_use]
    pub fn too_few_nodes(&self, task: String, needed: u32, there: u32) -> MasterError {
        match self.gangs.over_hosts {
            true => MasterError::TooFewNodes { task, needed, there },
            false => MasterError::NeedsAgents { task, nodes: needed },
        }
    }

    /// Returns the task of a gang that holds hosts.
    #[must_use]
    pub fn task_of_gang(&self, submit: SubmitId) -> Option<TaskId> {
        let gang = self.gangs.running.get(&submit)?;
        (gang.task.0 != NO_TASK).then_some(gang.task)
    }

    /// Starts to bring together the first gang of a shape, or holds it back. Returns `None` if it does not
    /// fit.
    pub(super) fn place(&mut self, shape: ShapeId, room: Room, out: &mut impl Outbox) -> Option<()> {
        let task = self.queue.first(shape)?;
        if self.hold_back(task, out) {
            return Some(());
        }
        if !self.fits(shape, room) {
            return None;
        }
        let kind = self.queue.shape(shape);
        let (gang, request) = (self.gangs.kind(kind.gang?), kind.request);
        let candidates = self.candidates(gang, request, self.queue.avoided_by(shape), Some(room));
        let parts = spread(gang.layout, &candidates, self.most_gang_hosts())?;
        let is_whole = gang.exclusive;
        self.queue.remove(&mut self.nodes, task);
        let mut taken = Vec::with_capacity(parts.len());
        let mut is_fragmented = false;
        for Candidate { host, fit } in parts {
            let is_free = !taken.is_empty() && is_planted(Planted::PartCountedOnce);
            let request = if is_free { Request::default() } else { request };
            let part = PartRequest::new(self.hosts.get(host), fit, request, is_whole);
            // There is a free slot: else nothing would fit.
            let grant = self.hosts.take_part(host, &part)?;
            is_fragmented |= grant.fragmented;
            taken.push(Part::new(host, part, grant));
        }
        self.bring_together(task, taken, is_whole, is_fragmented, out);
        Some(())
    }

    /// Asks the members to join.
    fn bring_together(
        &mut self,
        task: TaskId,
        mut parts: Vec<Part>,
        is_exclusive: bool,
        is_fragmented: bool,
        out: &mut impl Outbox,
    ) {
        let submit = SubmitId(self.nodes[task.index()].submit);
        if is_fragmented {
            out.record(Record::Fragmented(task, submit));
        }
        let lead = parts.first_mut().map(|part| {
            part.has_joined = true;
            part.rank
        });
        let described = parts.iter().map(|part| GangPart {
            rank: part.rank,
            host: self.hosts.get(part.host).name.clone(),
            ranks: part.request.ranks,
            grant: part.granted(),
        });
        let asked = GangParts {
            task,
            submit,
            is_exclusive,
            parts: described.collect(),
        };
        if parts.len() > 1 {
            parts
                .iter()
                .for_each(|part| self.record_beside(task, part.host, out));
        }
        for part in &parts {
            self.gangs.part_of.insert(part.rank, submit);
            self.gangs.left.remove(&part.rank);
        }
        let gang = RunningGang {
            task,
            lead,
            stage: Stage::Joining,
            parts,
            counts: true,
            is_quiet: false,
        };
        self.gangs.running.insert(submit, gang);
        self.nodes[task.index()].state = State::Joining;
        self.count_gang(task);
        out.join(asked);
        self.begin_if_joined(submit, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(layout: Layout, fits: &[u32]) -> Option<Vec<u32>> {
        let candidates: Vec<Candidate> = (0..)
            .zip(fits)
            .map(|(host, fit)| Candidate { host, fit: *fit })
            .collect();
        let parts = spread(layout, &candidates, usize::MAX)?;
        Some(parts.iter().map(|part| part.fit).collect())
    }

    #[test]
    fn ranks_are_spread_as_the_numbers_say() {
        let packed = Layout::Packed { ranks: 7 };
        assert_eq!(parts(packed, &[4, 2, 2]), Some(vec![4, 2, 1]));
        assert_eq!(parts(packed, &[9, 9]), Some(vec![7]));
        assert_eq!(parts(packed, &[4, 2]), None);
        let spread = Layout::Spread { nodes: 3, ranks: 7 };
        assert_eq!(parts(spread, &[3, 2, 2, 2]), Some(vec![3, 2, 2]));
        assert_eq!(parts(spread, &[2, 2, 2]), None, "the first one has one more");
        assert_eq!(parts(spread, &[9, 9]), None);
        let filled = Layout::Filled {
            ranks: 5,
            per_node: 2,
        };
        assert_eq!(parts(filled, &[2, 2, 1]), Some(vec![2, 2, 1]));
        assert_eq!(parts(filled, &[9, 1, 1]), None);
    }
}
