//! Time of planning, relative to parsing the workflow file.
//!
//! `cargo bench -p pmc-plan --bench plan` writes workflows of 10,000, 100,000 and a million jobs in three
//! levels into a temporary directory (below `TMPDIR`; use a directory in memory to exclude the disk) and
//! plans them; with the argument `condor`, it measures plans for HTCondor. `PMC_BENCH_JOBS` names other
//! sizes (`10000,100000`). Each measurement runs in a new process, so that its peak memory is known. The
//! best of several rounds counts.

mod condor;
mod inputs;

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::{Command, exit};
use std::time::Instant;

use nix::sys::resource::{UsageWho, getrusage};

use inputs::Syntax;

/// Option that makes this program measure one part.
const PART: &str = "--part";
/// Part that runs a program.
const RUN: &str = "run";
/// Seconds and megabytes of pegasus-plan 5.1.3 on Java 17 for 10,000 jobs in three levels, on a machine with
/// two cores.
const REFERENCE: (f64, f64) = (11.7, 898.0);

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(at) = arguments.iter().position(|argument| argument == PART) {
        measure_here(&arguments[at + 1..]);
        return;
    }
    if arguments.iter().any(|argument| argument == "condor") {
        condor::run();
        return;
    }
    let sizes = std::env::var("PMC_BENCH_JOBS").unwrap_or_else(|_| "10000,100000,1000000".into());
    let sizes: Vec<usize> = sizes
        .split(',')
        .map(|size| size.trim().parse().expect("PMC_BENCH_JOBS is a list of numbers"))
        .collect();
    let temporary = tempfile::tempdir().expect("a temporary directory");
    println!("directory {}; times are wall / CPU", temporary.path().display());
    println!(
        "{:<22} {:>5} {:>15} {:>15} {:>15} {:>7} {:>7} {:>8} {:>7}",
        "workflow", "MB", "parse s", "read s", "plan s", "read/p", "plan/p", "us/job", "peak MB"
    );
    for &jobs in &sizes {
        for syntax in [Syntax::Yaml, Syntax::Dax] {
            let directory = temporary.path().join(format!("{jobs}-{}", syntax.file()));
            fs::create_dir(&directory).expect("the temporary directory can be written");
            inputs::write(&directory, syntax, jobs).expect("the temporary directory can be written");
            compare(&directory, syntax, jobs);
            fs::remove_dir_all(&directory).expect("the temporary directory can be written");
        }
    }
}

/// Time in seconds and memory of a process.
#[derive(Clone, Copy, Debug)]
struct Cost {
    wall: f64,
    cpu: f64,
    peak_mb: f64,
}

impl Cost {
    fn min(self, other: Option<Cost>) -> Cost {
        match other {
            Some(other) => Cost {
                wall: self.wall.min(other.wall),
                cpu: self.cpu.min(other.cpu),
                peak_mb: self.peak_mb.min(other.peak_mb),
            },
            None => self,
        }
    }
    fn times(self) -> String {
        format!("{:.3} / {:.3}", self.wall, self.cpu)
    }
}

fn compare(directory: &Path, syntax: Syntax, jobs: usize) {
    let rounds = if jobs > 200_000 { 2 } else { 5 };
    let file = directory.join(syntax.file());
    let (mut parse, mut read, mut plan) = (None, None, None);
    for _ in 0..rounds {
        parse = Some(measure("parse", &file).min(parse));
        read = Some(measure("read", &file).min(read));
        plan = Some(measure("plan", &file).min(plan));
        let _ = fs::remove_dir_all(directory.join("submit"));
    }
    let (Some(parse), Some(read), Some(plan)) = (parse, read, plan) else {
        return;
    };
    let mb = fs::metadata(&file).map_or(0, |m| m.len()) / 1_000_000;
    println!(
        "{:<22} {mb:>5} {:>15} {:>15} {:>15} {:>7.2} {:>7.2} {:>8.1} {:>7.0}",
        format!("{jobs} {}", if syntax == Syntax::Yaml { "YAML" } else { "DAX" }),
        parse.times(),
        read.times(),
        plan.times(),
        read.wall / parse.wall,
        plan.wall / parse.wall,
        plan.wall / jobs as f64 * 1e6,
        plan.peak_mb
    );
    if jobs == 10_000 {
        let (seconds, mb) = REFERENCE;
        println!(
            "  pegasus-plan 5.1.3: {seconds} s, {mb} MB: 1/{:.0} of its time, 1/{:.0} of its memory",
            seconds / plan.wall,
            mb / plan.peak_mb
        );
    }
}

/// Measures a part in a new process.
fn measure(part: &str, file: &Path) -> Cost {
    measure_words(&[part.as_ref(), file.as_os_str()])
}

/// Measures a program with arguments, in a directory.
fn measure_command(program: &str, arguments: &[String], directory: &Path) -> Cost {
    let mut words: Vec<&OsStr> = vec![RUN.as_ref(), directory.as_os_str(), program.as_ref()];
    words.extend(arguments.iter().map(OsStr::new));
    measure_words(&words)
}

fn measure_words(words: &[&OsStr]) -> Cost {
    let output = Command::new(std::env::current_exe().expect("a running program has a file"))
        .arg(PART)
        .args(words)
        .output()
        .expect("this program can be started again");
    let text = String::from_utf8_lossy(&output.stdout);
    let figures: Vec<f64> = text
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect();
    match figures[..] {
        [wall, cpu, peak_mb] if output.status.success() => Cost { wall, cpu, peak_mb },
        _ => {
            eprint!(
                "{words:?} failed: {text}{}",
                String::from_utf8_lossy(&output.stderr)
            );
            exit(1);
        }
    }
}

/// Measures a part and prints wall time, CPU time and peak memory.
fn measure_here(arguments: &[String]) {
    let start = Instant::now();
    let who = match arguments {
        [name, file] if name == "parse" => {
            parse(Path::new(file));
            UsageWho::RUSAGE_SELF
        }
        [name, file] if name == "read" => {
            read(Path::new(file));
            UsageWho::RUSAGE_SELF
        }
        [name, file] if name == "plan" => {
            plan(Path::new(file));
            UsageWho::RUSAGE_CHILDREN
        }
        [name, directory, program, arguments @ ..] if name == RUN => {
            command(program, arguments, directory);
            UsageWho::RUSAGE_CHILDREN
        }
        _ => exit(2),
    };
    let wall = start.elapsed();
    let usage = getrusage(who).expect("a process may ask for its own usage");
    let seconds = |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    let cpu = seconds(usage.user_time()) + seconds(usage.system_time());
    println!(
        "{} {cpu} {}",
        wall.as_secs_f64(),
        usage.max_rss() as f64 * 1024.0 / 1e6
    );
}

/// Parses the file with the fastest parser of the syntax and ignores the events.
fn parse(file: &Path) {
    let text = fs::read_to_string(file).expect("the file is there");
    let mut events = 0_usize;
    if text.starts_with('<') {
        let mut reader = quick_xml::Reader::from_str(&text);
        loop {
            events += 1;
            if reader.read_event().expect("the file is right") == quick_xml::events::Event::Eof {
                break;
            }
        }
    } else {
        events = saphyr_parser::Parser::new_from_str(&text)
            .filter(|event| event.as_ref().map(drop).is_ok())
            .count();
    }
    assert!(events > 1000, "{events} events");
}

fn read(file: &Path) {
    let env = pmc_plan::expand::ExpandEnv::default();
    let workflow = pmc_plan::input::read_workflow(file, &env, &pmc_plan::input::ReadOptions::default())
        .expect("the file is right")
        .workflow;
    assert!(!workflow.jobs.is_empty());
}

/// Runs a program, which must succeed. It prints nothing.
fn command(program: &str, arguments: &[String], directory: &str) {
    let output = Command::new(program)
        .args(arguments)
        .current_dir(directory)
        .output();
    let output = output.expect("the program can be started");
    if !output.status.success() {
        eprintln!("{}", String::from_utf8_lossy(&output.stderr));
        exit(1);
    }
}

/// Runs the planner.
fn plan(file: &Path) {
    let directory = file.parent().expect("a file in a directory");
    let status = Command::new(testutils::programs::path("pmc-plan"))
        .args([
            "-q",
            "--dir",
            "submit",
            "-o",
            "local",
            "-D",
            "pegasus.parser.document.size=2000",
        ])
        .arg(file)
        .current_dir(directory)
        .status()
        .expect("pmc-plan can be started");
    assert!(status.success(), "pmc-plan fails");
}
