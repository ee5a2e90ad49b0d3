//! Runs rounds of the simulation: see [`pmc_simtest`].

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use clap::Parser;
use pmc_simtest::{Plan, Report, run, run_with, shrink};
use pmc_system::planted::{Planted, plant};

/// Runs rounds of the simulation, each from a seed.
#[derive(Debug, Parser)]
struct Args {
    /// Number of rounds.
    #[arg(long, default_value_t = 1_000)]
    rounds: u64,
    /// Seed of the first round; a fresh one by default. The others follow.
    #[arg(long)]
    seed: Option<u64>,
    /// Begins no more rounds after this number of minutes.
    #[arg(long)]
    minutes: Option<f64>,
    /// Threads.
    #[arg(long, default_value_t = 2)]
    parallel: u64,
    /// Shows what happens. Only with a single round.
    #[arg(long)]
    trace: bool,
    /// Runs this saved plan instead.
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    /// Saves the smallest plan that finds something.
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Plants each known fault in turn, and says after how many rounds it is found.
    #[arg(long)]
    planted: bool,
    /// Plants this fault, by its number among the known ones, counted from 0.
    #[arg(long, value_name = "N")]
    plant: Option<usize>,
    /// Goes on after a finding.
    #[arg(long)]
    keep_going: bool,
    /// Shows failing plans as they are.
    #[arg(long)]
    no_shrink: bool,
    /// Leaves the files of the last round.
    #[arg(long)]
    keep_files: bool,
    /// Folder for the files of rounds: in memory by default.
    #[arg(long)]
    folder: Option<PathBuf>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let fresh = || {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.map_or(1, |now| now.as_secs() * 1_000_000)
    };
    let first = args.seed.unwrap_or_else(fresh);
    let base = args.folder.clone().unwrap_or_else(|| PathBuf::from("/dev/shm"));
    if args.planted {
        return find_planted(&args, first, &base);
    }
    let rounds = Rounds {
        args: &args,
        first,
        begun: Instant::now(),
        next: AtomicU64::new(0),
        stop: AtomicBool::new(false),
        sums: Sums::default(),
    };
    let parallel = args.parallel.min(args.rounds).max(1);
    std::thread::scope(|scope| {
        for thread in 0..parallel {
            let folder = base.join(format!("pmc-sim-{}-{thread}", std::process::id()));
            let rounds = &rounds;
            scope.spawn(move || rounds.run_in(&folder));
        }
    });
    rounds.print_sums()
}

/// What all rounds have done together.
#[derive(Default)]
struct Sums {
    found: AtomicU64,
    steps: AtomicU64,
    attempts: AtomicU64,
    masters: AtomicU64,
    /// Simulated time.
    millis: AtomicU64,
}

impl Sums {
    fn add(&self, report: &Report) {
        for (sum, more) in [
            (&self.steps, report.steps),
            (&self.attempts, report.attempts),
            (&self.masters, report.masters),
            (&self.millis, report.time.as_millis() as u64),
        ] {
            sum.fetch_add(more, Ordering::Relaxed);
        }
    }
}

/// Rounds that threads take one after the other.
struct Rounds<'a> {
    args: &'a Args,
    first: u64,
    begun: Instant,
    next: AtomicU64,
    stop: AtomicBool,
    sums: Sums,
}

impl Rounds<'_> {
    /// Runs rounds in one thread, with their files in a folder of its own.
    fn run_in(&self, folder: &Path) {
        if let Err(error) = std::fs::create_dir_all(folder) {
            return self.fail(&format!("{}: {error}", folder.display()));
        }
        if self.args.trace {
            pegasus_mpi_cluster::init_logging(1);
        }
        plant(self.args.plant.and_then(|at| Planted::ALL.get(at).copied()));
        while let Some(round) = self.take() {
            let read = self.args.plan.as_deref().map(pmc_simtest::read);
            let plan = match read.transpose() {
                Ok(read) => read.unwrap_or_else(|| Plan::of_seed(self.first + round)),
                Err(error) => {
                    self.fail(&format!("The plan cannot be read: {error}"));
                    break;
                }
            };
            let report = run_with(&plan, folder, self.args.trace);
            self.sums.add(&report);
            report.trace.iter().for_each(|line| println!("{line}"));
            if let Some(finding) = report.finding {
                self.sums.found.fetch_add(1, Ordering::Relaxed);
                println!("seed {}: {finding}", plan.seed);
                self.show_smallest(&plan, folder);
                self.stop.fetch_or(!self.args.keep_going, Ordering::Relaxed);
            }
        }
        if self.args.keep_files {
            println!("files: {}", folder.display());
        } else {
            let _ = std::fs::remove_dir_all(folder);
        }
    }

    /// Returns the number of the next round, if there is time for one.
    fn take(&self) -> Option<u64> {
        let limit = self.args.minutes.map(|minutes| minutes * 60.0);
        let is_late = limit.is_some_and(|limit| self.begun.elapsed().as_secs_f64() >= limit);
        if is_late || self.stop.load(Ordering::Relaxed) {
            return None;
        }
        let order = Ordering::Relaxed;
        let next = |next| (next < self.args.rounds).then_some(next + 1);
        self.next.fetch_update(order, order, next).ok()
    }

    fn fail(&self, message: &str) {
        eprintln!("{message}");
        self.sums.found.fetch_add(1, Ordering::Relaxed);
    }

    /// Cuts a plan down that has found something, shows it, and saves it if that is asked for.
    fn show_smallest(&self, plan: &Plan, folder: &Path) {
        if self.args.no_shrink {
            return;
        }
        let small = shrink(plan, folder);
        let report = run_with(&small, folder, true);
        println!("smallest plan: {small:#?}");
        if let Some(path) = &self.args.save
            && let Err(error) = pmc_simtest::save(&small, path)
        {
            eprintln!("{}: {error}", path.display());
        }
        report.trace.iter().for_each(|line| println!("{line}"));
    }

    fn print_sums(&self) -> ExitCode {
        let sum = |sum: &AtomicU64| sum.load(Ordering::Relaxed);
        let (rounds, found) = (sum(&self.next), sum(&self.sums.found));
        let seconds = self.begun.elapsed().as_secs_f64();
        println!(
            "{rounds} rounds from seed {} in {seconds:.1} s ({:.0} in an hour): {found} findings. {} attempts, \
             {} masters, {} steps, {:.1} simulated days",
            self.first,
            rounds as f64 / seconds * 3600.0,
            sum(&self.sums.attempts),
            sum(&self.sums.masters),
            sum(&self.sums.steps),
            sum(&self.sums.millis) as f64 / 86_400_000.0,
        );
        if found > 0 {
            ExitCode::FAILURE
        } else {
            ExitCode::SUCCESS
        }
    }
}

/// Plants each fault, and counts the rounds until it is found.
fn find_planted(args: &Args, first: u64, base: &Path) -> ExitCode {
    let (next, missed) = (AtomicUsize::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..args.parallel.max(1) {
            let folder = base.join(format!("pmc-sim-{}-{thread}", std::process::id()));
            let (next, missed) = (&next, &missed);
            scope.spawn(move || {
                let made = std::fs::create_dir_all(&folder);
                while let Some(fault) = Planted::ALL.get(next.fetch_add(1, Ordering::Relaxed)) {
                    plant(Some(*fault));
                    let found = (0..args.rounds).find_map(|round| {
                        let report = run(&Plan::of_seed(first + round), &folder);
                        Some((round + 1, report.finding?))
                    });
                    match found {
                        Some((rounds, finding)) => {
                            println!("{fault:?}: found after {rounds} rounds: {finding}")
                        }
                        None => {
                            println!("{fault:?}: not found in {} rounds", args.rounds);
                            missed.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
                if made.is_ok() {
                    let _ = std::fs::remove_dir_all(&folder);
                }
            });
        }
    });
    let missed = missed.load(Ordering::Relaxed);
    println!(
        "{} of {} planted faults found",
        Planted::ALL.len() as u64 - missed,
        Planted::ALL.len()
    );
    if missed > 0 {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}
