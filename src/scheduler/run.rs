//! State of a run, and how events change it.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use pmc_dag::rescue::DoneSet;
use pmc_dag::{CategoryId, Dag, TaskId};
use pmc_expressions::Amount;
use rustc_hash::FxHashMap;

use crate::protocol::{Rank, Registration, SubmitId, ToWorker};
use crate::scheduler::avoidance::Avoidance;
use crate::scheduler::cache_index::CacheIndex;
use crate::scheduler::categories::Category;
use crate::scheduler::gangs::Gangs;
use crate::scheduler::gpus::GpuSet;
use crate::scheduler::hosts::{Hosts, Placement};
use crate::scheduler::nodes::{Member, NO_HOST};
use crate::scheduler::prefill::{PrefillQueue, PrefillState};
use crate::scheduler::queue::Queue;
use crate::scheduler::run_times::RunTimes;
use crate::scheduler::segments::{Segment, SegmentId, add_nodes};
use crate::scheduler::shares::{ShareId, Shares};
use crate::scheduler::tasks::{NO_TASK, Node};
use crate::scheduler::{Event, MasterError, Outbox, Record};

/// Settings of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MasterConfig {
    /// Maximum attempts of tasks that do not set their own limit; 0 means one.
    pub max_attempts: u32,
    /// Number of finally failed tasks after which no more tasks start; 0 means no limit.
    pub max_failures: u32,
    /// Number of lost workers after which a task that ran on each of them fails; 0 means no limit.
    pub crash_limit: u32,
}

/// Which workers take part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workers {
    /// Ranks 1 to this number, which all register before the run starts.
    Fixed(u32),
    /// Workers come and go at any time. Each has its own rank, which is not used again.
    Dynamic,
}

/// Figures of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Number of tasks of the DAG.
    pub tasks: usize,
    /// Attempts started in this run.
    pub submitted: u64,
    /// Attempts that succeeded in this run.
    pub succeeded: u64,
    /// Attempts that failed in this run, including those that were retried.
    pub failed: u64,
    /// Attempts that were lost with their workers in this run and did not fail for that.
    pub evicted: u64,
    /// Tasks that were done before this run.
    pub done_before: usize,
    /// Tasks that are done, before this run or in it.
    pub done: usize,
    /// Tasks that failed finally in this run.
    pub failed_tasks: usize,
    /// Sum of the wall times of all attempts.
    pub runtime: Duration,
    /// True if all tasks are done.
    pub success: bool,
    /// True if `max_failures` tasks have failed.
    pub max_failures_reached: bool,
}

/// One worker, in one cache line: with thousands of workers, each access is a cache miss.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Slot {
    pub(super) host: u32,
    /// Its number among the workers of the host, if workers come and go.
    pub(super) host_rank: u32,
    pub(super) member: Member,
    pub(super) running: Option<Running>,
    /// Tasks that it starts next, without asking.
    pub(super) prefilled: PrefillQueue,
}

impl Slot {
    /// A worker that has not registered.
    pub(super) fn unknown() -> Self {
        Self {
            host: NO_HOST,
            host_rank: 0,
            member: Member::Unknown,
            running: None,
            prefilled: PrefillQueue::default(),
        }
    }
}

const _: () = assert!(size_of::<Slot>() == 64);

/// A running attempt and the numbered resources that it holds.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) task: TaskId,
    pub(super) submit: SubmitId,
    pub(super) block: Option<Range<u32>>,
    pub(super) gpus: GpuSet,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Registering,
    Started,
}

/// The state machine.
#[derive(Debug)]
pub struct Master {
    pub(super) dag: Arc<Dag>,
    pub(super) config: MasterConfig,
    pub(super) phase: Phase,
    pub(super) draining: bool,
    pub(super) held: bool,
    pub(super) workers: Workers,
    /// By rank, from 1. Only with a fixed number of workers, which are set up when the last one has
    /// registered.
    registrations: Vec<Option<Registration>>,
    /// Workers that have registered.
    pub(super) registered: u32,
    /// Workers that are there.
    pub(super) present: u32,
    /// The most that were there at a time.
    pub(super) most_present: u32,
    pub(super) hosts: Hosts,
    pub(super) cache_index: CacheIndex,
    /// Workers that prepare their hosts, by host.
    pub(super) preparing: FxHashMap<u32, Vec<Rank>>,
    /// Hosts are prepared before their first task.
    pub(super) has_host_scripts: bool,
    /// The worker of rank r is at r - 1.
    pub(super) slots: Vec<Slot>,
    /// By task.
    pub(super) nodes: Vec<Node>,
    /// Failed attempts of each task that has any.
    pub(super) failures: FxHashMap<TaskId, u32>,
    pub(super) avoidance: Avoidance,
    /// Lost workers of each task that has any.
    pub(super) evictions: FxHashMap<TaskId, u32>,
    /// Number of tasks that are expected to be adopted.
    pub(super) expected: usize,
    /// Number of tasks that rest.
    pub(super) resting: usize,
    /// Tasks for the next `schedule`, in order. Tasks among them that are not ready any more do not count.
    pub(super) ready: Vec<TaskId>,
    pub(super) queue: Queue,
    pub(super) chain_of_set: Vec<u32>,
    pub(super) shares: Shares,
    /// Percent of its memory that a task requests after an attempt that ran out of memory.
    pub(super) more_memory: u32,
    /// Name of the user, for expressions.
    pub(super) user: Option<String>,
    /// What expressions gave for amounts that are no requests of the executor.
    pub(super) estimates: FxHashMap<(TaskId, Amount), u64>,
    /// Categories with a limit.
    pub(super) categories: Vec<Category>,
    pub(super) prefill: PrefillState,
    pub(super) run_times: RunTimes,
    pub(super) gangs: Gangs,
    pub(super) last_submit: u64,
    /// The last place in the order of queued tasks that was taken.
    pub(super) last_place: u32,
    pub(super) running: usize,
    pub(super) summary: Summary,
    /// DAGs that have joined, by the numbers of their tasks.
    pub(super) segments: Vec<Segment>,
    /// Those of which nothing is left to run, and that the driver has not taken.
    pub(super) ended: Vec<SegmentId>,
    /// Number of nested tasks.
    pub(super) nested: usize,
    /// Number of those whose DAGs have joined.
    pub(super) nested_open: usize,
    /// Category of the preparations of sub-workflows, if there are any.
    pub(super) plans: Option<CategoryId>,
    pub(super) max_plans: u32,
    /// Stands in for the DAGs of segments that have ended.
    pub(super) empty_dag: Option<Arc<Dag>>,
}

/// Default number of preparations of sub-workflows that run at a time.
pub const DEFAULT_MAX_PLANS: u32 = 4;

impl Master {
    /// Creates the state of a run of `dag`. The tasks in `done` are not run.
    #[must_use]
    pub fn new(dag: Arc<Dag>, done: DoneSet, workers: Workers, config: MasterConfig) -> Self {
        let (queue, chain_of) = Queue::new(&dag);
        let mut nodes: Vec<Node> = Vec::with_capacity(dag.len());
        let mut cache_index = CacheIndex::default();
        let inputs_of = cache_index.add_sets(&dag);
        let (ready, done_before) = add_nodes(&mut nodes, &dag, &chain_of, &inputs_of, &done);
        let requests: Vec<u32> = queue.shapes().iter().map(|shape| shape.request.cpus).collect();
        let narrow = requests.iter().all(|cpus| *cpus <= 1);
        let placement = if narrow {
            Placement::Spread
        } else {
            Placement::Pack
        };
        let fixed = match workers {
            Workers::Fixed(count) => count as usize,
            Workers::Dynamic => 0,
        };
        let mut this = Self {
            config,
            phase: Phase::Registering,
            draining: false,
            held: false,
            workers,
            registrations: vec![None; fixed],
            registered: 0,
            present: 0,
            most_present: 0,
            hosts: Hosts::new(&requests, placement),
            cache_index,
            preparing: FxHashMap::default(),
            has_host_scripts: false,
            slots: Vec::new(),
            nodes,
            failures: FxHashMap::default(),
            avoidance: Avoidance::default(),
            evictions: FxHashMap::default(),
            expected: 0,
            resting: 0,
            ready,
            queue,
            chain_of_set: chain_of,
            shares: Shares::default(),
            more_memory: 100,
            user: None,
            estimates: FxHashMap::default(),
            categories: Category::all(&dag),
            prefill: PrefillState::default(),
            run_times: RunTimes::default(),
            gangs: Gangs::default(),
            last_submit: 0,
            last_place: 0,
            running: 0,
            summary: Summary {
                tasks: dag.len(),
                done_before,
                done: done_before,
                success: done_before == dag.len(),
                ..Summary::default()
            },
            segments: Vec::new(),
            ended: Vec::new(),
            nested: 0,
            nested_open: 0,
            plans: None,
            max_plans: DEFAULT_MAX_PLANS,
            empty_dag: None,
            dag: Arc::clone(&dag),
        };
        this.run_times.learn(&dag);
        this.gangs.add(&dag);
        if !dag.gangs().is_empty() {
            // For what may run where a gang waits.
            this.learn_run_times();
        }
        this.gangs.set_over_hosts(workers == Workers::Dynamic);
        this.set_up_subdags(&dag, 0, ShareId::default());
        this
    }

    /// Lets tasks have several hosts although the number of workers is fixed.
    #[must_use]
    pub fn with_gangs_over_hosts(mut self) -> Self {
        self.gangs.set_over_hosts(true);
        self
    }

    /// Handles an event.
    ///
    /// # Errors
    /// A worker failed or violated the protocol; the run must be aborted. After
    /// [`MasterError::NotExpected`] and [`MasterError::NotAdopted`], it may go on. The state is unchanged.
    pub fn handle(&mut self, event: Event, out: &mut impl Outbox) -> Result<(), MasterError> {
        match event {
            Event::Registered(rank, registration) => self.register(rank, registration, out),
            Event::Finished(rank, result) => self.finished(rank, &result, out),
            Event::Retracted(rank, submits) => self.retracted(rank, &submits),
            Event::Failed(rank, message) => Err(MasterError::WorkerFailed { rank, message }),
            Event::Silent(rank) => self.fall_silent(rank),
            Event::Back(rank) => self.come_back(rank),
            Event::Lost(rank) => self.lose(rank, out),
            Event::Retire(rank) => self.retire(rank, out),
            Event::HostReady(rank) => self.host_ready(rank),
            Event::Expect(task, submit) => self.expect(task, submit),
            Event::Forget(task) => {
                self.forget(task);
                self.stop_adoption(task, out);
                Ok(())
            }
            Event::Adopt(rank, adoption) => self.adopt(rank, &adoption, out),
            Event::AdoptLead(rank, adoption) => self.adopt_lead(rank, adoption, out),
            Event::AdoptMember(rank, adoption) => self.adopt_member(rank, &adoption, out),
            Event::Joined(rank, submit) => {
                self.joined(rank, submit, out);
                Ok(())
            }
            Event::NotJoined {
                rank,
                submit,
                is_answer,
            } => {
                self.not_joined(rank, submit, is_answer, out);
                Ok(())
            }
            Event::Left { rank, submit, is_cut } => {
                self.left(rank, submit, is_cut, out);
                Ok(())
            }
            Event::Cache(rank, news) => self.note_cache(rank, &news),
            Event::SubdagEnded(task, outcome) => self.subdag_ended(task, outcome, out),
            Event::SubdagStopped(task) => self.subdag_stopped(task),
            Event::Rest(task) => {
                self.rest(task);
                Ok(())
            }
            Event::Wake(task) => {
                self.wake(task);
                Ok(())
            }
            Event::DrainShare(share) => {
                self.drain_share(share);
                Ok(())
            }
            Event::EndsAt(end) => {
                self.set_end(end);
                Ok(())
            }
            Event::Drain => {
                self.draining = true;
                Ok(())
            }
            Event::Hold => {
                self.held = true;
                Ok(())
            }
            Event::Release => {
                self.held = false;
                self.prefill.allow_retract();
                Ok(())
            }
        }
    }

    /// True if the run may start: all workers have registered or, if they come and go, one is there, or none
    /// is needed.
    #[must_use]
    pub fn may_start(&self) -> bool {
        match self.workers {
            Workers::Fixed(count) => self.registered == count,
            Workers::Dynamic => self.present > 0 || self.summary.success,
        }
    }

    /// Begins the run. If the number of workers is fixed, checks that each task fits on some host.
    ///
    /// # Errors
    /// A task fits on no host, [`Master::may_start`] is false, or the run has already begun.
    pub fn start(&mut self, out: &mut impl Outbox) -> Result<(), MasterError> {
        if !self.may_start() || self.phase != Phase::Registering {
            return Err(MasterError::CannotStart {
                registered: self.registered,
                workers: match self.workers {
                    Workers::Fixed(count) => count,
                    Workers::Dynamic => 1,
                },
            });
        }
        if !self.is_dynamic() {
            self.set_up_hosts();
            for host in 0..self.hosts.all().len() as u32 {
                self.record_resources(host, out);
            }
            if let Some(id) = self.task_without_host() {
                let task = String::from_utf8_lossy(self.dag.name(id)).into_owned();
                if let Some((needed, there)) = self.nodes_of_gang(id) {
                    return Err(self.too_few_nodes(task, needed, there));
                }
                let shortage = self.shortage(id);
                return Err(MasterError::NoCapableHost { task, shortage });
            }
        } else {
            for host in 0..self.hosts.all().len() as u32 {
                self.record_resources(host, out);
            }
        }
        self.phase = Phase::Started;
        Ok(())
    }

    /// True if nothing runs and nothing will. Tasks may be left: dependents of failed tasks, tasks after a
    /// drain or too many failures, and tasks of a cycle.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.phase == Phase::Started
            && self.running == 0
            && self.gangs.hold_nothing()
            && (self.has_nothing_ready() || self.is_stopped())
    }

    /// True if ready tasks will not be started, because of a drain or too many failures.
    #[must_use]
    pub fn is_cut_short(&self) -> bool {
        self.is_stopped() && !self.has_nothing_ready()
    }

    fn has_nothing_ready(&self) -> bool {
        self.ready.is_empty()
            && self.queue.len() == 0
            && !self.has_late()
            && self.expected == 0
            && self.resting == 0
            && self.nested == 0
    }

    /// True after [`Master::start`].
    #[must_use]
    pub fn has_started(&self) -> bool {
        self.phase == Phase::Started
    }

    /// Number of running attempts.
    #[must_use]
    pub fn running(&self) -> usize {
        self.running
    }

    /// Running attempts, by rank.
    pub fn assignments(&self) -> impl Iterator<Item = (Rank, TaskId, SubmitId)> + '_ {
        (1..).zip(&self.slots).filter_map(|(rank, slot)| {
            slot.running
                .as_ref()
                .map(|running| (Rank(rank), running.task, running.submit))
        })
    }

    /// The attempt that runs on a worker.
    #[must_use]
    pub fn running_on(&self, rank: Rank) -> Option<(TaskId, SubmitId)> {
        let slot = self.slots.get((rank.0 as usize).checked_sub(1)?)?;
        let running = slot.running.as_ref()?;
        Some((running.task, running.submit))
    }

    /// Number of tasks that are sub-workflows and run as such.
    #[must_use]
    pub fn nested(&self) -> usize {
        self.nested
    }

    /// Returns the figures of the run's own DAG so far. Only the run time is that of all DAGs.
    #[must_use]
    pub fn summary(&self) -> Summary {
        self.summary.clone()
    }

    /// Returns the DAG of the run.
    #[must_use]
    pub fn dag(&self) -> &Arc<Dag> {
        &self.dag
    }

    /// True if no more tasks may start.
    pub(super) fn is_stopped(&self) -> bool {
        self.draining || self.summary.max_failures_reached
    }

    fn register(
        &mut self,
        rank: Rank,
        registration: Registration,
        out: &mut impl Outbox,
    ) -> Result<(), MasterError> {
        if self.is_dynamic() {
            return self.join(rank, &registration, out);
        }
        let place = (rank.0 as usize)
            .checked_sub(1)
            .and_then(|index| self.registrations.get_mut(index))
            .ok_or(MasterError::UnknownRank(rank))?;
        if place.is_some() {
            return Err(MasterError::RegisteredTwice(rank));
        }
        *place = Some(registration);
        self.registered += 1;
        if self.may_start() {
            // The order on a host is known only when all have registered.
            let mut counts: FxHashMap<&str, u32> = FxHashMap::default();
            for (rank, registration) in (1..).zip(self.registrations.iter().flatten()) {
                let count = counts.entry(&registration.host).or_insert(0);
                out.send(Rank(rank), ToWorker::Setup { host_rank: *count });
                *count += 1;
            }
        }
        Ok(())
    }

    /// Creates the hosts in the order of their lowest ranks. The registration of that rank describes the
    /// host.
    fn set_up_hosts(&mut self) {
        for (rank, registration) in (1..).zip(self.registrations.iter().flatten()) {
            let (host, _) = self.hosts.add(Rank(rank), registration);
            self.slots.push(Slot {
                host,
                member: Member::Working,
                ..Slot::unknown()
            });
        }
        self.present = self.registered;
    }

    /// Records what is free on a host where a gang of a task has taken a part or given it back, and no
    /// command has started or ended.
    pub(super) fn record_beside(&self, task: TaskId, host: u32, out: &mut impl Outbox) {
        self.record_slots_beside(task, host, 0, out);
    }

    /// Records what is free on a host, as if this many more of its slots were.
    pub(super) fn record_slots_beside(&self, task: TaskId, host: u32, more: i32, out: &mut impl Outbox) {
        if self.phase == Phase::Registering {
            return;
        }
        let host = self.hosts.get(host);
        let slots = (host.ranks.len() as u32).saturating_sub(host.busy);
        out.record(Record::Beside {
            task: (task.0 != NO_TASK).then_some(task),
            host: &host.name,
            slots: slots.saturating_add_signed(more),
            cpus: host.free_cpus,
            memory_mb: host.free_memory_mb,
        });
    }

    pub(super) fn record_resources(&self, host: u32, out: &mut impl Outbox) {
        let host = self.hosts.get(host);
        out.record(Record::Resources {
            host: &host.name,
            slots: host.ranks.len() as u32 - host.busy,
            cpus: host.free_cpus,
            memory_mb: host.free_memory_mb,
        });
    }
}
