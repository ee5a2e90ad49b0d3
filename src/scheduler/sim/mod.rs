//! Whole runs on a simulated transport. A model checks each step of the scheduler.
//!
//! A seed determines everything: the DAG, the hosts, how long tasks run, which fail, how long messages take
//! and how many are handled at a time. A failing test names its seed; `PMC_SIM_SEED=<seed> cargo test
//! simulated` runs only that seed.

mod model;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use pmc_dag::Dag;
use pmc_dag::rescue::DoneSet;

use crate::protocol::{Outcome, Rank, Registration, SubmitId, TaskResult, ToWorker};
use crate::scheduler::{Event, Master, MasterConfig, Workers};

use testutils::Random;

use model::Model;

/// Parameters of a run.
struct Plan {
    dag: Arc<Dag>,
    done: DoneSet,
    /// Host of each worker.
    workers: Vec<Registration>,
    config: MasterConfig,
    /// One attempt in this number fails; 0 means none.
    one_in_fails: u64,
    /// Drain after this number of results.
    drain_after: Option<u64>,
    /// Prefill is enabled.
    prefill: bool,
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
    tasks: Vec<VecDeque<SubmitId>>,
    /// When the end of each running task reaches the master.
    end: Vec<u64>,
    /// By time of arrival.
    arriving: BinaryHeap<Reverse<(u64, Rank, Report)>>,
}

impl Slots {
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
            self.start(rank, submit, now, random);
        } else if random.one_in(3) {
            self.give_back(rank, now, random);
        }
    }

    fn start(&mut self, rank: Rank, submit: SubmitId, now: u64, random: &mut Random) {
        // Message, execution, message.
        let time = now + random.below(5) + random.below(100) + random.below(5);
        self.end[rank.0 as usize - 1] = time;
        self.arriving.push(Reverse((time, rank, Report::Ended(submit))));
    }

    fn give_back(&mut self, rank: Rank, now: u64, random: &mut Random) {
        // When the running task has ended, the next one has already started.
        let left = self.end[rank.0 as usize - 1].saturating_sub(now);
        let tasks = &mut self.tasks[rank.0 as usize - 1];
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
        if let Report::Ended(_) = report {
            let tasks = &mut self.tasks[rank.0 as usize - 1];
            tasks.pop_front();
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
) -> Result<(), String> {
    let mut order: Vec<usize> = (0..workers.len()).collect();
    for at in (1..order.len()).rev() {
        order.swap(at, random.below(at as u64 + 1) as usize);
    }
    order.into_iter().try_for_each(|index| {
        let event = Event::Registered(Rank(index as u32 + 1), workers[index].clone());
        master.handle(event, model).map_err(|e| e.to_string())
    })
}

fn random_result(submit: SubmitId, one_in_fails: u64, random: &mut Random) -> TaskResult {
    let failed = one_in_fails > 0 && random.one_in(one_in_fails);
    let status = if failed {
        random.pick(&[256, 768, 9, -1])
    } else {
        0
    };
    TaskResult {
        submit,
        outcome: Outcome::new(status, Duration::from_millis(1)),
        forwards: Vec::new(),
    }
}

/// Runs a plan to its end.
fn run(plan: Plan, random: &mut Random) -> Result<Master, String> {
    let mut model = Model::new(&plan);
    let workers = plan.workers.len() as u32;
    let mut master = Master::new(plan.dag.clone(), plan.done, Workers::Fixed(workers), plan.config);
    if plan.prefill {
        master = master.with_prefill();
    }
    register_all(&mut master, &mut model, &plan.workers, random)?;
    master.start(&mut model).map_err(|e| e.to_string())?;

    let mut now = 0;
    let mut results = 0;
    let mut drained = false;
    let mut at = Slots::new(workers);
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
                other => return Err(format!("the master sends {other:?}")),
            }
        }
        if let Some(mistake) = model.mistake.take() {
            return Err(mistake);
        }
        if master.is_finished() {
            break;
        }
        // Several messages may have arrived when the first one is handled.
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
                Some((rank, Report::Ended(submit))) => (rank, submit),
                Some((rank, Report::Retracted(submits))) => {
                    model.give_back(rank, &submits);
                    let retracted = Event::Retracted(rank, submits);
                    master.handle(retracted, &mut model).map_err(|e| e.to_string())?;
                    continue;
                }
                None => break,
            };
            let result = random_result(submit, plan.one_in_fails, random);
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
    model.mistake.map_or(Ok(master), Err)
}

/// Creates a DAG as text, so that the reader is part of the test.
fn random_dag(random: &mut Random, tasks: u64, requests: &[&str], categories: u64) -> Dag {
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
        if categories > 0 && random.one_in(2) {
            let _ = write!(text, "--category c{} ", random.below(categories));
        }
        text.push_str("/bin/true\n");
    }
    for category in 0..categories {
        let _ = writeln!(text, "MAXJOBS c{category} {}", 1 + random.below(4));
    }
    // Edges go from lower to higher numbers, so there is no cycle. Some are duplicates.
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
    let categories = random.pick(&[0, 0, 1, 3]);
    let dag = Arc::new(random_dag(random, tasks, requests, categories));
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
            max_attempts: random.below(4) as u32,
            max_failures: if random.one_in(3) {
                1 + random.below(5) as u32
            } else {
                0
            },
            crash_limit: 0,
        },
        one_in_fails: random.pick(&[0, 3, 10]),
        drain_after: random.one_in(5).then(|| random.below(50)),
        prefill: random.one_in(2),
        thorough: true,
    }
}

#[test]
fn simulated_runs_agree_with_the_model() {
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
        dag: Arc::new(random_dag(&mut random, 100_000, &requests, 0)),
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
            max_attempts: 10,
            max_failures: 0,
            crash_limit: 0,
        },
        one_in_fails: 50,
        drain_after: None,
        prefill: true,
        thorough: false,
    };
    let master = run(plan, &mut random).unwrap();
    let summary = master.summary();
    assert!(summary.failed > 1000, "{summary:?}");
    assert_eq!(summary.done + summary.failed_tasks + dependents(&master), 100_000);
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
