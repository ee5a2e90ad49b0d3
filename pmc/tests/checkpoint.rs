//! `pmc checkpoint`, and the examples that call it: tasks that go on where an earlier attempt has saved its
//! state.

#![expect(clippy::unwrap_used, reason = "a test that fails may panic")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pmc_checkpoint::{FileRecord, Use};

/// A directory with a DAG of one task.
struct Run {
    dir: tempfile::TempDir,
}

impl Run {
    fn new(dag: &str) -> Self {
        let run = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        fs::write(run.path("w.dag"), dag).unwrap();
        run
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn script(&self, text: &str) {
        let path = self.path("task.sh");
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn command(&self, program: &str) -> Command {
        let programs = testutils::programs::directory();
        let path = std::env::var("PATH").unwrap();
        let mut command = Command::new(programs.join(program));
        command
            .env("PATH", format!("{}:{path}", programs.display()))
            .env_remove("PMC_NODE")
            .current_dir(self.dir.path());
        command
    }

    fn start(&self) -> Child {
        self.command("pegasus-mpi-cluster")
            .args(["--workers", "1", "--per-task-stdio", "w.dag"])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    fn run(&self) -> (Option<i32>, String) {
        let output = self.start().wait_with_output().unwrap();
        (output.status.code(), text(&output.stderr))
    }

    fn checkpoint(&self, words: &[&str]) -> Output {
        self.command("pmc")
            .arg("checkpoint")
            .args(words)
            .output()
            .unwrap()
    }

    fn records(&self) -> Vec<FileRecord> {
        let text = fs::read(self.path("w.dag.checkpoints.jsonl")).unwrap_or_default();
        let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        lines.map(|line| FileRecord::parse(line).unwrap()).collect()
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Waits until something is so.
fn wait(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Kills the processes of a task: those that run in this directory and have the path of its script among
/// their words.
fn kill_task(script: &Path, directory: &Path) {
    let directory = directory.canonicalize().unwrap();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let words = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let mut words = words.split(|byte| *byte == 0);
        let is_it = words.any(|word| word == script.as_os_str().as_encoded_bytes())
            && fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd == directory);
        let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
        if let Some(pid) = pid.filter(|_| is_it) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
}

/// The examples in shell and Python: killed, they go on, and have the right sum.
#[test]
fn an_example_that_is_killed_goes_on() {
    for (name, shell) in [("sum.sh", "/bin/sh"), ("sum.py", "python3")] {
        let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/checkpoint");
        let run = Run::new("");
        let script = run.path(name);
        fs::copy(examples.join(name), &script).unwrap();
        fs::write(
            run.path("w.dag"),
            format!("TASK a -t 3 {shell} {} 60\n", script.display()),
        )
        .unwrap();
        let child = run.start();
        for count in [1, 4] {
            let is_complete = |record: &&FileRecord| record.complete;
            wait("a checkpoint", || {
                run.records().iter().filter(is_complete).count() >= count
            });
            kill_task(&script, run.dir.path());
        }
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let last = ["a.out.002", "a.out.001"].iter().map(|name| run.read(name));
        let all: String = last.collect();
        assert!(all.contains("The sum is 1830\n"), "{name}: {all}");
        // It has read what it went on from, and did no step twice but those after it.
        let records = run.records();
        let read = records.iter().filter(|record| record.usage == Use::Read).count();
        assert_eq!(read, 2, "{records:?}");
        assert!(!run.path("w.dag.checkpoints").exists());
    }
}

/// `TCS_IOLOG 0`, as variable or in a file: what is saved is kept, without statistics.
#[test]
fn there_are_no_statistics_if_nobody_wants_them() {
    for (variable, value) in [("TCS_IOLOG", "0"), ("PMC_CHECKPOINT_CONF", "tcsiod.conf")] {
        let run = Run::new("TASK a ./task.sh\n");
        run.script("pmc checkpoint put a task.sh || exit 1; exit 3");
        fs::write(run.path("tcsiod.conf"), "TCS_IOLOG 0\n").unwrap();
        let mut command = run.command("pegasus-mpi-cluster");
        command
            .args(["--workers", "1", "w.dag"])
            .env(variable, value)
            .stderr(Stdio::null());
        assert_eq!(command.output().unwrap().status.code(), Some(1));
        assert!(!run.path("w.dag.checkpoints.jsonl").exists());
        let listed = text(&run.checkpoint(&["ls", "."]).stdout);
        assert!(listed.contains("complete"), "{listed}");
    }
}

#[test]
fn files_of_one_call_are_one_series() {
    let run = Run::new("TASK a ./task.sh\n");
    run.script(
        "echo one >a; echo two >b
pmc checkpoint put a a b b && pmc checkpoint put a - b b <b || exit 1
pmc checkpoint put 'a b' a; echo $? >codes
pmc checkpoint put a missing; echo $? >>codes
pmc checkpoint get a; echo $? >>codes
pmc checkpoint drain; echo $? >>codes
pmc checkpoint ls --json . >list
exit 3",
    );
    assert_eq!(run.run().0, Some(1));
    // No prefix; no such file; nothing was saved by an earlier attempt; no drain.
    assert_eq!(run.read("codes"), "2\n4\n1\n1\n");
    let list: serde_json::Value = serde_json::from_str(&run.read("list")).unwrap();
    let rows: Vec<_> = list
        .as_array()
        .unwrap()
        .iter()
        .map(|row| {
            (
                row["series"].as_u64().unwrap(),
                row["state"].as_str().unwrap(),
                row["files"].as_u64().unwrap(),
            )
        })
        .collect();
    assert_eq!(rows, [(1, "complete", 2), (2, "complete", 2)]);
    // The next run of the task gets both.
    run.script("pmc checkpoint get a x && pmc checkpoint get b - >y && cat x y >both");
    assert_eq!(run.run().0, Some(0));
    assert_eq!(run.read("both"), "two\ntwo\n");
    assert!(!run.path("w.dag.checkpoints").exists());
}

/// A task that cannot go on from what it has saved.
#[test]
fn what_a_task_fails_with_is_not_given_again() {
    let run = Run::new("TASK a -t 5 ./task.sh\n");
    run.script(
        "pmc checkpoint get n n && { cat n >>given; exit 7; }
[ -e given ] && exit 0
for i in 1 2 3; do echo $i >n; pmc checkpoint put n n; done
exit 5",
    );
    let (code, stderr) = run.run();
    assert_eq!(code, Some(0), "{stderr}");
    assert_eq!(run.read("given"), "3\n2\n");
}

#[test]
fn damaged_checkpoints_are_found() {
    let run = Run::new("TASK a ./task.sh\n");
    run.script("for i in 1 2 3; do echo $i >n; pmc checkpoint put n n; done; exit 5");
    assert_eq!(run.run().0, Some(1));
    let file = |series: u64| run.path(&format!("w.dag.checkpoints/a/{series}/n.0"));
    assert!(!file(1).exists(), "two are kept");
    assert_eq!(run.checkpoint(&["verify"]).status.code(), Some(0));
    fs::write(file(3), "x\n").unwrap();
    let verified = run.checkpoint(&["verify"]);
    assert_eq!(verified.status.code(), Some(1));
    let said = "pmc: checkpoint 3 of a is not used any more: its file n.0 is damaged\n";
    assert_eq!(text(&verified.stderr), said);
    run.script("pmc checkpoint get n got");
    assert_eq!(run.run().0, Some(0));
    assert_eq!(run.read("got"), "2\n");
}

/// A file that cannot be written as a whole never counts, and the task can go on.
#[test]
fn a_file_without_room_does_not_count() {
    let run = Run::new("TASK a ./task.sh\n");
    run.script(
        "echo 1 >n; pmc checkpoint put n n
head -c 4000000 /dev/zero >big
(trap '' XFSZ; ulimit -f 1000; pmc checkpoint put n big 2>message; echo $? >code)
pmc checkpoint ls --json . >list
exit 3",
    );
    assert_eq!(run.run().0, Some(1));
    assert_eq!(run.read("code"), "4\n");
    let message = run.read("message");
    assert!(
        message.starts_with("pmc: the checkpoint n was not saved\n"),
        "{message}"
    );
    assert_eq!(message.lines().count(), 2, "{message}");
    let list: serde_json::Value = serde_json::from_str(&run.read("list")).unwrap();
    let states: Vec<_> = list
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["state"].as_str().unwrap())
        .collect();
    assert_eq!(states, ["complete", "incomplete"]);
    run.script("pmc checkpoint get n - >got");
    assert_eq!(run.run().0, Some(0));
    assert_eq!(run.read("got"), "1\n");
}

#[test]
fn outside_of_a_run_there_is_one_message() {
    let run = Run::new("TASK a ./task.sh\n");
    for words in [&["put", "a", "w.dag"][..], &["get", "a"], &["due"], &["drain"]] {
        let output = run.checkpoint(words);
        assert_eq!(output.status.code(), Some(4));
        assert_eq!(
            text(&output.stderr),
            "pmc: this is no task of a run: PMC_NODE is not set\n"
        );
    }
    let recovered = run.checkpoint(&["recover"]);
    assert_eq!(
        (recovered.status.code(), text(&recovered.stdout)),
        (Some(0), String::new())
    );
    assert_eq!(
        text(&run.checkpoint(&["ls"]).stdout),
        "No task has a checkpoint.\n"
    );
    run.script("echo 1 >n; pmc checkpoint put n n; pmc checkpoint rm .; echo $? >code; exit 5");
    assert_eq!(run.run().0, Some(1));
    assert_eq!(run.read("code"), "4\n");
    assert_eq!(run.checkpoint(&["rm", ".", "b"]).status.code(), Some(1));
    assert_eq!(run.checkpoint(&["rm", ".", "a"]).status.code(), Some(0));
    assert_eq!(run.checkpoint(&["rm", "."]).status.code(), Some(0));
    assert!(!run.path("w.dag.checkpoints").exists());
}

#[test]
fn a_drain_says_that_a_task_is_to_save() {
    let run = Run::new("TASK a ./task.sh\n");
    run.script(
        "pmc checkpoint drain; echo $? >>drains
[ -e begun ] && exit 0
echo 1 >n; pmc checkpoint put n n; touch begun
i=0; while [ $i -lt 300 ]; do pmc checkpoint drain && break; sleep 0.1; i=$((i + 1)); done
pmc checkpoint due; echo $? >due
pmc checkpoint put n n; pmc checkpoint due; echo $? >>due
exit 3",
    );
    let child = run.start();
    wait("the task", || run.path("begun").exists());
    kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), Signal::SIGUSR1).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_ne!(output.status.code(), Some(0), "{}", text(&output.stderr));
    // Once, and not again when it has saved.
    assert_eq!(run.read("due"), "0\n1\n");
    // The next run does not drain.
    let (code, stderr) = run.run();
    assert_eq!(code, Some(0), "{stderr}");
    assert_eq!(run.read("drains"), "1\n1\n");
}

/// Steps of a chain of numbers; each is saved. `log` has where each attempt begins, and what was saved.
const CHAIN: &str = "x=1 n=0
if pmc checkpoint get chain chain; then read -r n x <chain; fi
echo \"begin $n\" >>log
while [ $n -lt 40 ]; do
    n=$((n + 1)) x=$(((x * 1103515245 + 12345) % 2147483648))
    echo \"$n $x\" >chain
    pmc checkpoint put chain chain && echo \"saved $n\" >>log
    sleep 0.0$((x % 5))
done
echo $x >result";

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    KillTask,
    KillExecutor,
    Flip,
    Cut,
    LoseSidecar,
}

/// The files of the newest series that is complete on the disk, without and with ending.
fn newest(run: &Run) -> Option<(PathBuf, PathBuf)> {
    let entries = fs::read_dir(run.path("w.dag.checkpoints/a")).ok()?;
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse::<u64>().ok();
    let is_whole = |series: &u64| {
        run.path(&format!("w.dag.checkpoints/a/{series}/chain.0.json"))
            .exists()
    };
    let series = entries.flatten().filter_map(number).filter(is_whole).max()?;
    let file = run.path(&format!("w.dag.checkpoints/a/{series}/chain.0"));
    let sidecar = file.with_file_name("chain.0.json");
    Some((file, sidecar))
}

/// Breaks something. Returns whether the newest series is lost.
fn inflict(fault: Fault, run: &Run, child: &mut Child, random: &mut testutils::Random) -> bool {
    if fault == Fault::KillTask {
        kill_task(Path::new("./task.sh"), run.dir.path());
        return false;
    }
    child.kill().unwrap();
    child.wait().unwrap();
    kill_task(Path::new("./task.sh"), run.dir.path());
    let Some((file, sidecar)) = newest(run).filter(|_| fault != Fault::KillExecutor) else {
        return false;
    };
    let mut bytes = fs::read(&file).unwrap();
    let at = random.index(bytes.len());
    match fault {
        Fault::Flip => bytes[at] ^= 1 << random.below(8),
        Fault::Cut => bytes.truncate(at),
        _ => fs::remove_file(sidecar).unwrap(),
    }
    fs::write(file, bytes).unwrap();
    true
}

/// Random faults: the result is right, and no attempt begins earlier than it must. `PMC_CHECKPOINT_ROUNDS` is
/// the number of rounds.
#[test]
fn no_fault_loses_what_was_saved() {
    let rounds = std::env::var("PMC_CHECKPOINT_ROUNDS").map_or(4, |rounds| rounds.parse().unwrap());
    let mut expected = 1_u64;
    (0..40).for_each(|_| expected = (expected * 1_103_515_245 + 12_345) % 2_147_483_648);
    for seed in 1..=rounds {
        let mut random = testutils::Random(seed);
        let run = Run::new("TASK a -t 99 ./task.sh\n");
        run.script(CHAIN);
        let mut child = run.start();
        let mut said = Vec::new();
        let mut lost = Vec::new();
        for _ in 0..random.below(5) + 2 {
            std::thread::sleep(Duration::from_millis(50 + random.below(900)));
            if child.try_wait().unwrap().is_some() {
                break;
            }
            let fault = random.pick(&[
                Fault::KillTask,
                Fault::KillTask,
                Fault::KillExecutor,
                Fault::Flip,
                Fault::Cut,
                Fault::LoseSidecar,
            ]);
            let is_lost = inflict(fault, &run, &mut child, &mut random);
            if is_lost {
                lost.push(run.read("log").lines().count());
            }
            said.push(fault);
            if fault != Fault::KillTask {
                child = run.start();
            }
        }
        let output = child.wait_with_output().unwrap();
        let context = format!(
            "seed {seed}, {said:?}: {}\n{}",
            text(&output.stderr),
            run.read("log")
        );
        assert_eq!(output.status.code(), Some(0), "{context}");
        assert_eq!(run.read("result"), format!("{expected}\n"), "{context}");
        assert!(!run.path("w.dag.checkpoints").exists(), "{context}");
        check_log(&run.read("log"), &lost, &context);
    }
}

/// Checks that each attempt begins where the last series that is left was saved, or later: two are kept, and
/// each damage takes the newest. `lost` has the number of lines at each damage.
fn check_log(log: &str, lost: &[usize], context: &str) {
    let mut kept: Vec<u64> = Vec::new();
    for (at, line) in log.lines().enumerate() {
        for _ in lost.iter().filter(|lines| **lines == at) {
            kept.pop();
        }
        let number: u64 = line.split(' ').nth(1).unwrap().parse().unwrap();
        if line.starts_with("saved") {
            kept.push(number);
            kept.drain(..kept.len().saturating_sub(2));
        } else {
            let least = kept.last().copied().unwrap_or(0);
            assert!(
                number >= least,
                "line {at} begins at {number}, not {least}: {context}"
            );
        }
    }
}
