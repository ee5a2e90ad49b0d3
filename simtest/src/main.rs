//! Runs rounds of the simulation: see [`pmc_simtest`].

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use pmc_simtest::{Plan, run, run_with, shrink};
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
    let (next, found) = (AtomicU64::new(0), AtomicU64::new(0));
    let (steps, attempts, masters, micros) = (
        AtomicU64::new(0),
        AtomicU64::new(0),
        AtomicU64::new(0),
        AtomicU64::new(0),
    );
    let stop = AtomicBool::new(false);
    let begun = Instant::now();
    let limit = args
        .minutes
        .map(|minutes| Duration::from_secs_f64(minutes * 60.0));
    let parallel = args.parallel.min(args.rounds).max(1);
    std::thread::scope(|scope| {
        for thread in 0..parallel {
            let folder = base.join(format!("pmc-sim-{}-{thread}", std::process::id()));
            let (args, next, found, stop) = (&args, &next, &found, &stop);
            let (steps, attempts, masters, micros) = (&steps, &attempts, &masters, &micros);
            scope.spawn(move || {
                if let Err(error) = std::fs::create_dir_all(&folder) {
                    eprintln!("{}: {error}", folder.display());
                    found.fetch_add(1, Ordering::Relaxed);
                    return;
                }
                plant(args.plant.and_then(|at| Planted::ALL.get(at).copied()));
                loop {
                    let round = next.fetch_add(1, Ordering::Relaxed);
                    let is_late = limit.is_some_and(|limit| begun.elapsed() >= limit);
                    if round >= args.rounds || is_late || stop.load(Ordering::Relaxed) {
                        next.fetch_sub(1, Ordering::Relaxed);
                        break;
                    }
                    let read = args.plan.as_deref().map(pmc_simtest::read);
                    let plan = match read.transpose() {
                        Ok(read) => read.unwrap_or_else(|| Plan::of_seed(first + round)),
                        Err(error) => {
                            eprintln!("The plan cannot be read: {error}");
                            found.fetch_add(1, Ordering::Relaxed);
                            break;
                        }
                    };
                    let report = run_with(&plan, &folder, args.trace);
                    steps.fetch_add(report.steps, Ordering::Relaxed);
                    attempts.fetch_add(report.attempts, Ordering::Relaxed);
                    masters.fetch_add(report.masters, Ordering::Relaxed);
                    micros.fetch_add(report.time.as_millis() as u64, Ordering::Relaxed);
                    report.trace.iter().for_each(|line| println!("{line}"));
                    let Some(finding) = report.finding else { continue };
                    found.fetch_add(1, Ordering::Relaxed);
                    println!("seed {}: {finding}", plan.seed);
                    if !args.no_shrink {
                        let small = shrink(&plan, &folder);
                        let report = run_with(&small, &folder, true);
                        println!("smallest plan: {small:#?}");
                        if let Some(path) = &args.save
                            && let Err(error) = pmc_simtest::save(&small, path)
                        {
                            eprintln!("{}: {error}", path.display());
                        }
                        report.trace.iter().for_each(|line| println!("{line}"));
                    }
                    if !args.keep_going {
                        stop.store(true, Ordering::Relaxed);
                    }
                }
                if args.keep_files {
                    println!("files: {}", folder.display());
                } else {
                    let _ = std::fs::remove_dir_all(&folder);
                }
            });
        }
    });
    let (rounds, found, seconds) = (
        next.load(Ordering::Relaxed),
        found.load(Ordering::Relaxed),
        begun.elapsed().as_secs_f64(),
    );
    println!(
        "{rounds} rounds from seed {first} in {seconds:.1} s ({:.0} in an hour): {found} findings. {} \
         attempts, {} masters, {} steps, {:.1} simulated days",
        rounds as f64 / seconds * 3600.0,
        attempts.load(Ordering::Relaxed),
        masters.load(Ordering::Relaxed),
        steps.load(Ordering::Relaxed),
        micros.load(Ordering::Relaxed) as f64 / 86_400_000.0,
    );
    if found > 0 {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
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
