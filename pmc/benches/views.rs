//! Time and memory of `pmc status`, `pmc analyzer`, `pmc statistics` and `pmc report` on a large run.
//!
//! `cargo bench -p pmc --bench views` generates the directory of a run of a million tasks in the temporary
//! directory (two gigabytes). It calls each command once to warm the page cache and three times to measure.
//! `PMC_BENCH_TASKS` sets the number of tasks, `PMC_BENCH_DIR` a directory that is kept and used again.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::sys::resource::{UsageWho, getrusage};
use testutils::generated_run::{Shape, generate, write_database};

const ROUNDS: usize = 3;
/// Maximum time at a million tasks.
const MAX_SECONDS: f64 = 3.0;
/// Maximum memory at a million tasks.
const MAX_MEGABYTES: i64 = 400;

fn main() {
    let mut arguments = std::env::args().skip(1);
    if arguments.next().as_deref() == Some("--measure") {
        measure(&arguments.collect::<Vec<_>>());
        return;
    }
    let tasks = std::env::var("PMC_BENCH_TASKS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(1_000_000);
    let own = tempfile::tempdir().expect("a temporary directory");
    let dir = std::env::var_os("PMC_BENCH_DIR").map_or_else(|| own.path().join("run"), PathBuf::from);
    let database = dir.join("study-0.stampede.db");
    if !database.exists() {
        let shape = Shape {
            tasks,
            hosts: 64,
            slots: 16,
            failing: 20,
            records: false,
        };
        let run = generate(&dir, shape).expect("the directory can be written");
        println!(
            "generated {} tasks, {} attempts",
            run.tasks.len(),
            run.attempts.len()
        );
        write_database(&database, &run).expect("the database can be written");
    }
    let html = own.path().join("report.html");
    let html = html.to_string_lossy();
    println!("{:<28} {:>8} {:>8} {:>8}   bar", "command", "s", "CPU s", "MB");
    for command in [
        vec!["status"],
        vec!["analyzer"],
        vec!["statistics", "-s", "all"],
        vec!["report", "-o", &html],
    ] {
        report(&command, &dir);
    }
}

/// Measures a command in a new process, whose only child is that command, and prints the result.
fn report(command: &[&str], dir: &Path) {
    let this = std::env::current_exe().expect("this program has a path");
    let output = Command::new(this)
        .arg("--measure")
        .args(command)
        .arg(dir)
        .output()
        .expect("this program runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let mut figures = text
        .split_whitespace()
        .filter_map(|word| word.parse::<f64>().ok());
    let (Some(wall), Some(cpu), Some(mb)) = (figures.next(), figures.next(), figures.next()) else {
        println!(
            "{:<28} {}",
            command.join(" "),
            String::from_utf8_lossy(&output.stderr)
        );
        return;
    };
    println!(
        "{:<28} {wall:>8.2} {cpu:>8.2} {mb:>8.0}   {MAX_SECONDS} s, {MAX_MEGABYTES} MB",
        command[0]
    );
}

fn measure(arguments: &[String]) {
    let mut best = f64::MAX;
    let mut cpu = f64::MAX;
    for round in 0..=ROUNDS {
        let before = getrusage(UsageWho::RUSAGE_CHILDREN).expect("it is there");
        let start = std::time::Instant::now();
        let status = Command::new(env!("CARGO_BIN_EXE_pmc"))
            .args(arguments)
            .stdout(Stdio::null())
            .status()
            .expect("pmc runs");
        assert!(status.code().is_some_and(|code| code < 2), "{status}");
        let after = getrusage(UsageWho::RUSAGE_CHILDREN).expect("it is there");
        let time = |usage: &nix::sys::resource::Usage| {
            let (user, system) = (usage.user_time(), usage.system_time());
            (user.tv_sec() + system.tv_sec()) as f64 + (user.tv_usec() + system.tv_usec()) as f64 / 1e6
        };
        if round > 0 {
            best = best.min(start.elapsed().as_secs_f64());
            cpu = cpu.min(time(&after) - time(&before));
        }
    }
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).expect("it is there");
    println!("{best} {cpu} {}", usage.max_rss() / 1024);
}
