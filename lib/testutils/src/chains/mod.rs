//! The chain harness: a workflow in batch jobs that follow each other, and random faults. Without a hand,
//! each workflow ends, or, cancelled, nothing more starts; no step of a task is lost or done twice.
//!
//! The jobs last seconds, in a stand-in for Slurm on one machine ([`batch_system`]): supervisor, executor,
//! ledger and tasks are real. What a seed decides are the faults and their times; the machine decides what
//! they meet. The end-to-end tests do the same on a real Slurm, with agents and jobs of minutes.

mod batch_system;
mod check;

use std::fmt::{self, Write as _};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use monitord_compat::batch_jobs::{self, Entry, Event};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::Random;
use batch_system::BatchSystem;

const TASKS: usize = 6;

/// Tasks that run at a time.
const SLOTS: usize = 3;

/// How long a scenario may take.
const PATIENCE: Duration = Duration::from_secs(240);

/// How often things are looked at.
const LOOK: Duration = Duration::from_millis(50);

/// A program of steps of half a second. At USR1 it ends with 85, and goes on with the next step in its next
/// attempt. Two attempts at a time are noted.
const STEPS: &str = r#"exec 9>>"lock.$1"
flock -n 9 || echo "$1" >>overlaps
echo "$1" >>begun
trap 'exit 85' USR1
i=$(tail -n 1 "steps.$1" 2>/dev/null || echo 0)
i=${i:-0}
while [ "$i" -lt "$2" ]; do sleep 0.5 9>&-; i=$((i + 1)); echo $i >>"steps.$1"; done
"#;

/// The batch script. The jobs of this batch system are shorter than a minute: it says how long they are.
const SCRIPT: &str = "exec pmc supervise --minutes 1 --starts 10 --resubmit 40 w.dag -- \
    pegasus-mpi-cluster --workers 3 --jobstate-log --monitord-hack --per-task-stdio \
    --max-wall-time job:1 --stop-grace 1 w.dag\n";

/// What to do.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Directory of the programs.
    pub programs: PathBuf,
    /// Number of scenarios.
    pub rounds: u64,
    /// Seed of the first one; the others follow.
    pub seed: u64,
    /// Starts no scenario after this time.
    pub limit: Duration,
    /// Scenarios at a time.
    pub at_once: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// The node of the job is lost.
    Node,
    /// The executor is killed.
    Executor,
    /// The supervisor is killed, and the job with it.
    Supervisor,
    /// The batch system does not answer for this time.
    Away(Duration),
    /// The batch system asks for a drain before the end of the time.
    Drain,
    /// The job is cancelled.
    Cancel,
}

/// What happens, and when after the first task has begun.
struct Scenario {
    seed: u64,
    steps: usize,
    /// Time of each job.
    limit: Duration,
    faults: Vec<(Duration, Fault)>,
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            seed,
            steps,
            limit,
            faults,
        } = self;
        write!(
            f,
            "seed {seed}: {TASKS} tasks of {steps} steps in jobs of {limit:?}, {faults:?}"
        )
    }
}

/// What the scenarios have found.
#[derive(Debug, Default)]
pub struct Report {
    /// Scenarios that have run.
    pub rounds: u64,
    /// Batch jobs that have begun.
    pub jobs: usize,
    /// What was wrong, with the scenario.
    pub findings: Vec<String>,
    /// Time of all.
    pub time: Duration,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rounds, jobs, .. } = self;
        let (seconds, found) = (self.time.as_secs(), self.findings.len());
        writeln!(
            f,
            "{rounds} scenarios with {jobs} batch jobs in {seconds} s: {found} went wrong"
        )
    }
}

/// Runs scenarios. `each` gets a line for each that ends.
///
/// # Errors
/// Files or processes of the harness cannot be made.
pub fn run(settings: &Settings, each: &(dyn Fn(&str) + Sync)) -> io::Result<Report> {
    let begun = Instant::now();
    let next = AtomicU64::new(0);
    let report = Mutex::new(Ok(Report::default()));
    std::thread::scope(|scope| {
        for _ in 0..settings.at_once.max(1) {
            scope.spawn(|| {
                while begun.elapsed() <= settings.limit {
                    let round = next.fetch_add(1, Ordering::Relaxed);
                    if round >= settings.rounds {
                        return;
                    }
                    let scenario = Scenario::new(settings.seed.saturating_add(round));
                    let ran = scenario.run(&settings.programs);
                    if let Ok(ran) = &ran {
                        let found: String = ran.found.iter().map(|what| format!("\n    {what}")).collect();
                        each(&format!(
                            "{scenario}: {} jobs in {:.0?}{found}",
                            ran.jobs, ran.time
                        ));
                    }
                    let mut report = report.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    match (&mut *report, ran) {
                        (Ok(report), Ok(ran)) => report.add(&scenario, ran),
                        (report, Err(error)) => *report = Err(error),
                        (Err(_), Ok(_)) => {}
                    }
                }
            });
        }
    });
    let report = report
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    report.map(|report| Report {
        time: begun.elapsed(),
        ..report
    })
}

impl Report {
    fn add(&mut self, scenario: &Scenario, ran: Ran) {
        self.rounds += 1;
        self.jobs += ran.jobs;
        let findings = ran.found.into_iter().map(|what| format!("{scenario}: {what}"));
        self.findings.extend(findings);
    }
}

/// A scenario that has run.
struct Ran {
    jobs: usize,
    time: Duration,
    found: Vec<String>,
}

/// A run in a batch system.
struct Place {
    directory: tempfile::TempDir,
    system: BatchSystem,
}

impl Place {
    fn new(scenario: &Scenario, programs: &Path) -> io::Result<Self> {
        let directory = tempfile::Builder::new().prefix("pmc-chain.").tempdir()?;
        let top = directory.path();
        let mut dag = String::new();
        for task in 0..TASKS {
            let _ = writeln!(
                dag,
                "TASK t{task} --checkpoint-signal USR1@1 --checkpoint-exit 85 /bin/sh steps.sh {task} {}",
                scenario.steps
            );
        }
        let run = top.join("run");
        fs::create_dir(&run)?;
        fs::write(run.join("w.dag"), dag)?;
        fs::write(run.join("steps.sh"), STEPS)?;
        fs::write(run.join("braindump.yml"), "")?;
        let script = format!("#!/bin/sh\ncd '{}' || exit 1\n{SCRIPT}", run.display());
        fs::write(run.join("w.sbatch"), script)?;
        let system = BatchSystem::start(&top.join("batch"), programs, scenario.limit)?;
        let submitted = system
            .program("sbatch")
            .arg("w.sbatch")
            .current_dir(&run)
            .output()?;
        if !submitted.status.success() {
            return Err(io::Error::other("the stand-in for sbatch fails"));
        }
        Ok(Self { directory, system })
    }

    fn run(&self) -> PathBuf {
        self.directory.path().join("run")
    }

    fn dag(&self) -> PathBuf {
        self.run().join("w.dag")
    }

    /// Returns the numbers in a file of the tasks.
    fn numbers(&self, name: &str) -> Vec<usize> {
        let text = fs::read_to_string(self.run().join(name)).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }

    fn ledger(&self) -> Vec<Entry> {
        batch_jobs::read(&self.dag())
    }

    /// Returns how the jobs ended, and what was done, as the ledger says.
    fn ends(&self) -> Vec<String> {
        let ends = self.ledger().into_iter().filter_map(|entry| match entry.event {
            Event::End { end, action, .. } => Some(format!("{end} {action}")),
            _ => None,
        });
        ends.collect()
    }

    /// Waits until something is so. Returns whether it came.
    fn wait(&self, begun: Instant, is_so: impl Fn(&Self) -> bool) -> bool {
        while !is_so(self) {
            if begun.elapsed() > PATIENCE {
                return false;
            }
            std::thread::sleep(LOOK);
        }
        true
    }

    /// Kills a program of the run. Returns whether there was one.
    fn kill(&self, name: &str) -> bool {
        let processes = self.system.processes().into_iter();
        let is_it = |line: &str| line.split(' ').next().is_some_and(|word| word.ends_with(name));
        let mut victims = processes.filter(|(_, line)| is_it(line));
        victims
            .next()
            .is_some_and(|(process, _)| kill(process, Signal::SIGKILL).is_ok())
    }
}

impl Scenario {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let (steps, limit) = (6 + random.index(10), 7000 + random.below(5000));
        let count = 1 + random.below(2);
        let mut faults: Vec<_> = (0..count)
            .map(|_| (Duration::from_millis(random.below(9000)), Fault::new(&mut random)))
            .collect();
        faults.sort_by_key(|(at, _)| *at);
        // Nothing follows a cancel.
        if let Some(cancel) = faults.iter().position(|(_, fault)| *fault == Fault::Cancel) {
            faults.truncate(cancel + 1);
        }
        Self {
            seed,
            steps,
            limit: Duration::from_millis(limit),
            faults,
        }
    }

    fn run(&self, programs: &Path) -> io::Result<Ran> {
        let place = Place::new(self, programs)?;
        let begun = Instant::now();
        let mut found = Vec::new();
        let mut cancelled = None;
        if place.wait(begun, |place| place.numbers("begun").len() >= SLOTS) {
            let first = Instant::now();
            for (at, fault) in &self.faults {
                std::thread::sleep(at.saturating_sub(first.elapsed()));
                let job = place.system.first();
                if job.is_some() && fault.inflict(&place, begun)? && *fault == Fault::Cancel {
                    cancelled = job;
                }
            }
            if !place.wait(begun, |place| !place.system.is_busy()) {
                found.push("jobs wait or run".to_owned());
            }
            found.extend(check::check(&place, self.steps, cancelled));
        } else {
            found.push("no task begins".to_owned());
        }
        if !found.is_empty() {
            found.push(check::details(&place));
        }
        Ok(Ran {
            jobs: place.system.begun().len(),
            time: begun.elapsed(),
            found,
        })
    }
}

impl Fault {
    fn new(random: &mut Random) -> Self {
        match random.below(10) {
            0 | 1 => Self::Node,
            2 | 3 => Self::Executor,
            4 | 5 => Self::Supervisor,
            6 => Self::Away(Duration::from_millis(500 + random.below(4000))),
            7 | 8 => Self::Drain,
            _ => Self::Cancel,
        }
    }

    /// Returns whether it has met something.
    fn inflict(self, place: &Place, begun: Instant) -> io::Result<bool> {
        // What is lost before it could hand in the next job has none: no program is there any more.
        let is_chained = || {
            let is_ready = |place: &Place| place.system.running().is_some() || !place.system.is_busy();
            place.wait(begun, is_ready) && place.system.is_busy()
        };
        let has_met = match self {
            Self::Node => {
                is_chained() && {
                    place.system.lose_node();
                    true
                }
            }
            Self::Executor => place.kill("pegasus-mpi-cluster"),
            Self::Supervisor => is_chained() && place.kill("pmc"),
            Self::Away(time) => {
                place.system.set_away(true)?;
                std::thread::sleep(time);
                place.system.set_away(false)?;
                true
            }
            Self::Drain => {
                is_chained() && {
                    let script = place.system.running().and_then(|id| i32::try_from(id).ok());
                    // It may have ended at this moment.
                    script.is_some_and(|id| kill(Pid::from_raw(id), Signal::SIGUSR1).is_ok())
                }
            }
            Self::Cancel => match place.system.first() {
                Some(job) => place
                    .system
                    .program("scancel")
                    .arg(job.to_string())
                    .status()?
                    .success(),
                None => false,
            },
        };
        Ok(has_met)
    }
}
