//! What is kept for a gang that comes first and does not fit, and what may run there meanwhile.
//!
//! The parts that fit earliest are reserved. Only tasks that are expected to end before the gang can start
//! may use them (EASY backfill). If the gang cannot start then, its parts are chosen anew, at most
//! [`MAX_SLIPS`] times; after that they stay, and nobody is let in. So the gang starts at the latest when all
//! has ended that ran on its parts then.

use std::cmp::Reverse;
use std::time::Duration;

use pmc_dag::TaskId;

use crate::protocol::Rank;
use crate::scheduler::Outbox;
use crate::scheduler::gangs::Stage;
use crate::scheduler::gangs::choice::{Candidate, spread};
use crate::scheduler::hosts::{Free, PartRequest, Room};
use crate::scheduler::queue::{Key, ShapeId, WaitingGang};
use crate::scheduler::run::Master;
use crate::scheduler::shares::ShareId;

/// How often the moment at which a gang is to start may pass before nobody is let in.
const MAX_SLIPS: u32 = 2;

/// Successes of a transformation after which its run time counts as known.
const MIN_SUCCESSES: u32 = 3;

/// Tasks of a shape that are looked at for reserved parts.
const MAX_LOOKS: usize = 64;

/// Gangs after the first one that are tried.
const MAX_GANGS: usize = 64;

/// What is reserved for a gang.
#[derive(Clone, Debug)]
pub(super) struct Reservation {
    pub(super) task: TaskId,
    shape: ShapeId,
    /// [`Hosts::moves`](crate::scheduler::hosts::Hosts::moves) when the parts were last looked at.
    moves: u64,
    pub(super) parts: Vec<(u32, PartRequest)>,
    /// When all parts are expected to be free; `None` if it is unknown.
    pub(super) until: Option<Duration>,
    /// How often that moment has passed.
    slips: u32,
}

#[cfg(test)]
impl Reservation {
    /// True if nobody is let in, and the parts stay.
    pub(super) fn is_last(&self) -> bool {
        self.slips >= MAX_SLIPS
    }
}

/// What is to start next.
enum Turn {
    Gang(ShapeId),
    Task,
}

/// Why a reservation may stay as it is, or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    /// Its parts stay.
    Parts,
    /// The moment at which the gang was to start has passed: the parts are chosen anew.
    Slipped,
    /// It is for another gang, or a part cannot be used any more.
    No,
}

impl Master {
    /// Starts as many gangs and tasks as fit, in their order. What is reserved stays so meanwhile: those that
    /// come before the gang use it all the same.
    pub(in crate::scheduler) fn start_beside_gangs(&mut self, out: &mut impl Outbox) {
        // Those that fit on no hosts that are there keep nobody waiting.
        let mut hopeless = Vec::new();
        let mut is_reserved = false;
        while let Some(turn) = self.turn(&hopeless) {
            match turn {
                Turn::Task => {
                    if self.start_next(Room::Free, out).is_none() {
                        break;
                    }
                }
                Turn::Gang(shape) if self.place(shape, Room::Free, out).is_some() => {}
                Turn::Gang(shape) => {
                    is_reserved = self.reserve(shape);
                    if is_reserved {
                        break;
                    }
                    hopeless.push(shape);
                }
            }
        }
        if !is_reserved {
            self.release_reserved();
        }
        self.start_beyond(out);
        self.let_in(out);
    }

    /// Keeps nothing any more, and follows no gangs: none waits.
    pub(in crate::scheduler) fn no_gang_waits(&mut self) {
        self.release_reserved();
        self.gangs.fits.clear();
        self.hosts.stop_noting();
    }

    fn release_reserved(&mut self) {
        if self.gangs.reservation.take().is_some() {
            self.hosts.reserve([]);
        }
    }

    /// Returns whether a gang or a task on one host is to start next.
    fn turn(&mut self, hopeless: &[ShapeId]) -> Option<Turn> {
        let order = self.shares_in_order();
        let shares: Vec<Option<ShareId>> = match self.shares.is_empty() {
            true if self.has_max_jobs() => return None,
            true => vec![None],
            false => order.into_iter().map(Some).collect(),
        };
        for share in shares {
            let gang = self.queue.first_gang(share, hopeless);
            let hosts = &mut self.hosts;
            let task = self.queue.best_of(share, |request, avoided| {
                hosts.most_free_memory_without(request, avoided, Room::Free)
            });
            let key = task.map(|task| self.queue.key_of(task));
            if let Some(gang) = gang.filter(|gang| key.is_none_or(|key| key < gang.key)) {
                return Some(Turn::Gang(gang.shape));
            }
            if key.is_some() {
                return Some(Turn::Task);
            }
        }
        None
    }

    /// Starts what fits beyond what is reserved.
    fn start_beyond(&mut self, out: &mut impl Outbox) {
        let room = Room::Unreserved;
        let first = self.gangs.reservation.as_ref().map(|kept| kept.task);
        for WaitingGang { key, shape } in self.queue.first_gangs().into_iter().take(MAX_GANGS) {
            while self.next_key().is_some_and(|task| task > key) && self.start_next(room, out).is_some() {}
            while self.queue.first(shape) != first
                && !self.has_max_jobs()
                && self.place(shape, room, out).is_some()
            {}
        }
        while self.start_next(room, out).is_some() {}
    }

    /// Returns the key of the task that [`Master::start_next`] starts beyond what is reserved.
    fn next_key(&mut self) -> Option<Key> {
        let shape = self.next_shape(Room::Unreserved)?;
        Some(self.queue.key_of(shape))
    }

    /// Lets tasks use reserved parts that are expected to end in time.
    fn let_in(&mut self, out: &mut impl Outbox) {
        let kept = self.gangs.reservation.as_ref();
        let Some(until) = kept
            .filter(|kept| kept.slips < MAX_SLIPS)
            .and_then(|kept| kept.until)
        else {
            return;
        };
        let now = self.now();
        for shape in self.queue.open_shapes() {
            let request = self.queue.shape(shape).request;
            let Some(first) = self.queue.first(shape) else {
                continue;
            };
            let tasks: Vec<TaskId> = std::iter::once(first)
                .chain(self.queue.next_ones(&self.nodes, shape))
                .take(MAX_LOOKS)
                .collect();
            for task in tasks {
                let avoided = self.queue.avoided_by(shape);
                let Some(host) = self.hosts.find_reserved_without(request, avoided) else {
                    break;
                };
                let is_full = !self.queue.shape(shape).is_open || self.has_max_jobs();
                if is_full {
                    break;
                }
                if self.hold_back(task, out) {
                    continue;
                }
                let expected = self.time_for_backfill(task);
                if expected.is_some_and(|expected| now.saturating_add(expected) <= until) {
                    self.start_on(task, host, out);
                }
            }
        }
    }

    /// Whether what is reserved may stay for a gang.
    fn kept_for(&self, task: TaskId, shape: ShapeId) -> Kept {
        let Some(kept) = &self.gangs.reservation else {
            return Kept::No;
        };
        let is_same = (kept.task, kept.shape) == (task, shape);
        if !is_same || kept.moves != self.hosts.moves() && !self.are_usable(shape, &kept.parts) {
            return Kept::No;
        }
        match kept.until.is_some_and(|until| until < self.now()) {
            true => Kept::Slipped,
            false => Kept::Parts,
        }
    }

    /// Reserves the parts on which the first gang of a shape fits earliest. Returns false if the hosts that
    /// are there do not suffice. Linear in the hosts, unless the parts that are reserved for it may stay.
    fn reserve(&mut self, shape: ShapeId) -> bool {
        let Some(task) = self.queue.first(shape) else {
            return false;
        };
        let (state, moves) = (self.kept_for(task, shape), self.hosts.moves());
        let kept = self.gangs.reservation.as_mut();
        let slips = match (state, kept) {
            (Kept::Parts, Some(kept)) => {
                kept.moves = moves;
                return true;
            }
            // After the last time, another choice could put it off for ever.
            (Kept::Slipped, Some(kept)) if kept.slips == MAX_SLIPS => {
                (kept.until, kept.moves) = (None, moves);
                return true;
            }
            (Kept::Slipped, Some(kept)) => kept.slips + 1,
            _ => 0,
        };
        let Some(parts) = self.earliest_parts(shape) else {
            return false;
        };
        let until = self.free_at(&parts);
        let is_new = self
            .gangs
            .reservation
            .as_ref()
            .is_none_or(|kept| kept.parts != parts);
        if is_new {
            self.hosts.reserve(parts.iter().cloned());
        }
        self.gangs.reservation = Some(Reservation {
            task,
            shape,
            moves,
            parts,
            until,
            slips,
        });
        true
    }

    /// Returns the parts on which the first gang of a shape fits earliest, by host. `None` if the hosts that
    /// are there do not suffice.
    fn earliest_parts(&self, shape: ShapeId) -> Option<Vec<(u32, PartRequest)>> {
        let kind = self.queue.shape(shape);
        let (gang, request) = (self.gangs.kind(kind.gang?), kind.request);
        let mut all = self.candidates(gang, request, self.queue.avoided_by(shape), None);
        all.retain(|candidate| self.hosts.get(candidate.host).is_open_to(gang));
        let need = |candidate: &Candidate| match gang.layout.ranks_of(0) {
            Some(ranks) => ranks,
            None => candidate.fit.min(gang.layout.ranks()),
        };
        let part =
            |host: u32, ranks: u32| PartRequest::new(self.hosts.get(host), ranks, request, gang.exclusive);
        let mut timed: Vec<(Duration, Reverse<u32>, u32)> = Vec::with_capacity(all.len());
        for candidate in &all {
            let need = need(candidate);
            // The last host may need fewer ranks than the others; that is not looked at.
            if candidate.fit >= need {
                let moment = self.moment(candidate.host, &part(candidate.host, need));
                timed.push((moment, Reverse(need), candidate.host));
            }
        }
        timed.sort_unstable();
        let in_time: Vec<Candidate> = timed
            .iter()
            .map(|(_, Reverse(fit), host)| Candidate {
                host: *host,
                fit: *fit,
            })
            .collect();
        let parts = spread(gang.layout, &in_time, self.most_gang_hosts()).or_else(|| {
            // Hosts of different sizes: whichever suffice.
            spread(gang.layout, &all, self.most_gang_hosts())
        })?;
        let chosen = parts
            .iter()
            .map(|chosen| (chosen.host, part(chosen.host, chosen.fit)));
        Some(chosen.collect())
    }

    /// When all of these parts are expected to be free, if that is known.
    fn free_at(&self, parts: &[(u32, PartRequest)]) -> Option<Duration> {
        let last = parts.iter().map(|(host, part)| self.moment(*host, part)).max();
        last.filter(|last| *last < Duration::MAX)
    }

    /// True if a gang can still start on these parts.
    fn are_usable(&self, shape: ShapeId, parts: &[(u32, PartRequest)]) -> bool {
        let avoided = self.queue.avoided_by(shape);
        let gang = self.queue.shape(shape).gang.map(|gang| self.gangs.kind(gang));
        parts.iter().all(|(number, part)| {
            let host = self.hosts.get(*number);
            let mut ranks = host.ranks.iter();
            let holds = host.all().holds(part.request);
            !avoided.contains(number)
                && holds
                && gang.is_some_and(|gang| host.is_open_to(gang))
                && ranks.any(|rank| self.slots[rank.0 as usize - 1].member.takes_tasks())
        })
    }

    /// Returns when a part is expected to fit on a host: [`Duration::MAX`] if that is unknown.
    pub(super) fn moment(&self, number: u32, part: &PartRequest) -> Duration {
        let host = self.hosts.get(number);
        let now = self.now();
        let mut free = Free {
            cpus: host.free_cpus,
            memory_mb: host.free_memory_mb,
            gpus: host.free_gpus.len(),
        };
        let mut slots = host.free_slots.len();
        let mut busy = host.busy;
        let fits = |free: Free, slots: usize, busy: u32| {
            let is_idle = !part.is_whole || busy == 0;
            slots > 0 && is_idle && free.holds(part.request)
        };
        if !host.is_whole && fits(free, slots, busy) {
            return now;
        }
        let mut ends: Vec<(Duration, Free, bool)> = Vec::with_capacity(host.busy as usize);
        for rank in &host.ranks {
            let slot = &self.slots[rank.0 as usize - 1];
            if let Some((end, held)) = self.end_on(*rank) {
                ends.push((end, held, slot.member.takes_tasks()));
            }
        }
        ends.sort_unstable_by_key(|(end, ..)| *end);
        for (end, held, offers) in ends {
            free.cpus += held.cpus;
            free.memory_mb += held.memory_mb;
            free.gpus += held.gpus;
            slots += usize::from(offers);
            busy = busy.saturating_sub(1);
            if fits(free, slots, busy) {
                return end;
            }
        }
        Duration::MAX
    }

    /// Returns when a worker is expected to have ended what it runs, and what is free then; `None` if it runs
    /// nothing. The time is [`Duration::MAX`] if it is unknown or over.
    fn end_on(&self, rank: Rank) -> Option<(Duration, Free)> {
        let now = self.now();
        let slot = &self.slots[rank.0 as usize - 1];
        let end = |task: TaskId, on: Rank| {
            let began = self.began(on);
            let end = began.and_then(|began| Some(began.saturating_add(self.time_for_backfill(task)?)));
            end.filter(|end| *end >= now).unwrap_or(Duration::MAX)
        };
        if let Some(submit) = self.gangs.part_of.get(&rank) {
            let gang = self.gangs.running.get(submit)?;
            let part = gang.parts.iter().find(|part| part.rank == rank)?;
            let time = match (&gang.stage, gang.lead) {
                (Stage::Leaving(_), _) => now,
                (Stage::Running, Some(lead)) => end(gang.task, lead),
                _ => self
                    .time_for_backfill(gang.task)
                    .map_or(Duration::MAX, |expected| now.saturating_add(expected)),
            };
            let request = part.request.request;
            return Some((time, Free::of(request)));
        }
        let running = slot.running.as_ref()?;
        let request = self.request(running.task);
        Some((end(running.task, rank), Free::of(request)))
    }

    /// How long a task is expected to run: what it says, else its limit, else what tasks of its
    /// transformation have taken; `None` if that is unknown.
    fn time_for_backfill(&self, task: TaskId) -> Option<Duration> {
        let (dag, local) = self.locate(task);
        let limit = || dag.task(local).runtime_limit.filter(|limit| !limit.is_zero());
        let said = dag.expected_time(local).or_else(limit);
        said.or_else(|| self.expected_time(task, MIN_SUCCESSES))
    }

    /// When the parts that are reserved are expected to be free.
    pub(in crate::scheduler) fn reserved_until(&self) -> Option<Duration> {
        let until = self.gangs.reservation.as_ref()?.until?;
        // Just after it.
        Some(until.saturating_add(Duration::from_millis(1)))
    }
}
