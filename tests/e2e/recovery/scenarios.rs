//! Random scenarios: what ends batch jobs before their workflow. A seed says what happens and when.

use std::fs;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use testutils::Random;

use super::{Submitted, wait_until};
use crate::support::slurm::Cluster;

/// Seconds after which no other scenario begins, unless a number of scenarios is asked for.
const BOUND: Duration = Duration::from_secs(240);

/// Scenarios in that time, at most.
const MAX_SCENARIOS: u64 = 20;

/// Seconds until a workflow must have ended.
const PATIENCE: u64 = 900;

/// What happens to a run.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// A node that is not the first one of its job is switched off.
    Node,
    /// The first one is.
    FirstNode,
    /// The daemon that knows the jobs is away for 20 seconds.
    Controller,
    /// SIGKILL.
    Executor,
    /// SIGKILL.
    Supervisor,
    /// SIGKILL.
    Agent,
    /// The site takes a node out of service.
    DrainNode,
    /// The site changes the limit of the job, in minutes.
    Limit(u64),
    /// The user cancels the job.
    Cancel,
}

/// A scenario: tasks, steps of each, minutes of a job, and what happens after how many seconds.
#[derive(Debug)]
struct Scenario {
    tasks: usize,
    steps: usize,
    minutes: u64,
    faults: Vec<(u64, Fault)>,
}

impl Scenario {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let mut faults = Vec::new();
        for _ in 0..1 + random.below(2) {
            let limit = Fault::Limit(1 + random.below(3));
            let fault = random.pick(&[
                Fault::Node,
                Fault::FirstNode,
                Fault::Controller,
                Fault::Executor,
                Fault::Supervisor,
                Fault::Agent,
                Fault::DrainNode,
                limit,
                Fault::Cancel,
            ]);
            faults.push((2 + random.below(25), fault));
        }
        // The cluster has three nodes, and two must be left.
        let loses = |fault: Fault| matches!(fault, Fault::Node | Fault::FirstNode | Fault::DrainNode);
        let mut lost = 0;
        faults.retain(|(_, fault)| {
            lost += u32::from(loses(*fault));
            !loses(*fault) || lost <= 1
        });
        faults.sort_by_key(|(after, _)| *after);
        Self {
            tasks: 4 + random.below(5) as usize,
            steps: 10 + random.below(35) as usize,
            minutes: 1 + random.below(3),
            faults,
        }
    }

    fn is_cancelled(&self) -> bool {
        self.faults.iter().any(|(_, fault)| *fault == Fault::Cancel)
    }
}

/// Returns the processes of this run whose command lines have all these texts.
fn processes(texts: &[&str]) -> Vec<Pid> {
    let all = fs::read_dir("/proc").expect("processes").flatten();
    let numbers = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let is_it = |number: &i32| {
        let line = fs::read(format!("/proc/{number}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        texts.iter().all(|text| line.contains(text))
    };
    numbers.filter(is_it).map(Pid::from_raw).collect()
}

fn cause(cluster: &mut Cluster, plan: &Submitted, fault: Fault) {
    let dag = plan.dag.display().to_string();
    let job = cluster.queue().into_iter().next().unwrap_or_default();
    let first = || cluster.job(&job).value("BatchHost");
    let end = |texts: &[&str]| {
        if let Some(process) = processes(texts).first() {
            // It may have ended.
            let _ = kill(*process, Signal::SIGKILL);
        }
    };
    match fault {
        Fault::FirstNode | Fault::Node | Fault::DrainNode => {
            let first = first();
            let other = ["n1", "n2", "n3"].into_iter().find(|node| *node != first);
            let node = match fault {
                Fault::FirstNode => first.clone(),
                _ => other.expect("three nodes").to_owned(),
            };
            if fault == Fault::DrainNode {
                let name = format!("NodeName={node}");
                cluster.update(&[&name, "State=DRAIN", "Reason=test"]);
            } else if !node.is_empty() {
                cluster.kill_node(&node);
            }
        }
        Fault::Controller => cluster.restart_controller(Duration::from_secs(20)),
        Fault::Executor => end(&["pegasus-mpi-cluster", "--agents", &dag]),
        Fault::Supervisor => end(&["pmc supervise", &dag]),
        Fault::Agent => end(&["pegasus-mpi-cluster", "--agent "]),
        Fault::Limit(minutes) => {
            let (job, limit) = (format!("JobId={job}"), format!("TimeLimit={minutes}"));
            cluster.update(&[&job, &limit]);
        }
        Fault::Cancel => cluster.job(&job).cancel(),
    }
}

fn run(seed: u64) {
    let scenario = Scenario::new(seed);
    println!("scenario {seed}: {scenario:?}");
    let mut cluster = Cluster::configured("SlurmdTimeout=10\n");
    let minutes = scenario.minutes.to_string();
    let options = [
        "--nodes",
        "2",
        "--walltime",
        &minutes,
        "-Dpegasus.batch.transport=agents",
        "-Dpegasus.batch.resubmit=20",
    ];
    let plan = Submitted::new(&cluster, scenario.tasks, scenario.steps, &options);
    let details = || format!("scenario {seed}: {scenario:?}\n{}", plan.details());
    wait_until("no task runs", 120, &details, || !plan.lines("begun").is_empty());
    let begun = Instant::now();
    for (after, fault) in &scenario.faults {
        std::thread::sleep(Duration::from_secs(*after).saturating_sub(begun.elapsed()));
        cause(&mut cluster, &plan, *fault);
    }
    if scenario.is_cancelled() {
        wait_until("a job is left", 120, &details, || cluster.queue().is_empty());
        let started = plan.lines("begun").len();
        std::thread::sleep(Duration::from_secs(3));
        assert_eq!(plan.lines("begun").len(), started, "{}", details());
    } else {
        wait_until("the workflow does not end", PATIENCE, &details, || {
            plan.ends().last().is_some_and(|end| end == "success stop")
        });
        wait_until("a job is left", 120, &details, || cluster.queue().is_empty());
        plan.assert_no_step_was_lost_or_doubled(scenario.tasks, scenario.steps);
    }
    let log = fs::read_to_string(format!("{}.dagman.out", plan.dag.display())).expect("a log");
    assert!(!log.contains(" failed with "), "{}\n{log}", details());
}

/// `PMC_RECOVERY_SEED=SEED` runs one scenario, `PMC_RECOVERY_SCENARIOS=60` as many as that.
#[test]
#[ignore = "needs Slurm: tests/run e2e"]
fn a_workflow_ends_without_a_hand_whatever_happens() {
    let number = |name: &str| {
        let text = std::env::var(name).ok();
        text.map(|text| text.parse::<u64>().expect("a number"))
    };
    if let Some(seed) = number("PMC_RECOVERY_SEED") {
        return run(seed);
    }
    let wanted = number("PMC_RECOVERY_SCENARIOS");
    let begun = Instant::now();
    for seed in 0..wanted.unwrap_or(MAX_SCENARIOS) {
        if wanted.is_none() && begun.elapsed() >= BOUND {
            println!("{seed} scenarios in {:.0?}", begun.elapsed());
            return;
        }
        run(seed);
    }
}
