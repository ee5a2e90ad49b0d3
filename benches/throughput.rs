//! Measures the overhead of the executor relative to a bare spawn loop in the same run.
//!
//! `cargo bench --bench throughput` measures the local transport. To measure under MPI, too, name a
//! program built with the feature `mpi` and its launcher:
//!
//! ```text
//! PMC_BENCH_MPI='mpirun --oversubscribe -n 3 PATH/pegasus-mpi-cluster' cargo bench --bench throughput
//! ```
//!
//! Each figure is the best of several rounds. Executor and bare loop alternate, so that other load does not
//! favour one of them. Records and the database cost a few per cent, less than the variation between runs.
//! There, each round gives the ratio of two runs, and the figure is the median with its quartiles. Times are
//! those of whole programs. The table also shows the time of a launcher for a program that does nothing.
//!
//! `PMC_BENCH_TASKS` and `PMC_BENCH_CHAIN` set the numbers of tasks, and `PMC_BENCH_PAIRS` the rounds of a
//! median. A word on the command line selects lines of the table.
//!
//! The speed of a machine may vary by a fifth within seconds. So a round of the line about records consists
//! of parts, in which runs without and with records alternate.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use testutils::processes::executors;

const PROGRAM: &str = "/bin/true";
const ROUNDS: usize = 3;

/// Number of parts of a round of the line about records.
const PARTS: usize = 20;

/// Duration of the task while the idle executor is measured.
const IDLE_DURATION: Duration = Duration::from_secs(5);

fn main() {
    let bench = Bench::new();
    bench.line("independent tasks, local", Bench::independent_local);
    bench.line("chain, local", Bench::chain_local);
    bench.line("independent tasks, agent", Bench::independent_agent);
    bench.line("chain, agent", Bench::chain_agent);
    bench.line("16 agents", Bench::many_agents);
    bench.line("16 agents with records", Bench::many_agents_with_records);
    bench.line("start of 1000 agents", Bench::start_of_agents);
    bench.line("with record", Bench::with_record);
    bench.line("without a shared file system", Bench::lite);
    bench.line("forwarding", Bench::forwarding);
    bench.line("sync and resource log", Bench::logs);
    bench.line("database of the run", Bench::database);
    bench.line("at rest, local", Bench::rest_local);
    bench.line("at rest, agent", Bench::rest_agent);
    if bench.mpi.is_some() {
        bench.line("independent tasks, MPI", Bench::independent_mpi);
        bench.line("chain, MPI", Bench::chain_mpi);
        bench.line("at rest, MPI", Bench::rest_mpi);
    }
}

struct Bench {
    directory: tempfile::TempDir,
    cpus: usize,
    tasks: usize,
    chain: usize,
    pairs: usize,
    mpi: Option<Vec<String>>,
    filter: String,
}

impl Bench {
    fn new() -> Self {
        let mpi = std::env::var("PMC_BENCH_MPI").ok();
        Self {
            directory: tempfile::tempdir().expect("a temporary directory"),
            cpus: std::thread::available_parallelism().map_or(1, |n| n.get()),
            tasks: number("PMC_BENCH_TASKS", 20_000),
            chain: number("PMC_BENCH_CHAIN", 2_000),
            pairs: number("PMC_BENCH_PAIRS", 12),
            mpi: mpi.map(|words| words.split_whitespace().map(str::to_owned).collect()),
            filter: std::env::args()
                .skip(1)
                .find(|argument| !argument.starts_with('-'))
                .unwrap_or_default(),
        }
    }

    fn line(&self, what: &str, measure: fn(&Self) -> String) {
        if what.contains(&self.filter) {
            println!("{what:<28} {}", measure(self));
        }
    }

    fn independent_local(&self) -> String {
        self.throughput(
            self.tasks,
            self.cpus,
            &local(self.cpus),
            &self.many(self.tasks),
            "",
        )
    }

    fn chain_local(&self) -> String {
        self.throughput(self.chain, 1, &local(2), &self.one_by_one(), "")
    }

    fn independent_agent(&self) -> String {
        let agent = agent(self.cpus);
        let bar = "; the bar is 0.85";
        self.throughput(self.tasks, self.cpus, &agent, &self.many(self.tasks), bar)
    }

    fn chain_agent(&self) -> String {
        let bar = "; the bar is 0.70";
        self.throughput(self.chain, 1, &agent(2), &self.one_by_one(), bar)
    }

    fn many_agents(&self) -> String {
        let dag = self.many(self.tasks);
        self.throughput(self.tasks, self.cpus, &agents(16, 1), &dag, "; the bar is 0.90")
    }

    fn many_agents_with_records(&self) -> String {
        let kickstart = testutils::programs::path("pegasus-kickstart");
        let text = many_dag(self.tasks).replace(PROGRAM, &format!("{kickstart} {PROGRAM}"));
        let dag = self.write("recorded_in_agents.dag", &text);
        self.throughput(self.tasks, self.cpus, &agents(16, 1), &dag, "; the bar is 0.75")
    }

    /// Time until all agents have joined and the first task has run.
    fn start_of_agents(&self) -> String {
        const AGENTS: usize = 1_000;
        let begun = self.directory.path().join("begun");
        let dag = self.write("one.dag", &format!("TASK t /usr/bin/touch {}\n", begun.display()));
        let number = AGENTS.to_string();
        let once = || {
            let _ = std::fs::remove_file(&begun);
            let start = SystemTime::now();
            run(
                &agents(AGENTS, 1),
                &dag,
                &["--start-with", &number, "--skip-rescue"],
            );
            let at = std::fs::metadata(&begun).and_then(|data| data.modified());
            at.ok().and_then(|at| at.duration_since(start).ok())
        };
        let least = (0..ROUNDS).filter_map(|_| once()).min().unwrap_or_default();
        format!(
            "{:.1} s until all have joined; the bar is 5 s",
            least.as_secs_f64()
        )
    }

    fn independent_mpi(&self) -> String {
        let start = self.launch();
        self.throughput(self.tasks, self.cpus, self.mpi(), &self.many(self.tasks), &start)
    }

    fn chain_mpi(&self) -> String {
        self.throughput(self.chain, 1, self.mpi(), &self.one_by_one(), &self.launch())
    }

    fn throughput(&self, tasks: usize, loops: usize, executor: &[String], dag: &Path, more: &str) -> String {
        let (mut bare, mut ours) = (Duration::MAX, Duration::MAX);
        for _ in 0..ROUNDS {
            bare = bare.min(spawn_loops(tasks, loops));
            ours = ours.min(run(executor, dag, &[]));
        }
        let rate = |time: Duration| tasks as f64 / time.as_secs_f64();
        let (bare, ours) = (rate(bare), rate(ours));
        format!(
            "{:.2} of a bare loop ({ours:.0} of {bare:.0} tasks/s{more})",
            ours / bare
        )
    }

    /// Time of the launcher for one task.
    fn launch(&self) -> String {
        let one = self.write("one.dag", &many_dag(1));
        let times = (0..ROUNDS).map(|_| run(self.mpi(), &one, &[]));
        let least = times.min().unwrap_or_default();
        format!("; {:.2} s of it to start and end MPI", least.as_secs_f64())
    }

    /// Tasks under kickstart, which must be built beside the executor (`cargo build --release -p
    /// pegasus-kickstart`).
    fn with_record(&self) -> String {
        let kickstart = testutils::programs::path("pegasus-kickstart");
        let part = (self.tasks / PARTS).max(1);
        let bare = self.many(part);
        let text = many_dag(part).replace(PROGRAM, &format!("{} {PROGRAM}", kickstart));
        let recorded = self.write("recorded.dag", &text);
        let executor = local(self.cpus);
        let without = || run(&executor, &bare, &[]);
        let kept = alternate(self.pairs, PARTS, without, || run(&executor, &recorded, &[]));
        let started = alternate(ROUNDS, PARTS / 4, without, || {
            let mut each = command(&executor, &recorded, &[]);
            let start = Instant::now();
            let status = each.env("PMC_KICKSTART", "exec").status();
            assert!(status.is_ok_and(|s| s.success()), "the run must succeed");
            start.elapsed()
        });
        let [low, median, high] = kept;
        format!(
            "{median:.3} of the time of {} bare tasks in {PARTS} runs ({low:.3} to {high:.3}); {:.2} with a kickstart started for each",
            part * PARTS,
            started[1]
        )
    }

    /// The same jobs, with a work directory that they share and with a directory each.
    fn lite(&self) -> String {
        const JOBS: usize = 300;
        let program = |name: &str| testutils::programs::path(name).to_owned();
        let top = self.directory.path().join("lite");
        std::fs::create_dir_all(&top).expect("a directory");
        let (mut shared, mut lite) = (String::new(), String::new());
        for n in 0..JOBS {
            std::fs::write(top.join(format!("i{n}")), [b'x'; 1024]).expect("an input");
            let moved = |from: &str, to: &str, name: &str| {
                serde_json::json!({
                    "type": "transfer", "linkage": "input", "lfn": name, "id": 1,
                    "src_urls": [{"site_label": "local", "url": format!("file://{from}/{name}")}],
                    "dest_urls": [{"site_label": "local", "url": format!("file://{to}/{name}")}],
                })
            };
            let (there, input, output) = (top.display().to_string(), format!("i{n}"), format!("o{n}"));
            let call = ["-n", "copy", "-s", &output, "/bin/cp", &input, &output];
            let description = serde_json::json!({
                "format": 1, "job": "copy", "scratch": self.directory.path(),
                "transfer_arguments": ["--threads", "1"],
                "stage_in": [moved(&there, "$PWD", &input)],
                "run": {"kickstart": call},
                "stage_out": [moved("$PWD", &there, &output)],
                "checksum_file": top.join(format!("{n}.meta")),
            });
            let file = self.write(&format!("lite/{n}.json"), &description.to_string());
            let kickstart = program("pegasus-kickstart");
            let _ = writeln!(shared, "TASK t{n} {kickstart} -w {there} {}", call.join(" "));
            let _ = writeln!(lite, "TASK t{n} {} {}", program("pegasus-lite"), file.display());
        }
        let (shared, lite) = (self.write("shared.dag", &shared), self.write("lite.dag", &lite));
        let time = |dag: &Path, kickstart: &str| {
            let mut executor = command(&local(1), dag, &[]);
            executor
                .env("PEGASUS_WN_TMP_MIN_SPACE", "1")
                .env("PMC_KICKSTART", kickstart);
            let start = Instant::now();
            assert!(
                executor.status().is_ok_and(|status| status.success()),
                "the run must succeed"
            );
            start.elapsed().as_secs_f64() * 1e3 / JOBS as f64
        };
        let more = |kickstart: &str| {
            let once = || time(&lite, kickstart) - time(&shared, "serve");
            let mut differences: Vec<f64> = (0..self.pairs).map(|_| once()).collect();
            differences.sort_by(f64::total_cmp);
            differences[differences.len() / 2]
        };
        format!(
            "{:+.2} ms for a job with two files of 1 KB ({:+.2} ms with a process of pegasus-lite); the bar is 3 ms",
            more("serve"),
            more("exec"),
        )
    }

    fn forwarding(&self) -> String {
        let tasks = self.tasks / 2;
        let script = self.write(
            "forward.sh",
            "exec head -c 1024 /dev/zero > /proc/self/fd/${FD:-1}\n",
        );
        let dag = |forward: bool| {
            let mut text = String::new();
            for n in 0..tasks {
                let option = if forward {
                    format!("-f FD=all.{} ", n % 4)
                } else {
                    String::new()
                };
                let _ = writeln!(text, "TASK t{n} {option}/bin/sh {}", script.display());
            }
            text
        };
        let with = self.write("forward.dag", &dag(true));
        let without = self.write("plain.dag", &dag(false));
        let (mut plain, mut forwarding) = (Duration::MAX, Duration::MAX);
        for _ in 0..ROUNDS {
            plain = plain.min(run(&local(self.cpus), &without, &["-o", "/dev/null"]));
            forwarding = forwarding.min(run(&local(self.cpus), &with, &[]));
        }
        let ratio = forwarding.as_secs_f64() / plain.as_secs_f64();
        format!("{ratio:.2} of the time of {tasks} tasks that print their 1 KB, into 4 files")
    }

    fn logs(&self) -> String {
        let dag = self.many(self.tasks / 2);
        let mut times = [Duration::MAX; 3];
        for _ in 0..ROUNDS {
            let options: [&[&str]; 3] = [&[], &["--sync-interval", "0"], &["--no-resource-log"]];
            for (time, options) in times.iter_mut().zip(options) {
                *time = (*time).min(run(&local(self.cpus), &dag, options));
            }
        }
        let [all, no_sync, no_log] = times.map(|time| time.as_secs_f64());
        let percent = |without: f64| (all / without - 1.0) * 100.0;
        format!(
            "{:+.1} % and {:+.1} % of the time",
            percent(no_sync),
            percent(no_log)
        )
    }

    /// The database, relative to a run that writes only the log. Counts the time until the program has ended.
    fn database(&self) -> String {
        let dag = self.many(self.tasks);
        let copy = || {
            // A new directory, since the executor would search files of an earlier round. It is kept: after
            // many removals, some file systems create files slowly.
            let directory = tempfile::tempdir_in(self.directory.path()).expect("a temporary directory");
            let copy = directory.keep().join("run.dag");
            std::fs::copy(&dag, &copy).expect("the temporary directory can be written");
            copy
        };
        let with = |option| run(&local(self.cpus), &copy(), &[option]);
        let ratios = pairs(self.pairs, || with("--monitord-hack"), || with("--stampede"));
        let [low, median, high] = ratios.map(|ratio| (ratio - 1.0) * 100.0);
        let started = Instant::now();
        let mut child = command(&local(self.cpus), &copy(), &["--stampede"])
            .spawn()
            .expect("the executor starts");
        let thread = thread_seconds(child.id(), "database");
        let ended = child.wait();
        assert!(ended.is_ok_and(|status| status.success()), "the run must succeed");
        let cores = started.elapsed().as_secs_f64() * self.cpus as f64;
        format!(
            "{median:+.1} % of the time of {} tasks ({low:+.1} to {high:+.1}); its thread takes {:.1} us a task, {:.1} % of all cores",
            self.tasks,
            thread * 1e6 / self.tasks as f64,
            thread / cores * 100.0
        )
    }

    fn rest_local(&self) -> String {
        self.rest(&local(2))
    }

    fn rest_agent(&self) -> String {
        self.rest(&agent(2))
    }

    fn rest_mpi(&self) -> String {
        self.rest(self.mpi())
    }

    /// CPU time of the executor's processes while one task sleeps.
    fn rest(&self, executor: &[String]) -> String {
        let dag = self.write(
            "rest.dag",
            &format!("TASK t /bin/sleep {}\n", IDLE_DURATION.as_secs()),
        );
        let mut child = command(executor, &dag, &[]).spawn().expect("the executor starts");
        // Wait until the executor has started.
        std::thread::sleep(IDLE_DURATION / 4);
        let processes = executors(child.id());
        let before: Vec<f64> = processes.iter().map(|pid| cpu_seconds(*pid)).collect();
        let (started, span) = (Instant::now(), IDLE_DURATION / 2);
        std::thread::sleep(span);
        let elapsed = started.elapsed().as_secs_f64();
        let shares = processes.iter().zip(before);
        let shares: Vec<String> = shares
            .map(|(pid, before)| format!("{:.2} %", (cpu_seconds(*pid) - before) / elapsed * 100.0))
            .collect();
        assert!(child.wait().is_ok_and(|status| status.success()));
        format!("{} of a core, by process", shares.join(", "))
    }

    fn mpi(&self) -> &[String] {
        self.mpi.as_deref().unwrap_or_default()
    }

    fn many(&self, tasks: usize) -> PathBuf {
        self.write("many.dag", &many_dag(tasks))
    }

    fn one_by_one(&self) -> PathBuf {
        let edges = (1..self.chain).map(|n| format!("EDGE t{} t{n}\n", n - 1));
        self.write("chain.dag", &(many_dag(self.chain) + &edges.collect::<String>()))
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.directory.path().join(name);
        std::fs::write(&path, text).expect("the temporary directory can be written");
        path
    }
}

fn local(workers: usize) -> Vec<String> {
    vec![
        testutils::programs::path("pegasus-mpi-cluster").to_owned(),
        "--workers".to_owned(),
        workers.to_string(),
    ]
}

/// A master and one agent on this machine; they talk over an encrypted connection.
fn agent(slots: usize) -> Vec<String> {
    agents(1, slots)
}

/// The same with several agents.
fn agents(agents: usize, slots: usize) -> Vec<String> {
    let program = testutils::programs::path("pegasus-mpi-cluster");
    let (agents, slots) = (agents.to_string(), slots.to_string());
    let words = [
        program, "--agents", &agents, "--launch", "local", "--slots", &slots,
    ];
    words.map(str::to_owned).to_vec()
}

/// Spawns the program `tasks` times and waits for it, from `threads` threads.
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

/// Lower quartile, median and upper quartile of the ratio of the second time to the first. They alternate in
/// order.
fn pairs(rounds: usize, first: impl Fn() -> Duration, second: impl Fn() -> Duration) -> [f64; 3] {
    alternate(rounds, 1, first, second)
}

/// As [`pairs`], with `parts` parts in each round, whose times are summed.
fn alternate(
    rounds: usize,
    parts: usize,
    first: impl Fn() -> Duration,
    second: impl Fn() -> Duration,
) -> [f64; 3] {
    let mut ratios: Vec<f64> = (0..rounds.max(1))
        .map(|round| {
            let mut times = [Duration::ZERO; 2];
            for part in 0..parts.max(1) {
                if (round + part) % 2 == 0 {
                    times[0] += first();
                    times[1] += second();
                } else {
                    times[1] += second();
                    times[0] += first();
                }
            }
            times[1].as_secs_f64() / times[0].as_secs_f64()
        })
        .collect();
    ratios.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| {
        let at = (ratios.len() - 1) * quarter;
        f64::midpoint(ratios[at / 4], ratios[at.div_ceil(4)])
    })
}

fn command(executor: &[String], dag: &Path, options: &[&str]) -> Command {
    let mut command = Command::new(&executor[0]);
    command
        .args(&executor[1..])
        .arg("-s")
        .args(options)
        .arg(dag)
        .current_dir(dag.parent().unwrap_or(Path::new(".")))
        // The executor writes the list of workflows there.
        .env("HOME", dag.parent().unwrap_or(Path::new(".")))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

/// Runs a DAG and returns the time of the whole program.
fn run(executor: &[String], dag: &Path, options: &[&str]) -> Duration {
    let start = Instant::now();
    let output = command(executor, dag, options)
        .stderr(Stdio::piped())
        .output()
        .expect("the executor starts");
    let time = start.elapsed();
    let stderr = String::from_utf8_lossy(&output.stderr);
    let last: Vec<&str> = stderr.lines().rev().take(5).collect();
    assert!(output.status.success(), "the run must succeed: {last:?}");
    time
}

/// CPU time of all threads of a process so far.
fn cpu_seconds(pid: u32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap_or_default();
    let own = text
        .split_whitespace()
        .next()
        .and_then(|word| word.parse::<f64>().ok());
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten();
    let threads: f64 = tasks
        .filter_map(|task| std::fs::read_to_string(task.path().join("schedstat")).ok())
        .filter_map(|text| text.split_whitespace().next()?.parse::<f64>().ok())
        .sum();
    threads.max(own.unwrap_or(0.0)) / 1e9
}

/// CPU time of a thread at its end, less at most a hundredth of a second.
fn thread_seconds(pid: u32, name: &str) -> f64 {
    let threads = PathBuf::from(format!("/proc/{pid}/task"));
    let (mut thread, mut seconds) = (None, 0.0);
    let started = Instant::now();
    loop {
        std::thread::sleep(Duration::from_millis(10));
        assert!(
            thread.is_some() || started.elapsed() < IDLE_DURATION,
            "there must be a thread {name}"
        );
        if let Some(path) = &thread {
            match std::fs::read_to_string(path) {
                Ok(text) => {
                    let first = text.split_whitespace().next();
                    seconds = first
                        .and_then(|word| word.parse().ok())
                        .map_or(seconds, |time: f64| time / 1e9);
                }
                Err(_) => return seconds,
            }
            continue;
        }
        let all = std::fs::read_dir(&threads).into_iter().flatten().flatten();
        let is_wanted = |path: &PathBuf| {
            std::fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm.trim_end() == name)
        };
        thread = all
            .map(|entry| entry.path())
            .find(is_wanted)
            .map(|path| path.join("schedstat"));
    }
}

fn many_dag(tasks: usize) -> String {
    (0..tasks).map(|n| format!("TASK t{n} {PROGRAM}\n")).collect()
}

fn number(variable: &str, default: usize) -> usize {
    std::env::var(variable)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}
