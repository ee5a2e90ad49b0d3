//! The master alone: how many tasks a second it gives to simulated workers.
//!
//! `cargo bench --bench master` runs workflows of ten thousand to a million tasks on 10,000 slots
//! of 500 hosts. Workers answer at once and in the order in which they were asked, and the master
//! schedules after every single answer, which is the worst case for it. The baseline is the least
//! that any master must do for a task: take it from a list, copy its line into a message, and take
//! the answer; measured in the same run. `growth` is the cost of a task compared with that in the
//! workflow of ten thousand tasks. The DAG is read from a file, as the executor does it. All times are CPU time of the thread, so that other
//! programs disturb little. `PMC_BENCH_TASKS` is the largest workflow, a word on the command line
//! (`cargo bench --bench master -- mixed`) selects workflows by name.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::hint::black_box;
use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use pegasus_mpi_cluster::master::{Event, Master, MasterConfig, Outbox, Record};
use pegasus_mpi_cluster::message::{Rank, Registration, SubmitId, TaskResult, ToWorker};
use pmc_dag::Dag;
use pmc_dag::rescue::DoneSet;

const HOSTS: u32 = 500;
const SLOTS_PER_HOST: u32 = 20;
const ROUNDS: usize = 5;

/// Options of task number n.
type Options = fn(usize) -> String;

const WORKFLOWS: [(&str, Options); 5] = [
    ("all alike", |_| String::new()),
    ("mixed memory, CPUs and priorities", |n| {
        format!(
            "-m {} -c {} -p {}",
            [0, 500, 1000, 4000, 16000][n % 5],
            [1, 1, 2, 4][n % 4],
            n % 100
        )
    }),
    ("each its own priority", |n| {
        format!("-p {}", (n * 7919) % 1_000_003)
    }),
    ("nearly all wait for memory", |n| {
        if n % 20 == 0 {
            "-m 100".to_owned()
        } else {
            format!("-m {}", 50_000 + n % 8)
        }
    }),
    ("a thousand sizes wait for memory", |n| {
        format!("-m {} -c {}", 40_000 + n % 997, 1 + n % 3)
    }),
];

fn main() {
    let largest = std::env::var("PMC_BENCH_TASKS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(1_000_000);
    println!(
        "{:<36} {:>9} {:>12} {:>8} {:>12} {:>8}",
        "workflow", "tasks", "tasks/s", "growth", "baseline/s", "ratio"
    );
    let filter = std::env::args()
        .skip(1)
        .find(|argument| !argument.starts_with('-'))
        .unwrap_or_default();
    for (what, options) in WORKFLOWS.into_iter().filter(|(what, _)| what.contains(&filter)) {
        let sizes = [10_000, 100_000, 1_000_000].into_iter();
        let mut sizes: Vec<Size> = sizes
            .filter(|tasks| *tasks <= largest)
            .map(|tasks| Size::new(tasks, options))
            .collect();
        // In turn, so that all sizes see the machine in the same moods.
        for _ in 0..ROUNDS {
            sizes.iter_mut().for_each(Size::measure);
        }
        let smallest = sizes.first().map_or(1.0, |size| size.rate(size.ours));
        for size in &sizes {
            let (ours, least) = (size.rate(size.ours), size.rate(size.least));
            println!(
                "{what:<36} {:>9} {ours:>12.0} {:>8.2} {least:>12.0} {:>8.3}",
                size.dag.len(),
                smallest / ours,
                ours / least
            );
        }
    }
}

/// A workflow, and the shortest times for it.
struct Size {
    dag: Arc<Dag>,
    ours: Duration,
    least: Duration,
}

impl Size {
    fn new(tasks: usize, options: Options) -> Self {
        Self {
            dag: Arc::new(dag(tasks, options)),
            ours: Duration::MAX,
            least: Duration::MAX,
        }
    }

    /// Small runs are over too soon to be measured once.
    fn measure(&mut self) {
        for _ in 0..(100_000 / self.dag.len()).max(1) {
            self.ours = self.ours.min(run(&self.dag));
            self.least = self.least.min(baseline(&self.dag));
        }
    }

    /// Tasks a second.
    fn rate(&self, time: Duration) -> f64 {
        self.dag.len() as f64 / time.as_secs_f64()
    }
}

/// Half of the tasks are ready at the start, each of them has one of the others as its child.
fn dag(tasks: usize, options: Options) -> Dag {
    let mut text = String::new();
    for task in 0..tasks {
        let options = options(task);
        let _ = writeln!(
            text,
            "TASK task_{task:07} {options} /usr/bin/program --input data/file_{task:07}.in"
        );
    }
    for parent in 0..tasks / 2 {
        let _ = writeln!(text, "EDGE task_{parent:07} task_{:07}", parent + tasks / 2);
    }
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.write_all(text.as_bytes())
        .expect("the temporary file can be written");
    Dag::open(file.path()).expect("the DAG is right")
}

/// Executions that workers have been asked for.
#[derive(Default)]
struct Asked {
    queue: VecDeque<(Rank, SubmitId)>,
    records: usize,
}

impl Outbox for Asked {
    fn send(&mut self, to: Rank, message: ToWorker) {
        if let ToWorker::Run(assignment) = black_box(message) {
            self.queue.push_back((to, assignment.submit));
        }
    }

    fn record(&mut self, record: Record<'_>) {
        black_box(record);
        self.records += 1;
    }
}

fn result(submit: SubmitId) -> TaskResult {
    TaskResult {
        submit,
        status: 0,
        runtime: Duration::from_millis(1),
        forwards: Vec::new(),
    }
}

/// From the first to the last task; reading the DAG and registering are not measured.
fn run(dag: &Arc<Dag>) -> Duration {
    let mut asked = Asked::default();
    let config = MasterConfig {
        tries: 1,
        max_failures: 0,
    };
    let workers = HOSTS * SLOTS_PER_HOST;
    let mut master = Master::new(dag.clone(), DoneSet::new(), workers, config);
    for rank in 1..=workers {
        let host = format!("node{:03}", (rank - 1) / SLOTS_PER_HOST);
        let registration = Registration {
            host,
            memory_mb: 64_000,
            threads: SLOTS_PER_HOST,
            cores: SLOTS_PER_HOST,
            gpus: 0,
            sockets: 2,
        };
        master
            .handle(Event::Registered(Rank(rank), registration), &mut asked)
            .expect("each registers once");
    }
    master.start(&mut asked).expect("every task fits");
    let start = cpu_time();
    master.schedule(&mut asked);
    while let Some((rank, submit)) = asked.queue.pop_front() {
        master
            .handle(Event::Finished(rank, result(submit)), &mut asked)
            .expect("it runs there");
        master.schedule(&mut asked);
    }
    let time = cpu_time() - start;
    assert!(master.summary().success && asked.records >= 5 * dag.len());
    time
}

fn baseline(dag: &Dag) -> Duration {
    let start = cpu_time();
    let mut asked = Asked::default();
    for task in dag.ids() {
        let line = dag.task(task);
        let assignment = pegasus_mpi_cluster::message::Assignment {
            submit: SubmitId(u64::from(task.0)),
            name: line.name.to_vec(),
            id: None,
            command: line.command.to_vec(),
            memory_mb: line.memory_mb,
            cpus: line.cpus,
            gpu_set: Vec::new(),
            cpu_set: Vec::new(),
            runtime_limit: line.runtime_limit,
            pipe_forwards: Vec::new(),
            file_forwards: Vec::new(),
        };
        asked.send(Rank(1), ToWorker::Run(Box::new(assignment)));
        if let Some((_, submit)) = asked.queue.pop_front() {
            black_box(result(submit));
        }
    }
    cpu_time() - start
}

/// CPU time of this thread so far.
fn cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}
