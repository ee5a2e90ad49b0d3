//! A model of the scheduler that follows its records and messages and reports the first mistake.

mod avoidance;
mod data;
mod follow;
mod late;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use pmc_dag::rescue::DoneSet;
use pmc_dag::{CategoryId, Dag, Request, TaskId};

use super::machines::{ModelHost, ModelWorker};
use super::{MAX_PLANS, Plan};
use crate::protocol::{Outcome, Rank, SubmitId, ToWorker};
use crate::scheduler::{MasterConfig, Start};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Waiting,
    /// An attempt of an earlier master may run.
    Expected,
    /// It was found.
    Adopted(SubmitId),
    Queued(SubmitId),
    /// Held back.
    Late(SubmitId),
    /// Sent to a worker that runs another task.
    Prefilled(SubmitId, Rank),
    Running(SubmitId, Rank),
    /// The command that makes its DAG has succeeded.
    Prepared(SubmitId),
    /// Its DAG has joined, or will.
    Nested(SubmitId),
    Done,
    Failed,
}

/// What the model knows of a task.
struct Fact {
    request: Request,
    category: Option<CategoryId>,
    priority: i64,
    inputs: BTreeSet<Vec<u8>>,
    time: late::Time,
    children: Vec<TaskId>,
    /// `None` if the task is no sub-workflow; else whether a command makes its DAG.
    subdag: Option<bool>,
    /// Number of sub-workflows around it.
    depth: u32,
}

/// The category of commands that make DAGs.
const PLANS: CategoryId = CategoryId(0);

/// Hosts that a task avoids.
type Avoided = BTreeSet<String>;

/// Tasks with the same kind are interchangeable, except for their order.
type Kind = (Request, Option<CategoryId>, Avoided);

/// Priority, place and number of a task.
type Turn = (Reverse<i64>, u64, TaskId);

/// Queued tasks in the order in which they must start.
type Queued = BTreeSet<Turn>;

pub(super) struct Model {
    /// By task, of all DAGs.
    facts: Vec<Fact>,
    by_name: BTreeMap<Vec<u8>, TaskId>,
    /// Limit of each category, and the category around it.
    limits: Vec<(u32, Option<CategoryId>)>,
    /// Nested tasks whose DAGs have not joined.
    pub(super) nested: Vec<TaskId>,
    /// Commands that have made DAGs.
    pub(super) prepared: u64,
    /// Nested tasks that have ended.
    pub(super) nested_ends: u64,
    config: MasterConfig,
    pub(super) hosts: BTreeMap<String, ModelHost>,
    pub(super) workers: BTreeMap<Rank, ModelWorker>,
    pub(super) states: Vec<State>,
    evictions: BTreeMap<TaskId, u32>,
    pub(super) evicted: u64,
    /// Those whose workers were not lost.
    pub(super) interrupted: u64,
    /// Attempts that failed because too many of their workers were lost.
    pub(super) crashed: u64,
    parents_left: Vec<u32>,
    attempts_left: Vec<u32>,
    queued: BTreeMap<Kind, Queued>,
    /// Running tasks of each category with a limit.
    in_category: Vec<u32>,
    submits: u64,
    pub(super) started: u64,
    /// This `schedule` has started a task, so it may not queue any more.
    pub(super) starting: bool,
    pub(super) stopped: bool,
    failed_tasks: u32,
    /// Prefilled tasks of each worker.
    prefilled: BTreeMap<Rank, VecDeque<SubmitId>>,
    /// CPU numbers of running attempts.
    held: BTreeMap<SubmitId, Vec<u32>>,
    /// GPUs of running attempts.
    held_gpus: BTreeMap<SubmitId, Vec<u32>>,
    /// Memory of tasks that request more than in the DAG.
    changed: BTreeMap<TaskId, Request>,
    avoidance: avoidance::Avoidance,
    /// Place of each task that has one, in the order of the queue.
    places: BTreeMap<TaskId, u64>,
    last_place: u64,
    data: data::Data,
    ends: late::Ends,
    pub(super) sent: Vec<Sent>,
    thorough: bool,
    pub(super) mistake: Option<String>,
}

/// What the scheduler says to workers.
#[derive(Debug)]
pub(super) enum Sent {
    Start(Start),
    Message(Rank, ToWorker),
}

fn inputs(dag: &Dag, task: TaskId) -> BTreeSet<Vec<u8>> {
    let set = (dag.inputs(task) as usize).checked_sub(1);
    let names = set.and_then(|set| dag.input_sets().nth(set));
    names
        .into_iter()
        .flatten()
        .map(std::borrow::Cow::into_owned)
        .collect()
}

impl Model {
    /// Tasks that started before others because of their inputs.
    pub(super) fn moved(&self) -> u64 {
        self.data.moved
    }

    pub(super) fn new(plan: &Plan) -> Self {
        let mut this = Self::empty(plan);
        this.grow(&plan.dag, &plan.done, 0);
        this
    }

    fn empty(plan: &Plan) -> Self {
        Self {
            config: plan.config,
            hosts: BTreeMap::new(),
            workers: BTreeMap::new(),
            evictions: BTreeMap::new(),
            evicted: 0,
            interrupted: 0,
            crashed: 0,
            facts: Vec::new(),
            by_name: BTreeMap::new(),
            limits: vec![(MAX_PLANS, None)],
            nested: Vec::new(),
            prepared: 0,
            nested_ends: 0,
            states: Vec::new(),
            parents_left: Vec::new(),
            attempts_left: Vec::new(),
            queued: BTreeMap::new(),
            in_category: vec![0],
            submits: 0,
            started: 0,
            starting: false,
            stopped: false,
            failed_tasks: 0,
            prefilled: BTreeMap::new(),
            held: BTreeMap::new(),
            held_gpus: BTreeMap::new(),
            changed: BTreeMap::new(),
            avoidance: avoidance::Avoidance::default(),
            places: BTreeMap::new(),
            last_place: 0,
            data: data::Data::default(),
            ends: late::Ends::default(),
            sent: Vec::new(),
            thorough: plan.thorough,
            mistake: None,
        }
    }

    /// Adds a DAG. `depth` is the number of sub-workflows around its tasks.
    pub(super) fn grow(&mut self, dag: &Dag, done: &DoneSet, depth: u32) {
        let base = self.facts.len() as u32;
        let whole = dag.max_jobs().filter(|_| depth > 0);
        let whole = whole.map(|limit| self.add_category(limit, None));
        let first = self.limits.len() as u32;
        for limit in dag.category_limits() {
            self.add_category(*limit, whole);
        }
        for task in dag.ids() {
            let subdag = dag.subdag(task).map(|subdag| subdag.is_prepared);
            let category = dag.category(task).map(|id| CategoryId(id.0 + first)).or(whole);
            let children = dag.children(task).iter().map(|child| TaskId(child.0 + base));
            self.facts.push(Fact {
                request: dag.request(task),
                category: if subdag == Some(true) {
                    Some(PLANS)
                } else {
                    category
                },
                priority: dag.priority(task),
                inputs: inputs(dag, task),
                time: late::Time::of(dag, task),
                children: children.collect(),
                subdag,
                depth,
            });
            self.by_name
                .insert(dag.name(task).to_vec(), TaskId(task.0 + base));
            self.states.push(State::Waiting);
            self.parents_left.push(dag.parent_count(task));
            let attempts = dag.tries(task).unwrap_or(self.config.max_attempts).max(1);
            self.attempts_left.push(attempts);
        }
        for task in done.ids() {
            let task = TaskId(task.0 + base);
            self.states[task.index()] = State::Done;
            for child in &self.facts[task.index()].children {
                self.parents_left[child.index()] -= 1;
            }
        }
    }

    fn add_category(&mut self, limit: u32, around: Option<CategoryId>) -> CategoryId {
        self.limits.push((limit, around));
        self.in_category.push(0);
        CategoryId(self.limits.len() as u32 - 1)
    }

    fn tasks(&self) -> impl Iterator<Item = TaskId> + use<> {
        (0..self.facts.len() as u32).map(TaskId)
    }

    fn fact(&self, task: TaskId) -> &Fact {
        &self.facts[task.index()]
    }

    fn priority(&self, task: TaskId) -> i64 {
        self.fact(task).priority
    }

    pub(super) fn depth(&self, task: TaskId) -> u32 {
        self.fact(task).depth
    }

    /// Number of workers that have ever registered.
    pub(super) fn workers(&self) -> u64 {
        self.workers.len() as u64
    }

    /// True if a task that waits could run on a host that is there.
    pub(super) fn may_go_on(&self) -> bool {
        let waiting = self.queued.iter().filter(|(_, queued)| !queued.is_empty());
        let could = |request| self.hosts.values().any(|host| host.could_take(request));
        waiting.into_iter().any(|((request, ..), _)| could(*request))
    }

    /// Tasks without parents that are not done.
    pub(super) fn ready(&self) -> Vec<TaskId> {
        let waits = |task: &TaskId| self.states[task.index()] == State::Waiting;
        let ready = |task: &TaskId| self.parents_left[task.index()] == 0;
        let is_task = |task: &TaskId| self.fact(*task).subdag.is_none();
        let tasks = self.tasks().filter(is_task);
        tasks.filter(|task| waits(task) && ready(task)).collect()
    }

    pub(super) fn state(&self, task: TaskId) -> State {
        self.states[task.index()]
    }

    pub(super) fn expect(&mut self, task: TaskId, submit: SubmitId) {
        self.count_in_category(task, 1);
        self.states[task.index()] = State::Expected;
        self.submits = self.submits.max(submit.0);
    }

    pub(super) fn forget(&mut self, task: TaskId) {
        if self.states[task.index()] == State::Expected {
            self.states[task.index()] = State::Waiting;
            self.count_in_category(task, -1);
        }
    }

    fn count_in_category(&mut self, task: TaskId, change: i32) {
        if let Some(category) = self.fact(task).category {
            let around = self.limits[category.index()].1;
            for category in [category].into_iter().chain(around) {
                let count = &mut self.in_category[category.index()];
                *count = count.saturating_add_signed(change);
            }
        }
    }

    fn adopt(&mut self, task: TaskId, submit: SubmitId) {
        let state = self.states[task.index()];
        self.take_place(task);
        if let State::Queued(_) = state {
            let key = self.turn(task);
            let kind = self.kind(task);
            self.queued.entry(kind).or_default().remove(&key);
        }
        if state == State::Expected {
            self.count_in_category(task, -1);
        }
        let waits = matches!(
            state,
            State::Waiting | State::Expected | State::Queued(_) | State::Late(_)
        );
        self.check(waits, || format!("{task:?} was adopted while {state:?}"));
        self.submits = self.submits.max(submit.0);
        self.states[task.index()] = State::Adopted(submit);
    }

    fn request(&self, task: TaskId) -> Request {
        let changed = self.changed.get(&task).copied();
        changed.unwrap_or_else(|| self.fact(task).request)
    }

    fn kind(&self, task: TaskId) -> Kind {
        let avoided = self.avoidance.of(task);
        (self.request(task), self.fact(task).category, avoided)
    }

    fn turn(&self, task: TaskId) -> Turn {
        let place = self.places.get(&task).copied().unwrap_or(0);
        (Reverse(self.priority(task)), place, task)
    }

    fn take_place(&mut self, task: TaskId) {
        let next = self.last_place + 1;
        if *self.places.entry(task).or_insert(next) == next {
            self.last_place = next;
        }
    }

    fn has_room(&self, category: Option<CategoryId>) -> bool {
        let room = |id: CategoryId| self.in_category[id.index()] < self.limits[id.index()].0;
        category.is_none_or(|id| room(id) && self.limits[id.index()].1.is_none_or(room))
    }

    fn may_start(&self, (request, category, avoided): &Kind) -> bool {
        let mut hosts = self.hosts.iter().filter(|(name, _)| !avoided.contains(*name));
        self.has_room(*category) && hosts.any(|(_, host)| host.slots > 0 && host.fits(*request))
    }

    pub(super) fn check(&mut self, ok: bool, mistake: impl FnOnce() -> String) {
        if !ok && self.mistake.is_none() {
            self.mistake = Some(mistake());
        }
    }

    fn queue(&mut self, task: TaskId, submit: SubmitId) {
        self.submits += 1;
        let (submits, state) = (self.submits, self.states[task.index()]);
        self.check(submit.0 == submits, || {
            format!("{submit:?} given out as number {submits}")
        });
        self.check(state == State::Waiting, || {
            format!("{task:?} queued while {state:?}")
        });
        let left = self.parents_left[task.index()];
        self.check(left == 0, || {
            format!("{task:?} queued before {left} of its parents are done")
        });
        self.check(!self.starting, || {
            format!("{task:?} queued after a task was started")
        });
        self.check(!self.stopped, || {
            format!("{task:?} queued although the run is stopped")
        });
        self.states[task.index()] = State::Queued(submit);
        if self.fact(task).subdag != Some(false) {
            self.take_place(task);
            self.avoid(task);
        }
        let (kind, key) = (self.kind(task), self.turn(task));
        self.queued.entry(kind).or_default().insert(key);
    }

    fn start(&mut self, task: TaskId, submit: SubmitId, rank: Rank) {
        self.started += 1;
        let state = self.states[task.index()];
        if state == State::Adopted(submit) {
            self.occupy(task, submit, rank);
            return;
        }
        if state == State::Prefilled(submit, rank) {
            let next = self.prefilled.get_mut(&rank).and_then(VecDeque::pop_front);
            self.check(next == Some(submit), || {
                format!("{task:?} is started before {next:?}, which was sent before")
            });
            self.occupy(task, submit, rank);
            return;
        }
        self.starting = true;
        self.check(state == State::Queued(submit), || {
            format!("{task:?} started while {state:?}")
        });
        self.check(!self.stopped, || {
            format!("{task:?} started although the run is stopped")
        });
        self.check_in_time(task);
        let key = self.take_turn(task, rank);
        let member = self.member(rank);
        self.check(member.takes_tasks(), || {
            format!("{task:?} is started on {rank:?}, which is {member:?}")
        });
        if self.thorough {
            let overtaken: Vec<_> = self
                .queued
                .iter()
                .filter(|(kind, queued)| {
                    queued.first().is_some_and(|other| *other < key) && self.may_start(kind)
                })
                .map(|(kind, _)| kind.clone())
                .collect();
            self.check(overtaken.is_empty(), || {
                format!("{task:?} overtakes tasks that would fit: {overtaken:?}")
            });
        }
        self.occupy(task, submit, rank);
    }

    /// Removes a task from the queue. It must be the first of its kind.
    fn take_first(&mut self, task: TaskId) -> Turn {
        let key = self.turn(task);
        let kind = self.kind(task);
        let first = self.queued.get_mut(&kind).and_then(BTreeSet::pop_first);
        self.check(first == Some(key), || {
            format!("{task:?} started before {first:?} of the same kind")
        });
        key
    }

    /// Follows a task that is sent to a worker that runs another one.
    fn prefill(&mut self, task: TaskId, submit: SubmitId, rank: Rank) {
        self.check_in_time(task);
        let key = self.take_first(task);
        let better = self.queued.values().flatten().any(|other| *other < key);
        let free = self.hosts.values().any(|host| host.slots > 0);
        self.check(!better && !free && !self.stopped, || {
            format!("{task:?} is prefilled although another task must start first")
        });
        let lacks = self.lacks(task, &self.host_of(rank));
        self.check(!lacks, || {
            format!("{task:?} is prefilled to {rank:?}, but its inputs are elsewhere")
        });
        let runs_alike = self.tasks().any(|other| {
            matches!(self.states[other.index()], State::Running(_, at) if at == rank)
                && self.kind(other) == self.kind(task)
        });
        self.check(runs_alike, || {
            format!("{task:?} is prefilled to {rank:?}, which runs no task like it")
        });
        let sent = |state: &&State| matches!(state, State::Prefilled(..) | State::Running(..));
        let may_fail = self.failed_tasks as usize + self.states.iter().filter(sent).count();
        let limit = self.config.max_failures as usize;
        self.check(limit == 0 || may_fail < limit, || {
            format!("{task:?} is prefilled although {may_fail} tasks may fail before it")
        });
        self.states[task.index()] = State::Prefilled(submit, rank);
        self.prefilled.entry(rank).or_default().push_back(submit);
    }

    /// Follows prefilled tasks that a worker gives back.
    pub(super) fn give_back(&mut self, rank: Rank, submits: &[SubmitId]) {
        self.prefilled
            .entry(rank)
            .or_default()
            .retain(|submit| !submits.contains(submit));
        for task in self.tasks() {
            if let State::Prefilled(submit, at) = self.states[task.index()]
                && at == rank
                && submits.contains(&submit)
            {
                self.states[task.index()] = State::Queued(submit);
                let (kind, key) = (self.kind(task), self.turn(task));
                self.queued.entry(kind).or_default().insert(key);
            }
        }
    }

    fn occupy(&mut self, task: TaskId, submit: SubmitId, rank: Rank) {
        self.follow_data(task, rank, None);
        self.stop_avoiding(task);
        let request = self.request(task);
        let was_adopted = matches!(self.states[task.index()], State::Adopted(_));
        self.states[task.index()] = State::Running(submit, rank);
        let host = self.host_of(rank);
        let offered = u32::from(self.member(rank).takes_tasks());
        let free = self
            .hosts
            .get_mut(&host)
            .filter(|host| host.idle > 0 && host.slots >= offered && host.fits(request));
        match free {
            Some(free) => {
                free.slots -= offered;
                free.idle -= 1;
                free.memory_mb -= request.memory_mb;
                free.cpus -= request.cpus;
                free.free_gpus -= request.gpus;
            }
            None => self.check(false, || format!("{task:?} oversubscribes {host}")),
        }
        if let Some(category) = self.fact(task).category {
            let has_room = self.has_room(Some(category));
            self.check(has_room || was_adopted, || {
                format!("{task:?} starts although {category:?} is full")
            });
        }
        self.count_in_category(task, 1);
    }

    /// Takes the end of an attempt, and returns what it held.
    fn leave_worker(&mut self, task: TaskId, submit: SubmitId, rank: Rank) {
        let state = self.states[task.index()];
        self.check(state == State::Running(submit, rank), || {
            format!("{task:?} ended while {state:?}")
        });
        let request = self.request(task);
        let host = self.host_of(rank);
        let offered = u32::from(self.member(rank).takes_tasks());
        if let Some(host) = self.hosts.get_mut(&host) {
            host.slots += offered;
            host.idle += 1;
            host.memory_mb += request.memory_mb;
            host.cpus += request.cpus;
            host.free_gpus += request.gpus;
            host.gpus
                .extend(self.held_gpus.remove(&submit).unwrap_or_default());
            host.numbers.extend(self.held.remove(&submit).unwrap_or_default());
        }
        self.count_in_category(task, -1);
    }

    fn nest(&mut self, task: TaskId, submit: SubmitId) {
        let state = self.states[task.index()];
        if state == State::Queued(submit) && self.fact(task).subdag == Some(false) {
            let (kind, key) = (self.kind(task), self.turn(task));
            self.queued.entry(kind).or_default().remove(&key);
            self.started += 1;
        } else {
            self.check(state == State::Prepared(submit), || {
                format!("{task:?} is nested while {state:?}")
            });
        }
        self.states[task.index()] = State::Nested(submit);
        self.nested.push(task);
    }

    fn evict(&mut self, task: TaskId, submit: SubmitId, rank: Rank, is_lost: bool) {
        self.leave_worker(task, submit, rank);
        self.evicted += 1;
        self.states[task.index()] = State::Waiting;
        if !is_lost {
            self.interrupted += 1;
            self.follow_data(task, rank, Some(false));
            return;
        }
        let member = self.member(rank);
        self.check(member.gone, || {
            format!("{task:?} was lost with {rank:?}, which is {member:?}")
        });
        let count = self.evictions.entry(task).or_default();
        *count += 1;
        let (count, limit) = (*count, self.config.crash_limit);
        self.check(limit == 0 || count < limit, || {
            format!("{task:?} was lost {count} times")
        });
    }

    fn end(&mut self, task: TaskId, submit: SubmitId, rank: Rank, outcome: Outcome) {
        if rank == Rank(0) {
            let state = self.states[task.index()];
            self.check(state == State::Nested(submit), || {
                format!("{task:?} ended while {state:?}")
            });
            self.nested_ends += 1;
        } else {
            self.leave_worker(task, submit, rank);
        }
        if outcome.evictions > 0 {
            let count = self.evictions.get(&task).copied().unwrap_or(0) + 1;
            let limit = self.config.crash_limit;
            self.check(count == outcome.evictions && count == limit, || {
                format!("{task:?} fails after {count} lost workers")
            });
            self.attempts_left[task.index()] = 1;
            self.crashed += 1;
        }
        if rank != Rank(0) && outcome.evictions == 0 {
            self.follow_data(task, rank, Some(outcome.succeeded()));
            self.judge(task, rank, &outcome);
        }
        if outcome.succeeded() {
            if rank != Rank(0) {
                self.note_run_time(task, outcome.runtime);
            }
            self.states[task.index()] = State::Done;
            for child in &self.facts[task.index()].children {
                self.parents_left[child.index()] -= 1;
            }
            return;
        }
        self.attempts_left[task.index()] -= 1;
        if self.attempts_left[task.index()] > 0 {
            self.states[task.index()] = State::Waiting;
            self.places.remove(&task);
        } else {
            self.states[task.index()] = State::Failed;
            self.failed_tasks += u32::from(self.depth(task) == 0);
            self.stopped |= self.config.max_failures > 0 && self.failed_tasks >= self.config.max_failures;
        }
    }

    /// Checks after a `schedule` that no queued task would fit.
    pub(super) fn check_no_idle_room(&mut self) {
        self.starting = false;
        let idle = self
            .queued
            .iter()
            .find(|(kind, queued)| !queued.is_empty() && self.may_start(kind))
            .map(|(kind, _)| kind.clone());
        let stopped = self.stopped;
        self.check(idle.is_none() || stopped, || {
            format!("{idle:?} waits although it fits")
        });
    }

    /// Checks at the end that there is a reason for each task that has not run.
    pub(super) fn check_end(&mut self, draining: bool) {
        let stopped = self.stopped || draining;
        for task in self.tasks() {
            let (state, left) = (self.states[task.index()], self.parents_left[task.index()]);
            let explained = match state {
                State::Done | State::Failed => true,
                State::Waiting => stopped || left > 0,
                State::Queued(_) | State::Expected | State::Nested(_) | State::Late(_) => stopped,
                State::Prefilled(..) | State::Running(..) | State::Adopted(_) => false,
                State::Prepared(_) => false,
            };
            self.check(explained, || {
                format!("the run has ended, but {task:?} is {state:?}")
            });
        }
    }
}
