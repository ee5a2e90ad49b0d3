//! Overhead of a command: a file of commands beside xargs and GNU parallel, and jobs that are added to a run
//! beside HyperQueue.
//!
//! ```text
//! cargo bench --profile dist -p pmc --bench commands
//! ```
//!
//! runs `true` in a shell, 10,000 times by `pmc run FILE` and by `xargs -P`, and 1,000 times by GNU parallel,
//! which takes longer. Then it adds 1,000 of them to a run of `pmc serve`, and hands as many to HyperQueue
//! through its API for Python. All take turns. It prints medians of the time of a command, of the ratio to
//! `xargs` within a round, and the number of files that are left.
//!
//! `PMC_BENCH_COMMANDS` and `PMC_BENCH_JOBS` set the numbers, `PMC_BENCH_WORKERS` the commands at a time,
//! `PMC_BENCH_ROUNDS` the rounds, `PMC_BENCH_HYPERQUEUE` a Python that has the package `hyperqueue`. What is
//! not installed is left out.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// Hands jobs to HyperQueue: `PROGRAM JOBS WORKERS`. It prints the seconds from the first one to the last
/// end.
const HYPERQUEUE: &str = "\
import sys, time
from hyperqueue import Job
from hyperqueue.cluster import LocalCluster, WorkerConfig
jobs, workers = int(sys.argv[1]), int(sys.argv[2])
with LocalCluster() as cluster:
    cluster.start_worker(WorkerConfig(cores=workers))
    client = cluster.client()
    begin = time.time()
    job = Job()
    for number in range(jobs):
        job.program(['/bin/sh', '-c', 'true'])
    client.wait_for_jobs([client.submit(job)])
    print(time.time() - begin)
";

fn main() {
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get());
    let workers = number("PMC_BENCH_WORKERS").unwrap_or(cpus);
    let rounds = number("PMC_BENCH_ROUNDS").unwrap_or(5);
    let commands = number("PMC_BENCH_COMMANDS").unwrap_or(10_000);
    let jobs = number("PMC_BENCH_JOBS").unwrap_or(1000);
    let ways: Vec<Way> = [
        Way::new("xargs", commands, &xargs),
        Way::new("pmc run FILE", commands, &run_file),
        Way::new("GNU parallel", jobs, &parallel),
        Way::new("pmc serve, add", jobs, &serve),
        Way::new("HyperQueue", jobs, &hyperqueue),
    ]
    .into();
    let mut times: Vec<Vec<f64>> = vec![Vec::new(); ways.len()];
    let mut files = vec![0; ways.len()];
    for _ in 0..rounds {
        for (at, way) in ways.iter().enumerate() {
            let directory = tempfile::tempdir().expect("a temporary directory");
            write_commands(directory.path(), way.commands);
            let before = count(directory.path());
            if let Some(seconds) = (way.run)(directory.path(), way.commands, workers) {
                times[at].push(seconds / way.commands as f64);
                files[at] = count(directory.path()) - before;
            }
        }
    }
    println!("{workers} at a time, {rounds} rounds");
    println!(
        "{:<16} {:>8} {:>14} {:>18} {:>7}",
        "", "commands", "ms a command", "ratio to xargs", "files"
    );
    for (at, way) in ways.iter().enumerate() {
        if times[at].is_empty() {
            println!("{:<16} is not installed", way.name);
            continue;
        }
        let ratios = times[at].iter().zip(&times[0]).map(|(own, bare)| own / bare);
        println!(
            "{:<16} {:>8} {:>14.3} {:>18.2} {:>7}",
            way.name,
            way.commands,
            median(times[at].clone()) * 1000.0,
            median(ratios.collect()),
            files[at]
        );
    }
}

/// Runs commands in a directory, a given number at a time. Returns the seconds, or nothing if it is not
/// installed.
type Run<'a> = &'a dyn Fn(&Path, usize, usize) -> Option<f64>;

struct Way<'a> {
    name: &'static str,
    commands: usize,
    run: Run<'a>,
}

impl<'a> Way<'a> {
    fn new(name: &'static str, commands: usize, run: Run<'a>) -> Self {
        Self { name, commands, run }
    }
}

fn number(variable: &str) -> Option<usize> {
    std::env::var(variable).ok()?.parse().ok()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Writes the commands, and the same as lines of `pmc add`.
fn write_commands(directory: &Path, commands: usize) {
    std::fs::write(directory.join("commands"), "true\n".repeat(commands)).expect("the commands");
    let tasks = "{\"command\":\"true\"}\n".repeat(commands);
    std::fs::write(directory.join("tasks"), tasks).expect("the tasks");
}

/// Returns the number of files below a directory.
fn count(directory: &Path) -> usize {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.file_type() {
            Ok(kind) if kind.is_dir() => count(&entry.path()),
            _ => 1,
        })
        .sum()
}

fn command(program: &str, directory: &Path) -> Command {
    let mut command = Command::new(program);
    command.current_dir(directory).stdout(Stdio::null());
    command
}

/// Runs a command to its end, and returns the seconds. A program that is not there is none.
fn timed(command: &mut Command) -> Option<f64> {
    let begin = Instant::now();
    let status = match command.status() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
        status => status.expect("it starts"),
    };
    assert!(status.success(), "{command:?}: {status}");
    Some(begin.elapsed().as_secs_f64())
}

fn commands_in(directory: &Path) -> File {
    File::open(directory.join("commands")).expect("the commands")
}

fn xargs(directory: &Path, _: usize, workers: usize) -> Option<f64> {
    let mut xargs = command("xargs", directory);
    xargs.args(["-d", "\n", "-P"]).arg(workers.to_string());
    xargs.args(["-I", "COMMAND", "/bin/sh", "-c", "COMMAND"]);
    timed(xargs.stdin(commands_in(directory)))
}

fn parallel(directory: &Path, _: usize, workers: usize) -> Option<f64> {
    let mut parallel = command("parallel", directory);
    parallel.env("HOME", directory).env("PARALLEL_SHELL", "/bin/sh");
    parallel.arg("-j").arg(workers.to_string());
    timed(parallel.stdin(commands_in(directory)))
}

fn run_file(directory: &Path, _: usize, workers: usize) -> Option<f64> {
    let mut run = command(env!("CARGO_BIN_EXE_pmc"), directory);
    run.args(["run", "--quiet", "--dir", "run", "-w"]);
    timed(run.arg(workers.to_string()).arg("commands").stdin(Stdio::null()))
}

/// The run has started before, as HyperQueue has.
fn serve(directory: &Path, _: usize, workers: usize) -> Option<f64> {
    let pmc = |words: &[&str]| {
        let mut pmc = command(env!("CARGO_BIN_EXE_pmc"), directory);
        pmc.args(words).stdin(Stdio::null());
        pmc
    };
    let workers = workers.to_string();
    let mut served = pmc(&["serve", "run", "-w", &workers])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the run starts");
    let mut line = String::new();
    // Open until the run has ended, since it may print more.
    let mut stdout = BufReader::new(served.stdout.take().expect("a pipe"));
    stdout.read_line(&mut line).expect("a line");
    let tasks = File::open(directory.join("tasks")).expect("the tasks");
    let begin = Instant::now();
    timed(pmc(&["add", "run"]).stdin(tasks));
    timed(&mut pmc(&["wait", "run"]));
    let seconds = begin.elapsed().as_secs_f64();
    timed(&mut pmc(&["serve", "run", "--stop"]));
    let status = served.wait().expect("the run ends");
    assert!(status.success(), "pmc serve: {status}");
    Some(seconds)
}

fn hyperqueue(directory: &Path, jobs: usize, workers: usize) -> Option<f64> {
    let python = std::env::var("PMC_BENCH_HYPERQUEUE").ok()?;
    let mut python = command(&python, directory);
    python
        .args(["-c", HYPERQUEUE])
        .args([jobs, workers].map(|number| number.to_string()));
    let output = python.stdout(Stdio::piped()).output().expect("Python starts");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8_lossy(&output.stdout);
    text.trim().lines().next_back()?.parse().ok()
}
