//! The master behind real connections: how many tasks per second it gives to agents over encrypted sockets.
//!
//! `cargo bench --bench wire` runs a million tasks that end at once in 10,000 slots: of 100, 1,000 and 10,000
//! agents. Master and scheduler are those of a run, in this process. The agents have real connections and
//! sessions, but start no processes; four processes hold them, each in one thread. All share the cores of
//! this machine, so the CPU time of the master for each task is shown, too, by thread, in the program (user)
//! and in the kernel (system).
//!
//! The line `utilisation` lets tasks take a second each, and shows which part of its time a slot runs one.
//!
//! `PMC_BENCH_TASKS` is the number of tasks. A word on the command line selects lines of the table.

#[path = "wire/crowd.rs"]
mod crowd;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use pegasus_mpi_cluster::{
    AgentOptions, AgentRun, Interrupt, Options, RunEvent, WorkerOptions, WorkerSettings, run_with_agents,
};
use pmc_link::Listen;

use crate::crowd::{Order, Sums};

/// Slots of all agents.
const SLOTS: u32 = 10_000;

/// Processes that hold agents.
const PROCESSES: u32 = 4;

/// Tasks of a slot for the line about utilisation.
const TASKS_OF_SLOT: usize = 15;

/// Files that a run writes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Files {
    None,
    All,
}

fn main() {
    if let Some(order) = Order::of_environment() {
        crowd::run(&order);
        return;
    }
    pmc_spawn::open_files::raise();
    let words: Vec<String> = std::env::args().skip(1).collect();
    let filter = words.into_iter().find(|word| !word.starts_with('-'));
    let filter = filter.unwrap_or_default();
    let tasks = std::env::var("PMC_BENCH_TASKS").ok();
    let tasks = tasks.and_then(|tasks| tasks.parse().ok()).unwrap_or(1_000_000);
    let line = |what: &str, measure: &dyn Fn() -> String| {
        if what.contains(&filter) {
            println!("{what:<34} {}", measure());
        }
    };
    for agents in [100, 1_000, 10_000] {
        let what = format!("{agents} agents");
        line(&what, &|| {
            Measured::of(agents, tasks, Duration::ZERO, Files::None).rate()
        });
    }
    line("1000 agents, rescue file and logs", &|| {
        Measured::of(1_000, tasks, Duration::ZERO, Files::All).rate()
    });
    let second = Duration::from_secs(1);
    line("utilisation, 1000 agents", &|| {
        let tasks = TASKS_OF_SLOT * SLOTS as usize;
        Measured::of(1_000, tasks, second, Files::All).utilisation()
    });
}

/// CPU time by name of the thread: in the program, and in the kernel.
type Threads = BTreeMap<String, [f64; 2]>;

/// What a run has shown.
struct Measured {
    agents: u32,
    tasks: usize,
    /// From the start of the agents to the first task.
    join: Duration,
    /// From the first task to the end of the last one.
    run: Duration,
    /// CPU time of the master in that time.
    master: Threads,
    /// CPU time of the master before.
    joining: f64,
    slots: Sums,
}

impl Measured {
    /// Runs this number of tasks, which take this time.
    fn of(agents: u32, tasks: usize, time: Duration, files: Files) -> Self {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let dag = folder.path().join("x.dag");
        let line = |n| format!("TASK task_{n:07} /usr/bin/program --input data/file_{n:07}.in\n");
        std::fs::write(&dag, (0..tasks).map(line).collect::<String>()).expect("the DAG file can be written");
        let run = AgentRun {
            options: options(&dag, files),
            agents: agent_options(&dag, agents),
        };
        let begun = Instant::now();
        let crowds: Vec<Child> = (0..PROCESSES)
            .map(|process| {
                let order = Order {
                    endpoint: folder.path().join("x.dag.endpoint"),
                    first: agents * process / PROCESSES,
                    end: agents * (process + 1) / PROCESSES,
                    slots: SLOTS / agents,
                    time,
                };
                let program = std::env::current_exe().expect("a program knows its path");
                let mut command = Command::new(program);
                order.tell(command.stdout(Stdio::piped()));
                command.spawn().expect("the process starts")
            })
            .collect();
        let (mut started, mut ended, mut left) = (None, None, tasks);
        let mut observe = |event: &RunEvent<'_>| match event {
            RunEvent::Begun { .. } => started = Some((Instant::now(), threads())),
            RunEvent::Ended(_) => {
                left -= 1;
                if left == 0 {
                    ended = Some((Instant::now(), threads()));
                }
            }
            _ => {}
        };
        let summary = run_with_agents(&run, &Interrupt::new(), &mut observe).expect("the run succeeds");
        assert!(summary.success(), "all tasks must succeed");
        let mut slots = Sums::default();
        for crowd in crowds {
            let output = crowd.wait_with_output().expect("the process ends");
            assert!(output.status.success(), "the agents must end in order");
            slots.add(&String::from_utf8_lossy(&output.stdout));
        }
        let (started, before) = started.expect("the run has begun");
        let (ended, after) = ended.expect("all tasks have ended");
        let joining = before.values().flatten().sum();
        let since = |(name, times): (String, [f64; 2])| {
            let before = before.get(&name).copied().unwrap_or_default();
            (name, [times[0] - before[0], times[1] - before[1]])
        };
        Self {
            agents,
            tasks,
            join: started - begun,
            run: ended - started,
            master: after.into_iter().map(since).collect(),
            joining,
            slots,
        }
    }

    fn rate(&self) -> String {
        let rate = self.tasks as f64 / self.run.as_secs_f64();
        let micros = |seconds: f64| seconds * 1e6 / self.tasks as f64;
        let threads: Vec<String> = self
            .master
            .iter()
            .filter(|(_, [user, system])| micros(user + system) > 0.05)
            .map(|(name, [user, system])| format!("{name} {:.2} + {:.2}", micros(*user), micros(*system)))
            .collect();
        format!(
            "{rate:>8.0} tasks/s (bar 200,000); CPU time of a task in us, user + system: master {}; agents {:.2} + \
             {:.2}; all have joined after {:.1} s, {:.0} us of the master for each",
            threads.join(", "),
            micros(self.slots.user),
            micros(self.slots.system),
            self.join.as_secs_f64(),
            self.joining * 1e6 / f64::from(self.agents),
        )
    }

    fn utilisation(&self) -> String {
        let Sums { busy, idle, .. } = self.slots;
        format!(
            "{:.2} % of {SLOTS} slots with tasks of a second (bar 99.6 %): a slot waits {:.2} ms for its next task",
            100.0 * busy / (busy + idle),
            idle * 1e3 / busy,
        )
    }
}

/// CPU time of the threads of this process so far.
fn threads() -> Threads {
    let mut all = Threads::new();
    let tasks = std::fs::read_dir("/proc/self/task")
        .into_iter()
        .flatten()
        .flatten();
    for task in tasks {
        let read = |name: &str| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
        let (name, stat) = (read("comm").trim().to_owned(), read("stat"));
        let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
        let mut ticks = fields.split_whitespace().skip(11).map(|word| word.parse::<f64>());
        let mut next = || ticks.next().and_then(Result::ok).unwrap_or(0.0) / 100.0;
        let times = all.entry(name).or_default();
        times[0] += next();
        times[1] += next();
    }
    all
}

fn options(dag: &Path, files: Files) -> Options {
    let mut options = Options::new(dag, OsStr::new("pegasus-mpi-cluster"));
    options.console = false;
    options.resource_log = None;
    match files {
        Files::None => {
            options.rescue = PathBuf::from("/dev/null");
            (options.dagman_log, options.jobstate_log) = (None, None);
        }
        Files::All => {
            options.dagman_log = Some(dag.with_extension("dag.dagman.out"));
            options.jobstate_log = Some(dag.with_file_name("jobstate.log"));
        }
    }
    options
}

fn agent_options(dag: &Path, agents: u32) -> AgentOptions {
    let settings = WorkerSettings::new(&WorkerOptions::new(dag), Path::new("/"));
    AgentOptions {
        agents,
        slots: SLOTS / agents,
        start_with: agents,
        listen: Listen::loopback(),
        ..AgentOptions::new(dag, settings)
    }
}
