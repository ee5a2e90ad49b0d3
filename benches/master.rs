//! The scheduler alone: how many tasks per second it assigns to simulated workers.
//!
//! `cargo bench --bench master` runs workflows of 10,000 to 1,000,000 tasks on 10,000 slots of 500 hosts.
//! Workers answer at once and in order, and the scheduler runs after every answer, which is its worst case.
//! The baseline is the least work for a task: take it from a list, copy its line into a message, and take the
//! answer. It is measured in the same run.
//!
//! In each round, every size runs about the same number of tasks, so that all sizes see the same conditions.
//! `growth` is the cost of a task relative to the workflow of 10,000 tasks in the same round, as the median
//! of all rounds. The rates are those of the best round. Times are CPU time of the thread. `PMC_BENCH_TASKS`
//! is the largest workflow, `PMC_BENCH_ROUNDS` the number of rounds; a word on the command line (`cargo bench
//! --bench master -- mixed`) selects workflows by name.
//!
//! The line `10,000 agents` measures scheduler and agent transport together (`master/agents.rs`), the line
//! `simulated run` what `pmc simulate` does, the lines `gang of …` a task over many of 10,000 hosts
//! (`master/gangs.rs`), the line `expected run times` what these cost (`master/run_times.rs`).

#[path = "master/agents.rs"]
mod agents;
#[path = "master/gangs.rs"]
mod gangs;
#[path = "master/run_times.rs"]
mod run_times;

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::hint::black_box;
use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use pegasus_mpi_cluster::internals::{
    Event, GangParts, Granted, Master, MasterConfig, Outbox, Output, Record, Start, SubmitId, TaskResult,
    ToWorker, Workers, assignment,
};
use pegasus_mpi_cluster::simulate::{Cluster, Workload, simulate};
use pegasus_mpi_cluster::{Outcome, Rank, Registration};
use pmc_dag::rescue::DoneSet;
use pmc_dag::{Dag, TaskId};

const HOSTS: u32 = 500;
const SLOTS_PER_HOST: u32 = 20;
const ROUNDS: usize = 7;

/// Options of task number n. A line before that of the task comes first.
type Options = fn(usize) -> String;

/// Children of task number n, given the number of tasks.
type Children = fn(usize, usize) -> Vec<usize>;

const WORKFLOWS: [(&str, Options, Children); 8] = [
    ("all alike", |_| String::new(), one_each),
    ("mixed memory, CPUs and priorities", mixed, one_each),
    ("each its own priority", own_priority, one_each),
    ("nearly all wait for memory", much_memory, one_each),
    ("a thousand sizes wait for memory", many_sizes, one_each),
    ("chains of ten", |_| String::new(), chains_of_ten),
    ("four children anywhere", |n| format!("-p {}", n % 10), four_each),
    ("a thousand inputs", one_of_many_inputs, one_each),
];

fn mixed(n: usize) -> String {
    let memory = [0, 500, 1000, 4000, 16000][n % 5];
    let cpus = [1, 1, 2, 4][n % 4];
    format!("-m {memory} -c {cpus} -p {}", n % 100)
}

fn own_priority(n: usize) -> String {
    format!("-p {}", (n * 7919) % 1_000_003)
}

fn much_memory(n: usize) -> String {
    let memory = if n.is_multiple_of(20) { 100 } else { 50_000 + n % 8 };
    format!("-m {memory}")
}

fn many_sizes(n: usize) -> String {
    format!("-m {} -c {}", 40_000 + n % 997, 1 + n % 3)
}

/// Tasks one after the other read different files.
fn one_of_many_inputs(n: usize) -> String {
    format!("#inputs common file{}\n", n * 7919 % 1000)
}

/// Half of the tasks are ready at the start, and each of them has one of the others as its child.
fn one_each(n: usize, tasks: usize) -> Vec<usize> {
    let child = n + tasks / 2;
    if child < tasks { vec![child] } else { Vec::new() }
}

/// A tenth of the tasks is ready at the start.
fn chains_of_ten(n: usize, tasks: usize) -> Vec<usize> {
    let child = n + tasks / 10;
    if child < tasks { vec![child] } else { Vec::new() }
}

/// Half of the tasks have four children each, which are far apart and have four parents.
fn four_each(n: usize, tasks: usize) -> Vec<usize> {
    let half = tasks / 2;
    if n >= half {
        return Vec::new();
    }
    (4 * n..4 * n + 4).map(|edge| half + edge * 7919 % half).collect()
}

fn main() {
    let number = |name| std::env::var(name).ok().and_then(|n| n.parse().ok());
    let largest = number("PMC_BENCH_TASKS").unwrap_or(1_000_000);
    let rounds = number("PMC_BENCH_ROUNDS").unwrap_or(ROUNDS);
    println!(
        "{:<36} {:>9} {:>12} {:>8} {:>12} {:>8}",
        "workflow", "tasks", "tasks/s", "growth", "baseline/s", "ratio"
    );
    let filter = std::env::args()
        .skip(1)
        .find(|argument| !argument.starts_with('-'))
        .unwrap_or_default();
    let filter = filter.as_str();
    for (what, options, children) in WORKFLOWS.into_iter().filter(|w| w.0.contains(filter)) {
        let sizes = [10_000, 100_000, 1_000_000].into_iter();
        let mut sizes: Vec<Size> = sizes
            .filter(|tasks| *tasks <= largest)
            .map(|tasks| Size::new(tasks, options, children))
            .collect();
        let tasks = sizes.last().map_or(0, |size| size.dag.len());
        for _ in 0..rounds {
            sizes.iter_mut().for_each(|size| size.measure(tasks));
        }
        for size in &sizes {
            let (ours, least) = (Size::rate(&size.ours), Size::rate(&size.least));
            println!(
                "{what:<36} {:>9} {ours:>12.0} {:>8.2} {least:>12.0} {:>8.3}",
                size.dag.len(),
                growth(&sizes[0], size),
                ours / least
            );
        }
    }
    if "10,000 agents".contains(filter) {
        many_agents(largest, rounds);
    }
    if "simulated run".contains(filter) {
        simulated_run(largest, rounds);
    }
    if "expected run times".contains(filter) {
        let run_times::Rates { without, far, near } = run_times::measure(largest, rounds);
        println!(
            "{:<36} {largest:>9} {without:>12.0} without, {far:.3} of that if the end is far, {near:.3} if each \
             task is looked up (bar 0.950)",
            "expected run times"
        );
    }
    for nodes in [100, 1000] {
        let what = format!("gang of {nodes} hosts of {}", gangs::HOSTS);
        if what.contains(filter) {
            let measured: Vec<_> = (0..rounds).map(|_| gangs::measure(nodes)).collect();
            let least = |time: fn(&gangs::Times) -> Duration| {
                measured.iter().map(time).min().unwrap_or_default().as_secs_f64() * 1e3
            };
            println!(
                "{what:<36} {:.2} ms to place it, {:.2} ms to reserve hosts (bar 2 ms), {:.2} ms after each end",
                least(|times| times.place),
                least(|times| times.reserve),
                least(|times| times.next),
            );
        }
    }
}

/// Measures a simulated run, without reading the DAG.
fn simulated_run(tasks: usize, rounds: usize) {
    let dag = Arc::new(dag(tasks, |_| String::new(), one_each));
    let node = |number| (registration(format!("node{number:03}")), SLOTS_PER_HOST);
    let cluster = Cluster {
        nodes: (0..HOSTS).map(node).collect(),
        overhead: Duration::ZERO,
        losses: None,
        saving: None,
    };
    let time_of = |task: TaskId| Duration::from_millis(1000 + task.index() as u64 * 7919 % 60_000);
    let workload = Workload {
        times: dag.ids().map(time_of).collect(),
        nested: BTreeMap::new(),
        dag,
    };
    let measured = (0..rounds).map(|_| {
        let start = cpu_time();
        let simulated = simulate(&workload, &cluster).expect("every task fits");
        assert!(black_box(simulated).utilisation() > 0.5);
        cpu_time() - start
    });
    let least = measured.min().unwrap_or_default().as_secs_f64();
    println!(
        "{:<36} {tasks:>9} {:>12.0} (bar 333,000); {least:.2} s",
        "simulated run",
        tasks as f64 / least
    );
}

fn registration(host: String) -> Registration {
    Registration {
        host,
        memory_mb: 64_000,
        threads: SLOTS_PER_HOST,
        cores: SLOTS_PER_HOST,
        gpus: 0,
        sockets: 2,
        away: false,
    }
}

/// Measures the master of many agents.
fn many_agents(tasks: usize, rounds: usize) {
    let dag = Arc::new(dag(tasks, |_| String::new(), one_each));
    let measured: Vec<_> = (0..rounds).map(|_| agents::measure(&dag)).collect();
    let task = measured.iter().map(|times| times.task).min().unwrap_or_default();
    let join = measured.iter().map(|times| times.join).min().unwrap_or_default();
    let heartbeats = measured.iter().map(|times| times.heartbeats);
    println!(
        "{:<36} {tasks:>9} {:>12.0} (bar 200,000); heartbeats {:.2} % of a core (bar 2 %), {:.0} us for each \
         agent that joins",
        "10,000 agents",
        1.0 / task.as_secs_f64(),
        100.0 * heartbeats.fold(f64::INFINITY, f64::min),
        join.as_secs_f64() * 1e6,
    );
}

/// A workflow with the times of a task in each round.
struct Size {
    dag: Arc<Dag>,
    ours: Vec<f64>,
    least: Vec<f64>,
}

impl Size {
    fn new(tasks: usize, options: Options, children: Children) -> Self {
        Self {
            dag: Arc::new(dag(tasks, options, children)),
            ours: Vec::new(),
            least: Vec::new(),
        }
    }

    /// Measures a round of about this many tasks.
    fn measure(&mut self, tasks: usize) {
        let times = tasks / self.dag.len();
        let a_task = |sum: Duration| sum.as_secs_f64() / (times * self.dag.len()) as f64;
        self.ours.push(a_task((0..times).map(|_| run(&self.dag)).sum()));
        self.least
            .push(a_task((0..times).map(|_| baseline(&self.dag)).sum()));
    }

    /// Tasks per second in the best round.
    fn rate(rounds: &[f64]) -> f64 {
        1.0 / rounds.iter().copied().fold(f64::INFINITY, f64::min)
    }
}

/// Returns the median of the ratios of two sizes in the same round.
fn growth(small: &Size, large: &Size) -> f64 {
    let mut ratios: Vec<f64> = large.ours.iter().zip(&small.ours).map(|(l, s)| l / s).collect();
    ratios.sort_by(f64::total_cmp);
    ratios.get(ratios.len() / 2).copied().unwrap_or(1.0)
}

fn dag(tasks: usize, options: Options, children: Children) -> Dag {
    let mut text = String::new();
    for task in 0..tasks {
        let options = options(task);
        let (before, options) = options.split_at(options.find('\n').map_or(0, |at| at + 1));
        let _ = writeln!(
            text,
            "{before}TASK task_{task:07} {options} /usr/bin/program --input data/file_{task:07}.in"
        );
    }
    for parent in 0..tasks {
        for child in children(parent, tasks) {
            let _ = writeln!(text, "EDGE task_{parent:07} task_{child:07}");
        }
    }
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.write_all(text.as_bytes())
        .expect("the temporary file can be written");
    Dag::open(file.path()).expect("the DAG is right")
}

/// Attempts that workers have been asked to run.
struct Sent<'d> {
    dag: &'d Dag,
    queue: VecDeque<(Rank, SubmitId)>,
    records: usize,
}

impl<'d> Sent<'d> {
    fn new(dag: &'d Dag) -> Self {
        Self {
            dag,
            queue: VecDeque::new(),
            records: 0,
        }
    }
}

impl Outbox for Sent<'_> {
    fn start(&mut self, start: Start) {
        self.queue.push_back((start.rank, start.submit));
        let assignment = assignment(&self.dag.task(start.task), start, None, Output::Own);
        black_box(ToWorker::Run(Box::new(assignment)));
    }

    fn join(&mut self, _: GangParts) {}

    fn leave(&mut self, _: Rank, _: SubmitId) {}

    fn send(&mut self, _: Rank, message: ToWorker) {
        black_box(message);
    }

    fn record(&mut self, record: Record<'_>) {
        black_box(record);
        self.records += 1;
    }
}

fn result(submit: SubmitId) -> TaskResult {
    TaskResult {
        submit,
        outcome: Outcome::new(0, Duration::from_millis(1)),
        forwards: Vec::new(),
        returned: None,
    }
}

/// Measures a run from the first to the last task, without reading and registering.
fn run(dag: &Arc<Dag>) -> Duration {
    run_with(dag, |_| {}, |_| {})
}

/// The same. Events come to the scheduler before the first task starts, and after the first look.
fn run_with(dag: &Arc<Dag>, before: impl Fn(&mut Master), after: impl Fn(&mut Master)) -> Duration {
    let mut sent = Sent::new(dag);
    let config = MasterConfig {
        max_attempts: 1,
        max_failures: 0,
        crash_limit: 0,
    };
    let workers = HOSTS * SLOTS_PER_HOST;
    let mut master = Master::new(dag.clone(), DoneSet::new(), Workers::Fixed(workers), config);
    for rank in 1..=workers {
        let host = format!("node{:03}", (rank - 1) / SLOTS_PER_HOST);
        master
            .handle(Event::Registered(Rank(rank), registration(host)), &mut sent)
            .expect("each registers once");
    }
    master.start(&mut sent).expect("every task fits");
    before(&mut master);
    let start = cpu_time();
    master.schedule(&mut sent);
    after(&mut master);
    while let Some((rank, submit)) = sent.queue.pop_front() {
        master
            .handle(Event::Finished(rank, result(submit)), &mut sent)
            .expect("it runs there");
        master.schedule(&mut sent);
    }
    let time = cpu_time() - start;
    assert!(master.summary().success && sent.records >= 5 * dag.len());
    time
}

fn baseline(dag: &Dag) -> Duration {
    let start = cpu_time();
    let mut sent = Sent::new(dag);
    for task in dag.ids() {
        let line = dag.task(task);
        let start = Start {
            task,
            submit: SubmitId(u64::from(task.0)),
            rank: Rank(1),
            attempt: 1,
            grant: Granted {
                memory_mb: line.memory_mb,
                ..Granted::default()
            },
        };
        sent.start(start);
        if let Some((_, submit)) = sent.queue.pop_front() {
            black_box(result(submit));
        }
    }
    cpu_time() - start
}

/// CPU time of this thread.
fn cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}
