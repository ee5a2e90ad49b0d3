//! CPU time of the thread that writes the database during a run.
//!
//! `cargo bench -p pmc-stampede --bench live` writes the log of a run of independent tasks at the rate of an
//! executor, while a thread follows it. `PMC_BENCH_TASKS` is the number of tasks, `PMC_BENCH_RATE` the number
//! that end per second. Set `TMPDIR=/dev/shm`, or the disk is measured, too.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use monitord_compat::cluster_record::TaskRecord;
use monitord_compat::dagman_out::{self, Stamp};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::{TimeVal, TimeValLike as _};
use pmc_dag::Dag;
use pmc_stampede::session::{self, Live, Options};

const PROGRAM: &str = "/bin/true";
/// Number of tasks that run at a time.
const RUNNING: usize = 2;
/// Time between two writes to the log.
const WRITE_INTERVAL: Duration = Duration::from_millis(2);

fn main() {
    let tasks = number("PMC_BENCH_TASKS", 20_000);
    let rate = number("PMC_BENCH_RATE", 4_000);
    let directory = tempfile::tempdir().expect("a temporary directory can be created");
    let path = directory.path().join("run.dag");
    let text: String = (0..tasks).map(|n| format!("TASK t{n} {PROGRAM}\n")).collect();
    std::fs::write(&path, &text).expect("the temporary directory can be written");
    write_outputs(directory.path(), tasks);
    let dag = Arc::new(Dag::open(&path).expect("the DAG is valid"));
    let live = Arc::new(Live::new());
    let options = Options {
        log: directory.path().join("run.dag.dagman.out"),
        dashboard: Some(directory.path().join("workflow.db")),
        ..Options::default()
    };
    let mut log = File::create(&options.log).expect("the temporary directory can be written");
    let follower = {
        let (live, dag) = (Arc::clone(&live), Arc::clone(&dag));
        std::thread::Builder::new()
            .name("database".to_owned())
            .spawn(move || follow(&options, &live, (path, dag)))
            .expect("the thread can be started")
    };
    write(&mut log, &dag, rate);
    live.complete();
    let start = Instant::now();
    let Used {
        seconds,
        system,
        faults,
    } = follower.join().expect("the thread does not panic");
    println!(
        "{tasks} tasks, {rate}/s: {:.2} us ({:.2} in the kernel) and {:.2} page faults per task; done {:.0} ms after the last",
        seconds * 1e6 / tasks as f64,
        system * 1e6 / tasks as f64,
        faults / tasks as f64,
        start.elapsed().as_secs_f64() * 1e3
    );
}

/// Writes what attempts leave that print nothing: the record of the executor.
fn write_outputs(directory: &Path, tasks: usize) {
    for task in 0..tasks {
        let name = format!("t{task}");
        let record = TaskRecord {
            id: None,
            name: name.as_bytes(),
            start: chrono::Local::now().fixed_offset(),
            duration: Duration::from_millis(1),
            status: 0,
            app: PROGRAM.as_bytes(),
            hostname: "host",
            slot: 1,
            cpus: 1,
            memory_mb: 0,
        };
        let mut text = Vec::new();
        record.write(&mut text);
        let path = |stream: &str| directory.join(format!("{name}.{stream}.000"));
        std::fs::write(path("out"), text).expect("the temporary directory can be written");
        std::fs::write(path("err"), "").expect("the temporary directory can be written");
    }
}

/// Resources that a thread used.
struct Used {
    seconds: f64,
    /// Seconds in the kernel.
    system: f64,
    faults: f64,
}

fn follow(options: &Options, live: &Live, (path, dag): (PathBuf, Arc<Dag>)) -> Used {
    let summary = session::follow_own(options, live, (&path, dag), &mut |notice| eprintln!("{notice}"));
    let used = getrusage(UsageWho::RUSAGE_THREAD).expect("the system reports the usage of threads");
    eprintln!("{:?}", summary.expect("the database can be written"));
    let time = |time: TimeVal| time.num_microseconds() as f64 / 1e6;
    let system = time(used.system_time());
    Used {
        seconds: time(used.user_time()) + system,
        system,
        faults: used.minor_page_faults() as f64,
    }
}

/// Writes the log of a successful run.
fn write(log: &mut File, dag: &Dag, rate: usize) {
    let stamp = Stamp::new(chrono::Local::now().naive_local());
    let mut text = Vec::new();
    dagman_out::start(&mut text, &stamp, 1, b"run.dag");
    let names: Vec<&[u8]> = dag.ids().map(|id| dag.name(id)).collect();
    for (number, name) in names.iter().enumerate() {
        dagman_out::queued(&mut text, &stamp, name, number as u64 + 1);
    }
    let start = Instant::now();
    for at in 0..names.len() + RUNNING {
        if at % (rate * WRITE_INTERVAL.as_millis() as usize / 1_000).max(1) == 0 {
            log.write_all(&text).expect("the log can be written");
            text.clear();
            let due = Duration::from_secs_f64(at as f64 / rate as f64);
            std::thread::sleep(due.saturating_sub(start.elapsed()));
        }
        let stamp = Stamp::new(chrono::Local::now().naive_local());
        if let Some(ended) = at.checked_sub(RUNNING) {
            dagman_out::ended(&mut text, &stamp, names[ended], ended as u64 + 1, 0);
        }
        if let Some(name) = names.get(at) {
            dagman_out::started(&mut text, &stamp, name, at as u64 + 1);
        }
    }
    let stamp = Stamp::new(chrono::Local::now().naive_local());
    dagman_out::finish(&mut text, &stamp, 1, true);
    log.write_all(&text).expect("the log can be written");
}

fn number(variable: &str, default: usize) -> usize {
    std::env::var(variable)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}
