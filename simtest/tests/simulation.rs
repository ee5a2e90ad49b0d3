//! A short simulation, and all plans that have found something.

use std::time::{Duration, Instant};

use pmc_simtest::{Plan, Report, read, run, run_with, saved};
use pmc_system::planted::{Planted, plant};

/// How long the first seeds are tried, and how many at most.
const TIME_OF_FIRST: Duration = Duration::from_secs(10);
const FIRST: u64 = 150;

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

#[test]
fn saved_plans_find_faults_that_are_planted() {
    let folder = folder();
    for (fault, name) in [
        (
            Planted::UnansweredIsDeath,
            "agent_that_gets_no_answer_is_not_dead",
        ),
        (Planted::UnseenSuccessor, "agent_that_no_next_master_reaches"),
        (Planted::LeaseFromAnswer, "answers_that_come_late_win_no_lease"),
    ] {
        plant(Some(fault));
        let plan = read(&saved().join(name).with_extension("json")).unwrap();
        let Report { finding, .. } = run(&plan, folder.path());
        let overlaps = finding.is_some_and(|finding| finding.contains("begins on"));
        assert!(overlaps, "{fault:?} is not found");
    }
}

/// Fresh seeds are tried by `tests/run`, which reports what they find.
#[test]
fn the_first_seeds_find_nothing() {
    let (folder, begun) = (folder(), Instant::now());
    for seed in 1..=FIRST {
        let Report { finding, .. } = run(&Plan::of_seed(seed), folder.path());
        assert_eq!(finding, None, "seed {seed}");
        if begun.elapsed() >= TIME_OF_FIRST {
            return;
        }
    }
}
