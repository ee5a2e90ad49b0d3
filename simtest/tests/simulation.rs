//! A short simulation with fresh seeds, and all that have found something.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use pmc_simtest::{Plan, Report, read, run, run_with, saved};

/// How long fresh seeds are tried.
const TIME: Duration = Duration::from_secs(30);

fn folder() -> tempfile::TempDir {
    let memory = std::path::Path::new("/dev/shm");
    if memory.is_dir() {
        tempfile::tempdir_in(memory).unwrap()
    } else {
        tempfile::tempdir().unwrap()
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

#[test]
fn fresh_seeds_find_nothing() {
    let (folder, begun) = (folder(), Instant::now());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    for seed in now.as_secs() * 1_000_000.. {
        let Report { finding, .. } = run(&Plan::of_seed(seed), folder.path());
        assert_eq!(finding, None, "cargo xtask sim --seed {seed} --rounds 1");
        if begun.elapsed() >= TIME {
            return;
        }
    }
}
