//! The harness for lost nodes: a run with agents on nodes in network namespaces, some of which are switched
//! off, cut off, stopped or killed at random moments, and so is the master. Afterwards every task must have
//! succeeded, no attempts of one task may have overlapped, and forwarded data must be there once.
//!
//! A round is determined by its seed, except for what the machine decides: what is just running.

mod check;
mod monitoring;
pub mod network;
mod round;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::Random;
use crate::crash::DAMAGES;
pub use crate::crash::Damage;

/// What to do.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Directory of the programs.
    pub programs: PathBuf,
    /// Number of rounds.
    pub rounds: u64,
    /// Seed of the first round; the others follow.
    pub seed: u64,
    /// Starts no round after this time.
    pub limit: Duration,
    /// Rounds at a time.
    pub parallel: usize,
    /// The lease of agents in seconds.
    pub lease: u64,
    /// The first fault of each round is of this kind.
    pub only: Option<Fault>,
    /// Instead of other faults, the master is killed this many times in each round, in a run of long tasks.
    pub master_kills: u32,
    /// This program of Pegasus, `pegasus-monitord`, has to accept the logs of each round.
    pub monitord: Option<PathBuf>,
}

impl Settings {
    /// Sixty rounds, two at a time.
    #[must_use]
    pub fn new(programs: &Path) -> Self {
        Self {
            programs: programs.to_owned(),
            rounds: 60,
            seed: 1,
            limit: Duration::MAX,
            parallel: 2,
            lease: 2,
            only: None,
            master_kills: 0,
            monitord: None,
        }
    }
}

/// What happens to a node, or to the master.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// A node loses its power. Its connections are not closed.
    Off,
    /// All processes of a node are killed, which closes its connections.
    Killed,
    /// The cable of a node is pulled for a while.
    Cut,
    /// Packets get through in one direction only for a while.
    HalfOpen,
    /// One of twenty packets gets lost.
    Loss,
    /// An agent is stopped for less than its lease.
    ShortStop,
    /// An agent is stopped for longer than its lease.
    LongStop,
    /// An agent is killed.
    AgentKilled,
    /// The guard of an agent is killed.
    GuardKilled,
    /// The master is killed, and started again.
    MasterKilled,
    /// The master is stopped for a while.
    MasterStopped,
}

/// All faults with their names.
const FAULTS: [(Fault, &str); 11] = [
    (Fault::Off, "off"),
    (Fault::Killed, "killed"),
    (Fault::Cut, "cut"),
    (Fault::HalfOpen, "half-open"),
    (Fault::Loss, "loss"),
    (Fault::ShortStop, "short-stop"),
    (Fault::LongStop, "long-stop"),
    (Fault::AgentKilled, "agent-killed"),
    (Fault::GuardKilled, "guard-killed"),
    (Fault::MasterKilled, "master-killed"),
    (Fault::MasterStopped, "master-stopped"),
];

impl FromStr for Fault {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = FAULTS.iter().find(|(_, known)| *known == name);
        let fault = found.map(|(fault, _)| *fault);
        fault.ok_or_else(|| format!("there is no fault {name}"))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = FAULTS.iter().find(|(fault, _)| fault == self);
        f.pad(name.map_or("", |(_, name)| name))
    }
}

/// Damage that a round has found.
#[derive(Clone, Debug)]
pub struct Finding {
    /// Seed of the round.
    pub seed: u64,
    /// Kind of the damage.
    pub damage: Damage,
    /// What exactly.
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}: {}: {}", self.seed, self.damage, self.what)
    }
}

/// Result of all rounds.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Number of rounds.
    pub rounds: u64,
    /// Faults by kind.
    pub faults: BTreeMap<Fault, u64>,
    /// Tasks of all rounds.
    pub tasks: u64,
    /// Attempts beside the first one of each task.
    pub again: u64,
    /// Rounds that Pegasus' monitoring has read.
    pub monitored: u64,
    /// All damage.
    pub findings: Vec<Finding>,
    /// What could not be tested here.
    pub skipped: BTreeMap<String, u64>,
    /// Time of all rounds.
    pub time: Duration,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.time.as_secs();
        writeln!(
            f,
            "{} rounds with {} tasks in {seconds} s",
            self.rounds, self.tasks
        )?;
        writeln!(f, "{} attempts beside the first ones", self.again)?;
        writeln!(f, "{} rounds read by monitord", self.monitored)?;
        writeln!(f, "faults")?;
        for (fault, count) in &self.faults {
            writeln!(f, "  {fault:14} {count:>6}")?;
        }
        for (what, count) in &self.skipped {
            writeln!(f, "NOT TESTED HERE, {count} times: {what}")?;
        }
        writeln!(f, "found")?;
        for damage in DAMAGES {
            let found = self.findings.iter().filter(|finding| finding.damage == damage);
            writeln!(f, "  {damage:14} {:>6}", found.count())?;
        }
        Ok(())
    }
}

/// What one round has brought.
#[derive(Debug, Default)]
struct Outcome {
    faults: BTreeMap<Fault, u64>,
    tasks: u64,
    again: u64,
    monitored: u64,
    found: Vec<(Damage, String)>,
    skipped: Vec<String>,
    /// What happened when.
    story: Vec<String>,
}

impl Outcome {
    fn find(&mut self, damage: Damage, what: impl Into<String>) {
        self.found.push((damage, what.into()));
    }
}

/// Runs all rounds. Rounds with findings print them, and keep their directories.
#[must_use]
pub fn run(settings: &Settings) -> Report {
    let start = Instant::now();
    let report = Mutex::new(Report::default());
    let next = AtomicU64::new(settings.seed);
    let end = settings.seed.saturating_add(settings.rounds);
    let work = || {
        while start.elapsed() < settings.limit {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= end {
                return;
            }
            let outcome = one(settings, seed);
            let mut report = report.lock().expect("no round panics while it adds its result");
            add(&mut report, seed, outcome);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..settings.parallel.max(1) {
            scope.spawn(work);
        }
    });
    let mut report = report.into_inner().expect("no round has panicked");
    report.time = start.elapsed();
    report
}

fn one(settings: &Settings, seed: u64) -> Outcome {
    let directory = tempfile::Builder::new()
        .prefix("pmc-nodes.")
        .tempdir()
        .expect("a directory");
    let mut outcome = Outcome::default();
    round::run(settings, Random(seed), seed, directory.path(), &mut outcome);
    if !outcome.found.is_empty() {
        let kept = directory.keep();
        let story = outcome.story.join("\n");
        // Without it, there is only the story.
        let _ = std::fs::write(kept.join("story"), &story);
        println!("seed {seed}: kept in {}\n{story}", kept.display());
    }
    outcome
}

fn add(report: &mut Report, seed: u64, outcome: Outcome) {
    report.rounds += 1;
    report.tasks += outcome.tasks;
    report.again += outcome.again;
    report.monitored += outcome.monitored;
    for (fault, count) in outcome.faults {
        *report.faults.entry(fault).or_default() += count;
    }
    for what in outcome.skipped {
        *report.skipped.entry(what).or_default() += 1;
    }
    for (damage, what) in outcome.found {
        let finding = Finding { seed, damage, what };
        println!("{finding}");
        report.findings.push(finding);
    }
}
