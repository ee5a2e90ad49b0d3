//! How fast a finished run is loaded, and in how much memory.
//!
//! `cargo bench -p pmc-stampede` loads 1,100 and 100,000 jobs. `PMC_BENCH_JOBS` names other numbers,
//! separated by blanks; 1,000,000 jobs take 3 GB below `TMPDIR`, which should be in memory (`/dev/shm`): what is
//! measured is the loader, not a disk that has just got all these files.
//! `PMC_BENCH_MONITORD` names a `pegasus-monitord` to load the smallest run, too, for the ratio.
//!
//! Each run is loaded three times, by a process of its own; the fastest counts, and of memory what it took. Behind
//! the memory stands its ratio to that of the run before, of 100,000 jobs at least: it should stay near 1.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

mod made_run;

const ROUNDS: usize = 3;
/// Of large runs, one round says enough.
const LARGE: usize = 1_000_000;
/// Smaller runs do not fill the buffers.
const FULL: usize = 100_000;

fn main() {
    let jobs = std::env::var("PMC_BENCH_JOBS").unwrap_or_else(|_| "1100 100000".to_owned());
    let reference = std::env::var("PMC_BENCH_MONITORD").ok();
    let reference = reference.filter(|words| !words.trim().is_empty());
    println!(
        "{:>10} {:>10} {:>12} {:>10} {:>10} {:>8}",
        "jobs", "seconds", "jobs/s", "us/job", "memory/MB", "ratio"
    );
    let mut before = None;
    for (round, word) in jobs.split_whitespace().enumerate() {
        let jobs: usize = word.parse().expect("PMC_BENCH_JOBS holds numbers");
        let folder = tempfile::tempdir().expect("a temporary folder");
        let submit = folder.path().join("submit");
        let log = made_run::make(&submit, jobs).expect("the temporary folder can be written");
        let mut best = (Duration::MAX, 0);
        for _ in 0..if jobs < LARGE { ROUNDS } else { 1 } {
            let _ = std::fs::remove_file(submit.join("big-0.stampede.db"));
            let loader = [testutils::programs::path("pmc-monitord")];
            best = best.min(load(&loader, &log, folder.path()));
        }
        let seconds = best.0.as_secs_f64();
        let rate = jobs as f64 / seconds;
        let ratio = before.map_or(String::new(), |before| {
            format!("{:.2}", best.1 as f64 / before as f64)
        });
        println!(
            "{jobs:>10} {seconds:>10.3} {rate:>12.0} {:>10.1} {:>10} {ratio:>8}",
            1e6 / rate,
            best.1 / 1024
        );
        before = Some(best.1).filter(|_| jobs >= FULL);
        if let (0, Some(reference)) = (round, &reference) {
            let words: Vec<&str> = reference.split_whitespace().collect();
            let _ = std::fs::remove_file(submit.join("big-0.stampede.db"));
            let (theirs, memory) = load(&words, &log, folder.path());
            println!(
                "{jobs:>10} {:>10.3} {:>12.0} {:>10} {:>10}  pegasus-monitord; ours is {:.0} times as fast",
                theirs.as_secs_f64(),
                jobs as f64 / theirs.as_secs_f64(),
                "",
                memory / 1024,
                theirs.as_secs_f64() / seconds
            );
        }
    }
}

/// Time and most memory in KiB that a loader takes.
fn load(words: &[&str], log: &Path, home: &Path) -> (Duration, i64) {
    let begin = Instant::now();
    let mut child = Command::new(words[0])
        .args(&words[1..])
        .args(["-N", "-r"])
        .arg(log)
        .env("HOME", home)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the loader starts");
    let memory = largest(child.id());
    let status = child.wait().expect("it can be waited for");
    assert!(status.success(), "{words:?} must load the run: {status}");
    (begin.elapsed(), memory)
}

/// Follows the memory of a process to its end.
fn largest(process: u32) -> i64 {
    let mut largest = 0;
    loop {
        let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let Some(peak) = peak.and_then(|text| text.split_whitespace().next()?.parse().ok()) else {
            return largest;
        };
        largest = largest.max(peak);
        std::thread::sleep(Duration::from_millis(2));
    }
}
