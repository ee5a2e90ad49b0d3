//! `pmc log -f` and `pmc attach` while tasks run under MPI: the worker reads what kickstart captures, or
//! relays what a tool redirects.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use testutils::redirected;

use crate::support::command::Program;
use crate::support::programs::Build;

/// Time limit for what takes a moment.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Prints a megabyte of lines, waits for the file `go`, and prints another line.
const PROGRAM: &str = "seq 150000; while [ ! -e go ]; do sleep 0.02; done; echo end";

fn wait_for(what: &str, is_there: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_there() {
        assert!(begun.elapsed() < TIMEOUT, "no {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn lines(file: &Path) -> usize {
    fs::read_to_string(file).unwrap_or_default().lines().count()
}

/// Follows a task that ends before the run does, with this command of `pmc`.
fn follow(build: Build, command: &str) {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let path = |name: &str| folder.path().join(name);
    let kickstart = build.program("pegasus-kickstart");
    let kickstart = kickstart.display();
    let dag = format!("TASK t {kickstart} /bin/sh -c '{PROGRAM}'\nTASK last /bin/sleep 1\nEDGE t last\n");
    fs::write(path("w.dag"), dag).expect("the DAG");
    let run = build
        .executor_with(2)
        .args(["--per-task-stdio", "--jobstate-log", "w.dag"])
        .in_directory(folder.path())
        .limit(120)
        .start();
    wait_for("log", || path("jobstate.log").exists());
    let follower = Program::new("/bin/sh")
        .args(["-c", &format!("exec \"$0\" {command} > followed")])
        .arg(build.program("pmc"))
        .in_directory(folder.path())
        .limit(120)
        .start();
    wait_for("output of the running task", || {
        lines(&path("followed")) == 150_000
    });
    fs::write(path("go"), "").expect("a file");
    follower.wait().ok();
    run.wait().ok();
    let expected: String = (1..=150_000).map(|line| format!("{line}\n")).collect();
    let followed = fs::read_to_string(path("followed")).expect("the output");
    assert!(
        followed == expected + "end\n",
        "{} bytes are wrong",
        followed.len()
    );
}

#[test]
#[ignore = "needs Open MPI: tests/run e2e"]
fn captured_output_is_followed_under_open_mpi() {
    follow(Build::OpenMpi, "log -f t .");
    follow(Build::OpenMpi, "attach . t");
}

#[test]
#[ignore = "needs MPICH: tests/run e2e"]
fn captured_output_is_followed_under_mpich() {
    follow(Build::Mpich, "log -f t .");
    follow(Build::Mpich, "attach . t");
}

/// Redirects a task from its first byte to a tool that is killed: its file has the rest.
fn redirect(build: Build) {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let path = |name: &str| folder.path().join(name);
    let dag = format!(
        "TASK first /bin/sh -c 'while [ ! -e begin ]; do sleep 0.02; done'\nTASK t /bin/sh -c '{PROGRAM}'\nEDGE first t\n"
    );
    fs::write(path("w.dag"), dag).expect("the DAG");
    let run = build
        .executor_with(2)
        .args(["--per-task-stdio", "--jobstate-log", "w.dag"])
        .in_directory(folder.path())
        .limit(120)
        .start();
    wait_for("log", || path("jobstate.log").exists());
    let tool = Program::new("/bin/sh")
        .args([
            "-c",
            "echo $$ > pid; exec \"$0\" attach . --redirect --tail t --stdout > redirected",
        ])
        .arg(build.program("pmc"))
        .in_directory(folder.path())
        .limit(120)
        .start();
    // It reports to the run at once that it waits.
    std::thread::sleep(Duration::from_secs(2));
    fs::write(path("begin"), "").expect("a file");
    wait_for("output of the task", || lines(&path("redirected")) == 150_000);
    let pid = fs::read_to_string(path("pid")).expect("the number of the tool");
    let pid = nix::unistd::Pid::from_raw(pid.trim().parse().expect("a number"));
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).expect("it runs");
    tool.wait();
    // The run notices it soon.
    std::thread::sleep(Duration::from_secs(2));
    fs::write(path("go"), "").expect("a file");
    run.wait().ok();
    let expected: String = (1..=150_000).map(|line| format!("{line}\n")).collect();
    let redirected = fs::read_to_string(path("redirected")).expect("the output");
    assert!(redirected == expected, "{} bytes are wrong", redirected.len());
    let file = fs::read_to_string(path("t.out.000")).expect("the file of the task");
    assert!(file.starts_with("end\n[cluster-task "), "{file}");
}

#[test]
#[ignore = "needs Open MPI: tests/run e2e"]
fn output_is_redirected_under_open_mpi() {
    redirect(Build::OpenMpi);
}

#[test]
#[ignore = "needs MPICH: tests/run e2e"]
fn output_is_redirected_under_mpich() {
    redirect(Build::Mpich);
}

/// Kills tools at random bytes: the file of the task and what they have got are what the task has written.
fn killed_tools(build: Build) {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let path = |name: &str| folder.path().join(name);
    fs::write(path("counts"), redirected::COUNTS).expect("a script");
    fs::write(path("w.dag"), "TASK counts --io relay /bin/sh counts\n").expect("the DAG");
    let run = build
        .executor_with(2)
        .args(["--per-task-stdio", "--jobstate-log", "w.dag"])
        .in_directory(folder.path())
        .limit(1200)
        .start();
    wait_for("log", || {
        fs::read_to_string(path("jobstate.log")).is_ok_and(|log| log.contains("EXECUTE"))
    });
    let tools = redirected::kill_tools(&build.program("pmc"), folder.path(), redirected::kills());
    fs::write(path("stop"), "").expect("a file");
    run.wait().ok();
    tools.check();
}

#[test]
#[ignore = "needs Open MPI: tests/run e2e"]
fn a_killed_tool_leaves_no_gap_under_open_mpi() {
    killed_tools(Build::OpenMpi);
}

#[test]
#[ignore = "needs MPICH: tests/run e2e"]
fn a_killed_tool_leaves_no_gap_under_mpich() {
    killed_tools(Build::Mpich);
}
