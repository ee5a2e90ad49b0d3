//! A short simulation, and all plans that have found something.

use std::time::{Duration, Instant, SystemTime};

use pmc_simtest::{Plan, Report, read, run, run_with, saved};

/// How long the first seeds are tried, and fresh ones.
const TIME_OF_FIRST: Duration = Duration::from_secs(10);
const TIME_OF_FRESH: Duration = Duration::from_secs(20);

/// How many seeds are tried at most: of the first ones, and of fresh ones.
const FIRST: u64 = 150;
const FRESH: u64 = 1_000;

fn folder() -> tempfile::TempDir {
    let memory = std::path::Path::new("/dev/shm");
    if memory.is_dir() {
        tempfile::tempdir_in(memory).expect("a folder in memory")
    } else {
        tempfile::tempdir().expect("a folder")
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let folder = folder();
    for seed in 1..=12 {
        let plan = Plan::of_seed(seed);
        assert_eq!(plan, Plan::of_seed(seed));
        let (first, second) = (
            run_with(&plan, folder.path(), true),
            run_with(&plan, folder.path(), true),
        );
        assert_eq!(first, second, "seed {seed}");
        let other = run(&Plan::of_seed(seed + 100), folder.path());
        assert_ne!(first.hash, other.hash);
    }
}

#[test]
fn saved_plans_find_nothing_any_more() {
    let folder = folder();
    let mut plans = 0;
    for entry in saved().read_dir().unwrap() {
        let path = entry.unwrap().path();
        let Report { finding, .. } = run(&read(&path).unwrap(), folder.path());
        assert_eq!(finding, None, "{}", path.display());
        plans += 1;
    }
    assert!(plans > 0);
}

/// Tries the plans of these seeds.
fn try_seeds(seeds: std::ops::Range<u64>, plan: fn(u64) -> Plan, time: Duration) {
    let (folder, begun) = (folder(), Instant::now());
    for seed in seeds {
        let Report { finding, .. } = run(&plan(seed), folder.path());
        assert_eq!(finding, None, "seed {seed}");
        if begun.elapsed() >= time {
            return;
        }
    }
}

#[test]
fn the_first_seeds_find_nothing() {
    try_seeds(1..1 + FIRST, Plan::of_seed, TIME_OF_FIRST);
}

/// Other seeds each time. What fails says which seed it was: its smallest plan belongs to `saved`.
#[test]
fn fresh_seeds_find_nothing() {
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let first = since_epoch.as_secs() * 1_000_000;
    println!("fresh seeds from {first}");
    try_seeds(first..first + FRESH, Plan::proven, TIME_OF_FRESH);
}
