//! Time of whole workflows, from `pmc-plan` to the last record, relative to a bare spawn loop.
//!
//! ```text
//! cargo build --release && cargo bench -p pmc --bench end_to_end
//! ```
//!
//! plans and runs a black diamond and a workflow of 1,000 jobs with everything that real ones have: kickstart
//! for each job, created directories, stage-in, stage-out, registration, cleanup, logs and records. The jobs
//! are system programs that copy small files. The bare loop starts `/bin/true` once for each task of the
//! plan.
//!
//! It also plans and runs sub-workflows during the run, and the same jobs as one plan.
//!
//! The benchmark copies the programs beside `pmc`, as an installation would: a file that the linker has just
//! written is spread over small pieces of the page cache and is mapped more slowly. Planning, running and the
//! bare loops take turns. It prints medians over several rounds, and medians of the ratios within a round,
//! since the speed of a machine varies.
//!
//! `PMC_BENCH_JOBS` sets the size of the large workflow, `PMC_BENCH_WORKERS` the number of workers,
//! `PMC_BENCH_SUB_WORKFLOWS` the number of sub-workflows, `PMC_BENCH_DIR` a working directory that is kept.

mod inputs;
mod nested;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Maximum ratio to one bare loop.
const MAX_RATIO: f64 = 1.5;

fn main() {
    install();
    let own = tempfile::tempdir().expect("a temporary directory");
    let directory = std::env::var_os("PMC_BENCH_DIR").map_or_else(|| own.path().to_owned(), PathBuf::from);
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get());
    let workers = number("PMC_BENCH_WORKERS").unwrap_or(cpus);
    println!(
        "{:<14} {:>6} {:>8} {:>8} {:>8} {:>5} {:>12} {:>6} {:>12} {:>6}",
        "workflow", "tasks", "plan s", "run s", "whole s", "bar", "true x1 s", "ratio", "true xN s", "ratio"
    );
    compare(
        "diamond",
        &directory.join("diamond"),
        workers,
        41,
        0.3,
        &inputs::diamond,
    );
    let jobs = number("PMC_BENCH_JOBS").unwrap_or(1000);
    let levels = |directory: &Path| inputs::levels(directory, jobs);
    compare(
        &format!("{jobs} jobs"),
        &directory.join("levels"),
        workers,
        5,
        4.0,
        &levels,
    );
    println!(
        "true x1: one loop, which the limit of {MAX_RATIO} applies to; true xN: as many loops as workers ({workers})"
    );
    let sub_workflows = number("PMC_BENCH_SUB_WORKFLOWS").unwrap_or(20);
    nested::compare(&directory.join("nested"), workers, sub_workflows);
}

fn number(variable: &str) -> Option<usize> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Writes the files of a workflow into a directory.
type Write<'a> = &'a dyn Fn(&Path) -> std::io::Result<()>;

fn compare(name: &str, directory: &Path, workers: usize, rounds: usize, bar: f64, write: Write<'_>) {
    let mut tasks = 0;
    let mut round = |number: usize| {
        // Nothing is removed between rounds: recent removals slow down file systems.
        let directory = &directory.join(format!("round{number}"));
        write(directory).expect("the directory can be written");
        let start = Instant::now();
        let submit = plan_workflow(directory);
        let planned = start.elapsed();
        let dag = dag(&submit);
        execute(&dag, workers);
        let time = start.elapsed();
        inputs::check(directory);
        tasks = count_tasks(&dag);
        Round {
            plan: planned.as_secs_f64(),
            whole: time.as_secs_f64(),
            one: spawn_loops(tasks, 1).as_secs_f64(),
            several: spawn_loops(tasks, workers).as_secs_f64(),
        }
    };
    let rounds: Vec<Round> = (0..rounds).map(&mut round).collect();
    let median = |value: &dyn Fn(&Round) -> f64| {
        let mut values: Vec<f64> = rounds.iter().map(value).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    println!(
        "{name:<14} {tasks:>6} {:>8.3} {:>8.3} {:>8.3} {bar:>5} {:>12.3} {:>6.2} {:>12.3} {:>6.2}",
        median(&|round| round.plan),
        median(&|round| round.whole - round.plan),
        median(&|round| round.whole),
        median(&|round| round.one),
        median(&|round| round.whole / round.one),
        median(&|round| round.several),
        median(&|round| round.whole / round.several),
    );
}

/// Times of a round in seconds.
struct Round {
    plan: f64,
    whole: f64,
    /// One loop.
    one: f64,
    /// One loop per worker.
    several: f64,
}

/// Programs of the installation.
const PROGRAMS: [&str; 6] = [
    "pmc-plan",
    "pegasus-mpi-cluster",
    "pegasus-kickstart",
    "pegasus-kickstart-server",
    "pegasus-transfer",
    "pegasus-rc-client",
];

/// Copies the programs to the installation.
fn install() {
    for name in PROGRAMS {
        let built = Path::new(env!("CARGO_BIN_EXE_pmc")).with_file_name(name);
        assert!(
            built.is_file(),
            "{} is missing: run cargo build --release first",
            built.display()
        );
        let program = program(name);
        fs::create_dir_all(program.parent().unwrap_or(Path::new(".")))
            .expect("the target directory is writable");
        // Creates a new file: the old one may be in use.
        let _ = fs::remove_file(&program);
        fs::copy(built, &program).expect("the program can be copied");
    }
}

/// Returns the path of a program of the installation.
fn program(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join("installed")
        .join(name)
}

/// Makes a command with a clean environment, so that results do not depend on settings of the user.
fn command(name: &str, directory: &Path) -> Command {
    let mut command = Command::new(program(name));
    command
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("HOME", directory)
        .env("USER", "bench")
        .current_dir(directory)
        .stdin(Stdio::null());
    command
}

fn plan_workflow(directory: &Path) -> PathBuf {
    let output = command("pmc-plan", directory)
        .args([
            "--conf",
            "pegasus.properties",
            "--sites",
            "local",
            "--output-sites",
            "local",
        ])
        .args([
            "--dir",
            "submit",
            "--relative-dir",
            "run",
            "--cleanup",
            "inplace",
            "workflow.yml",
        ])
        .output()
        .expect("pmc-plan can be started");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    directory.join("submit/run")
}

fn dag(submit: &Path) -> PathBuf {
    let entries = fs::read_dir(submit).expect("a submit directory");
    let mut paths = entries.flatten().map(|entry| entry.path());
    let dag = paths.find(|path| path.extension().is_some_and(|extension| extension == "dag"));
    dag.expect("a plan has a DAG")
}

/// Runs a plan as its batch script does, with standard error in a file as in a batch job.
fn execute(dag: &Path, workers: usize) {
    let submit = dag.parent().unwrap_or(Path::new("."));
    let printed = submit.join("printed");
    let file = fs::File::create(&printed).expect("the submit directory is writable");
    let status = command("pegasus-mpi-cluster", submit)
        .args(["--workers", &workers.to_string(), "--monitord-hack"])
        .arg(dag)
        .stdout(Stdio::null())
        .stderr(file)
        .status()
        .expect("the executor can be started");
    assert!(
        status.success(),
        "{}",
        fs::read_to_string(&printed).unwrap_or_default()
    );
}

fn count_tasks(dag: &Path) -> usize {
    let text = fs::read_to_string(dag).expect("a DAG");
    text.lines().filter(|line| line.starts_with("TASK ")).count()
}

/// Runs `/bin/true` `tasks` times from `threads` threads.
fn spawn_loops(tasks: usize, threads: usize) -> Duration {
    let start = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let share = tasks / threads + usize::from(thread < tasks % threads);
            scope.spawn(move || {
                for _ in 0..share {
                    let status = Command::new("/bin/true").stdin(Stdio::null()).status();
                    assert!(status.is_ok_and(|status| status.success()), "/bin/true must run");
                }
            });
        }
    });
    start.elapsed()
}
