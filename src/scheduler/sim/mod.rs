//! Whole runs on a simulated transport. A model checks each step of the scheduler.
//!
//! A seed determines everything: the DAG, the hosts, how long tasks run, which fail, how long messages take
//! and how many are handled at a time. A failing test names its seed; `PMC_SIM_SEED=<seed> cargo test
//! simulated` runs only that seed.

mod gangs;
mod machines;
mod membership;
mod model;
mod plans;
mod utilisation;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use pmc_dag::rescue::DoneSet;
use pmc_dag::{Dag, TaskId};

use crate::protocol::{
    CacheNews, EndCause, MemoryUse, Outcome, Rank, Registration, SubmitId, TaskResult, ToWorker,
};
use crate::scheduler::{
    Event, Joining, Master, MasterConfig, MasterError, Role, SegmentId, Summary, Workers,
};

use rustc_hash::FxHashMap;
use testutils::Random;

use membership::Membership;
use model::{Model, Sent};
use plans::{REQUESTS, RandomDag, random_dag, random_file, random_plan};

/// Parameters of a run.
struct Plan {
    dag: Arc<Dag>,
    done: DoneSet,
    /// Host of each worker.
    workers: Vec<Registration>,
    /// Workers come and go.
    dynamic: bool,
    config: MasterConfig,
    /// One attempt in this number fails; 0 means none.
    one_in_fails: u64,
    /// Percent of its memory that a task requests after an attempt that ran out of memory.
    more_memory: u32,
    /// Drain after this number of results.
    drain_after: Option<u64>,
    /// Prefill is enabled.
    prefill: bool,
    /// Tasks may be DAGs, which join at random moments.
    subdags: bool,
    /// Tasks have inputs that others read, too, and agents say at random moments what they hold.
    inputs: bool,
    /// When the run ends, in milliseconds, and tasks have expected run times.
    end: Option<u64>,
    /// Check the whole state after each step.
    thorough: bool,
}

/// A message of a worker.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Report {
    Ended(SubmitId),
    Retracted(Vec<SubmitId>),
}

/// The workers: the tasks that each holds, the running one first, and their messages in transit.
struct Slots {
    tasks: FxHashMap<Rank, VecDeque<SubmitId>>,
    /// When the end of each running task reaches the master.
    end: FxHashMap<Rank, u64>,
    /// By time of arrival.
    arriving: BinaryHeap<Reverse<(u64, Rank, Report)>>,
}

impl Slots {
    fn new() -> Self {
        Self {
            tasks: FxHashMap::default(),
            end: FxHashMap::default(),
            arriving: BinaryHeap::new(),
        }
    }

    fn of(&mut self, rank: Rank) -> &mut VecDeque<SubmitId> {
        self.tasks.entry(rank).or_default()
    }

    fn run(&mut self, rank: Rank, submit: SubmitId, now: u64, random: &mut Random) {
        let tasks = self.of(rank);
        tasks.push_back(submit);
        if tasks.len() == 1 {
            self.start(rank, submit, now, random);
        } else if random.one_in(3) {
            self.give_back(rank, now, random);
        }
    }

    fn start(&mut self, rank: Rank, submit: SubmitId, now: u64, random: &mut Random) {
        // Message, execution, message.
        let time = now + random.below(5) + random.below(100) + random.below(5);
        self.end.insert(rank, time);
        self.arriving.push(Reverse((time, rank, Report::Ended(submit))));
    }

    fn give_back(&mut self, rank: Rank, now: u64, random: &mut Random) {
        // When the running task has ended, the next one has already started.
        let left = self.end.get(&rank).map_or(0, |end| end.saturating_sub(now));
        let tasks = self.of(rank);
        if left == 0 || tasks.len() < 2 {
            return;
        }
        let back = tasks.drain(1..).collect();
        let time = now + random.below(left);
        self.arriving.push(Reverse((time, rank, Report::Retracted(back))));
    }

    /// Time of arrival of the next message.
    fn next(&self) -> Option<u64> {
        self.arriving.peek().map(|Reverse((time, ..))| *time)
    }

    fn take(&mut self, random: &mut Random) -> Option<(Rank, Report)> {
        let Reverse((time, rank, report)) = self.arriving.pop()?;
        if let Report::Ended(submit) = report {
            let tasks = self.of(rank);
            // A lost worker has none.
            if tasks.front() == Some(&submit) {
                tasks.pop_front();
            }
            if let Some(next) = tasks.front().copied() {
                self.start(rank, next, time, random);
            }
        }
        Some((rank, report))
    }
}

/// Registers all workers in random order.
fn register_all(
    master: &mut Master,
    model: &mut Model,
    workers: &[Registration],
    random: &mut Random,
) -> Result<(), MasterError> {
    let mut order: Vec<usize> = (0..workers.len()).collect();
    for at in (1..order.len()).rev() {
        order.swap(at, random.below(at as u64 + 1) as usize);
    }
    for (rank, worker) in (1..).zip(workers) {
        model.join(Rank(rank), worker);
    }
    order.into_iter().try_for_each(|index| {
        let event = Event::Registered(Rank(index as u32 + 1), workers[index].clone());
        master.handle(event, model)
    })
}

fn random_result(submit: SubmitId, one_in_fails: u64, random: &mut Random) -> TaskResult {
    let failed = one_in_fails > 0 && random.one_in(one_in_fails);
    let status = if failed {
        random.pick(&[256, 768, 9, -1])
    } else {
        0
    };
    let mut outcome = Outcome::new(status, Duration::from_millis(1));
    outcome.memory = (failed && random.one_in(2)).then(|| MemoryUse {
        peak_mib: random.below(2000),
        requested_mib: 0,
        out_of_memory: true,
    });
    outcome.cause = (failed && random.one_in(8)).then_some(EndCause::Interrupted);
    TaskResult {
        submit,
        outcome,
        forwards: Vec::new(),
        returned: None,
    }
}

/// A run of a plan.
struct Run<'a> {
    master: Master,
    model: Model,
    at: Slots,
    membership: Membership,
    random: &'a mut Random,
    now: u64,
    results: u64,
    drained: bool,
    setups: u64,
    /// The task that each segment is.
    parents: Vec<TaskId>,
    /// Sums of the figures of segments that have ended.
    ended: Summary,
}

/// Commands that make DAGs, at a time.
const MAX_PLANS: u32 = 3;

/// Adds figures.
fn add(sum: &mut Summary, summary: &Summary) {
    sum.submitted += summary.submitted;
    sum.succeeded += summary.succeeded;
    sum.failed += summary.failed;
    sum.evicted += summary.evicted;
}

/// What happened in a run.
#[derive(Debug, Default)]
struct Seen {
    /// Tasks that started before others because of their inputs.
    moved: u64,
    /// Tasks that were held back.
    held: u64,
}

/// Runs a plan to its end.
fn run(plan: Plan, random: &mut Random) -> Result<(Master, Seen), String> {
    let workers = if plan.dynamic {
        Workers::Dynamic
    } else {
        Workers::Fixed(plan.workers.len() as u32)
    };
    let model = Model::new(&plan);
    let mut master = Master::new(plan.dag.clone(), plan.done.clone(), workers, plan.config);
    master = master
        .with_more_memory(plan.more_memory)
        .with_max_plans(MAX_PLANS);
    if plan.prefill {
        master = master.with_prefill();
    }
    let mut run = Run {
        master,
        model,
        at: Slots::new(),
        membership: Membership::default(),
        random,
        now: 0,
        results: 0,
        drained: false,
        setups: 0,
        parents: Vec::new(),
        ended: Summary::default(),
    };
    run.begin(&plan).map_err(|error| error.to_string())?;
    loop {
        run.schedule(&plan)?;
        if run.master.is_finished() {
            return run.check_end();
        }
        // Several messages may have arrived when the first one is handled.
        for taken in 0..1 + run.random.below(4) {
            if !run.step(&plan, taken == 0)? {
                break;
            }
        }
    }
}

impl Run<'_> {
    fn begin(&mut self, plan: &Plan) -> Result<(), MasterError> {
        if let Some(end) = plan.end {
            self.end_at(end)?;
        }
        let (master, model) = (&mut self.master, &mut self.model);
        if plan.dynamic {
            self.membership.expect_earlier(master, model, self.random)?;
            for worker in &plan.workers {
                self.membership.join(master, model, worker, self.random)?;
            }
        } else {
            register_all(master, model, &plan.workers, self.random)?;
        }
        master.start(model)
    }

    /// Lets the run end at this time.
    fn end_at(&mut self, end: u64) -> Result<(), MasterError> {
        let end = Duration::from_millis(end);
        self.model.end_at(end);
        self.master.handle(Event::EndsAt(end), &mut self.model)
    }

    /// Only tasks are left that are held back: gives them time, or ends the run.
    fn go_on_or_drain(&mut self) -> Result<(), MasterError> {
        if self.random.one_in(2) {
            return self.end_at(self.now + 3000);
        }
        self.model.stopped = true;
        self.drained = true;
        self.master.handle(Event::Drain, &mut self.model)
    }

    /// Lets the scheduler act and passes on its messages.
    fn schedule(&mut self, plan: &Plan) -> Result<(), String> {
        let now = Duration::from_millis(self.now);
        self.master.advance(now);
        self.model.release(now);
        self.master.schedule(&mut self.model);
        if plan.thorough {
            self.model.check_no_idle_room();
            self.master.sanity_check()?;
        }
        self.model.starting = false;
        for sent in std::mem::take(&mut self.model.sent) {
            match sent {
                Sent::Start(start) => self.at.run(start.rank, start.submit, self.now, self.random),
                Sent::Message(rank, ToWorker::Retract) => self.at.give_back(rank, self.now, self.random),
                Sent::Message(_, ToWorker::Setup { .. }) => self.setups += 1,
                Sent::Message(_, ToWorker::Shutdown) if plan.dynamic => {}
                Sent::Message(_, other) => return Err(format!("the master sends {other:?}")),
            }
        }
        self.model.mistake.take().map_or(Ok(()), Err)
    }

    /// Lets DAGs join and end: all of them with `at_once`, else some. Returns whether any has.
    fn nest(&mut self, plan: &Plan, at_once: bool) -> Result<bool, MasterError> {
        let mut has_changed = false;
        for task in std::mem::take(&mut self.model.nested) {
            if !at_once && self.random.one_in(2) {
                self.model.nested.push(task);
                continue;
            }
            has_changed = true;
            let depth = self.model.depth(task) + 1;
            if self.random.one_in(6) {
                let event = Event::SubdagEnded(task, Outcome::new(256, Duration::ZERO));
                self.master.handle(event, &mut self.model)?;
                continue;
            }
            let tasks = self.random.pick(&[0, 1, 5, 20]);
            let categories = self.random.pick(&[0, 2]);
            let kinds = RandomDag {
                name: format!("s{}-", self.parents.len()),
                has_limit: self.random.one_in(2),
                subdags: plan.subdags && depth < 3,
                inputs: plan.inputs,
                times: plan.end.is_some(),
            };
            let dag = Arc::new(random_dag(self.random, tasks, &REQUESTS, categories, &kinds));
            let mut done = DoneSet::new();
            for task in dag.ids().filter(|_| self.random.one_in(4)) {
                done.insert(task);
            }
            self.model.grow(&dag, &done, depth);
            self.parents.push(task);
            let role = Role::Nested(task);
            let joining = Joining { dag, done, role };
            let grown = self.master.grow(joining);
            assert_eq!(grown.map(SegmentId::index), Ok(self.parents.len() - 1));
        }
        loop {
            let ended = self.master.take_ended();
            if ended.is_empty() {
                return Ok(has_changed);
            }
            has_changed = true;
            for id in ended {
                let summary = self.master.segment_summary(id);
                add(&mut self.ended, &summary);
                self.master.close_segment(id);
                let status = if summary.success { 0 } else { 256 };
                let event =
                    Event::SubdagEnded(self.parents[id.index()], Outcome::new(status, Duration::ZERO));
                self.master.handle(event, &mut self.model)?;
            }
        }
    }

    /// Lets the agent of a worker say something about its cache.
    fn say(&mut self, rank: Rank) -> Result<(), MasterError> {
        let name = random_file(self.random);
        let news = match self.random.below(8) {
            0 => CacheNews::Begins,
            _ => CacheNews::Has {
                name,
                bytes: self.random.below(3) * 1000,
            },
        };
        match self
            .master
            .handle(Event::Cache(rank, news.clone()), &mut self.model)
        {
            // Ranks need not come in order.
            Err(MasterError::UnknownRank(_)) => Ok(()),
            handled => {
                self.model.cache(rank, &news);
                handled
            }
        }
    }

    /// Causes one event. Returns false if the scheduler has to act before the next one.
    fn step(&mut self, plan: &Plan, is_first: bool) -> Result<bool, String> {
        let waits = self.at.next().is_none();
        let has_changed = self.nest(plan, waits).map_err(|error| error.to_string())?;
        if waits && has_changed {
            return Ok(false);
        }
        if plan.inputs && self.random.one_in(4) {
            let rank = Rank(1 + self.random.below(self.model.workers().max(1)) as u32);
            self.say(rank).map_err(|error| error.to_string())?;
        }
        if plan.end.is_some() && self.random.one_in(50) {
            let end = self.now + self.random.below(1500);
            self.end_at(end).map_err(|error| error.to_string())?;
            return Ok(false);
        }
        let (master, model) = (&mut self.master, &mut self.model);
        if plan.dynamic && self.random.one_in(4) {
            let time = (self.now, &mut *self.random);
            let disturbed = self.membership.disturb(master, model, &mut self.at, time);
            return disturbed.map(|()| false).map_err(|e| e.to_string());
        }
        let next_time = master.next_time().map(|time| time.as_millis() as u64);
        let Some(time) = self.at.next().into_iter().chain(next_time).min() else {
            if is_first && master.has_late() {
                return self.go_on_or_drain().map(|()| false).map_err(|e| e.to_string());
            }
            if is_first && plan.dynamic {
                self.membership.help(master, model, &mut self.at, self.random)?;
            } else if is_first {
                return Err("the run has not ended, but nothing runs".to_owned());
            }
            return Ok(false);
        };
        if !is_first && time > self.now + 2 {
            return Ok(false);
        }
        self.now = self.now.max(time);
        if next_time == Some(time) {
            return Ok(false);
        }
        let Some((rank, report)) = self.at.take(self.random) else {
            return Ok(false);
        };
        let event = match report {
            report if model.member(rank).gone => report.late(rank),
            Report::Retracted(submits) => {
                model.give_back(rank, &submits);
                Event::Retracted(rank, submits)
            }
            Report::Ended(submit) => {
                self.results += 1;
                Event::Finished(rank, random_result(submit, plan.one_in_fails, self.random))
            }
        };
        let is_result = matches!(event, Event::Finished(..));
        master.handle(event, model).map_err(|e| e.to_string())?;
        if is_result && plan.drain_after == Some(self.results) && !self.drained {
            master.handle(Event::Drain, model).map_err(|e| e.to_string())?;
            model.stopped = true;
            self.drained = true;
        }
        Ok(true)
    }

    fn check_end(mut self) -> Result<(Master, Seen), String> {
        self.master.sanity_check()?;
        self.model.check_end(self.drained);
        let (mut summary, model) = (self.ended, &self.model);
        self.master
            .parts()
            .for_each(|(_, _, part)| add(&mut summary, part));
        let results = self.results + model.crashed + model.nested_ends - model.prepared - model.interrupted;
        let expected = (model.workers(), model.started, results, model.evicted);
        let ended = summary.succeeded + summary.failed;
        if (self.setups, summary.submitted, ended, summary.evicted) != expected {
            return Err(format!(
                "the summary is wrong: {summary:?}, {} set up",
                self.setups
            ));
        }
        let seen = Seen {
            moved: self.model.moved(),
            held: self.model.held(),
        };
        self.model.mistake.map_or(Ok((self.master, seen)), Err)
    }
}

#[test]
fn simulated_runs_agree_with_the_model() {
    let only: Option<u64> = std::env::var("PMC_SIM_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    let (mut moved, mut held) = (0, 0);
    for seed in only.map_or(0..600, |seed| seed..seed + 1) {
        let mut random = Random(seed);
        let plan = random_plan(&mut random);
        let outcome = run(plan, &mut random);
        assert!(outcome.is_ok(), "PMC_SIM_SEED={seed}: {}", outcome.unwrap_err());
        let (_, seen) = outcome.unwrap();
        moved += seen.moved;
        held += seen.held;
    }
    assert!(
        only.is_some() || (moved > 300 && held > 300),
        "only {moved} tasks followed their data, and {held} were held back"
    );
}

#[test]
fn simulated_runs_whose_workers_come_and_go_agree_with_the_model() {
    let only: Option<u64> = std::env::var("PMC_SIM_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    let mut evicted = 0;
    for seed in only.map_or(10_000..10_600, |seed| seed..seed + 1) {
        let mut random = Random(seed);
        let mut plan = random_plan(&mut random);
        plan.dynamic = true;
        plan.config.crash_limit = random.pick(&[0, 2, 5]);
        let outcome = run(plan, &mut random);
        assert!(outcome.is_ok(), "PMC_SIM_SEED={seed}: {}", outcome.unwrap_err());
        evicted += outcome.map_or(0, |(master, _)| master.summary().evicted);
    }
    assert!(
        only.is_some() || evicted > 300,
        "only {evicted} attempts were lost"
    );
}

#[test]
fn thousands_of_workers_run_a_large_workflow() {
    let mut random = Random(42);
    let requests = ["", "-m 1000", "-m 4000 -c 2", "-c 4", "-m 30000"];
    let plan = Plan {
        dag: Arc::new(random_dag(
            &mut random,
            20_000,
            &requests,
            0,
            &RandomDag::default(),
        )),
        done: DoneSet::new(),
        dynamic: false,
        workers: (0..2_000)
            .map(|worker| Registration {
                host: format!("node{:03}", worker / 20),
                memory_mb: 64_000,
                threads: 20,
                cores: 20,
                sockets: 2,
                gpus: 0,
                away: false,
            })
            .collect(),
        config: MasterConfig {
            max_attempts: 10,
            max_failures: 0,
            crash_limit: 0,
        },
        more_memory: 100,
        one_in_fails: 50,
        drain_after: None,
        prefill: true,
        subdags: false,
        inputs: false,
        end: None,
        thorough: false,
    };
    let (master, _) = run(plan, &mut random).unwrap();
    let summary = master.summary();
    assert!(summary.failed > 200, "{summary:?}");
    assert_eq!(summary.done + summary.failed_tasks + dependents(&master), 20_000);
}

/// Number of dependents of failed tasks.
fn dependents(master: &Master) -> usize {
    let mut depends = vec![false; master.dag().len()];
    for task in master.dag().ids() {
        let failed = master.nodes[task.index()].state == crate::scheduler::tasks::State::Failed;
        if failed || depends[task.index()] {
            for child in master.dag().children(task) {
                depends[child.index()] = true;
            }
        }
    }
    depends.iter().filter(|depends| **depends).count()
}
