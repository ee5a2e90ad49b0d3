//! Runs the executor with worker threads as a program.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by a panic")]

mod checkpoints;
mod control;
mod endless;
mod guests;
mod links;
mod memory;
mod output;
mod packed;
mod resuming;
mod stopping;
mod subworkflows;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, fcntl};
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

/// A directory with a DAG and a script that prints its argument.
struct Run {
    directory: TempDir,
}

impl Run {
    fn new(dag: &str) -> Self {
        let run = Self {
            directory: tempfile::tempdir().unwrap(),
        };
        run.write("x.dag", dag);
        run.script(
            "say.sh",
            "echo \"$1 out\"; echo \"$1 err\" >&2; echo \"$1\" >> ran",
        );
        run
    }

    fn path(&self) -> &Path {
        self.directory.path()
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

/// Returns whether the process exists and is no zombie.
fn is_running(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')')
        .next()
        .and_then(|rest| rest.trim().chars().next())
        .is_some_and(|state| state != 'Z')
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
fn more_workers_than_cpus_all_run_at_a_time() {
    let cpus = fs::read_to_string("/proc/cpuinfo").unwrap();
    let workers = cpus.lines().filter(|line| line.starts_with("processor")).count() + 1;
    let dag: String = (0..workers)
        .map(|task| format!("TASK t{task} ./meet.sh {task}\n"))
        .collect();
    let run = Run::new(&dag);
    // Each task waits for all others.
    run.script(
        "meet.sh",
        &format!("touch here.$1; until [ $(ls here.* | wc -l) -eq {workers} ]; do sleep 0.01; done"),
    );
    let output = run.run(&["--workers", &workers.to_string(), "--max-wall-time", "1", "x.dag"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    // With an option, the option counts.
    run.write("y.dag", "TASK t -c 2 /bin/true\n");
    let output = run.run(&["--host-cpus", "1", "y.dag"]);
    assert!(text(&output.stderr).contains("No host is capable of running task t"));
}

#[test]
fn tasks_of_a_category_are_limited() {
    let tasks: String = (0..6)
        .map(|task| format!("TASK t{task} --category one ./alone.sh\n"))
        .collect();
    let run = Run::new(&format!("{tasks}MAXJOBS one 1\n"));
    run.script("alone.sh", "mkdir busy || exit 9; sleep 0.05; rmdir busy");
    let output = run.run(&["--workers", "4", "x.dag"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    run.write("y.dag", &tasks);
    let options = [
        "--workers",
        "4",
        "--max-jobs",
        "other=2",
        "--max-jobs",
        "one=1",
        "y.dag",
    ];
    let output = run.run(&options);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(
        stderr.contains("[warn] --max-jobs: no task has the category other\n"),
        "{stderr}"
    );
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
    assert_eq!(run.done(), ["a", "b"]);
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
fn lock_of_the_original_executor_is_respected() {
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
fn missing_directory_of_the_rescue_file_is_reported() {
    let run = Run::new("TASK a /bin/true\n");
    let output = run.run(&["-r", "no-such-directory/x.rescue", "x.dag"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        last_line(&output.stderr),
        "ABORT: Unable to open rescue file: no-such-directory/x.rescue: No such file or directory"
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
    run.write("x.dag.rescue", "DONE a\nDONE\n");
    let output = run.run(&["x.dag"]);
    assert!(text(&output.stderr).ends_with("[x.dag.rescue:2] DONE\nABORT: Invalid DONE record: DONE\n\n"));
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
    let execute = |arguments: &[&str]| {
        let mut command = run.command(arguments);
        command
            .env("CUDA_VISIBLE_DEVICES", "5,7")
            .env_remove("ROCR_VISIBLE_DEVICES");
        command.output().unwrap()
    };
    assert!(execute(&["x.dag"]).status.success());
    assert_eq!(run.read("seen"), "a 5\nb 5,7\nc 5,7\n");
    // More than the worker has.
    run.write("y.dag", "TASK a -g 3 ./gpus.sh\n");
    let output = execute(&["y.dag"]);
    assert_eq!(output.status.code(), Some(1));
    let stderr = text(&output.stderr);
    assert!(
        stderr.contains("No host is capable of running task a"),
        "{stderr}"
    );
    let output = execute(&["--host-gpus", "3", "y.dag"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
}
