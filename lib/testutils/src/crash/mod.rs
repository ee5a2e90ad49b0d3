//! The crash harness: kills programs at random moments, fills the disk, takes descriptors and directories
//! away, lets the work continue, and counts what was lost, doubled, torn or wrong, and what was left over.
//!
//! A round is determined by its seed, except for what the machine decides: which process is just running.

mod check;
mod lite;
mod named;
mod place;
mod run;
mod tools;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

use crate::Random;
use place::Place;

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
    /// Takes rounds of this kind only.
    pub only: Option<Kind>,
}

/// Kinds of rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A planned workflow, whose programs are killed.
    Run,
    /// The same without a shared file system, with an input that all jobs share.
    Lite,
    /// The planner is killed.
    Plan,
    /// The executor is killed while it forwards data.
    Forward,
    /// The guard of an agent is killed.
    Guard,
    /// The planner of a nested workflow is killed.
    NestedPlanner,
    /// Tools that redirect the output of a task are killed.
    Attach,
    /// Transfers are killed.
    Transfer,
    /// Registrations are killed.
    Register,
    /// The loader of the database is killed.
    Load,
    /// The disk is full for a while.
    DiskFull,
    /// There are too few descriptors for a while.
    Descriptors,
    /// A directory disappears.
    Directory,
}

/// All kinds, as often as they occur.
const KINDS: [Kind; 20] = [
    Kind::Run,
    Kind::Forward,
    Kind::Lite,
    Kind::Guard,
    Kind::Run,
    Kind::Plan,
    Kind::Run,
    Kind::NestedPlanner,
    Kind::Transfer,
    Kind::Lite,
    Kind::Run,
    Kind::DiskFull,
    Kind::Forward,
    Kind::Attach,
    Kind::Register,
    Kind::Guard,
    Kind::Run,
    Kind::Load,
    Kind::Descriptors,
    Kind::Directory,
];

impl FromStr for Kind {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = KINDS.into_iter().find(|kind| kind.to_string() == name);
        found.ok_or_else(|| format!("there is no kind {name}"))
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Run => "run",
            Self::Lite => "lite",
            Self::Plan => "plan",
            Self::Forward => "forward",
            Self::Guard => "guard",
            Self::NestedPlanner => "nested-planner",
            Self::Attach => "attach",
            Self::Transfer => "transfer",
            Self::Register => "register",
            Self::Load => "load",
            Self::DiskFull => "disk-full",
            Self::Descriptors => "descriptors",
            Self::Directory => "directory",
        };
        f.pad(name)
    }
}

/// Kinds of damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Damage {
    /// Something that was done or had to be done is not there.
    Lost,
    /// Something is there twice.
    Doubled,
    /// Something is there in part.
    Torn,
    /// Wrong rows, a panic, a program that does not end, work that cannot be continued.
    Wrong,
    /// Files or processes that are not needed any more.
    LeftOver,
}

/// All kinds of damage.
pub const DAMAGES: [Damage; 5] = [
    Damage::Lost,
    Damage::Doubled,
    Damage::Torn,
    Damage::Wrong,
    Damage::LeftOver,
];

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Lost => "lost",
            Self::Doubled => "doubled",
            Self::Torn => "torn",
            Self::Wrong => "wrong",
            Self::LeftOver => "left over",
        })
    }
}

/// Damage that a round has found.
#[derive(Clone, Debug)]
pub struct Finding {
    /// Seed of the round.
    pub seed: u64,
    /// Kind of the round.
    pub kind: Kind,
    /// Kind of the damage.
    pub damage: Damage,
    /// What exactly.
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            seed,
            kind,
            damage,
            what,
        } = self;
        write!(f, "seed {seed} ({kind}): {damage}: {what}")
    }
}

/// Result of all rounds.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Rounds by kind.
    pub rounds: BTreeMap<Kind, u64>,
    /// Killed processes by name, and other faults.
    pub faults: BTreeMap<String, u64>,
    /// All damage.
    pub findings: Vec<Finding>,
    /// What could not be tested here.
    pub skipped: BTreeMap<String, u64>,
    /// Time of all rounds.
    pub time: Duration,
}

impl Report {
    /// Returns the number of findings of a kind.
    #[must_use]
    pub fn count(&self, damage: Damage) -> usize {
        self.findings
            .iter()
            .filter(|finding| finding.damage == damage)
            .count()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rounds: u64 = self.rounds.values().sum();
        writeln!(f, "{rounds} rounds in {} s", self.time.as_secs())?;
        for (kind, count) in &self.rounds {
            writeln!(f, "  {kind:14} {count:>4}")?;
        }
        writeln!(f, "faults")?;
        for (name, count) in &self.faults {
            writeln!(f, "  {name:24} {count:>6}")?;
        }
        for (what, count) in &self.skipped {
            writeln!(f, "NOT TESTED HERE, {count} times: {what}")?;
        }
        writeln!(f, "found")?;
        for damage in DAMAGES {
            writeln!(f, "  {damage:12} {:>6}", self.count(damage))?;
        }
        Ok(())
    }
}

/// Runs all rounds. `each` gets the findings of a round when it ends, and its directory, which is kept if
/// there are findings.
pub fn run(settings: &Settings, each: &mut dyn FnMut(&[Finding], Option<&Path>)) -> Report {
    let start = Instant::now();
    let mut report = Report::default();
    for seed in settings.seed..settings.seed.saturating_add(settings.rounds) {
        if start.elapsed() > settings.limit {
            break;
        }
        let kind = settings
            .only
            .unwrap_or(KINDS[(seed % KINDS.len() as u64) as usize]);
        let mut place = Place::new(&settings.programs, Random(seed));
        round(kind, &mut place);
        place.end();
        *report.rounds.entry(kind).or_default() += 1;
        for (name, count) in &place.faults {
            *report.faults.entry(name.clone()).or_default() += count;
        }
        for what in &place.skipped {
            *report.skipped.entry(what.clone()).or_default() += 1;
        }
        let found = place.found.iter().map(|(damage, what)| Finding {
            seed,
            kind,
            damage: *damage,
            what: what.clone(),
        });
        let findings: Vec<Finding> = found.collect();
        let kept = (!findings.is_empty()).then(|| place.keep());
        each(&findings, kept.as_deref());
        report.findings.extend(findings);
    }
    report.time = start.elapsed();
    report
}

fn round(kind: Kind, place: &mut Place) {
    match kind {
        Kind::Run => run::killed(place),
        Kind::Lite => lite::killed(place),
        Kind::DiskFull => run::disk_full(place),
        Kind::Descriptors => run::few_descriptors(place),
        Kind::Directory => run::directory_removed(place),
        Kind::Plan => tools::plan(place),
        Kind::Forward => tools::forward(place),
        Kind::Guard => named::guard(place),
        Kind::NestedPlanner => named::nested_planner(place),
        Kind::Attach => named::attach(place),
        Kind::Transfer => tools::transfer(place),
        Kind::Register => tools::register(place),
        Kind::Load => tools::load(place),
    }
}
