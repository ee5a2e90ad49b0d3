//! Measures what tools cost a run, how fast they are, and what packed output costs.
//!
//! `cargo bench --bench attach` measures local runs and runs with one agent on this machine. To measure under
//! MPI, too, name a program built with the feature `mpi` and its launcher. The number of ranks is set here:
//!
//! ```text
//! PMC_BENCH_MPI='mpirun --oversubscribe -n 3 PATH/pegasus-mpi-cluster' cargo bench --bench attach
//! ```
//!
//! `PMC_BENCH_BEFORE` names an executor of an earlier version, for the lines "nobody attached".
//! `PMC_BENCH_TASKS` (20,000) and `PMC_BENCH_PACKED` (100,000) are numbers of tasks, `PMC_BENCH_MIB` (1024)
//! is the size of the output and input of a task, and `PMC_BENCH_PAIRS` (5) the number of rounds of a median.
//! A word on the command line selects lines of the table.
//!
//! Memory is the largest resident memory of each process of the executor, less that of the same run without a
//! tool.

#[path = "attach/run.rs"]
mod run;
#[path = "attach/sink.rs"]
mod sink;

use std::cell::Cell;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use run::{Flavour, Run};
use sink::Sink;

/// Number of tools of the lines about throughput.
const TOOLS: usize = 8;
/// Number of lines whose latency is measured, and the time between them.
const LINES: usize = 250;
/// Time in which a tool has attached.
const ATTACHED: Duration = Duration::from_millis(1500);
/// Time for which input is pushed to a task that does not read.
const PUSHED: Duration = Duration::from_secs(5);

fn main() {
    let bench = Bench::new();
    for flavour in Flavour::all() {
        bench.line("nobody attached", flavour.name, || bench.nobody(&flavour));
        bench.line("eight tools attached", flavour.name, || bench.tools(&flavour));
        for way in Way::ALL {
            let what = format!("output, {}", way.name());
            bench.line(&what, flavour.name, || bench.output(&flavour, way));
        }
        bench.line("input", flavour.name, || bench.input(&flavour));
        bench.line("input that is not read", flavour.name, || bench.unread(&flavour));
        for way in Way::ALL {
            let what = format!("latency, {}", way.name());
            bench.line(&what, flavour.name, || bench.latency(&flavour, way));
        }
        bench.line("packed against files", flavour.name, || bench.packed(&flavour));
    }
}

/// How the output of a task comes to the tool.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// The tool reads the file.
    File,
    /// Kickstart captures it.
    Captured,
    /// The tool gets it instead of the file.
    Redirected,
}

impl Way {
    const ALL: [Self; 3] = [Self::File, Self::Captured, Self::Redirected];

    fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Captured => "kickstart",
            Self::Redirected => "redirect",
        }
    }

    /// Returns a DAG whose task `t` is a command of a shell.
    fn dag(self, command: &str) -> String {
        match self {
            Self::File => format!("TASK t {command}\n"),
            Self::Captured => {
                let kickstart = testutils::programs::path("pegasus-kickstart");
                format!("TASK t {kickstart} {command}\n")
            }
            Self::Redirected => format!("TASK t --io relay {command}\n"),
        }
    }

    fn options(self) -> &'static [&'static str] {
        match self {
            Self::File | Self::Captured => &["--stdout", "t"],
            Self::Redirected => &["--redirect", "--stdout", "t"],
        }
    }
}

struct Bench {
    directory: tempfile::TempDir,
    cpus: usize,
    tasks: usize,
    packed: usize,
    mib: usize,
    pairs: usize,
    before: Option<String>,
    filter: String,
}

impl Bench {
    fn new() -> Self {
        Self {
            directory: tempfile::tempdir().expect("a temporary directory"),
            cpus: std::thread::available_parallelism().map_or(1, |n| n.get()),
            tasks: number("PMC_BENCH_TASKS", 20_000),
            packed: number("PMC_BENCH_PACKED", 100_000),
            mib: number("PMC_BENCH_MIB", 1024),
            pairs: number("PMC_BENCH_PAIRS", 5),
            before: std::env::var("PMC_BENCH_BEFORE").ok(),
            filter: std::env::args()
                .skip(1)
                .find(|argument| !argument.starts_with('-'))
                .unwrap_or_default(),
        }
    }

    fn line(&self, what: &str, flavour: &str, measure: impl FnOnce() -> String) {
        let name = format!("{what}, {flavour}");
        if name.contains(&self.filter) {
            println!("{name:<34} {}", measure());
        }
    }

    /// A run in a new directory.
    fn start(&self, flavour: &Flavour, workers: usize, dag: &str, options: &[&str]) -> Run {
        let directory = tempfile::tempdir_in(self.directory.path()).expect("a directory");
        Run::start(flavour.words(workers), directory, dag, options)
    }

    fn many(&self) -> String {
        (0..self.tasks)
            .map(|n| format!("TASK t{n} /bin/true\n"))
            .collect()
    }

    fn nobody(&self, flavour: &Flavour) -> String {
        let Some(before) = &self.before else {
            return "not measured: PMC_BENCH_BEFORE names no executor".to_owned();
        };
        let dag = self.many();
        let earlier = flavour.with_program(before);
        let time = |flavour: &Flavour| {
            let begun = Instant::now();
            self.start(flavour, self.cpus, &dag, &[]).end();
            begun.elapsed()
        };
        let [low, median, high] = pairs(self.pairs, || time(flavour), || time(&earlier));
        format!("{median:.3} of the speed of the earlier version ({low:.3} to {high:.3}); the bar is 0.99")
    }

    fn tools(&self, flavour: &Flavour) -> String {
        let mut dag =
            "TASK begin /bin/sh -c 'read x < start; :'\nTASK end /bin/sh -c ': > finish'\n".to_owned();
        for n in 0..TOOLS {
            let _ = writeln!(dag, "TASK w{n} /bin/sh -c 'read x < finish; :'");
        }
        for n in 0..self.tasks {
            let _ = writeln!(dag, "TASK t{n} /bin/true\nEDGE begin t{n}\nEDGE t{n} end");
        }
        let time = |has_tools: bool| {
            let mut run = self.start(flavour, self.cpus + TOOLS, &dag, &["--per-task-stdio"]);
            run.wait_for_tasks(TOOLS + 1);
            let tools: Vec<Child> = (0..if has_tools { TOOLS } else { 0 })
                .map(|n| {
                    run.pmc(&["attach", ".", &format!("w{n}")])
                        .spawn()
                        .expect("pmc starts")
                })
                .collect();
            std::thread::sleep(ATTACHED);
            let begun = run.release();
            run.end();
            let time = begun.elapsed();
            for mut tool in tools {
                assert!(tool.wait().is_ok_and(|status| status.success()));
            }
            time
        };
        let [low, median, high] = pairs(self.pairs, || time(true), || time(false));
        format!("{median:.3} of the speed without tools ({low:.3} to {high:.3}); the bar is 0.95")
    }

    /// Makes the file that tasks print or read.
    fn data(&self) -> PathBuf {
        let path = self.directory.path().join("data");
        if !path.exists() {
            sink::write_data(&path, self.mib);
        }
        path
    }

    fn output(&self, flavour: &Flavour, way: Way) -> String {
        let data = self.data();
        let expected = fs::read(&data).expect("the data");
        let dag = way.dag(&format!(
            "/bin/sh -c 'read x < start; exec cat {}'",
            data.display()
        ));
        let start = || {
            let run = self.start(flavour, 1, &dag, &["--per-task-stdio"]);
            run.wait_for_tasks(1);
            run
        };
        // Without a tool, for the memory.
        let mut run = start();
        run.release();
        let before = run.memory_at_end();
        let after = Cell::new(Vec::new());
        let through_tool = || {
            let mut run = start();
            let arguments = [&["attach", "."], way.options()].concat();
            let mut tool = run
                .pmc(&arguments)
                .stdout(Stdio::piped())
                .spawn()
                .expect("pmc starts");
            let sink = Sink::start(tool.stdout.take().expect("it is piped"), expected.clone());
            std::thread::sleep(ATTACHED);
            let begun = run.release();
            let took = sink.wait().duration_since(begun);
            after.set(run.memory_at_end());
            assert!(tool.wait().is_ok_and(|status| status.success()));
            took
        };
        let [low, median, high] = pairs(self.pairs, through_tool, || {
            sink::through_socket(&data, &expected)
        });
        format!(
            "{median:.2} of the speed of cat through a socket ({low:.2} to {high:.2}), bytes are the same; {} of memory; \
             the bars are 0.5 and 8 MiB",
            run::difference(&before, &after.take()),
        )
    }

    fn input(&self, flavour: &Flavour) -> String {
        let data = self.data();
        let begun = Instant::now();
        let expected = run::output_of("sha256sum", &data);
        let plain = begun.elapsed();
        let dag = "TASK t --stdin push /usr/bin/sha256sum\nTASK last /bin/sleep 1\nEDGE t last\n";
        let mut run = self.start(flavour, 1, dag, &["--per-task-stdio"]);
        run.wait_for_tasks(1);
        let before = run.memory();
        let begun = Instant::now();
        let tool = run
            .pmc(&["attach", ".", "--stdin", "--to", "t", "--complete"])
            .stdin(File::open(&data).expect("the data"))
            .stdout(Stdio::piped())
            .output()
            .expect("pmc runs");
        let took = begun.elapsed();
        let after = run.memory();
        run.end();
        assert_eq!(
            String::from_utf8_lossy(&tool.stdout),
            expected,
            "the sum must be right"
        );
        format!(
            "{:.0} MiB/s into sha256sum, which reads {:.0} MiB/s from a file; the sum is right; {} of memory",
            self.mib as f64 / took.as_secs_f64(),
            self.mib as f64 / plain.as_secs_f64(),
            run::difference(&before, &after),
        )
    }

    fn unread(&self, flavour: &Flavour) -> String {
        let data = self.data();
        let dag = "TASK t --stdin push /bin/sleep 600\n".to_owned()
            + &(0..200)
                .map(|n| format!("TASK s{n} /bin/sleep 0.01\n"))
                .collect::<String>();
        let mut run = self.start(flavour, 2, &dag, &["--per-task-stdio"]);
        run.wait_for_tasks(1);
        let before = run.memory();
        let mut tool = run
            .pmc(&["attach", ".", "--stdin", "--to", "t"])
            .stdin(File::open(&data).expect("the data"))
            .spawn()
            .expect("pmc starts");
        std::thread::sleep(PUSHED);
        let after = run.memory();
        let of_tool = run::resident(tool.id());
        assert!(
            tool.try_wait().is_ok_and(|status| status.is_none()),
            "the tool waits"
        );
        let done = run.done();
        run::signal(tool.id(), nix::sys::signal::Signal::SIGTERM);
        let code = tool.wait().expect("the tool ends").code();
        assert_eq!(code, Some(143), "detach ends the tool");
        assert!(
            run.pmc(&["kill", ".", "t"])
                .status()
                .is_ok_and(|status| status.success())
        );
        run.wait();
        format!(
            "{} of memory, {:.0} MiB in the tool; {done} of 200 other tasks done meanwhile; detached",
            run::difference(&before, &after),
            of_tool as f64 / 1024.0,
        )
    }

    fn latency(&self, flavour: &Flavour, way: Way) -> String {
        let script = self.directory.path().join("says");
        let text = format!("for ((n = 0; n < {LINES}; n++)); do echo $EPOCHREALTIME; sleep 0.013; done");
        fs::write(&script, text).expect("a script");
        let dag = format!(
            "TASK begin /bin/sh -c 'read x < start; :'\n{}EDGE begin t\n",
            way.dag(&format!("/bin/bash {}", script.display()))
        );
        let mut run = self.start(flavour, 1, &dag, &["--per-task-stdio"]);
        run.wait_for_tasks(1);
        let mut arguments = [&["attach", "."], way.options()].concat();
        if way == Way::Redirected {
            // The task is redirected from its first line.
            arguments = vec!["attach", ".", "--redirect", "--stdout", "--tail", "t"];
        }
        let mut tool = run
            .pmc(&arguments)
            .stdout(Stdio::piped())
            .spawn()
            .expect("pmc starts");
        let stdout = tool.stdout.take().expect("it is piped");
        std::thread::sleep(ATTACHED);
        run.release();
        let mut late = sink::lines(stdout, |line| {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time");
            let written: f64 = line.trim_end().parse().expect("a time");
            (now.as_secs_f64() - written) * 1000.0
        });
        run.end();
        assert_eq!(late.len(), LINES, "all lines come");
        assert!(tool.wait().is_ok_and(|status| status.success()));
        late.sort_by(f64::total_cmp);
        let bar = if flavour.name == "MPI" { 20 } else { 5 };
        format!(
            "median {:.1} ms, 95 of 100 lines within {:.1} ms; the bar is {bar} ms",
            late[LINES / 2],
            late[LINES * 95 / 100]
        )
    }

    fn packed(&self, flavour: &Flavour) -> String {
        let kickstart = testutils::programs::path("pegasus-kickstart");
        let dag: String = (0..self.packed)
            .map(|n| format!("TASK t{n} {kickstart} /bin/true\n"))
            .collect();
        let mut files = 0;
        let mut time = |option: &str| {
            let begun = Instant::now();
            let mut run = self.start(flavour, self.cpus, &dag, &[option]);
            run.wait();
            let took = begun.elapsed();
            if option == "--packed-output" {
                files = run.files();
            }
            took
        };
        let mut ratios = Vec::new();
        for round in 0..self.pairs.div_ceil(2) {
            let mut times = [Duration::ZERO; 2];
            for at in if round % 2 == 0 { [0, 1] } else { [1, 0] } {
                times[at] = time(["--packed-output", "--per-task-stdio"][at]);
            }
            ratios.push(times[1].as_secs_f64() / times[0].as_secs_f64());
        }
        let median = quartiles(ratios)[1];
        format!(
            "{median:.2} of the speed with files, {files} files for {} tasks; the bars are 1 and 100 files",
            self.packed
        )
    }
}

/// Lower quartile, median and upper quartile of the ratio of the second time to the first. They alternate in
/// order.
fn pairs(rounds: usize, first: impl Fn() -> Duration, second: impl Fn() -> Duration) -> [f64; 3] {
    let ratio = |round: usize| {
        let (one, other);
        if round.is_multiple_of(2) {
            one = first();
            other = second();
        } else {
            other = second();
            one = first();
        }
        other.as_secs_f64() / one.as_secs_f64()
    };
    quartiles((0..rounds.max(1)).map(ratio).collect())
}

/// Returns lower quartile, median and upper quartile.
fn quartiles(mut numbers: Vec<f64>) -> [f64; 3] {
    numbers.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| {
        let at = (numbers.len() - 1) * quarter;
        f64::midpoint(numbers[at / 4], numbers[at.div_ceil(4)])
    })
}

fn number(variable: &str, default: usize) -> usize {
    let text = std::env::var(variable).ok();
    text.and_then(|text| text.parse().ok()).unwrap_or(default)
}
