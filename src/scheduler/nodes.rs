//! Workers that come, fall silent, come back, leave and are lost, and what becomes of their tasks.
//!
//! ```text
//!                    Silent           Lost
//!         Registered ┌────────> silent ──┐
//! unknown ──> working              │     ├──> gone
//!                    <── Back ─────┘     │
//!         └── Retire ──> leaving ── idle ┘
//! ```
//!
//! The driver has the clock: it decides when a worker is silent, and when it is lost. Before it says that a
//! worker is lost, it must be sure that the worker's tasks have ended, because they become ready at once.
//!
//! A lost worker may have started each task that it held. So each of them counts as an attempt that was
//! evicted, and gets a new submit number when it is queued again. An eviction is no failure and uses up no
//! attempt, and the task keeps its place in the order. But a task may be what brings its workers down: after
//! [`MasterConfig::crash_limit`] evictions, it has failed.
//!
//! [`MasterConfig::crash_limit`]: super::MasterConfig::crash_limit

use std::time::Duration;

use pmc_dag::{CategoryId, Request, TaskId};
use pmc_system::planted::{Planted, is_planted};

use crate::protocol::{EXECUTOR_FAILURE, Outcome, Rank, Registration, SubmitId, ToWorker};
use crate::scheduler::hosts::Host;
use crate::scheduler::prefill::PrefillQueue;
use crate::scheduler::queue::Shape;
use crate::scheduler::run::{Master, Phase, Slot, Workers};
use crate::scheduler::shortage::Shortage;
use crate::scheduler::tasks::{Kind, State};
use crate::scheduler::{Adoption, Eviction, MasterError, Outbox, Record};

/// Highest rank that is accepted: all lower ones take memory.
const MAX_RANK: u32 = 1 << 24;

/// Highest number of an attempt of an earlier master that is accepted: those of later attempts are higher.
pub(super) const MAX_SUBMIT: u64 = 1 << 48;

/// Host of a worker that has not registered.
pub(super) const NO_HOST: u32 = u32::MAX;

/// Whether a worker takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Member {
    /// Has not registered.
    Unknown,
    /// Takes tasks.
    Working,
    /// Has not been heard of for a while. It keeps its tasks and gets no more.
    Silent,
    /// Ends its tasks and gets no more.
    Leaving,
    /// Both.
    LeavingSilent,
    /// Has left, or is lost.
    Gone,
}

impl Member {
    /// True if its tasks may still end.
    pub(super) fn is_there(self) -> bool {
        !matches!(self, Self::Unknown | Self::Gone)
    }

    /// True if it may get tasks now.
    pub(super) fn takes_tasks(self) -> bool {
        self == Self::Working
    }

    /// True if it takes tasks, or will when it answers again.
    pub(super) fn stays(self) -> bool {
        matches!(self, Self::Working | Self::Silent)
    }

    fn is_leaving(self) -> bool {
        matches!(self, Self::Leaving | Self::LeavingSilent)
    }

    fn fall_silent(self) -> Self {
        match self {
            Self::Working => Self::Silent,
            Self::Leaving => Self::LeavingSilent,
            other => other,
        }
    }

    fn come_back(self) -> Self {
        match self {
            Self::Silent => Self::Working,
            Self::LeavingSilent => Self::Leaving,
            other => other,
        }
    }

    fn retire(self) -> Self {
        match self {
            Self::Working => Self::Leaving,
            Self::Silent => Self::LeavingSilent,
            other => other,
        }
    }
}

impl Master {
    /// Number of workers that are there, also those that are silent or leave.
    #[must_use]
    pub fn workers(&self) -> u32 {
        self.present
    }

    /// The most workers that were there at a time, of those that come and go.
    #[must_use]
    pub fn most_workers(&self) -> u32 {
        self.most_present
    }

    /// Returns the first task in byte order that is not done and requests more than any host that is there
    /// has. Linear in hosts and tasks.
    #[must_use]
    pub fn task_without_host(&self) -> Option<TaskId> {
        let shapes = self.queue.shapes();
        let unfit: Vec<bool> = shapes.iter().map(|shape| !self.has_hosts_for(shape)).collect();
        if !unfit.contains(&true) {
            return None;
        }
        self.dag
            .ids()
            .filter(|task| {
                let node = &self.nodes[task.index()];
                node.state != State::Done && unfit[self.queue.shape_of(node.chain).index()]
            })
            .min_by_key(|task| self.dag.name(*task))
    }

    /// Returns the task that is to start next, if the run can only go on with other workers: nothing runs,
    /// and no task that waits fits on a host that is there. To be called after [`Master::schedule`].
    #[must_use]
    pub fn stranded(&self) -> Option<TaskId> {
        let may_go_on = self.is_stopped()
            || self.held
            || self.running > 0
            || self.expected > 0
            || !self.gangs.hold_nothing();
        if may_go_on || self.queue.len() == 0 {
            return None;
        }
        let present = || self.hosts.all().iter().filter(|host| !host.ranks.is_empty());
        let most_memory = |request: Request, _: &[u32]| {
            let able = present().filter(|host| host.could_take(request));
            able.map(|host| host.memory_mb).max()
        };
        if self.queue.best(most_memory).is_some() {
            return None;
        }
        let gangs = self.queue.first_gangs();
        let mut could_run = gangs.iter().map(|gang| self.queue.shape(gang.shape));
        if could_run.any(|shape| self.has_hosts_for(shape)) {
            return None;
        }
        let next = self.queue.best(|_, _| Some(u64::MAX));
        let next = next.or_else(|| gangs.first().map(|gang| gang.shape));
        next.and_then(|shape| self.queue.first(shape))
    }

    /// True if a task fits on no host that is there, but would if it did not need the directory of the DAG
    /// file.
    #[must_use]
    pub fn lacks_directory(&self, task: TaskId) -> bool {
        let request = self.request(task);
        let anywhere = Request {
            anywhere: true,
            ..request
        };
        !self.has_host_for(request) && self.has_host_for(anywhere)
    }

    /// Returns what is short for a task that no host that is there can run, and on which host least is short.
    /// `None` if there are no hosts. Linear in hosts.
    #[must_use]
    pub fn shortage(&self, task: TaskId) -> Option<Shortage> {
        let request = self.request(task);
        let there = self.hosts.all().iter().filter(|host| !host.ranks.is_empty());
        Shortage::of(there.filter(|host| host.suits(request)), request)
    }

    /// True if the tasks of a shape fit on the hosts that are there, if nothing else runs.
    fn has_hosts_for(&self, shape: &Shape) -> bool {
        match shape.gang {
            None => self.has_host_for(shape.request),
            Some(id) => self.has_hosts_for_gang(self.gangs.kind(id), shape.request, &[]),
        }
    }

    pub(super) fn has_host_for(&self, request: Request) -> bool {
        let could_take = |host: &Host| !host.ranks.is_empty() && host.could_take(request);
        self.hosts.all().iter().any(could_take)
    }

    /// Adds a worker while others may already run tasks.
    pub(super) fn join(
        &mut self,
        rank: Rank,
        registration: &Registration,
        out: &mut impl Outbox,
    ) -> Result<(), MasterError> {
        let index = (rank.0 as usize)
            .checked_sub(1)
            .filter(|_| rank.0 <= MAX_RANK)
            .ok_or(MasterError::UnknownRank(rank))?;
        if self.slots.len() <= index {
            self.slots.resize_with(index + 1, Slot::unknown);
        }
        if self.slots[index].member != Member::Unknown {
            return Err(MasterError::RegisteredTwice(rank));
        }
        let is_new = self.hosts.number(&registration.host).is_none();
        let (host, describes) = self.hosts.add(rank, registration);
        let host_rank = self.free_host_rank(host, rank);
        self.slots[index] = Slot {
            host,
            host_rank,
            member: Member::Working,
            running: None,
            prefilled: PrefillQueue::default(),
        };
        self.registered += 1;
        self.present += 1;
        self.most_present = self.most_present.max(self.present);
        // It may make its host one that does not see the directory.
        self.avoidance.look_again();
        if self.phase == Phase::Registering {
            // The start records all hosts that have come by then.
        } else if is_new {
            self.record_resources(host, out);
        } else {
            self.record_capacity(host, describes, false, out);
        }
        if self.has_host_scripts {
            self.hosts.withhold(host, rank);
            self.preparing.entry(host).or_default().push(rank);
        }
        out.send(rank, ToWorker::Setup { host_rank });
        Ok(())
    }

    /// Workers that come prepare their hosts first, by a script: each says [`Event::HostReady`]. A host gets
    /// its first task when all of its workers have said so.
    #[must_use]
    pub fn with_host_scripts(mut self) -> Self {
        self.has_host_scripts = true;
        self
    }

    /// True if all workers that are there prepare their hosts.
    #[must_use]
    pub fn only_prepares(&self) -> bool {
        !self.preparing.is_empty() && self.hosts.free_slots() == 0 && self.running == 0
    }

    /// Handles [`Event::HostReady`].
    pub(super) fn host_ready(&mut self, rank: Rank) -> Result<(), MasterError> {
        let host = self.known_slot(rank)?.host;
        self.end_preparation(host, rank);
        Ok(())
    }

    /// Offers the workers of a host if this was the last one that prepared it.
    fn end_preparation(&mut self, host: u32, rank: Rank) {
        let Some(preparing) = self.preparing.get_mut(&host) else {
            return;
        };
        preparing.retain(|other| *other != rank);
        if !preparing.is_empty() {
            return;
        }
        self.preparing.remove(&host);
        for rank in self.hosts.get(host).ranks.clone() {
            let slot = &self.slots[rank.0 as usize - 1];
            if slot.member.takes_tasks() && slot.running.is_none() && !self.gangs.has_part(rank) {
                // Some were offered before others came.
                self.hosts.withhold(host, rank);
                self.hosts.offer(host, rank);
            }
        }
    }

    /// Returns the lowest number that no other worker of the host has. When all of them were lost, the next
    /// one prepares the host again, as number 0.
    fn free_host_rank(&self, host: u32, rank: Rank) -> u32 {
        let ranks = &self.hosts.get(host).ranks;
        let mut used = vec![false; ranks.len()];
        for other in ranks.iter().filter(|other| **other != rank) {
            let number = self.slots[other.0 as usize - 1].host_rank;
            if let Some(used) = used.get_mut(number as usize) {
                *used = true;
            }
        }
        used.iter()
            .position(|used| !used)
            .map_or(0, |number| number as u32)
    }

    /// Handles [`Event::Silent`](super::Event::Silent).
    pub(super) fn fall_silent(&mut self, rank: Rank) -> Result<(), MasterError> {
        let slot = self.known_slot(rank)?;
        slot.member = slot.member.fall_silent();
        let host = slot.host;
        self.hosts.withhold(host, rank);
        Ok(())
    }

    /// Handles [`Event::Back`](super::Event::Back).
    pub(super) fn come_back(&mut self, rank: Rank) -> Result<(), MasterError> {
        let slot = self.known_slot(rank)?;
        let before = slot.member;
        slot.member = before.come_back();
        let host = slot.host;
        let is_idle = slot.running.is_none() && !self.gangs.has_part(rank);
        if before == Member::Silent && is_idle && !self.preparing.contains_key(&host) {
            self.hosts.offer(host, rank);
        }
        Ok(())
    }

    /// Handles [`Event::Retire`](super::Event::Retire).
    pub(super) fn retire(&mut self, rank: Rank, out: &mut impl Outbox) -> Result<(), MasterError> {
        let slot = self.known_slot(rank)?;
        slot.member = slot.member.retire();
        if !slot.member.is_there() {
            return Ok(());
        }
        if !slot.prefilled.is_empty() {
            out.send(rank, ToWorker::Retract);
        }
        let host = slot.host;
        self.hosts.withhold(host, rank);
        self.avoidance.look_again();
        self.leave_if_idle(rank, out);
        Ok(())
    }

    /// Lets a worker go that is to leave and runs nothing.
    pub(super) fn leave_if_idle(&mut self, rank: Rank, out: &mut impl Outbox) {
        let has_part = self.gangs.has_part(rank);
        let slot = &mut self.slots[rank.0 as usize - 1];
        if slot.member.is_leaving() && slot.running.is_none() && !has_part {
            slot.member = Member::Gone;
            out.send(rank, ToWorker::Shutdown);
            self.take_away(rank, out);
        }
    }

    /// Handles [`Event::Lost`](super::Event::Lost).
    pub(super) fn lose(&mut self, rank: Rank, out: &mut impl Outbox) -> Result<(), MasterError> {
        let slot = self.known_slot(rank)?;
        if slot.member == Member::Gone {
            return Ok(());
        }
        slot.member = Member::Gone;
        self.part_lost(rank, out);
        while self.evict(rank, out) {
            // It may have started the next one since.
            self.start_prefilled(rank, out);
        }
        self.take_away(rank, out);
        Ok(())
    }

    /// Ends the running attempt of a lost worker. Returns false if there is none.
    fn evict(&mut self, rank: Rank, out: &mut impl Outbox) -> bool {
        let slot = &mut self.slots[rank.0 as usize - 1];
        let host = slot.host;
        let Some(running) = slot.running.take() else {
            return false;
        };
        let (task, submit) = (running.task, running.submit);
        self.give_back(host, None, running);
        self.lose_attempt(task, submit, rank, out);
        self.record_resources(host, out);
        true
    }

    /// Ends an attempt that was lost with a worker. Its task is queued again, or fails at the limit of
    /// losses.
    pub(super) fn lose_attempt(&mut self, task: TaskId, submit: SubmitId, rank: Rank, out: &mut impl Outbox) {
        let evictions = self.evictions.entry(task).or_insert(0);
        *evictions += 1;
        if self.config.crash_limit == 0 || *evictions < self.config.crash_limit {
            let record = Record::Evicted {
                task,
                submit,
                rank,
                why: Eviction::Lost,
            };
            self.evicted(task, record, out);
        } else {
            let mut outcome = Outcome::new(EXECUTOR_FAILURE, Duration::ZERO);
            outcome.evictions = *evictions;
            out.record(self.end_record(task, submit, rank, outcome));
            self.summary_of(task).failed += 1;
            self.fail(task);
        }
    }

    /// Makes a task ready again that was evicted. It keeps its place, and so starts next.
    pub(super) fn evicted(&mut self, task: TaskId, record: Record<'_>, out: &mut impl Outbox) {
        self.summary_of(task).evicted += 1;
        out.record(record);
        self.nodes[task.index()].state = State::Ready;
        self.ready.push(task);
    }

    /// Takes the resources of a worker that is gone.
    fn take_away(&mut self, rank: Rank, out: &mut impl Outbox) {
        let host = self.slots[rank.0 as usize - 1].host;
        let was_last = self.hosts.remove(host, rank);
        if was_last {
            self.cache_index.forget(host);
        }
        self.present -= 1;
        self.avoidance.look_again();
        self.end_preparation(host, rank);
        self.record_capacity(host, was_last, true, out);
    }

    /// Records that a worker has come or gone, and the whole host if it is the first or last one.
    fn record_capacity(&self, host: u32, whole: bool, gone: bool, out: &mut impl Outbox) {
        if self.phase == Phase::Registering {
            return;
        }
        let host = self.hosts.get(host);
        let (cpus, memory_mb) = if whole {
            (host.cpus, host.memory_mb)
        } else {
            (0, 0)
        };
        out.record(Record::Capacity {
            host: &host.name,
            gone,
            slots: 1,
            cpus,
            memory_mb,
        });
    }

    /// Handles [`Event::Expect`](super::Event::Expect).
    pub(super) fn expect(&mut self, task: TaskId, submit: SubmitId) -> Result<(), MasterError> {
        let state = self.nodes.get(task.index()).map(|node| node.state);
        if state != Some(State::Ready) || submit.0 > MAX_SUBMIT {
            return Err(MasterError::NotExpected(task));
        }
        self.note_number(submit);
        self.nodes[task.index()].state = State::Expected;
        self.expected += 1;
        // It may run.
        if let Some(category) = self.category_of(task) {
            self.enter_category(category);
        }
        Ok(())
    }

    /// Gives new attempts higher numbers than that of an earlier master has.
    pub(super) fn note_number(&mut self, submit: SubmitId) {
        if !is_planted(Planted::AdoptedNumbers) {
            self.last_submit = self.last_submit.max(submit.0);
        }
    }

    /// Handles [`Event::Forget`](super::Event::Forget).
    pub(super) fn forget(&mut self, task: TaskId) {
        if let Some(node) = self.nodes.get_mut(task.index())
            && node.state == State::Expected
        {
            node.state = State::Ready;
            self.ready.push(task);
            self.no_longer_expected(task);
        }
    }

    pub(super) fn no_longer_expected(&mut self, task: TaskId) {
        self.expected -= 1;
        if let Some(category) = self.category_of(task) {
            self.leave_category(category);
        }
    }

    pub(super) fn category_of(&self, task: TaskId) -> Option<CategoryId> {
        let chain = self.nodes[task.index()].chain;
        self.queue.shape(self.queue.shape_of(chain)).category
    }

    /// Handles [`Event::Adopt`](super::Event::Adopt).
    pub(super) fn adopt(
        &mut self,
        rank: Rank,
        adoption: &Adoption,
        out: &mut impl Outbox,
    ) -> Result<(), MasterError> {
        let Adoption { task, submit, .. } = *adoption;
        let has_part = self.gangs.has_part(rank);
        let slot = self.known_slot(rank)?;
        let is_free = slot.member.is_there() && slot.running.is_none() && !has_part;
        let host = slot.host;
        let state = self.nodes.get(task.index()).map(|node| node.state);
        let has_command = self
            .nodes
            .get(task.index())
            .is_some_and(|node| node.kind != Kind::Subdag);
        let waits = has_command
            && matches!(
                state,
                Some(State::Ready | State::Expected | State::Queued | State::Late)
            );
        let refused = MasterError::NotAdopted { rank, submit };
        if !is_free || !waits || submit.0 > MAX_SUBMIT {
            return Err(refused);
        }
        let request = self.request(task);
        let grant = self.hosts.adopt(host, rank, request, adoption).ok_or(refused)?;
        match state {
            Some(State::Expected) => self.no_longer_expected(task),
            Some(State::Queued) => self.queue.remove(&mut self.nodes, task),
            Some(State::Late) => self.run_times.retain_late(|late| *late != task),
            _ => {}
        }
        self.note_number(submit);
        self.nodes[task.index()].submit = submit.0;
        self.take_place(task);
        out.record(Record::Adopted(task, submit));
        self.started(task, submit, host, grant, out);
        Ok(())
    }

    /// Returns the state of a worker that has registered at some time.
    pub(super) fn known_slot(&mut self, rank: Rank) -> Result<&mut Slot, MasterError> {
        (rank.0 as usize)
            .checked_sub(1)
            .and_then(|index| self.slots.get_mut(index))
            .filter(|slot| slot.member != Member::Unknown)
            .ok_or(MasterError::UnknownRank(rank))
    }

    /// True if workers may come at any time.
    #[must_use]
    pub fn is_dynamic(&self) -> bool {
        self.workers == Workers::Dynamic
    }
}
