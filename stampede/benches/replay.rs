//! Time and memory for loading a finished run.
//!
//! `cargo bench -p pmc-stampede` loads runs of 1,100 and 100,000 jobs. `PMC_BENCH_JOBS` sets other numbers,
//! separated by blanks. 1,000,000 jobs take 3 GB in `TMPDIR`, which should be in memory (`/dev/shm`), so that
//! no disk is measured. With `PMC_BENCH_MONITORD`, a `pegasus-monitord` loads the smallest run, too, for
//! comparison.
//!
//! Each run is loaded three times, in separate processes; the fastest counts. The last column is the ratio of
//! its memory to that of the previous run of at least 100,000 jobs. It should be near 1.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

mod made_run;

const ROUNDS: usize = 3;
/// Runs of this size are loaded once.
const LARGE: usize = 1_000_000;
/// Minimum size of a run that fills the buffers.
const FULL: usize = 100_000;

fn main() {
    let jobs = std::env::var("PMC_BENCH_JOBS").unwrap_or_else(|_| "1100 100000".to_owned());
    let reference = std::env::var("PMC_BENCH_MONITORD").ok();
    let reference = reference.filter(|words| !words.trim().is_empty());
    println!(
        "{:>10} {:>10} {:>12} {:>10} {:>10} {:>8}",
        "jobs", "seconds", "jobs/s", "us/job", "memory/MB", "ratio"
    );
    let mut previous = None;
    for (round, word) in jobs.split_whitespace().enumerate() {
        let jobs: usize = word.parse().expect("PMC_BENCH_JOBS holds numbers");
        let directory = tempfile::tempdir().expect("a temporary directory can be created");
        let submit = directory.path().join("submit");
        let log = made_run::make(&submit, jobs).expect("the temporary directory can be written");
        let mut best = (Duration::MAX, 0);
        for _ in 0..if jobs < LARGE { ROUNDS } else { 1 } {
            let _ = std::fs::remove_file(submit.join("big-0.stampede.db"));
            let loader = [testutils::programs::path("pmc-monitord")];
            best = best.min(load(&loader, &log, directory.path()));
        }
        let seconds = best.0.as_secs_f64();
        let rate = jobs as f64 / seconds;
        let ratio = previous.map_or(String::new(), |previous| {
            format!("{:.2}", best.1 as f64 / previous as f64)
        });
        println!(
            "{jobs:>10} {seconds:>10.3} {rate:>12.0} {:>10.1} {:>10} {ratio:>8}",
            1e6 / rate,
            best.1 / 1024
        );
        previous = Some(best.1).filter(|_| jobs >= FULL);
        if let (0, Some(reference)) = (round, &reference) {
            let words: Vec<&str> = reference.split_whitespace().collect();
            let _ = std::fs::remove_file(submit.join("big-0.stampede.db"));
            let (theirs, memory) = load(&words, &log, directory.path());
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

/// Returns the time and the peak memory (KiB) of a loader.
fn load(words: &[&str], log: &Path, home: &Path) -> (Duration, i64) {
    let start = Instant::now();
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
    let memory = peak_memory(child.id());
    let status = child.wait().expect("the loader can be waited for");
    assert!(status.success(), "{words:?} must load the run: {status}");
    (start.elapsed(), memory)
}

/// Polls the peak memory (KiB) of a process until its end.
fn peak_memory(process: u32) -> i64 {
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
