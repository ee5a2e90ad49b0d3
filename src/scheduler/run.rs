//! State of a run, and how events change it.

use std::mem;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use pmc_dag::rescue::DoneSet;
use pmc_dag::{Dag, Request, TaskId};
use rustc_hash::FxHashMap;

use crate::protocol::{Rank, Registration, SubmitId, TaskResult, ToWorker};
use crate::scheduler::categories::Category;
use crate::scheduler::gpus::GpuSet;
use crate::scheduler::hosts::{Host, Hosts, Placement};
use crate::scheduler::prefill::{PrefillQueue, PrefillState};
use crate::scheduler::queue::Queue;
use crate::scheduler::tasks::{NO_TASK, Node, State};
use crate::scheduler::{Event, MasterError, Outbox, Record};

/// Settings of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MasterConfig {
    /// Maximum attempts of tasks that do not set their own limit; 0 means one.
    pub max_attempts: u32,
    /// Number of finally failed tasks after which no more tasks start; 0 means no limit.
    pub max_failures: u32,
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
    pub(super) running: Option<Running>,
    /// Tasks that it starts next, without asking.
    pub(super) prefilled: PrefillQueue,
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
    /// By rank, from 1.
    pub(super) registrations: Vec<Option<Registration>>,
    pub(super) registered: u32,
    pub(super) hosts: Hosts,
    /// The worker of rank r is at r - 1.
    pub(super) slots: Vec<Slot>,
    /// By task.
    pub(super) nodes: Vec<Node>,
    /// Failed attempts of each task that has any.
    pub(super) failures: FxHashMap<TaskId, u32>,
    /// Tasks for the next `schedule`, in order.
    pub(super) ready: Vec<TaskId>,
    pub(super) queue: Queue,
    /// Categories with a limit.
    pub(super) categories: Vec<Category>,
    pub(super) prefill: PrefillState,
    pub(super) last_submit: u64,
    pub(super) running: usize,
    pub(super) summary: Summary,
}

impl Master {
    /// Creates the state of a run of `dag` with workers of ranks 1 to `workers`. The tasks in `done` are not
    /// run.
    #[must_use]
    pub fn new(dag: Arc<Dag>, done: DoneSet, workers: u32, config: MasterConfig) -> Self {
        let (queue, chain_of) = Queue::new(&dag);
        let mut nodes: Vec<Node> = Vec::with_capacity(dag.len());
        nodes.extend(dag.ids().map(|task| Node {
            submit: 0,
            next: NO_TASK,
            chain: chain_of[dag.option_set(task)],
            parents_left: dag.parent_count(task),
            state: State::Waiting,
        }));
        let mut done_before = 0;
        for task in done.ids().filter(|task| task.index() < dag.len()) {
            nodes[task.index()].state = State::Done;
            done_before += 1;
            for child in dag.children(task) {
                nodes[child.index()].parents_left -= 1;
            }
        }
        // A done task stays done even if its parents are not done.
        let is_ready = |node: &Node| node.state == State::Waiting && node.parents_left == 0;
        let mut ready: Vec<TaskId> = dag.ids().filter(|task| is_ready(&nodes[task.index()])).collect();
        dag.sort_by_name(&mut ready);
        for task in &ready {
            nodes[task.index()].state = State::Ready;
        }
        Self {
            config,
            phase: Phase::Registering,
            draining: false,
            held: false,
            registrations: vec![None; workers as usize],
            registered: 0,
            hosts: Hosts::new(Vec::new(), &[], Placement::Spread),
            slots: Vec::new(),
            nodes,
            failures: FxHashMap::default(),
            ready,
            queue,
            categories: Category::all(&dag),
            prefill: PrefillState::default(),
            last_submit: 0,
            running: 0,
            summary: Summary {
                tasks: dag.len(),
                done_before,
                done: done_before,
                success: done_before == dag.len(),
                ..Summary::default()
            },
            dag,
        }
    }

    /// Handles an event.
    ///
    /// # Errors
    /// A worker failed or violated the protocol; the run must be aborted. The state is unchanged.
    pub fn handle(&mut self, event: Event, out: &mut impl Outbox) -> Result<(), MasterError> {
        match event {
            Event::Registered(rank, registration) => self.register(rank, registration, out),
            Event::Finished(rank, result) => self.finished(rank, &result, out),
            Event::Retracted(rank, submits) => self.retracted(rank, &submits),
            Event::Failed(rank, message) => Err(MasterError::WorkerFailed { rank, message }),
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

    /// True if all workers have registered.
    #[must_use]
    pub fn registered_all(&self) -> bool {
        self.registered as usize == self.registrations.len()
    }

    /// Begins the run, after checking that each task fits on some host.
    ///
    /// # Errors
    /// A task fits on no host, not all workers have registered, or the run has already begun.
    pub fn start(&mut self, out: &mut impl Outbox) -> Result<(), MasterError> {
        if !self.registered_all() || self.phase != Phase::Registering {
            let workers = self.registrations.len() as u32;
            return Err(MasterError::CannotStart {
                registered: self.registered,
                workers,
            });
        }
        self.set_up_hosts();
        for host in 0..self.hosts.all().len() as u32 {
            self.record_resources(host, out);
        }
        if let Some(task) = self.task_without_host() {
            let task = String::from_utf8_lossy(self.dag.name(task)).into_owned();
            return Err(MasterError::NoCapableHost { task });
        }
        self.phase = Phase::Started;
        Ok(())
    }

    /// True if nothing runs and nothing will. Tasks may be left: dependents of failed tasks, tasks after a
    /// drain or too many failures, and tasks of a cycle.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        let nothing_left = self.ready.is_empty() && self.queue.len() == 0;
        self.phase == Phase::Started && self.running == 0 && (nothing_left || self.is_stopped())
    }

    /// True if ready tasks will not be started, because of a drain or too many failures.
    #[must_use]
    pub fn is_cut_short(&self) -> bool {
        self.is_stopped() && !(self.ready.is_empty() && self.queue.len() == 0)
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

    /// Returns the figures so far.
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
        let place = (rank.0 as usize)
            .checked_sub(1)
            .and_then(|index| self.registrations.get_mut(index))
            .ok_or(MasterError::UnknownRank(rank))?;
        if place.is_some() {
            return Err(MasterError::RegisteredTwice(rank));
        }
        *place = Some(registration);
        self.registered += 1;
        if self.registered_all() {
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
        let registrations = mem::take(&mut self.registrations);
        let mut hosts: Vec<Host> = Vec::new();
        let mut by_name: FxHashMap<&str, u32> = FxHashMap::default();
        for (rank, registration) in (1..).zip(registrations.iter().flatten()) {
            let host = *by_name.entry(&registration.host).or_insert_with(|| {
                hosts.push(Host::new(registration));
                hosts.len() as u32 - 1
            });
            hosts[host as usize].add(Rank(rank));
            self.slots.push(Slot {
                host,
                running: None,
                prefilled: PrefillQueue::default(),
            });
        }
        let requests: Vec<u32> = self
            .queue
            .shapes()
            .iter()
            .map(|shape| shape.request.cpus)
            .collect();
        let narrow = requests.iter().all(|cpus| *cpus <= 1);
        let placement = if narrow {
            Placement::Spread
        } else {
            Placement::Pack
        };
        self.hosts = Hosts::new(hosts, &requests, placement);
        // Keeps `registered_all` true.
        self.registrations = registrations;
    }

    /// Returns the first task in byte order that is not done and requests more than any host has.
    fn task_without_host(&self) -> Option<TaskId> {
        let fits = |request: Request| {
            let all = self.hosts.all();
            all.iter().any(|host| host.could_take(request))
        };
        let shapes = self.queue.shapes();
        let unfit: Vec<bool> = shapes.iter().map(|shape| !fits(shape.request)).collect();
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

    fn finished(
        &mut self,
        rank: Rank,
        result: &TaskResult,
        out: &mut impl Outbox,
    ) -> Result<(), MasterError> {
        let slot = (rank.0 as usize)
            .checked_sub(1)
            .and_then(|index| self.slots.get_mut(index))
            .ok_or(MasterError::UnknownRank(rank))?;
        let host = slot.host;
        let running = slot
            .running
            .take_if(|running| running.submit == result.submit)
            .ok_or(MasterError::NotRunning {
                rank,
                submit: result.submit,
            })?;
        let (task, outcome) = (running.task, result.outcome);
        let chain = self.nodes[task.index()].chain;
        self.running -= 1;
        self.prefill.note_runtime(chain, outcome.runtime);
        let shape = self.queue.shape(self.queue.shape_of(chain));
        self.hosts
            .give_back(host, rank, shape.request, running.block, running.gpus);
        if let Some(category) = shape.category {
            self.leave_category(category);
        }
        self.summary.runtime = self.summary.runtime.saturating_add(outcome.runtime);

        out.record(Record::Ended {
            task,
            submit: result.submit,
            rank,
            outcome,
        });
        self.record_resources(host, out);
        if outcome.succeeded() {
            self.succeeded(task);
        } else {
            self.failed(task);
        }
        if self.has_prefilled() {
            self.start_prefilled(rank, out);
        }
        Ok(())
    }

    fn succeeded(&mut self, task: TaskId) {
        self.summary.succeeded += 1;
        self.summary.done += 1;
        self.summary.success = self.summary.done == self.summary.tasks;
        self.nodes[task.index()].state = State::Done;
        for child in self.dag.children(task) {
            let node = &mut self.nodes[child.index()];
            node.parents_left -= 1;
            if node.parents_left == 0 && node.state == State::Waiting {
                node.state = State::Ready;
                self.ready.push(*child);
            }
        }
    }

    fn failed(&mut self, task: TaskId) {
        self.summary.failed += 1;
        let max_attempts = self.dag.tries(task).unwrap_or(self.config.max_attempts).max(1);
        let failures = self.failures.entry(task).or_insert(0);
        *failures += 1;
        if *failures < max_attempts {
            self.nodes[task.index()].state = State::Ready;
            self.ready.push(task);
            return;
        }
        self.nodes[task.index()].state = State::Failed;
        self.summary.failed_tasks += 1;
        let limit = self.config.max_failures as usize;
        self.summary.max_failures_reached = limit > 0 && self.summary.failed_tasks >= limit;
    }

    pub(super) fn record_resources(&self, host: u32, out: &mut impl Outbox) {
        let host = self.hosts.get(host);
        out.record(Record::Resources {
            host: &host.name,
            slots: host.free_slots.len() as u32,
            cpus: host.free_cpus,
            memory_mb: host.free_memory_mb,
        });
    }
}
