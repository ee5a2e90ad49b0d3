//! The executor recognizes its launcher.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::support::command::Program;
use crate::support::programs::Build;

const EXECUTOR: &str = "pegasus-mpi-cluster";

fn directory_with_dag() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a temporary directory");
    fs::write(directory.path().join("small.dag"), "TASK a /bin/echo hello\n").expect("a file");
    directory
}

#[test]
#[ignore = "needs MPI: tests/run e2e"]
fn build_without_mpi_refuses_a_launcher() {
    for launcher in [Build::OpenMpi, Build::Mpich] {
        let directory = directory_with_dag();
        let words = launcher.launcher(2);
        let result = Program::new(&words[0])
            .args(&words[1..])
            .arg(Build::Local.program(EXECUTOR))
            .arg("small.dag")
            .in_directory(directory.path())
            .envs(&launcher.environment())
            .run()
            .refused();
        assert!(
            result.stderr.contains("without MPI"),
            "{launcher:?}: {}",
            result.details()
        );
        assert!(
            !result.stdout.contains("hello"),
            "nothing has run: {}",
            result.details()
        );
    }
}

#[test]
#[ignore = "needs MPI: tests/run e2e"]
fn build_with_mpi_runs_without_a_launcher() {
    for build in [Build::OpenMpi, Build::Mpich] {
        let directory = directory_with_dag();
        let result = Program::new(build.program(EXECUTOR))
            .arg("small.dag")
            .in_directory(directory.path())
            .limit(60)
            .run()
            .ok();
        assert!(
            result.stdout.contains("hello\n"),
            "{build:?}: {}",
            result.details()
        );
    }
}

/// Launchers bind each rank to a core. Tasks may use all cores unless `--keep-affinity` is given.
#[test]
#[ignore = "needs Open MPI: tests/run e2e"]
fn tasks_are_not_bound_to_the_core_of_their_rank() {
    let directory = directory_with_dag();
    let task = "sed -n s/Cpus_allowed_list:.//p /proc/self/status";
    fs::write(directory.path().join("x.dag"), format!("TASK a {task}\n")).expect("a file");
    let allowed = |launcher: &str, options: &[&str]| {
        let build = Build::OpenMpi;
        let mut words = build.launcher(2);
        words.extend(launcher.split_whitespace().map(str::to_owned));
        let result = Program::new(&words[0])
            .args(&words[1..])
            .arg(build.program(EXECUTOR))
            .args(["--skip-rescue", "--quiet", "x.dag"])
            .args(options)
            .in_directory(directory.path())
            .envs(&build.environment())
            .run()
            .ok();
        let mut lines = result.stdout.lines();
        lines.find(|line| !line.starts_with('[')).map(str::to_owned)
    };
    let all_cpus = allowed("--bind-to none", &["--keep-affinity"]);
    let one = allowed("--bind-to core", &["--keep-affinity"]);
    assert!(one.as_ref().is_some_and(|cpus| cpus.parse::<u32>().is_ok()) || one == all_cpus);
    assert_eq!(allowed("--bind-to core", &[]), all_cpus);
    // Tasks can be bound only to CPUs that their worker may use.
    assert_eq!(
        allowed("--bind-to core", &["--keep-affinity", "--set-affinity"]),
        all_cpus
    );
}

fn script(directory: &Path, name: &str, text: &str) {
    let path = directory.join(name);
    fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("a script");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("a mode");
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A second copy of each would run beside the one of the next run.
#[test]
#[ignore = "needs MPI: tests/run e2e"]
fn nothing_that_a_task_has_started_outlives_killed_ranks() {
    for build in [Build::OpenMpi, Build::Mpich] {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let top = directory.path();
        fs::write(top.join("x.dag"), "TASK a ./job.sh\n").expect("a file");
        script(
            top,
            "prog",
            "echo $$ > pid.$1.new; mv pid.$1.new pid.$1; sleep 1000",
        );
        // The last one is in a group of its own, and `setsid` starts a session.
        script(
            top,
            "job.sh",
            "echo $PPID > rank; ./prog plain & setsid ./prog session & timeout 1000 ./prog group & wait",
        );
        let run = build.executor_with(1).arg("x.dag").in_directory(top).start();
        let pids = ["plain", "session", "group"].map(|name| {
            let file = top.join(format!("pid.{name}"));
            wait_until(name, || file.exists());
            fs::read_to_string(file).expect("a number").trim().to_owned()
        });
        // Those in other groups are looked for now and then, later beside other tests.
        std::thread::sleep(Duration::from_secs(3));
        let rank = fs::read_to_string(top.join("rank")).expect("a number");
        let rank = nix::unistd::Pid::from_raw(rank.trim().parse().expect("a number"));
        nix::sys::signal::kill(rank, Signal::SIGKILL).expect("a signal");
        assert_ne!(run.wait().code(), 0);
        for pid in pids {
            wait_until(&format!("{build:?}: {pid} goes on"), || {
                let state = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
                state.is_empty() || state.contains(") Z ")
            });
        }
    }
}

#[test]
#[ignore = "needs MPI: tests/run e2e"]
fn ranks_change_requests_between_attempts_and_leave_out_hopeless_ones() {
    for build in [Build::OpenMpi, Build::Mpich] {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let top = directory.path();
        let dag = "TASK grows -m 100 -t 3 --request-expression 'memory=pegasus_memory_mb * 2' ./needs.sh 400\n\
                   TASK missing -t 9 ./no-such-program\n";
        fs::write(top.join("x.dag"), dag).expect("a file");
        script(
            top,
            "needs.sh",
            "echo $PMC_MEMORY >> seen; [ $PMC_MEMORY -ge $1 ]",
        );
        let result = build
            .executor_with(2)
            .args(["--host-memory", "1000", "x.dag"])
            .in_directory(top)
            .run();
        assert_ne!(result.code(), 0, "{}", result.details());
        let seen = fs::read_to_string(top.join("seen")).expect("a file");
        assert_eq!(seen, "100\n200\n400\n", "{build:?}: {}", result.details());
        let failed = "Task missing failed";
        assert_eq!(result.stderr.matches(failed).count(), 1, "{}", result.details());
    }
}
