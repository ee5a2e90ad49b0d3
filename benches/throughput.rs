//! What the executor costs beside the tasks themselves: as a ratio to bare spawn-and-wait loops.
//!
//! `cargo bench --bench throughput` measures the local transport. To measure under MPI, name a
//! program built with the feature `mpi` and its launcher:
//!
//! ```text
//! PMC_BENCH_MPI='mpirun --oversubscribe -n 3 PATH/pegasus-mpi-cluster' cargo bench --bench throughput
//! ```
//!
//! Each figure is the best of several rounds, executor and bare loop taking turns in the same
//! process, so that a machine that is busy for a while does not favour either.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const PROGRAM: &str = "/bin/true";
const ROUNDS: usize = 3;

fn main() {
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get());
    let independent = number("PMC_BENCH_TASKS", 20_000);
    let chain = number("PMC_BENCH_CHAIN", 2_000);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let many = folder.path().join("many.dag");
    std::fs::write(&many, many_dag(independent)).expect("the temporary folder can be written");
    let one_by_one = folder.path().join("chain.dag");
    std::fs::write(&one_by_one, chain_dag(chain)).expect("the temporary folder can be written");

    println!(
        "{:<52} {:>12} {:>12} {:>8}",
        "tasks", "bare loop/s", "executor/s", "ratio"
    );
    let local = |workers: usize| {
        vec![
            env!("CARGO_BIN_EXE_pegasus-mpi-cluster").to_owned(),
            "--workers".to_owned(),
            workers.to_string(),
        ]
    };
    compare(
        &format!("{independent} independent, {cpus} workers, local"),
        independent,
        cpus,
        &local(cpus),
        &many,
    );
    compare(
        &format!("chain of {chain}, 2 workers, local"),
        chain,
        1,
        &local(2),
        &one_by_one,
    );
    if let Ok(launcher) = std::env::var("PMC_BENCH_MPI") {
        let launcher: Vec<String> = launcher.split_whitespace().map(str::to_owned).collect();
        compare(
            &format!("{independent} independent, MPI"),
            independent,
            cpus,
            &launcher,
            &many,
        );
        compare(
            &format!("chain of {chain}, MPI"),
            chain,
            1,
            &launcher,
            &one_by_one,
        );
    }
}

/// One line of the table.
fn compare(what: &str, tasks: usize, loops: usize, executor: &[String], dag: &Path) {
    let mut bare = Duration::MAX;
    let mut ours = Duration::MAX;
    for _ in 0..ROUNDS {
        bare = bare.min(spawn_loops(tasks, loops));
        ours = ours.min(run(executor, dag));
    }
    let rate = |time: Duration| tasks as f64 / time.as_secs_f64();
    println!(
        "{what:<52} {:>12.0} {:>12.0} {:>8.3}",
        rate(bare),
        rate(ours),
        rate(ours) / rate(bare)
    );
}

/// Spawns and waits for the program `tasks` times, from as many threads as asked for.
fn spawn_loops(tasks: usize, threads: usize) -> Duration {
    let start = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let share = tasks / threads + usize::from(thread < tasks % threads);
            scope.spawn(move || {
                for _ in 0..share {
                    let status = Command::new(PROGRAM).stdin(Stdio::null()).status();
                    assert!(status.is_ok_and(|s| s.success()), "{PROGRAM} must run");
                }
            });
        }
    });
    start.elapsed()
}

/// Runs a DAG from the start and says how long the whole program took.
fn run(executor: &[String], dag: &Path) -> Duration {
    let start = Instant::now();
    let output = Command::new(&executor[0])
        .args(&executor[1..])
        .arg("-s")
        .arg(dag)
        .stdin(Stdio::null())
        .output()
        .expect("the executor starts");
    let time = start.elapsed();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "the run must succeed:\n{stderr}");
    time
}

fn many_dag(tasks: usize) -> String {
    (0..tasks).map(|n| format!("TASK t{n} {PROGRAM}\n")).collect()
}

fn chain_dag(tasks: usize) -> String {
    let edges = (1..tasks).map(|n| format!("EDGE t{} t{n}\n", n - 1));
    many_dag(tasks) + &edges.collect::<String>()
}

fn number(variable: &str, default: usize) -> usize {
    std::env::var(variable)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}
