//! Time to read a large DAG, relative to counting the line feeds of the same file.
//!
//! `cargo bench --bench dag` writes a DAG of 1,000,001 tasks with arguments and 1,000,000 edges (129 MB) into
//! a temporary directory; `PMC_BENCH_TASKS` sets another size. Both sides read the file from the page cache.
//! Times are CPU time of the thread, the best of several rounds.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use pmc_dag::Dag;

const ROUNDS: usize = 5;

fn main() {
    let edges = std::env::var("PMC_BENCH_TASKS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(1_000_000);
    let directory = tempfile::tempdir().expect("a temporary directory");
    println!(
        "{:<44} {:>8} {:>10} {:>10} {:>10} {:>8}",
        "DAG", "MB", "count", "read", "peak MB", "ratio"
    );
    // The peak of memory is that of the whole process, so only the first line is meaningful.
    for (what, scattered) in [
        ("edges in order of tasks", false),
        ("edges all over the file", true),
    ] {
        let path = directory.path().join("large.dag");
        write_dag(&path, edges, scattered).expect("the temporary directory can be written");
        compare(what, &path, edges);
    }
}

fn compare(what: &str, path: &Path, edges: usize) {
    let mut read = Duration::MAX;
    let mut count = Duration::MAX;
    let mut peak = 0;
    for round in 0..ROUNDS {
        let start = cpu_time();
        let dag = Dag::open(path).expect("the DAG is right");
        read = read.min(cpu_time() - start);
        assert_eq!((dag.len(), dag.edge_count()), (edges + 1, edges));
        drop(dag);
        if round == 0 {
            peak = peak_mb();
        }
        let start = cpu_time();
        let text = fs::read(path).expect("the DAG is there");
        let lines = memchr::memchr_iter(b'\n', &text).count();
        count = count.min(cpu_time() - start);
        assert!(lines > edges);
    }
    let mb = fs::metadata(path).map_or(0, |m| m.len()) / 1_000_000;
    println!(
        "{:<44} {mb:>8} {:>8.3} s {:>8.3} s {peak:>10} {:>8.1}",
        format!("{} tasks, {edges} edges, {what}", edges + 1),
        count.as_secs_f64(),
        read.as_secs_f64(),
        read.as_secs_f64() / count.as_secs_f64()
    );
}

fn write_dag(path: &Path, edges: usize, scattered: bool) -> std::io::Result<()> {
    let mut out = BufWriter::new(File::create(path)?);
    let mut line = String::new();
    for task in 0..=edges {
        line.clear();
        let _ = writeln!(
            line,
            "TASK task_{task:07} /usr/bin/program --input data/file_{task:07}.in --output data/file_{task:07}.out -v"
        );
        out.write_all(line.as_bytes())?;
    }
    for edge in 0..edges {
        // A step that is coprime to the number of tasks visits each task once.
        let parent = if scattered { (edge * 611_953) % edges } else { edge };
        writeln!(out, "EDGE task_{parent:07} task_{:07}", parent + 1)?;
    }
    out.flush()
}

/// Peak memory of this process in MB; 0 if unknown.
fn peak_mb() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok())
        .unwrap_or(0)
        * 1024
        / 1_000_000
}

/// CPU time of this thread.
fn cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}
