//! Forwarding when the executor is stopped or the disk is full.

#![expect(clippy::unwrap_used, reason = "a test fails by a panic")]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use testutils::launcher::forget_launcher;

/// Bytes that each task forwards.
const RECORD: usize = 8000;

struct Scene {
    folder: TempDir,
    tasks: usize,
}

impl Scene {
    /// Tasks t0, t1, … that each forward a line to `all.txt`, and then run the command `then`.
    fn new(tasks: usize, then: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let lines = (0..tasks).map(|n| format!("TASK t{n} -f OUT=all.txt /bin/sh task.sh t{n}\n"));
        fs::write(folder.path().join("x.dag"), lines.collect::<String>()).unwrap();
        let script = format!("printf '%-{}s\\n' $1 >/proc/self/fd/$OUT\n{then}\n", RECORD - 1);
        fs::write(folder.path().join("task.sh"), script).unwrap();
        Self { folder, tasks }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The executor; `shell` are commands that run before it.
    fn command(&self, shell: &str, arguments: &str) -> Command {
        let program = testutils::programs::path("pegasus-mpi-cluster");
        let mut command = Command::new("/bin/sh");
        command
            .arg("-c")
            .arg(format!("{shell} exec '{program}' --workers 2 {arguments} x.dag"))
            .current_dir(self.folder.path())
            .stdin(Stdio::null());
        forget_launcher(&mut command);
        command
    }

    fn run(&self, shell: &str, arguments: &str) -> Output {
        self.command(shell, arguments).output().unwrap()
    }

    fn start(&self) -> Child {
        let mut command = self.command("", "");
        command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    }

    fn journal(&self) -> PathBuf {
        self.path("x.dag.rescue.journal")
    }

    fn wait_for_journal(&self) {
        let started = Instant::now();
        while !self.journal().exists() {
            assert!(started.elapsed() < Duration::from_secs(30), "no journal appears");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn done(&self) -> BTreeSet<String> {
        let text = fs::read_to_string(self.path("x.dag.rescue")).unwrap();
        let names = text.lines().filter_map(|line| line.strip_prefix("DONE "));
        names.map(str::to_owned).collect()
    }

    /// Names in `all.txt`. Panics if a line is not whole.
    fn forwarded(&self) -> Vec<String> {
        let text = fs::read_to_string(self.path("all.txt")).unwrap_or_default();
        let names = text.split_inclusive('\n').map(|line| {
            assert_eq!(line.len(), RECORD, "a torn line: {line}");
            line.trim().to_owned()
        });
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }

    fn is_complete(&self) {
        let all: BTreeSet<String> = (0..self.tasks).map(|n| format!("t{n}")).collect();
        assert_eq!(self.done(), all);
        assert_eq!(self.forwarded(), all.into_iter().collect::<Vec<_>>());
        assert!(!self.journal().exists());
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn journal_exists_only_during_the_run() {
    let scene = Scene::new(3, "sleep 0.3");
    let mut running = scene.start();
    scene.wait_for_journal();
    let mode = fs::metadata(scene.journal()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(running.wait().unwrap().success());
    scene.is_complete();
}

#[test]
fn option_disables_the_journal() {
    let scene = Scene::new(20, "test ! -e x.dag.rescue.journal");
    let output = scene.run("", "--no-forward-journal");
    assert!(output.status.success(), "{}", stderr(&output));
    scene.is_complete();
}

#[test]
fn sigterm_is_an_orderly_end() {
    let scene = Scene::new(40, "sleep 0.05");
    let mut running = scene.start();
    scene.wait_for_journal();
    kill(Pid::from_raw(running.id() as i32), Signal::SIGTERM).unwrap();
    running.wait().unwrap();
    assert!(!scene.journal().exists());
    assert_eq!(
        scene.forwarded(),
        scene.done().into_iter().collect::<Vec<_>>(),
        "what is done, and nothing else"
    );
    let output = scene.run("", "");
    assert!(output.status.success(), "{}", stderr(&output));
    scene.is_complete();
}

#[test]
fn next_run_repairs_the_effects_of_sigkill() {
    let scene = Scene::new(40, "sleep 0.0$(($$ % 5))");
    for pause in [0, 3, 17, 40] {
        let mut running = scene.start();
        scene.wait_for_journal();
        std::thread::sleep(Duration::from_millis(pause));
        running.kill().unwrap();
        running.wait().unwrap();
    }
    let output = scene.run("", "");
    assert!(output.status.success(), "{}", stderr(&output));
    scene.is_complete();
}

#[test]
fn full_disk_fails_tasks_and_leaves_no_partial_data() {
    let scene = Scene::new(12, "");
    // A limit of the file size acts like a full disk: 64 blocks of 512 bytes.
    let output = scene.run("trap '' XFSZ; ulimit -f 64;", "");
    let log = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{log}");
    assert!(
        log.contains("Unable to write the forward journal: File too large"),
        "{log}"
    );
    assert!(log.contains("failed due to collective I/O errors"), "{log}");
    let done = scene.done();
    assert!(!done.is_empty() && done.len() < 12, "{done:?}");
    assert_eq!(scene.forwarded(), done.into_iter().collect::<Vec<_>>());

    // The target itself is full.
    let output = scene.run("trap '' XFSZ; ulimit -f 64;", "--no-forward-journal");
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("Error writing 8000 bytes to all.txt for task t"));
    assert_eq!(scene.forwarded(), scene.done().into_iter().collect::<Vec<_>>());

    let output = scene.run("", "");
    assert!(output.status.success(), "{}", stderr(&output));
    scene.is_complete();
}

/// More data than the executor may have memory: what fits into 1 GiB of addresses with all threads, and not
/// 64 MiB of stacks and heaps.
#[test]
fn large_data_needs_no_memory() {
    const BYTES: u64 = 600 << 20;
    let scene = Scene::new(0, "");
    let dag = format!(
        "TASK a -f OUT=all.bin -f LOG=log.txt /bin/sh -c 'echo >&$LOG; head -c {BYTES} /dev/zero >&$OUT; echo end >&$OUT'\n"
    );
    fs::write(scene.path("x.dag"), dag).unwrap();
    let output = scene.run("ulimit -v 600000;", "");
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(fs::metadata(scene.path("all.bin")).unwrap().len(), BYTES + 4);
    assert_eq!(fs::read(scene.path("log.txt")).unwrap(), b"\n");
    let mut names: Vec<_> = fs::read_dir(scene.folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    names.sort();
    let expected = [
        "all.bin",
        "log.txt",
        "task.sh",
        "x.dag",
        "x.dag.rescue",
        "x.dag.resource",
    ];
    assert_eq!(names, expected, "no other files are left");
}

#[test]
fn a_task_that_forwards_too_much_fails_and_the_run_goes_on() {
    let scene = Scene::new(0, "");
    let dag = "TASK endless -f OUT=all.txt /bin/sh -c 'yes >&$OUT'\nTASK other -f OUT=all.txt /bin/sh -c 'echo other >&$OUT'\n";
    fs::write(scene.path("x.dag"), dag).unwrap();
    let output = scene.run("", "--forward-limit 3");
    let log = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{log}");
    assert!(
        log.contains("Task endless: it has forwarded more than 3 MiB"),
        "{log}"
    );
    assert_eq!(scene.done(), BTreeSet::from(["other".to_owned()]));
    assert_eq!(fs::read(scene.path("all.txt")).unwrap(), b"other\n");
}

#[test]
fn no_room_for_large_data_fails_the_task() {
    let scene = Scene::new(0, "");
    let dag = "TASK large -f OUT=all.txt /bin/sh -c 'head -c 3000000 /dev/zero >&$OUT'\nTASK other -f OUT=all.txt /bin/sh -c 'echo other >&$OUT'\n";
    fs::write(scene.path("x.dag"), dag).unwrap();
    // A limit of the file size acts like a full disk: 1 MB.
    let output = scene.run("trap '' XFSZ; ulimit -f 2000;", "");
    let log = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{log}");
    assert!(
        log.contains("Task large: Unable to store forwarded data in"),
        "{log}"
    );
    assert_eq!(scene.done(), BTreeSet::from(["other".to_owned()]));
    assert_eq!(fs::read(scene.path("all.txt")).unwrap(), b"other\n");
}
