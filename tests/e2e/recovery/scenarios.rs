//! Random faults while batch jobs follow each other: nodes, the controller and programs of the run are
//! killed, nodes drain, limits change, jobs are cancelled. Without a hand, each workflow ends, or, cancelled,
//! nothing more starts; and nothing of it is left on the nodes.
//!
//! `PMC_SCENARIOS=60` runs that many; `PMC_SCENARIO_SEED` is the seed of the first one, and
//! `PMC_SCENARIOS_AT_ONCE` the number of clusters.

use std::fmt;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use testutils::Random;

use super::submitted::{Submitted, wait_until};
use crate::support::slurm::Cluster;

const TASKS: usize = 10;

const NODES: [&str; 3] = ["n1", "n2", "n3"];

/// Lines for Slurm: it notices lost nodes soon, and changed limits at once.
const CONFIGURATION: &str = "SlurmdTimeout=10\nKillWait=15\n";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// A node is off for this number of seconds.
    Node(&'static str, u64),
    /// That of the batch script is.
    FirstNode(u64),
    /// The controller is off for 20 s.
    Controller,
    /// A program of the run is killed.
    Kill(Victim),
    /// A node drains for this number of seconds.
    Drain(&'static str, u64),
    /// The job has this number of minutes.
    Limit(u64),
    /// The job is cancelled.
    Cancel,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Executor,
    Supervisor,
    Agent,
}

/// What happens, and when, in seconds since the first task.
struct Scenario {
    seed: u64,
    steps: usize,
    minutes: u64,
    faults: Vec<(u64, Fault)>,
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            seed,
            steps,
            minutes,
            faults,
        } = self;
        write!(
            f,
            "scenario {seed}: {TASKS} tasks of {steps} s in jobs of {minutes} min, {faults:?}"
        )
    }
}

impl Scenario {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let minutes = 1 + random.below(3);
        let steps = 20 + random.index(30);
        let count = 1 + random.below(2);
        let mut faults: Vec<_> = (0..count)
            .map(|_| (random.below(50), fault(&mut random)))
            .collect();
        faults.sort_by_key(|(at, _)| *at);
        // Nothing follows a cancel.
        if let Some(cancel) = faults.iter().position(|(_, fault)| *fault == Fault::Cancel) {
            faults.truncate(cancel + 1);
        }
        Self {
            seed,
            steps,
            minutes,
            faults,
        }
    }

    fn is_cancelled(&self) -> bool {
        self.faults.iter().any(|(_, fault)| *fault == Fault::Cancel)
    }

    fn run(&self) {
        let mut cluster = Cluster::configured(CONFIGURATION);
        let minutes = self.minutes.to_string();
        let options = [
            "--nodes",
            "3",
            "--walltime",
            &minutes,
            "-Dpegasus.batch.transport=agents",
        ];
        let resubmit = ["-Dpegasus.batch.resubmit=30"];
        let plan = Submitted::new(&cluster, TASKS, self.steps, &[&options[..], &resubmit].concat());
        let details = || format!("{self}\n{}", plan.details());
        wait_until("no task runs", 180, details, || plan.lines("begun").len() >= 3);
        let begun = Instant::now();
        for (at, fault) in &self.faults {
            while begun.elapsed() < Duration::from_secs(*at) {
                std::thread::sleep(Duration::from_millis(100));
            }
            if has_ended(&plan) {
                break;
            }
            inflict(*fault, &mut cluster, &plan);
        }
        for node in NODES {
            cluster.start_node(node);
        }
        if self.is_cancelled() && !has_ended(&plan) {
            self.check_cancelled(&cluster, &plan);
        } else {
            self.check_done(&cluster, &plan);
        }
        println!("{self}: {:?} after {:.0?}", plan.ends(), begun.elapsed());
    }

    /// What is known of a scenario that goes wrong.
    fn details(&self, cluster: &Cluster, plan: &Submitted) -> String {
        let (queue, logs) = (cluster.queue(), cluster.logs());
        format!("{self}\n{}\n{queue:?}\n{logs}", plan.details())
    }

    fn check_done(&self, cluster: &Cluster, plan: &Submitted) {
        let details = || self.details(cluster, plan);
        wait_until("the workflow does not end", 900, details, || has_ended(plan));
        assert_eq!(
            plan.ends().last().map(String::as_str),
            Some("success stop"),
            "{}",
            details()
        );
        plan.assert_no_step_was_lost_or_doubled(TASKS, self.steps);
        wait_until("a job is left", 120, details, || cluster.queue().is_empty());
        let processes = || format!("{self}\n{:#?}", left(plan));
        wait_until("a process is left", 60, processes, || left(plan).is_empty());
        let log = fs::read_to_string(format!("{}.dagman.out", plan.dag.display())).expect("a log");
        assert!(!log.contains(" failed with "), "{self}\n{log}");
        if std::env::var_os("PMC_SCENARIOS").is_some() {
            plan.monitored().replay();
        }
    }

    fn check_cancelled(&self, cluster: &Cluster, plan: &Submitted) {
        let details = || self.details(cluster, plan);
        wait_until("a job is left", 180, details, || cluster.queue().is_empty());
        let processes = || format!("{self}\n{:#?}", left(plan));
        wait_until("a process is left", 60, processes, || left(plan).is_empty());
        let begun = plan.lines("begun").len();
        std::thread::sleep(Duration::from_secs(5));
        assert_eq!(
            (plan.lines("begun").len(), cluster.queue().len()),
            (begun, 0),
            "{}",
            details()
        );
        assert!(plan.lines("overlaps").is_empty(), "{}", details());
    }
}

fn fault(random: &mut Random) -> Fault {
    let node = NODES[random.index(NODES.len())];
    let seconds = 15 + random.below(45);
    match random.below(12) {
        0 | 1 => Fault::Node(node, seconds),
        2 | 3 => Fault::FirstNode(seconds),
        4 => Fault::Controller,
        5 => Fault::Kill(Victim::Executor),
        6 => Fault::Kill(Victim::Supervisor),
        7 => Fault::Kill(Victim::Agent),
        8 => Fault::Drain(node, seconds),
        9 | 10 => Fault::Limit(1 + random.below(3)),
        _ => Fault::Cancel,
    }
}

/// True after the end of a job that no other one follows.
fn has_ended(plan: &Submitted) -> bool {
    plan.ends()
        .last()
        .is_some_and(|end| end.ends_with("stop") || end.ends_with("give-up"))
}

fn inflict(fault: Fault, cluster: &mut Cluster, plan: &Submitted) {
    let pause = |seconds| std::thread::sleep(Duration::from_secs(seconds));
    // The job that runs; between two jobs there is none.
    let job = cluster.running_job();
    match (fault, job) {
        (Fault::Node(node, seconds), _) => {
            cluster.kill_node(node);
            pause(seconds);
            cluster.start_node(node);
        }
        (Fault::FirstNode(seconds), Some(job)) => {
            let node = cluster.job(&job).value("BatchHost");
            cluster.kill_node(&node);
            pause(seconds);
            cluster.start_node(&node);
        }
        (Fault::Controller, _) => {
            cluster.stop_controller();
            pause(20);
            cluster.start_controller();
        }
        (Fault::Kill(victim), _) => kill_programs(victim, &plan.dag),
        (Fault::Drain(node, seconds), _) => {
            let name = format!("NodeName={node}");
            cluster.control(&["update", &name, "State=DRAIN", "Reason=test"]);
            pause(seconds);
            cluster.control(&["update", &name, "State=RESUME"]);
        }
        // A job may end meanwhile.
        (Fault::Limit(minutes), Some(job)) => {
            cluster.control(&["update", &format!("JobId={job}"), &format!("TimeLimit={minutes}")]);
        }
        (Fault::Cancel, _) => cluster.cancel_first(),
        (Fault::FirstNode(_) | Fault::Limit(_), None) => {}
    }
}

/// The processes of this machine, with their words.
fn processes() -> Vec<(Pid, Vec<String>)> {
    let found = fs::read_dir("/proc")
        .expect("processes")
        .flatten()
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let line = fs::read(entry.path().join("cmdline")).ok()?;
            let words = String::from_utf8_lossy(&line)
                .split('\0')
                .map(str::to_owned)
                .collect();
            Some((Pid::from_raw(pid), words))
        });
    found.collect()
}

/// Kills one of the programs of this kind that work on a DAG.
fn kill_programs(victim: Victim, dag: &Path) {
    let dag = dag.display().to_string();
    let is_victim = |words: &[String]| {
        let is = |name: &str| words.first().is_some_and(|word| word.ends_with(name));
        let is_agent = words.iter().any(|word| word == "--agent");
        let is_it = match victim {
            Victim::Supervisor => is("/pmc") && words.get(1).is_some_and(|word| word == "supervise"),
            Victim::Executor => is("/pegasus-mpi-cluster") && !is_agent,
            Victim::Agent => is("/pegasus-mpi-cluster") && is_agent,
        };
        is_it && words.iter().any(|word| word.contains(&dag))
    };
    if let Some((pid, _)) = processes().iter().find(|(_, words)| is_victim(words)) {
        // It may have ended.
        let _ = kill(*pid, Signal::SIGKILL);
    }
}

/// Returns the processes of a run, or of its tasks.
fn left(plan: &Submitted) -> Vec<String> {
    let home = plan.home().display().to_string();
    let of_run = processes().into_iter().map(|(_, words)| words.join(" "));
    of_run.filter(|line| line.contains(&home)).collect()
}

#[test]
#[ignore = "needs Slurm: tests/run e2e"]
fn random_faults_need_no_hand() {
    let number = |name: &str, default| {
        let text = std::env::var(name).ok();
        text.map_or(default, |text| text.parse().expect("a number"))
    };
    let (count, first) = (number("PMC_SCENARIOS", 2), number("PMC_SCENARIO_SEED", 1));
    let next = AtomicU64::new(0);
    let failed = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..number("PMC_SCENARIOS_AT_ONCE", 2).min(count) {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    if at >= count {
                        return;
                    }
                    let scenario = Scenario::new(first + at);
                    let run = std::panic::AssertUnwindSafe(|| scenario.run());
                    // The others go on; its message is printed.
                    if std::panic::catch_unwind(run).is_err() {
                        println!("FAILED: {scenario}");
                        failed.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    assert_eq!(failed.load(Ordering::Relaxed), 0, "of {count} scenarios");
}
