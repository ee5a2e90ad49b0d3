//! Whole runs on a simulated transport, with a model beside the master that checks what it says.
//!
//! Everything follows from a seed: the DAG, the hosts, how long tasks run, which fail, how long
//! messages take and how many are worked off at a time. A failing seed is named, and
//! `PMC_SIM_SEED=<seed> cargo test simulated` runs only that one.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use pmc_dag::rescue::DoneSet;
use pmc_dag::{Dag, Request, TaskId};

use crate::protocol::{Outcome, Rank, Registration, SubmitId, TaskResult, ToWorker};
use crate::scheduler::{Event, Master, MasterConfig, Outbox, Record};

use testutils::Random;

/// What a run is made of.
struct Plan {
    dag: Arc<Dag>,
    done: DoneSet,
    /// Host of each worker.
    workers: Vec<Registration>,
    config: MasterConfig,
    /// One try in so many fails; 0: none.
    one_in_fails: u64,
    /// Drain after so many results.
    drain_after: Option<u64>,
    /// Workers take tasks in advance.
    prefill: bool,
    /// Check all cross-references after each step.
    thorough: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    Queued(SubmitId),
    /// Sent to a worker that runs something else.
    Prefilled(SubmitId, Rank),
    Running(SubmitId, Rank),
    Done,
    Failed,
}

/// Queued tasks, the one that must go first in front.
type Waiting = BTreeSet<(Reverse<i64>, SubmitId)>;

/// What the model knows of a host.
struct ModelHost {
    memory_mb: u64,
    cpus: u32,
    slots: u32,
    numbers: BTreeSet<u32>,
    gpus: BTreeSet<u32>,
    /// GPUs that no task has reserved.
    free_gpus: u32,
}

impl ModelHost {
    fn has(&self, asked: Request) -> bool {
        self.memory_mb >= asked.memory_mb && self.cpus >= asked.cpus && self.free_gpus >= asked.gpus
    }
}

/// Follows the records and messages on its own and notes the first thing that is wrong.
struct Model {
    dag: Arc<Dag>,
    config: MasterConfig,
    hosts: BTreeMap<String, ModelHost>,
    host_of: Vec<String>,
    states: Vec<State>,
    parents_left: Vec<u32>,
    tries_left: Vec<u32>,
    /// Queued tasks by what they ask for.
    queued: BTreeMap<Request, Waiting>,
    submits: u64,
    started: u64,
    /// A task has been started in this `schedule`: nothing more may be queued.
    starting: bool,
    stopped: bool,
    failed_tasks: u32,
    /// What each worker was sent in advance.
    prefilled: BTreeMap<Rank, VecDeque<SubmitId>>,
    /// CPU numbers given to the executions that run.
    held: BTreeMap<SubmitId, Vec<u32>>,
    /// GPUs given to the executions that run.
    held_gpus: BTreeMap<SubmitId, Vec<u32>>,
    sent: Vec<(Rank, ToWorker)>,
    thorough: bool,
    wrong: Option<String>,
}

impl Model {
    fn new(plan: &Plan) -> Self {
        let mut hosts: BTreeMap<String, ModelHost> = BTreeMap::new();
        for worker in &plan.workers {
            let host = hosts.entry(worker.host.clone()).or_insert(ModelHost {
                memory_mb: worker.memory_mb,
                cpus: worker.threads,
                slots: 0,
                numbers: (0..worker.threads).collect(),
                gpus: (0..worker.gpus).collect(),
                free_gpus: worker.gpus,
            });
            host.slots += 1;
        }
        let dag = plan.dag.clone();
        let mut parents_left: Vec<u32> = dag.ids().map(|task| dag.parent_count(task)).collect();
        let mut states = vec![State::Waiting; dag.len()];
        for task in plan.done.ids() {
            states[task.index()] = State::Done;
            for child in dag.children(task) {
                parents_left[child.index()] -= 1;
            }
        }
        Self {
            config: plan.config,
            hosts,
            host_of: plan.workers.iter().map(|worker| worker.host.clone()).collect(),
            states,
            parents_left,
            tries_left: dag
                .ids()
                .map(|t| dag.tries(t).unwrap_or(plan.config.tries).max(1))
                .collect(),
            queued: BTreeMap::new(),
            submits: 0,
            started: 0,
            starting: false,
            stopped: false,
            failed_tasks: 0,
            prefilled: BTreeMap::new(),
            held: BTreeMap::new(),
            held_gpus: BTreeMap::new(),
            sent: Vec::new(),
            thorough: plan.thorough,
            wrong: None,
            dag,
        }
    }

    fn shape(&self, task: TaskId) -> Request {
        self.dag.request(task)
    }

    fn fits_somewhere(&self, asked: Request) -> bool {
        self.hosts.values().any(|host| host.slots > 0 && host.has(asked))
    }

    fn check(&mut self, right: bool, what: impl FnOnce() -> String) {
        if !right && self.wrong.is_none() {
            self.wrong = Some(what());
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
            format!("{task:?} queued although the run is to stop")
        });
        self.states[task.index()] = State::Queued(submit);
        let shape = self.shape(task);
        self.queued
            .entry(shape)
            .or_default()
            .insert((Reverse(self.dag.priority(task)), submit));
    }

    fn start(&mut self, task: TaskId, submit: SubmitId, rank: Rank) {
        self.started += 1;
        let state = self.states[task.index()];
        if state == State::Prefilled(submit, rank) {
            let next = self.prefilled.get_mut(&rank).and_then(VecDeque::pop_front);
            self.check(next == Some(submit), || {
                format!("{task:?} is begun before {next:?}, which was sent before")
            });
            self.occupy(task, submit, rank);
            return;
        }
        self.starting = true;
        self.check(state == State::Queued(submit), || {
            format!("{task:?} started while {state:?}")
        });
        self.check(!self.stopped, || {
            format!("{task:?} started although the run is to stop")
        });
        let key = self.take_first(task, submit);
        if self.thorough {
            let overtaken: Vec<_> = self
                .queued
                .iter()
                .filter(|(shape, queued)| {
                    queued.first().is_some_and(|other| *other < key) && self.fits_somewhere(**shape)
                })
                .map(|(shape, _)| *shape)
                .collect();
            self.check(overtaken.is_empty(), || {
                format!("{task:?} overtakes what would fit: {overtaken:?}")
            });
        }
        self.occupy(task, submit, rank);
    }

    /// Takes the task out of the queue, where it must be the first of its shape.
    fn take_first(&mut self, task: TaskId, submit: SubmitId) -> (Reverse<i64>, SubmitId) {
        let key = (Reverse(self.dag.priority(task)), submit);
        let shape = self.shape(task);
        let first = self.queued.get_mut(&shape).and_then(BTreeSet::pop_first);
        self.check(first == Some(key), || {
            format!("{task:?} started before {first:?} of its shape")
        });
        key
    }

    /// A task was sent to a worker that runs another one.
    fn prefill(&mut self, task: TaskId, submit: SubmitId, rank: Rank) {
        let key = self.take_first(task, submit);
        let better = self.queued.values().flatten().any(|other| *other < key);
        let free = self.hosts.values().any(|host| host.slots > 0);
        self.check(!better && !free && !self.stopped, || {
            format!("{task:?} is sent in advance although something is better")
        });
        let runs_alike = self.dag.clone().ids().any(|other| {
            matches!(self.states[other.index()], State::Running(_, at) if at == rank)
                && self.shape(other) == self.shape(task)
        });
        self.check(runs_alike, || {
            format!("{task:?} is sent in advance to {rank:?}, which runs no task like it")
        });
        self.states[task.index()] = State::Prefilled(submit, rank);
        self.prefilled.entry(rank).or_default().push_back(submit);
    }

    /// A worker gives back everything that it has not begun.
    fn give_back(&mut self, rank: Rank, submits: &[SubmitId]) {
        self.prefilled
            .entry(rank)
            .or_default()
            .retain(|submit| !submits.contains(submit));
        for task in self.dag.clone().ids() {
            if let State::Prefilled(submit, at) = self.states[task.index()]
                && at == rank
                && submits.contains(&submit)
            {
                self.states[task.index()] = State::Queued(submit);
                let (shape, priority) = (self.shape(task), self.dag.priority(task));
                self.queued
                    .entry(shape)
                    .or_default()
                    .insert((Reverse(priority), submit));
            }
        }
    }

    fn occupy(&mut self, task: TaskId, submit: SubmitId, rank: Rank) {
        let shape = self.shape(task);
        self.states[task.index()] = State::Running(submit, rank);
        let host = self.host_of[rank.0 as usize - 1].clone();
        let free = self
            .hosts
            .get_mut(&host)
            .filter(|host| host.slots > 0 && host.has(shape));
        match free {
            Some(free) => {
                free.slots -= 1;
                free.memory_mb -= shape.memory_mb;
                free.cpus -= shape.cpus;
                free.free_gpus -= shape.gpus;
            }
            None => self.check(false, || format!("{task:?} oversubscribes {host}")),
        }
    }

    fn end(&mut self, task: TaskId, submit: SubmitId, rank: Rank, done: bool) {
        let state = self.states[task.index()];
        self.check(state == State::Running(submit, rank), || {
            format!("{task:?} ended while {state:?}")
        });
        let shape = self.shape(task);
        if let Some(host) = self.hosts.get_mut(&self.host_of[rank.0 as usize - 1]) {
            host.slots += 1;
            host.memory_mb += shape.memory_mb;
            host.cpus += shape.cpus;
            host.free_gpus += shape.gpus;
            host.gpus
                .extend(self.held_gpus.remove(&submit).unwrap_or_default());
            host.numbers.extend(self.held.remove(&submit).unwrap_or_default());
        }
        if done {
            self.states[task.index()] = State::Done;
            for child in self.dag.children(task) {
                self.parents_left[child.index()] -= 1;
            }
            return;
        }
        self.tries_left[task.index()] -= 1;
        if self.tries_left[task.index()] > 0 {
            self.states[task.index()] = State::Waiting;
        } else {
            self.states[task.index()] = State::Failed;
            self.failed_tasks += 1;
            self.stopped |= self.config.max_failures > 0 && self.failed_tasks >= self.config.max_failures;
        }
    }

    /// After a `schedule`: nothing that is queued would fit.
    fn check_no_idle_room(&mut self) {
        self.starting = false;
        let idle = self
            .queued
            .iter()
            .find(|(shape, queued)| !queued.is_empty() && self.fits_somewhere(**shape))
            .map(|(shape, _)| *shape);
        let stopped = self.stopped;
        self.check(idle.is_none() || stopped, || {
            format!("{idle:?} waits although it fits")
        });
    }

    /// At the end: whatever has not run has a reason.
    fn check_end(&mut self, draining: bool) {
        let stopped = self.stopped || draining;
        for task in self.dag.clone().ids() {
            let (state, left) = (self.states[task.index()], self.parents_left[task.index()]);
            let explained = match state {
                State::Done | State::Failed => true,
                State::Waiting => stopped || left > 0,
                State::Queued(_) => stopped,
                State::Prefilled(..) | State::Running(..) => false,
            };
            self.check(explained, || {
                format!("the run has ended, but {task:?} is {state:?}")
            });
        }
    }
}

impl Outbox for Model {
    fn send(&mut self, to: Rank, message: ToWorker) {
        if let ToWorker::Run(assignment) = &message {
            let task = self.dag.find(&assignment.name);
            if let Some(task) = task
                && self.states[task.index()] == State::Queued(assignment.submit)
            {
                self.prefill(task, assignment.submit, to);
                self.sent.push((to, message));
                return;
            }
            let state = task.map(|task| self.states[task.index()]);
            self.check(state == Some(State::Running(assignment.submit, to)), || {
                format!("{to:?} is sent {:?} without record", assignment.submit)
            });
            let host = self.host_of[to.0 as usize - 1].clone();
            for cpu in &assignment.cpu_set {
                let free = self
                    .hosts
                    .get_mut(&host)
                    .is_some_and(|host| host.numbers.remove(cpu));
                self.check(free, || format!("CPU {cpu} of {host} is given to two tasks"));
            }
            for gpu in &assignment.gpu_set {
                let free = self
                    .hosts
                    .get_mut(&host)
                    .is_some_and(|host| host.gpus.remove(gpu));
                self.check(free, || format!("GPU {gpu} of {host} is given to two tasks"));
            }
            let asked = task.map_or(0, |task| self.shape(task).gpus);
            self.check(assignment.gpu_set.len() == asked as usize, || {
                format!(
                    "{:?} gets {:?} of {asked} GPUs",
                    assignment.submit, assignment.gpu_set
                )
            });
            self.held_gpus
                .insert(assignment.submit, assignment.gpu_set.clone());
            if !assignment.cpu_set.is_empty() {
                self.held.insert(assignment.submit, assignment.cpu_set.clone());
            }
        }
        self.sent.push((to, message));
    }

    fn record(&mut self, record: Record<'_>) {
        match record {
            Record::Queued(task, submit) => self.queue(task, submit),
            Record::Started(task, submit, rank) => self.start(task, submit, rank),
            Record::Ended {
                task,
                submit,
                rank,
                outcome,
            } => self.end(task, submit, rank, outcome.succeeded()),
            Record::Resources {
                host,
                slots,
                cpus,
                memory_mb,
            } => {
                let known = self.hosts.get(host).map(|h| (h.slots, h.cpus, h.memory_mb));
                self.check(known == Some((slots, cpus, memory_mb)), || {
                    format!("{host} reports {slots}, {cpus}, {memory_mb}, not {known:?}")
                });
            }
            Record::Fragmented(task, _) => {
                let cpus = self.dag.cpus(task);
                self.check(cpus > 1, || format!("{task:?} with {cpus} CPUs needs no block"));
            }
        }
    }
}

/// What a worker says.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Said {
    Ended(SubmitId),
    Retracted(Vec<SubmitId>),
}

/// The workers: what each has to run, the running one first, and what they have said that is still
/// on its way.
struct Workers {
    tasks: Vec<VecDeque<SubmitId>>,
    /// When the end of each running task is known to the master.
    end: Vec<u64>,
    /// By time of arrival.
    arriving: BinaryHeap<Reverse<(u64, Rank, Said)>>,
}

impl Workers {
    fn new(count: u32) -> Self {
        Self {
            tasks: vec![VecDeque::new(); count as usize],
            end: vec![0; count as usize],
            arriving: BinaryHeap::new(),
        }
    }

    fn run(&mut self, rank: Rank, submit: SubmitId, now: u64, random: &mut Random) {
        let tasks = &mut self.tasks[rank.0 as usize - 1];
        tasks.push_back(submit);
        if tasks.len() == 1 {
            self.begin(rank, submit, now, random);
        } else if random.one_in(3) {
            self.give_back(rank, now, random);
        }
    }

    fn begin(&mut self, rank: Rank, submit: SubmitId, now: u64, random: &mut Random) {
        // Way there, execution, way back.
        let time = now + random.below(5) + random.below(100) + random.below(5);
        self.end[rank.0 as usize - 1] = time;
        self.arriving.push(Reverse((time, rank, Said::Ended(submit))));
    }

    fn give_back(&mut self, rank: Rank, now: u64, random: &mut Random) {
        // Once the running task has ended, the next one has begun.
        let left = self.end[rank.0 as usize - 1].saturating_sub(now);
        let tasks = &mut self.tasks[rank.0 as usize - 1];
        if left == 0 || tasks.len() < 2 {
            return;
        }
        let back = tasks.drain(1..).collect();
        let time = now + random.below(left);
        self.arriving.push(Reverse((time, rank, Said::Retracted(back))));
    }

    /// When the next message arrives.
    fn next(&self) -> Option<u64> {
        self.arriving.peek().map(|Reverse((time, ..))| *time)
    }

    fn take(&mut self, random: &mut Random) -> Option<(Rank, Said)> {
        let Reverse((time, rank, said)) = self.arriving.pop()?;
        if let Said::Ended(_) = said {
            let tasks = &mut self.tasks[rank.0 as usize - 1];
            tasks.pop_front();
            if let Some(next) = tasks.front().copied() {
                self.begin(rank, next, time, random);
            }
        }
        Some((rank, said))
    }
}

/// Runs a plan to its end.
fn run(plan: Plan, random: &mut Random) -> Result<Master, String> {
    let mut model = Model::new(&plan);
    let workers = plan.workers.len() as u32;
    let mut master = Master::new(plan.dag.clone(), plan.done, workers, plan.config);
    if plan.prefill {
        master = master.with_prefill();
    }
    let mut order: Vec<u32> = (1..=workers).collect();
    for at in (1..order.len()).rev() {
        order.swap(at, random.below(at as u64 + 1) as usize);
    }
    for rank in order {
        let registration = plan.workers[rank as usize - 1].clone();
        master
            .handle(Event::Registered(Rank(rank), registration), &mut model)
            .map_err(|e| e.to_string())?;
    }
    master.start(&mut model).map_err(|e| e.to_string())?;

    let mut now = 0;
    let mut results = 0;
    let mut drained = false;
    let mut at = Workers::new(workers);
    let mut setups = 0;
    loop {
        master.schedule(&mut model);
        if plan.thorough {
            model.check_no_idle_room();
            master.sanity_check()?;
        }
        model.starting = false;
        for (rank, message) in std::mem::take(&mut model.sent) {
            match message {
                ToWorker::Run(assignment) => at.run(rank, assignment.submit, now, random),
                ToWorker::Retract => at.give_back(rank, now, random),
                ToWorker::Setup { .. } => setups += 1,
                other => return Err(format!("the master says {other:?}")),
            }
        }
        if let Some(wrong) = model.wrong.take() {
            return Err(wrong);
        }
        if master.is_finished() {
            break;
        }
        // Some messages are there already when the first one is worked off.
        for taken in 0..1 + random.below(4) {
            let Some(time) = at.next() else {
                if taken == 0 {
                    return Err("the run has not ended, but nothing runs".to_owned());
                }
                break;
            };
            if taken > 0 && time > now + 2 {
                break;
            }
            now = now.max(time);
            let (rank, submit) = match at.take(random) {
                Some((rank, Said::Ended(submit))) => (rank, submit),
                Some((rank, Said::Retracted(submits))) => {
                    model.give_back(rank, &submits);
                    let returned = Event::Retracted(rank, submits);
                    master.handle(returned, &mut model).map_err(|e| e.to_string())?;
                    continue;
                }
                None => break,
            };
            let failed = plan.one_in_fails > 0 && random.one_in(plan.one_in_fails);
            let status = if failed {
                random.pick(&[256, 768, 9, -1])
            } else {
                0
            };
            let result = TaskResult {
                submit,
                outcome: Outcome::new(status, Duration::from_millis(1)),
                forwards: Vec::new(),
            };
            master
                .handle(Event::Finished(rank, result), &mut model)
                .map_err(|e| e.to_string())?;
            results += 1;
            if plan.drain_after == Some(results) {
                master
                    .handle(Event::Drain, &mut model)
                    .map_err(|e| e.to_string())?;
                model.stopped = true;
                drained = true;
            }
        }
    }
    master.sanity_check()?;
    model.check_end(drained);
    let summary = master.summary();
    let expected = (u64::from(workers), model.started, results);
    if (setups, summary.submitted, summary.succeeded + summary.failed) != expected {
        return Err(format!("the summary is wrong: {summary:?}, {setups} set up"));
    }
    model.wrong.map_or(Ok(master), Err)
}

/// A DAG in the text form, so that the reader is part of the test.
fn random_dag(random: &mut Random, tasks: u64, requests: &[&str]) -> Dag {
    let priorities = random.pick(&[1, 3, 1000]);
    let mut text = String::new();
    for task in 0..tasks {
        let _ = write!(
            text,
            "TASK t{task} {} ",
            requests[random.below(requests.len() as u64) as usize]
        );
        if random.one_in(2) {
            let _ = write!(
                text,
                "-p {} ",
                random.below(priorities) as i64 - priorities as i64 / 2
            );
        }
        if random.one_in(8) {
            let _ = write!(text, "-t {} ", random.below(4));
        }
        text.push_str("/bin/true\n");
    }
    // Edges lead from lower to higher numbers, so there is no cycle. Some are written twice.
    for child in 1..tasks {
        for _ in 0..random.below(4) {
            let parent = child - 1 - random.below(child.min(20));
            let _ = writeln!(text, "EDGE t{parent} t{child}");
        }
    }
    Dag::parse(text.into_bytes()).unwrap()
}

const REQUESTS: [&str; 10] = [
    "",
    "-c 0",
    "-m 100",
    "-m 2000",
    "-c 2",
    "-c 3 -m 500",
    "-c 4",
    "-m 1e3 -c 0",
    "-g 1",
    "-g 2 -c 2 -m 500",
];

fn random_plan(random: &mut Random) -> Plan {
    let first = random.below(REQUESTS.len() as u64) as usize;
    let requests = &REQUESTS[first..first + 1 + random.below((REQUESTS.len() - first) as u64) as usize];
    let tasks = random.pick(&[0, 1, 10, 60, 200]);
    let dag = Arc::new(random_dag(random, tasks, requests));
    let mut done = DoneSet::new();
    if random.one_in(3) {
        for task in dag.ids().filter(|_| random.one_in(4)) {
            done.insert(task);
        }
    }
    let kinds = [
        (2000, 4, 2, 1, 2),
        (3000, 8, 8, 2, 4),
        (2500, 16, 4, 2, 3),
        (8000, 6, 6, 1, 8),
    ];
    let workers = (0..random.pick(&[1, 2, 5, 40]))
        .map(|_| {
            let host = random.below(5);
            let (memory_mb, threads, cores, sockets, gpus) = kinds[host as usize % kinds.len()];
            Registration {
                host: format!("host{host}"),
                memory_mb,
                threads,
                cores,
                sockets,
                gpus,
            }
        })
        .collect();
    Plan {
        dag,
        done,
        workers,
        config: MasterConfig {
            tries: random.below(4) as u32,
            max_failures: if random.one_in(3) {
                1 + random.below(5) as u32
            } else {
                0
            },
        },
        one_in_fails: random.pick(&[0, 3, 10]),
        drain_after: random.one_in(5).then(|| random.below(50)),
        prefill: random.one_in(2),
        thorough: true,
    }
}

#[test]
fn simulated_runs_keep_all_promises() {
    let only: Option<u64> = std::env::var("PMC_SIM_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    for seed in only.map_or(0..600, |seed| seed..seed + 1) {
        let mut random = Random(seed);
        let plan = random_plan(&mut random);
        let outcome = run(plan, &mut random);
        assert!(outcome.is_ok(), "PMC_SIM_SEED={seed}: {}", outcome.unwrap_err());
    }
}

#[test]
fn thousands_of_workers_run_a_large_workflow() {
    let mut random = Random(42);
    let requests = ["", "-m 1000", "-m 4000 -c 2", "-c 4", "-m 30000"];
    let plan = Plan {
        dag: Arc::new(random_dag(&mut random, 100_000, &requests)),
        done: DoneSet::new(),
        workers: (0..5_000)
            .map(|worker| Registration {
                host: format!("node{:03}", worker / 20),
                memory_mb: 64_000,
                threads: 20,
                cores: 20,
                sockets: 2,
                gpus: 0,
            })
            .collect(),
        config: MasterConfig {
            tries: 10,
            max_failures: 0,
        },
        one_in_fails: 50,
        drain_after: None,
        prefill: true,
        thorough: false,
    };
    let master = run(plan, &mut random).unwrap();
    let summary = master.summary();
    assert!(summary.failed > 1000, "{summary:?}");
    assert_eq!(summary.done + summary.failed_tasks + waiting(&master), 100_000);
}

/// Tasks behind failed ones.
fn waiting(master: &Master) -> usize {
    let mut behind = vec![false; master.dag().len()];
    for task in master.dag().ids() {
        let failed = master.nodes[task.index()].state == crate::scheduler::tasks::State::Failed;
        if failed || behind[task.index()] {
            for child in master.dag().children(task) {
                behind[child.index()] = true;
            }
        }
    }
    behind.iter().filter(|behind| **behind).count()
}
