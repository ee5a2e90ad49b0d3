//! The executor with worker threads, as a program.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by a panic")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use testutils::launcher::forget_launcher;

const DIAMOND: &str = "\
TASK A ./say.sh A
TASK B ./say.sh B
TASK C ./say.sh C
TASK D ./say.sh D
EDGE A B
EDGE A C
EDGE B D
EDGE C D
";

/// A folder with a DAG and a script that prints its argument.
struct Run {
    folder: TempDir,
}

impl Run {
    fn new(dag: &str) -> Self {
        let run = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        run.write("x.dag", dag);
        run.script(
            "say.sh",
            "echo \"$1 out\"; echo \"$1 err\" >&2; echo \"$1\" >> ran",
        );
        run
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn write(&self, name: &str, content: &str) {
        fs::write(self.path().join(name), content).unwrap();
    }

    fn script(&self, name: &str, body: &str) {
        self.write(name, &format!("#!/bin/sh\n{body}\n"));
        fs::set_permissions(self.path().join(name), fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    fn exists(&self, name: &str) -> bool {
        self.path().join(name).exists()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(testutils::programs::path("pegasus-mpi-cluster"));
        command
            .current_dir(self.path())
            .args(["--workers", "2"])
            .args(arguments);
        forget_launcher(&mut command);
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).stdin(Stdio::null()).output().unwrap()
    }

    fn start(&self, arguments: &[&str]) -> Child {
        let mut command = self.command(arguments);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// Waits until a file of this name exists.
    fn wait_for(&self, name: &str) {
        let started = Instant::now();
        while !self.exists(name) {
            assert!(
                started.elapsed() < Duration::from_secs(30),
                "{name} does not appear"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Names in the rescue file, in its order.
    fn done(&self) -> Vec<String> {
        let text = self.read("x.dag.rescue");
        text.lines()
            .filter_map(|line| line.strip_prefix("DONE "))
            .map(str::to_owned)
            .collect()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn last_line(bytes: &[u8]) -> String {
    text(bytes).lines().last().unwrap_or_default().to_owned()
}

#[test]
fn diamond_runs_in_order() {
    let run = Run::new(DIAMOND);
    let output = run.run(&["x.dag"]);
    assert_eq!(output.status.code(), Some(0));
    let out = text(&output.stdout);
    assert!(
        out.starts_with("[cluster-summary stat=\"ok\", tasks=4, submitted=4, succeeded=4, failed=0, "),
        "{out}"
    );
    for task in ["A", "B", "C", "D"] {
        assert!(out.contains(&format!("{task} out\n")));
        assert!(out.contains(&format!("[cluster-task name={task}, start=\"")));
    }
    assert!(text(&output.stderr).contains("\nD err\n"));
    assert_eq!(last_line(&output.stderr), "[info] Workflow succeeded");
    let ran: Vec<String> = run.read("ran").lines().map(str::to_owned).collect();
    assert_eq!((ran.len(), ran[0].as_str(), ran[3].as_str()), (4, "A", "D"));
    let mut done = run.done();
    done.sort();
    assert_eq!(done, ["A", "B", "C", "D"]);
    assert!(!run.exists("x.dag.out.1") && !run.exists("x.dag.err.2"));
    assert_eq!(run.read("x.dag.resource").lines().count(), 1 + 2 * 4);
}

#[test]
fn failed_task_blocks_only_its_descendants() {
    let run = Run::new(
        "TASK bad /bin/sh -c 'exit 3'\nTASK after ./say.sh after\nTASK other ./say.sh other\nEDGE bad after\n",
    );
    let output = run.run(&["--monitord-hack", "--jobstate-log", "x.dag"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(last_line(&output.stderr), "[error] Workflow failed");
    assert!(text(&output.stderr).contains("[error] Task bad failed with exitcode 768\n"));
    assert_eq!(run.done(), ["other"]);
    assert_eq!(run.read("ran"), "other\n");
    assert!(run.read("bad.out.000").contains("status=768, app=\"/bin/sh\""));
    assert!(
        run.read("x.dag.dagman.out")
            .contains("Node bad job proc (1.0) failed with status 768.\n")
    );
    assert!(run.read("x.dag.dagman.out").ends_with("EXITING WITH STATUS 1\n"));
    assert!(run.read("jobstate.log").contains(" bad JOB_FAILURE 768 - - 1\n"));
}

#[test]
fn retry_has_its_own_files_and_number() {
    let run = Run::new("TASK a -t 3 ./twice.sh\n");
    run.script("twice.sh", "echo x >> count; [ $(wc -l < count) -eq 2 ]");
    let output = run.run(&["--monitord-hack", "x.dag"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(run.read("a.out.000").contains("status=256"));
    assert!(run.read("a.out.001").contains("status=0"));
    assert!(!run.exists("a.out.002"));
    let log = run.read("x.dag.dagman.out");
    assert!(
        log.contains("Node a job proc (1.0) failed with status 256.\n"),
        "{log}"
    );
    assert!(
        log.contains("Node a job proc (2.0) completed successfully.\n"),
        "{log}"
    );
    assert!(text(&output.stdout).contains("submitted=2, succeeded=1, failed=1"));
}

#[test]
fn two_runs_share_no_second_in_the_log() {
    let run = Run::new("TASK a ./say.sh a\n");
    for _ in 0..2 {
        assert_eq!(run.run(&["--monitord-hack", "x.dag"]).status.code(), Some(0));
    }
    let log = run.read("x.dag.dagman.out");
    let runs: Vec<&str> = log.split_inclusive("EXITING WITH STATUS 0\n").collect();
    assert_eq!(runs.len(), 2);
    let first_end = runs[0].lines().last().unwrap().get(..17).unwrap();
    assert!(runs[1].lines().all(|line| !line.starts_with(first_end)), "{log}");
}

#[test]
fn resumed_run_does_the_rest_and_appends_to_the_logs() {
    let run = Run::new("TASK a ./say.sh a\nTASK b ./b.sh\nEDGE a b\n");
    run.script("b.sh", "echo b >> ran; [ -f repaired ]");
    assert_eq!(run.run(&["--monitord-hack", "x.dag"]).status.code(), Some(1));
    assert_eq!(run.done(), ["a"]);
    run.write("repaired", "");
    assert_eq!(run.run(&["--monitord-hack", "x.dag"]).status.code(), Some(0));
    assert_eq!(run.read("ran"), "a\nb\nb\n");
    assert_eq!(run.done(), ["a", "a", "b"]);
    let log = run.read("x.dag.dagman.out");
    assert_eq!(log.matches("STARTING UP").count(), 2);
    let ends: Vec<char> = log
        .lines()
        .filter(|l| l.contains("EXITING"))
        .filter_map(|l| l.chars().last())
        .collect();
    assert_eq!(ends, ['1', '0']);
    assert!(run.exists("b.out.001"));
}

#[test]
fn sigterm_ends_tasks_and_keeps_what_is_done() {
    let run = Run::new(
        "TASK quick ./say.sh quick\nTASK slow ./slow.sh\nTASK never ./say.sh never\nEDGE quick slow\nEDGE slow never\n",
    );
    // Both the script and its child ignore the signal, so they must be killed.
    run.script(
        "slow.sh",
        "trap '' TERM; echo begun; sleep 1000 & echo $! > child; mv child pid; wait",
    );
    let child = run.start(&[
        "--jobstate-log",
        "--monitord-hack",
        "--drain-grace",
        "0.2",
        "x.dag",
    ]);
    run.wait_for("pid");
    signal(&child, Signal::SIGTERM);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(last_line(&output.stderr), "ABORT: Workflow aborted");
    assert!(text(&output.stderr).contains("[fatal] Caught signal 15\n[error] Aborting workflow\n"));
    assert!(text(&output.stdout).contains("stat=\"failed\", tasks=3, submitted=2, succeeded=1, failed=0"));
    assert_eq!(run.done(), ["quick"]);
    let jobstate = run.read("jobstate.log");
    assert!(jobstate.contains(" slow EXECUTE ") && !jobstate.contains(" slow JOB_TERMINATED "));
    assert!(jobstate.ends_with("INTERNAL *** PMC_FINISHED 1 ***\n"));
    assert!(run.read("x.dag.dagman.out").ends_with("EXITING WITH STATUS 1\n"));
    assert_eq!(run.read("slow.out.000"), "begun\n");
    let grandchild: i32 = run.read("pid").trim().parse().unwrap();
    let started = Instant::now();
    // Only init can reap it, so this may take a while.
    while is_running(grandchild) {
        assert!(
            started.elapsed() < Duration::from_secs(30),
            "process {grandchild} is still there"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn signal(child: &Child, signal: Signal) {
    kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), signal).unwrap();
}

/// One task that runs until a file `go` exists, and another that waits for a slot.
fn start_one_of_two_tasks() -> (Run, Child) {
    let run = Run::new("TASK first ./first.sh\nTASK second -p -1 ./say.sh second\n");
    run.script("first.sh", "touch begun; while [ ! -e go ]; do sleep 0.01; done");
    let child = run.start(&["--host-cpus", "1", "--monitord-hack", "x.dag"]);
    run.wait_for("begun");
    (run, child)
}

#[test]
fn drain_lets_running_tasks_end_and_starts_no_more() {
    for asked in [Signal::SIGUSR1, Signal::SIGTERM] {
        let (run, child) = start_one_of_two_tasks();
        signal(&child, asked);
        std::thread::sleep(Duration::from_millis(300));
        run.write("go", "");
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(75));
        let stderr = text(&output.stderr);
        assert!(
            stderr.contains(&format!("[fatal] Caught signal {}\n", asked as i32)),
            "{stderr}"
        );
        assert!(
            stderr.ends_with("[error] Workflow drained: the rest is for the next run\n"),
            "{stderr}"
        );
        assert!(
            text(&output.stdout).contains("stat=\"failed\", tasks=2, submitted=1, succeeded=1, failed=0")
        );
        assert_eq!(run.done(), ["first"]);
        assert!(run.read("x.dag.dagman.out").ends_with("EXITING WITH STATUS 1\n"));
        assert!(!run.exists("ran"));
        assert_eq!(run.run(&["x.dag"]).status.code(), Some(0));
        assert_eq!(run.read("ran"), "second\n");
    }
}

#[test]
fn second_signal_ends_a_drain() {
    let (run, child) = start_one_of_two_tasks();
    signal(&child, Signal::SIGUSR1);
    std::thread::sleep(Duration::from_millis(100));
    signal(&child, Signal::SIGTERM);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(last_line(&output.stderr), "ABORT: Workflow aborted");
    assert!(text(&output.stderr).contains("[fatal] Caught signal 15\n[error] Aborting workflow\n"));
    assert_eq!(run.done(), [""; 0]);
}

#[test]
fn drain_ends_at_the_wall_time() {
    let run = Run::new("TASK slow ./slow.sh\n");
    run.script("slow.sh", "touch begun; exec sleep 1000");
    let child = run.start(&["--max-wall-time", "0.03", "x.dag"]);
    run.wait_for("begun");
    signal(&child, Signal::SIGUSR1);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("[fatal] Workflow wall time exceeded!\n"));
}

#[test]
fn drain_after_the_last_task_is_a_success() {
    let run = Run::new("TASK only ./first.sh\n");
    run.script("first.sh", "touch begun; sleep 0.3");
    let child = run.start(&["x.dag"]);
    run.wait_for("begun");
    signal(&child, Signal::SIGUSR1);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(last_line(&output.stderr), "[info] Workflow succeeded");
}

/// Returns whether the process exists and is no zombie.
fn is_running(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')')
        .next()
        .and_then(|rest| rest.trim().chars().next())
        .is_some_and(|state| state != 'Z')
}

#[test]
fn task_ends_at_its_time_limit() {
    let run = Run::new(
        "TASK own -T 0.2 ./slow.sh own\nTASK default ./slow.sh default\n\
         TASK free -T 0 ./free.sh\nTASK polite ./polite.sh\nTASK quick ./say.sh quick\n",
    );
    // The child holds the output open, so it must end, too.
    run.script("slow.sh", "sleep 1000 & echo $! > $1.pid; wait");
    run.script("free.sh", "sleep 0.7");
    run.script("polite.sh", "trap 'exit 3' TERM; sleep 1000 & wait");
    let started = Instant::now();
    let output = run.run(&["--per-task-stdio", "--runtime-limit", "0.4", "-t", "1", "x.dag"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(started.elapsed() < Duration::from_secs(20));
    let stderr = text(&output.stderr);
    for line in [
        "[error] Task own is ended: its limit of 0.2 seconds is over\n",
        "[error] Task default is ended: its limit of 0.4 seconds is over\n",
        "[error] Task own failed with exitcode 15\n",
        "[error] Task default failed with exitcode 15\n",
        "[error] Task polite failed with exitcode 768\n",
    ] {
        assert!(stderr.contains(line), "{stderr}");
    }
    assert_eq!(stderr.matches("is ended").count(), 3);
    let mut done = run.done();
    done.sort();
    assert_eq!(done, ["free", "quick"]);
    assert!(run.read("own.out.000").contains("status=15, "));
    let started = Instant::now();
    for name in ["own.pid", "default.pid"] {
        while is_running(run.read(name).trim().parse().unwrap()) {
            assert!(
                started.elapsed() < Duration::from_secs(30),
                "{name} is still there"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn task_that_ignores_its_limit_is_killed() {
    let run = Run::new("TASK deaf -T 0.1 ./deaf.sh\n");
    run.script("deaf.sh", "trap '' TERM; sleep 1000");
    let output = run.run(&["x.dag"]);
    assert!(text(&output.stderr).contains("[error] Task deaf failed with exitcode 9\n"));
}

#[test]
fn wall_time_ends_a_run() {
    let run = Run::new("TASK slow /bin/sleep 1000\n");
    let output = run.run(&["--max-wall-time", "0.005", "x.dag"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(last_line(&output.stderr), "ABORT: Workflow aborted");
    assert!(text(&output.stderr).contains("[info] Setting max walltime to 0.005000 minutes\n"));
    assert_eq!(run.done(), [""; 0]);
}

#[test]
fn full_disk_marks_nothing_as_done() {
    let dag = "TASK a ./say.sh a\nTASK b ./say.sh b\nEDGE a b\n";
    let run = Run::new(dag);
    let output = run.run(&["-r", "/dev/full", "x.dag"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        last_line(&output.stderr),
        "ABORT: Error writing rescue file /dev/full: No space left on device"
    );
    assert_eq!(run.read("ran"), "a\n");

    let run = Run::new(dag);
    std::os::unix::fs::symlink("/dev/full", run.path().join("jobstate.log")).unwrap();
    let output = run.run(&["--jobstate-log", "x.dag"]);
    assert_eq!(
        last_line(&output.stderr),
        "ABORT: Error writing jobstate log ./jobstate.log: No space left on device"
    );
    assert!(!run.exists("ran"));

    // The record of a task cannot be written, so its output is incomplete.
    let run = Run::new("TASK a /bin/true\n");
    for rank in [1, 2] {
        std::os::unix::fs::symlink("/dev/full", run.path().join(format!("x.dag.out.{rank}"))).unwrap();
    }
    let output = run.run(&["x.dag"]);
    assert_eq!(output.status.code(), Some(1));
    let message = last_line(&output.stderr);
    assert!(
        message.starts_with("ABORT: Worker ") && message.ends_with(": No space left on device"),
        "{message}"
    );
    assert_eq!(run.done(), [""; 0]);
}

#[test]
fn lock_is_held_to_the_end() {
    let run = Run::new("TASK a ./hold.sh\n");
    run.script("hold.sh", "touch running; while [ ! -f go ]; do sleep 0.01; done");
    let first = run.start(&["x.dag"]);
    run.wait_for("running");
    let second = run.run(&["x.dag"]);
    assert_eq!(second.status.code(), Some(1));
    assert_eq!(
        last_line(&second.stderr),
        "ABORT: DAG file is already locked by another process: x.dag: Resource temporarily unavailable"
    );
    run.write("go", "");
    assert_eq!(first.wait_with_output().unwrap().status.code(), Some(0));
    assert_eq!(run.run(&["x.dag"]).status.code(), Some(0));
}

#[test]
fn lock_of_the_original_is_respected() {
    let run = Run::new("TASK a /bin/true\n");
    let file = fs::File::options()
        .read(true)
        .write(true)
        .open(run.path().join("x.dag"))
        .unwrap();
    let lock = nix::libc::flock {
        l_type: nix::libc::F_WRLCK as i16,
        l_whence: nix::libc::SEEK_SET as i16,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    fcntl(&file, FcntlArg::F_SETLK(&lock)).unwrap();
    let output = run.run(&["x.dag"]);
    assert!(last_line(&output.stderr).starts_with("ABORT: DAG file is already locked by another process: "));
    assert_eq!(run.run(&["-n", "x.dag"]).status.code(), Some(0));
}

#[test]
fn missing_program_fails_only_its_task() {
    let run = Run::new("TASK a surely-no-such-program x\nTASK b ./say.sh b\nTASK c ./say.txt\n");
    run.write("say.txt", "no program");
    let output = run.run(&["--per-task-stdio", "x.dag"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        run.read("a.err.000"),
        "Unable to exec command surely-no-such-program for task a: No such file or directory\n"
    );
    assert_eq!(
        run.read("c.err.000"),
        "Unable to exec command ./say.txt for task c: Permission denied\n"
    );
    assert!(
        run.read("a.out.000")
            .contains("status=256, app=\"surely-no-such-program\"")
    );
    assert_eq!(run.done(), ["b"]);
}

#[test]
fn tasks_inherit_no_descriptors_of_the_executor() {
    let run = Run::new("TASK a -f OUT=data.txt ./fds.sh\nTASK b ./fds.sh\n");
    run.script(
        "fds.sh",
        "ls /proc/self/fd | wc -l; [ -z \"$OUT\" ] || echo data > /proc/self/fd/$OUT",
    );
    let output = run.run(&["--per-task-stdio", "--jobstate-log", "x.dag"]);
    assert_eq!(output.status.code(), Some(0));
    // The parent of the tests may have left some open.
    let inherited = Command::new("./fds.sh").current_dir(run.path()).output().unwrap();
    let count = |text: &str| {
        text.lines()
            .next()
            .and_then(|n| n.trim().parse::<u32>().ok())
            .unwrap()
    };
    let inherited = count(&text(&inherited.stdout));
    let plain = count(&run.read("b.out.000"));
    assert!(plain <= inherited, "{plain} instead of {inherited}");
    assert_eq!(count(&run.read("a.out.000")), plain + 1);
    assert_eq!(run.read("data.txt"), "data\n");
}

#[test]
fn long_records_are_written_whole() {
    let name = "n".repeat(150);
    let program = "p".repeat(5000);
    let run = Run::new(&format!("TASK {name} {program}\n"));
    let output = run.run(&["x.dag"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains(&format!("app=\"{program}\", hostname=")));
}

#[test]
fn missing_folder_of_the_rescue_file_is_reported() {
    let run = Run::new("TASK a /bin/true\n");
    let output = run.run(&["-r", "no-such-folder/x.rescue", "x.dag"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        last_line(&output.stderr),
        "ABORT: Unable to open rescue file: no-such-folder/x.rescue: No such file or directory"
    );
}

#[test]
fn launcher_without_mpi_is_refused_once() {
    if cfg!(feature = "mpi") {
        return;
    }
    let run = Run::new(DIAMOND);
    let launched = |rank: &str| {
        let mut command = Command::new(testutils::programs::path("pegasus-mpi-cluster"));
        command.current_dir(run.path()).arg("x.dag");
        command
            .env("OMPI_COMM_WORLD_RANK", rank)
            .env("OMPI_COMM_WORLD_SIZE", "3");
        command.output().unwrap()
    };
    let first = launched("0");
    assert_eq!(first.status.code(), Some(1));
    assert!(
        text(&first.stderr).contains("OMPI_COMM_WORLD_RANK is set"),
        "{}",
        text(&first.stderr)
    );
    let second = launched("1");
    assert_eq!(
        (second.status.code(), text(&second.stderr).as_str()),
        (Some(1), "")
    );
    assert!(!run.exists("x.dag.rescue"));
}

#[test]
fn bad_input_is_reported_with_its_line() {
    let run = Run::new("TASK a ./say.sh a\nEDGE a nowhere\n");
    let output = run.run(&["x.dag"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).ends_with("[x.dag:2] EDGE a nowhere\nABORT: No such task: nowhere\n\n"));
    run.write("x.dag", "TASK a ./say.sh a\n");
    run.write("x.dag.rescue", "DONE a\nDONE b\n");
    let output = run.run(&["x.dag"]);
    assert!(
        text(&output.stderr).ends_with("[x.dag.rescue:2] DONE b\nABORT: Unknown task b in rescue file\n")
    );
    assert!(!run.exists("ran"));
}

#[test]
fn cycle_is_reported_and_the_rest_runs() {
    let run = Run::new(
        "TASK free ./say.sh free\nTASK one ./say.sh 1\nTASK two ./say.sh 2\nEDGE one two\nEDGE two one\n",
    );
    let output = run.run(&["x.dag"]);
    assert_eq!(output.status.code(), Some(1));
    let stderr = text(&output.stderr);
    assert!(
        stderr.contains("\n[x.dag:5] 2 tasks can never run because of a cycle: "),
        "{stderr}"
    );
    assert!(stderr.ends_with("[error] Workflow failed\n"));
    assert_eq!(run.read("ran"), "free\n");
}

#[test]
fn host_script_runs_once_and_its_services_end() {
    let run = Run::new("TASK a /bin/cat ready\n");
    run.script(
        "hs.sh",
        "echo once >> ready; ./service.sh > /dev/null 2>&1 & while [ ! -f pid ]; do sleep 0.01; done",
    );
    run.script("service.sh", "echo $$ > pid.new; mv pid.new pid; exec sleep 1000");
    let output = run.run(&["--host-script", "./hs.sh", "--per-task-stdio", "x.dag"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(run.read("a.out.000").starts_with("once\n[cluster-task "));
    let service: i32 = run.read("pid").trim().parse().unwrap();
    let started = Instant::now();
    while is_running(service) {
        assert!(
            started.elapsed() < Duration::from_secs(30),
            "process {service} is still there"
        );
        std::thread::sleep(Duration::from_millis(5));
    }

    run.script("hs.sh", "echo cannot start >&2; exit 3");
    let output = run.run(&["-s", "--host-script", "./hs.sh", "x.dag"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        last_line(&output.stderr),
        "ABORT: Worker 1: Host script failed with status 768"
    );
    let output = run.run(&["-s", "--host-script", "./none", "x.dag"]);
    let stderr = text(&output.stderr);
    assert!(
        stderr.contains("Unable to exec host script: No such file or directory\n"),
        "{stderr}"
    );
    assert!(
        stderr.ends_with("ABORT: Worker 1: Host script failed with status 256\n"),
        "{stderr}"
    );
}

#[test]
fn only_the_master_appends_forwarded_data() {
    let dag = "TASK a -t 2 -f OUT=deep/er/all.txt ./fwd.sh a\nTASK b -F b.txt=deep/er/all.txt ./left.sh\nTASK c -f OUT=x.dag/no ./fwd.sh c\n";
    let run = Run::new(dag);
    // The first attempt fails, so its data is dropped.
    run.script(
        "fwd.sh",
        "echo \"$1\" > /proc/self/fd/$OUT; [ $1 = c ] || { echo >> attempts; [ $(wc -l < attempts) -eq 2 ]; }",
    );
    run.script("left.sh", "echo b > b.txt");
    let output = run.run(&["x.dag"]);
    assert_eq!(output.status.code(), Some(1));
    let mut lines: Vec<String> = run.read("deep/er/all.txt").lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, ["a", "b"]);
    assert!(!run.exists("b.txt"));
    let stderr = text(&output.stderr);
    assert!(
        stderr.contains("[error] Task c failed due to collective I/O errors\n"),
        "{stderr}"
    );
    let mut done = run.done();
    done.sort();
    assert_eq!(done, ["a", "b"]);
}

#[test]
fn tasks_get_gpus_by_name() {
    let dag = "TASK a -g 1 ./gpus.sh\nTASK b -g 2 ./gpus.sh\nTASK c ./gpus.sh\nEDGE a b\nEDGE b c\n";
    let run = Run::new(dag);
    run.script(
        "gpus.sh",
        "echo $PMC_TASK $CUDA_VISIBLE_DEVICES $ROCR_VISIBLE_DEVICES >> seen",
    );
    let go = |arguments: &[&str]| {
        let mut command = run.command(arguments);
        command
            .env("CUDA_VISIBLE_DEVICES", "5,7")
            .env_remove("ROCR_VISIBLE_DEVICES");
        command.output().unwrap()
    };
    assert!(go(&["x.dag"]).status.success());
    assert_eq!(run.read("seen"), "a 5 0\nb 5,7 0,1\nc 5,7\n");
    // More than the worker has.
    run.write("y.dag", "TASK a -g 3 ./gpus.sh\n");
    let output = go(&["y.dag"]);
    assert_eq!(output.status.code(), Some(1));
    let stderr = text(&output.stderr);
    assert!(
        stderr.contains("No host is capable of running task a"),
        "{stderr}"
    );
    let output = go(&["--host-gpus", "3", "y.dag"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
}
