//! Runs are killed with SIGKILL at random times and restarted until they are complete. No completed task is
//! lost, and forwarded data reaches its files exactly once.
//!
//! `PMC_KILL_RUNS` sets the number of runs (default 24), `PMC_KILL_SEED` the first seed (default 1). The
//! message of a failure names its seed: `PMC_KILL_RUNS=1 PMC_KILL_SEED=<seed>` repeats the tasks and the
//! times of kills.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::command::Program;
use crate::support::programs::Build;
use crate::support::workflow::{Format, Request};
use testutils::Random;

const WORKERS: u32 = 3;
const TASKS: u64 = 36;

/// Time limit for one start of the executor.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Time limit for the launcher to end after one of its processes was killed.
const LAUNCHER_TIMEOUT: Duration = Duration::from_secs(20);

/// Maximum kills of a run.
const MAX_KILLS: u64 = 5;

/// Forwards through a pipe and a file, and some data to a second target. The first attempt may fail after
/// it has written.
const TASK: &str = r#"#!/bin/sh
name=$1 lines=$2 pause=$3 fails=$4
n=0 rest=$(printf '%4000s' end)
while [ $n -lt $lines ]; do echo "$name pipe $n $rest"; n=$((n + 1)); done >/proc/self/fd/$PIPE
echo "$name pipe end" >/proc/self/fd/$PIPE
if [ -n "$LOG" ]; then echo "$name log end" >/proc/self/fd/$LOG; fi
printf '%s file 0\n%s file end\n' $name $name >part.$name
sleep $pause
if [ $fails = yes ] && [ ! -e tried.$name ]; then : >tried.$name; exit 3; fi
"#;

fn setting(name: &str, default: u64) -> u64 {
    let value = std::env::var(name).ok();
    value.map_or(default, |value| value.parse().expect("a number"))
}

/// A run that can be killed.
struct Killable {
    child: Child,
    build: Build,
}

/// The processes that receive a signal.
#[derive(Clone, Copy, Debug)]
enum Victim {
    Master,
    Worker,
    All,
}

impl Killable {
    fn start(build: Build, program: &Program, directory: &Path) -> Self {
        let mut command = Command::new(&program.words()[0]);
        command
            .args(&program.words()[1..])
            .envs(build.environment())
            .current_dir(directory)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(directory.join("stderr")).expect("a file"));
        let child = command.spawn().expect("the executor starts");
        Self { child, build }
    }

    /// Waits up to `time`. Returns the exit status if the run has ended.
    fn wait(&mut self, time: Duration) -> Option<ExitStatus> {
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("a child to wait for") {
                return Some(status);
            }
            if started.elapsed() >= time {
                return None;
            }
            std::thread::sleep(Duration::from_micros(500));
        }
    }

    /// Kills processes and waits until all of the run have ended.
    fn kill(&mut self, victim: Victim, random: &mut Random) {
        let launcher = Pid::from_raw(self.child.id().cast_signed());
        let ranks = match self.build {
            Build::Local | Build::Agents => Vec::new(),
            Build::OpenMpi | Build::Mpich => ranks_below(launcher),
        };
        let chosen: Vec<Pid> = match victim {
            _ if ranks.is_empty() => vec![launcher],
            Victim::All => ranks.iter().map(|rank| rank.1).chain([launcher]).collect(),
            Victim::Master => ranks
                .iter()
                .filter(|rank| rank.0 == 0)
                .map(|rank| rank.1)
                .collect(),
            Victim::Worker => {
                let number = 1 + random.below(WORKERS.into()) as u32;
                ranks
                    .iter()
                    .filter(|rank| rank.0 == number)
                    .map(|rank| rank.1)
                    .collect()
            }
        };
        for pid in chosen {
            // It may have ended by itself.
            let _ = kill(pid, Signal::SIGKILL);
        }
        let ended = self.wait(LAUNCHER_TIMEOUT);
        if ended.is_none() && !ranks.is_empty() && !ranks.iter().any(|rank| is_alive(rank.1)) {
            // mpiexec can hang after all its processes have ended.
            eprintln!("the launcher still runs after {victim:?} was killed and all ranks have ended");
            self.child.kill().expect("a launcher to kill");
        }
        let ended = ended.or_else(|| self.wait(TIMEOUT));
        assert!(
            ended.is_some(),
            "the run does not end after {victim:?} was killed"
        );
        let started = Instant::now();
        while ranks.iter().any(|rank| is_alive(rank.1)) {
            assert!(
                started.elapsed() < TIMEOUT,
                "ranks survive after {victim:?} was killed"
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Killable {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Returns state and parent of a process.
fn stat(pid: Pid) -> Option<(char, Pid)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut words = text.rsplit_once(')')?.1.split_whitespace();
    let state = words.next()?.chars().next()?;
    Some((state, Pid::from_raw(words.next()?.parse().ok()?)))
}

fn is_alive(pid: Pid) -> bool {
    stat(pid).is_some_and(|(state, _)| state != 'Z')
}

/// Returns rank and process of each executor below a launcher.
fn ranks_below(launcher: Pid) -> Vec<(u32, Pid)> {
    let processes = fs::read_dir("/proc").expect("/proc").flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok().map(Pid::from_raw));
    let parents: BTreeMap<Pid, Pid> = pids.filter_map(|pid| Some((pid, stat(pid)?.1))).collect();
    let is_below = |pid: Pid| {
        std::iter::successors(Some(pid), |pid| parents.get(pid).copied())
            .take(8)
            .any(|pid| pid == launcher)
    };
    // More is closed to other users than root.
    let is_executor = |pid: Pid| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        !name.trim().is_empty() && "pegasus-mpi-cluster".starts_with(name.trim())
    };
    // Launchers start the ranks in their order.
    let below = parents.keys().filter(|pid| is_below(**pid) && is_executor(**pid));
    let ranks = (0..).zip(below.copied());
    // The system may have reused the number of a process that has ended.
    let is_same = |pid: &Pid| stat(*pid).map(|stat| stat.1) == parents.get(pid).copied();
    ranks.filter(|(_, pid)| is_same(pid)).collect()
}

/// A DAG in a directory with the data that its tasks must forward.
struct KillTest {
    directory: tempfile::TempDir,
    /// Records of each task in each target.
    expected: BTreeMap<&'static str, BTreeMap<String, Vec<String>>>,
}

impl KillTest {
    fn new(random: &mut Random) -> Self {
        let directory = tempfile::Builder::new()
            .prefix("pmc-kill.")
            .tempdir()
            .expect("a directory");
        let mut expected: BTreeMap<_, BTreeMap<String, Vec<String>>> = BTreeMap::new();
        let mut dag = String::new();
        for n in 0..TASKS {
            let name = format!("t{n:03}");
            let lines = if random.below(4) == 0 {
                1000
            } else {
                random.below(40)
            };
            let pause = format!("0.0{}", random.below(4));
            let fails = if random.below(5) == 0 { "yes" } else { "no" };
            // Writing some MB takes time, so some kills interrupt it.
            let pipe = (0..lines)
                .map(|n| format!("{n} {:>4000}", "end"))
                .chain(["end".to_owned()]);
            let pipe = pipe.map(|n| format!("{name} pipe {n}")).collect();
            expected.entry("pipe.txt").or_default().insert(name.clone(), pipe);
            let file = ["0", "end"].map(|n| format!("{name} file {n}")).to_vec();
            expected
                .entry("deep/file.txt")
                .or_default()
                .insert(name.clone(), file);
            let mut log = "";
            if random.below(3) == 0 {
                log = "-f LOG=log.txt ";
                let line = vec![format!("{name} log end")];
                expected.entry("log.txt").or_default().insert(name.clone(), line);
            }
            dag += &format!(
                "TASK {name} -t 3 -f PIPE=pipe.txt {log}-F part.{name}=deep/file.txt \
                 /bin/sh task.sh {name} {lines} {pause} {fails}\n"
            );
            if n >= 3 && random.below(2) == 0 {
                dag += &format!("EDGE t{:03} {name}\n", random.below(n));
            }
        }
        fs::write(directory.path().join("x.dag"), dag).expect("a file");
        fs::write(directory.path().join("task.sh"), TASK).expect("a file");
        Self { directory, expected }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn journal(&self) -> PathBuf {
        self.path().join("x.dag.rescue.journal")
    }

    fn done(&self) -> BTreeSet<String> {
        let text = fs::read_to_string(self.path().join("x.dag.rescue")).unwrap_or_default();
        let names = text.lines().filter_map(|line| line.strip_prefix("DONE "));
        // Skips a name that was not written completely.
        names.filter(|name| name.len() == 4).map(str::to_owned).collect()
    }

    /// Asserts that the files hold the data of completed tasks exactly once, and nothing else when the run is
    /// complete.
    fn check_data(&self, done: &BTreeSet<String>, is_complete: bool) {
        for (target, records) in &self.expected {
            let text = fs::read_to_string(self.path().join(target)).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            for (name, record) in records.iter().filter(|(name, _)| done.contains(*name)) {
                let first = lines.iter().position(|line| *line == record[0]);
                let first = first.unwrap_or_else(|| panic!("{target}: no data of {name}, which is done"));
                let found = lines.get(first..first + record.len());
                assert!(
                    found.is_some_and(|found| found == record.as_slice()),
                    "{target}: data of {name} is torn"
                );
                let times = lines.iter().filter(|line| **line == record[0]).count();
                assert_eq!(times, 1, "{target}: data of {name} is there {times} times");
            }
            if is_complete {
                let all: usize = records.values().map(Vec::len).sum();
                assert_eq!(lines.len(), all, "{target} has unexpected lines");
            }
        }
    }

    fn stderr(&self) -> String {
        fs::read_to_string(self.path().join("stderr")).unwrap_or_default()
    }
}

/// Kills a run a few times, then lets it end. Returns the number of kills, and the number of kills while
/// the run was forwarding.
fn kill_until_done(build: Build, seed: u64) -> [u32; 2] {
    let mut random = Random(seed);
    let test = KillTest::new(&mut random);
    let program = build.executor_with(WORKERS).args([
        "--jobstate-log",
        "--monitord-hack",
        "--sync-interval",
        "50",
        "x.dag",
    ]);
    // Some runs are killed before they begin, others shortly before they end.
    let (min_ms, max_ms) = match build {
        Build::Local | Build::Agents => (5, 700),
        Build::OpenMpi | Build::Mpich => (200, 1300),
    };
    let mut done = BTreeSet::new();
    let mut kills = [0, 0];
    for _ in 0..=random.below(MAX_KILLS) {
        let mut running = Killable::start(build, &program, test.path());
        let time = Duration::from_millis(min_ms + random.below(max_ms - min_ms));
        let victim = [Victim::Master, Victim::Worker, Victim::All][random.below(3) as usize];
        if let Some(status) = running.wait(time) {
            assert!(status.success(), "{status}: {}", test.stderr());
            break;
        }
        running.kill(victim, &mut random);
        kills[0] += 1;
        kills[1] += u32::from(test.journal().exists());
        let now = test.done();
        assert!(
            now.is_superset(&done),
            "no longer done: {:?}",
            done.difference(&now)
        );
        test.check_data(&now, false);
        done = now;
    }
    let mut running = Killable::start(build, &program, test.path());
    let status = running.wait(TIMEOUT).expect("the run ends in time");
    assert!(status.success(), "{status}: {}", test.stderr());
    let now = test.done();
    assert_eq!(now.len() as u64, TASKS, "tasks that are done");
    test.check_data(&now, true);
    assert!(!test.journal().exists(), "a completed run removes the journal");
    kills
}

fn kill_runs(build: Build, runs: u64) {
    let mut total = [0, 0];
    for_each_seed(runs, |seed| {
        let kills = kill_until_done(build, seed);
        for (total, kills) in total.iter_mut().zip(kills) {
            *total += kills;
        }
    });
    println!(
        "{runs} runs, killed {} times, {} times while forwarding",
        total[0], total[1]
    );
}

/// Runs a test with each seed and prints the first seed that fails.
fn for_each_seed(runs: u64, mut test: impl FnMut(u64)) {
    let first = setting("PMC_KILL_SEED", 1);
    for seed in first..first + runs {
        if let Err(cause) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| test(seed))) {
            eprintln!("the run with PMC_KILL_SEED={seed} failed");
            std::panic::resume_unwind(cause);
        }
    }
}

#[test]
#[ignore = "takes time: tests/run e2e"]
fn killed_run_loses_and_repeats_nothing() {
    let runs = setting("PMC_KILL_RUNS", 24);
    kill_runs(Build::Local, runs);
}

#[test]
#[ignore = "needs Open MPI: tests/run e2e"]
fn killed_run_under_open_mpi_loses_and_repeats_nothing() {
    let runs = setting("PMC_KILL_RUNS", 24).div_ceil(3);
    kill_runs(Build::OpenMpi, runs);
}

/// A batch system may send SIGTERM to every process of a job.
#[test]
#[ignore = "needs Open MPI: tests/run e2e"]
fn sigterm_to_all_ranks_at_once_drains_the_run() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name);
    let dag = "TASK first /bin/sh -c 'touch begun; while [ ! -e go ]; do sleep 0.01; done'\n\
         TASK second /bin/true\nEDGE first second\n";
    fs::write(path("x.dag"), dag).expect("a file");
    let program = Build::OpenMpi
        .executor_with(WORKERS)
        .args(["--drain-grace", "60", "x.dag"]);
    let mut running = Killable::start(Build::OpenMpi, &program, directory.path());
    let started = Instant::now();
    while !path("begun").exists() {
        assert!(started.elapsed() < TIMEOUT, "the task does not begin");
        std::thread::sleep(Duration::from_millis(5));
    }
    let ranks = ranks_below(Pid::from_raw(running.child.id().cast_signed()));
    assert_eq!(ranks.len() as u32, WORKERS + 1);
    for (_, pid) in ranks {
        kill(pid, Signal::SIGTERM).expect("a rank that runs");
    }
    assert!(
        running.wait(Duration::from_millis(500)).is_none(),
        "the task runs to its end"
    );
    fs::write(path("go"), "").expect("a file");
    let status = running.wait(TIMEOUT).expect("the run ends in time");
    let log = fs::read_to_string(path("stderr")).expect("the log");
    assert_eq!(status.code(), Some(75), "{log}");
    assert_eq!(log.matches("Caught signal 15").count(), 1, "{log}");
    let rescue = || fs::read_to_string(path("x.dag.rescue")).expect("a rescue file");
    assert!(
        rescue().contains("DONE first") && !rescue().contains("DONE second"),
        "{log}"
    );
    let mut running = Killable::start(Build::OpenMpi, &program, directory.path());
    assert!(running.wait(TIMEOUT).is_some_and(|status| status.success()));
    assert!(rescue().contains("DONE second"));
}

/// Runs a planned workflow with kickstart. Pegasus' monitoring then reads all logs.
#[test]
#[ignore = "needs Pegasus' monitoring: tests/run e2e"]
fn monitord_accepts_the_logs_of_killed_runs() {
    let runs = setting("PMC_KILL_RUNS", 24).div_ceil(12);
    for_each_seed(runs, |seed| {
        let mut random = Random(seed);
        let planned = Request::new(Build::Local, Format::Yaml).plan();
        let mut killed = 0;
        loop {
            let mut running = Killable::start(Build::Local, &planned.executor(WORKERS), planned.submit());
            let limit = if killed == 4 {
                TIMEOUT
            } else {
                Duration::from_millis(50 + random.below(600))
            };
            if let Some(status) = running.wait(limit) {
                let stderr = fs::read_to_string(planned.submit().join("stderr")).unwrap_or_default();
                assert!(status.success(), "{status}: {stderr}");
                break;
            }
            running.kill(Victim::All, &mut random);
            killed += 1;
        }
        planned.assert_outputs(0..20);
        planned.monitored().replay();
        // Monitoring does not see a run that was killed before its first line.
        let states = planned.monitored().workflow_states();
        let last = states.last().expect("an end of the workflow");
        assert!(
            last.starts_with("WORKFLOW_TERMINATED ") && last.ends_with(" 0"),
            "{states:?}"
        );
        let starts = states
            .iter()
            .filter(|state| state.starts_with("WORKFLOW_STARTED "));
        assert!((1..=killed + 1).contains(&starts.count()), "{states:?}");
    });
}
