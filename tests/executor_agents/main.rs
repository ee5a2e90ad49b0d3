//! Runs in agents: nodes that come late, leave, are killed, stopped and lost, and masters that die.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by a panic")]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use testutils::launcher::forget_launcher;

mod answers;
mod guests;
mod hostile;
mod hosts;
mod losses;
mod orphans;
mod signals;
mod start;

/// A run that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(90);

/// A task: it notes when it begins and ends.
const TASK: &str = "#!/bin/sh
echo \"begin $1 $(date +%s%N)\" >> log
sleep $2
echo \"end $1 $(date +%s%N)\" >> log
";

struct Scene(TempDir);

impl Scene {
    /// A folder with a DAG of tasks that sleep.
    fn new(tasks: usize, seconds: &str) -> Self {
        let scene = Self(tempfile::tempdir().unwrap());
        fs::write(scene.path("task.sh"), TASK).unwrap();
        fs::set_permissions(scene.path("task.sh"), fs::Permissions::from_mode(0o755)).unwrap();
        let lines = (0..tasks).map(|n| format!("TASK t{n} ./task.sh t{n} {seconds}\n"));
        fs::write(scene.path("x.dag"), lines.collect::<String>()).unwrap();
        scene
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(testutils::programs::path("pegasus-mpi-cluster"));
        forget_launcher(&mut command);
        command
            .args(words)
            .current_dir(self.0.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Starts a master with agents on this machine, with one slot each.
    fn start(&self, agents: &str, more: &[&str]) -> Run {
        let mut words = vec!["--agents", agents, "--slots", "1", "--agent-timeout", "3"];
        words.extend(more);
        words.push("x.dag");
        Run::new(self.command(&words))
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// Waits until the log has this number of lines that begin so.
    fn wait_for(&self, start: &str, lines: usize) {
        let begun = Instant::now();
        while self.log().lines().filter(|line| line.starts_with(start)).count() < lines {
            assert!(begun.elapsed() < PATIENCE, "only {}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Checks that each task has ended and that no attempts of one task overlapped. Returns how often tasks
    /// began, by name.
    fn begins(&self, tasks: usize) -> BTreeMap<String, usize> {
        let mut begins = BTreeMap::new();
        let mut ended = BTreeMap::new();
        for line in self.log().lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let [what, task, _] = words[..] else {
                panic!("{line}")
            };
            match what {
                "begin" => *begins.entry(task.to_owned()).or_insert(0) += 1,
                _ => *ended.entry(task.to_owned()).or_insert(0) += 1,
            }
        }
        assert_eq!(ended.len(), tasks, "{}", self.log());
        assert!(ended.values().all(|times| *times == 1), "{}", self.log());
        begins
    }
}

/// A running master. Dropping it kills it and its agents.
struct Run {
    child: Option<Child>,
    pid: Pid,
}

impl Run {
    fn new(mut command: Command) -> Self {
        let child = command.spawn().unwrap();
        let pid = Pid::from_raw(child.id().cast_signed());
        Self {
            child: Some(child),
            pid,
        }
    }

    /// Guards and agents.
    fn agents(&self) -> Vec<(Pid, Pid)> {
        let guards = children(self.pid);
        let agents = guards
            .into_iter()
            .filter_map(|guard| Some((guard, *children(guard).first()?)));
        agents.collect()
    }

    fn signal(&self, signal: Signal) {
        kill(self.pid, signal).unwrap();
    }

    fn wait(mut self) -> (i32, String) {
        let mut child = self.child.take().unwrap();
        let begun = Instant::now();
        while child.try_wait().unwrap().is_none() {
            if begun.elapsed() > PATIENCE {
                let _ = child.kill();
                panic!("the run hangs");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        result(&child.wait_with_output().unwrap())
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn result(output: &Output) -> (i32, String) {
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code().unwrap_or(-1), stderr)
}

fn children(pid: Pid) -> Vec<Pid> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let lists: Vec<String> = lists.collect();
    let numbers = lists.iter().flat_map(|list| list.split_whitespace());
    numbers
        .map(|number| Pid::from_raw(number.parse().unwrap()))
        .collect()
}

fn wait_for_file(path: &Path) {
    let begun = Instant::now();
    while !path.exists() {
        assert!(begun.elapsed() < PATIENCE, "{} is missing", path.display());
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn tasks_of_a_killed_agent_run_elsewhere() {
    let scene = Scene::new(6, "1");
    let run = scene.start("2", &["--launch", "local", "--jobstate-log"]);
    scene.wait_for("begin", 2);
    let (_, agent) = run.agents()[0];
    kill(agent, Signal::SIGKILL).unwrap();
    let (code, stderr) = run.wait();
    assert_eq!(code, 0, "{stderr}");
    let begins = scene.begins(6);
    assert_eq!(begins.values().sum::<usize>(), 7, "{}", scene.log());
    assert!(stderr.contains("was lost with worker"), "{stderr}");
    for file in ["x.dag.endpoint", "x.dag.agents"] {
        assert!(!scene.path(file).exists(), "{file}");
    }
}

#[test]
fn an_agent_starts_again_although_its_program_was_replaced() {
    let scene = Scene::new(2, "1");
    let program = scene.path("executor");
    fs::copy(testutils::programs::path("pegasus-mpi-cluster"), &program).unwrap();
    let mut command = Command::new(&program);
    forget_launcher(&mut command);
    command
        .args(["--agents", "1", "--launch", "local", "--slots", "1", "x.dag"])
        .current_dir(scene.0.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let run = Run::new(command);
    scene.wait_for("begin", 1);
    fs::remove_file(&program).unwrap();
    fs::write(&program, "#!/bin/sh\nexit 9\n").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let (_, agent) = run.agents()[0];
    kill(agent, Signal::SIGKILL).unwrap();
    let (code, stderr) = run.wait();
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(scene.begins(2).values().sum::<usize>(), 3, "{}", scene.log());
}

/// The agent has no guard any more: it ends its tasks in order.
#[test]
fn tasks_of_a_killed_guard_run_elsewhere() {
    let scene = Scene::new(4, "1");
    let run = scene.start("2", &["--launch", "local"]);
    scene.wait_for("begin", 2);
    kill(run.agents()[1].0, Signal::SIGKILL).unwrap();
    let (code, stderr) = run.wait();
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(scene.begins(4).values().sum::<usize>(), 5, "{}", scene.log());
}

#[test]
fn a_stopped_agent_loses_its_tasks_after_its_lease_only() {
    for (seconds, sleep, begins) in [(1, "3", 2), (7, "6", 3)] {
        let scene = Scene::new(2, sleep);
        let run = scene.start("2", &["--launch", "local"]);
        scene.wait_for("begin", 2);
        let (_, agent) = run.agents()[0];
        kill(agent, Signal::SIGSTOP).unwrap();
        std::thread::sleep(Duration::from_secs(seconds));
        // After its lease, the guard has killed it.
        let _ = kill(agent, Signal::SIGCONT);
        let (code, stderr) = run.wait();
        assert_eq!(code, 0, "{stderr}");
        assert_eq!(scene.begins(2).values().sum::<usize>(), begins, "{}", scene.log());
    }
}

/// It counts all agents as lost, and they join again before their workers register.
#[test]
fn a_master_that_was_stopped_takes_its_agents_back() {
    let scene = Scene::new(2, "5");
    let run = scene.start("2", &["--launch", "local"]);
    scene.wait_for("begin", 2);
    run.signal(Signal::SIGSTOP);
    std::thread::sleep(Duration::from_secs(7));
    run.signal(Signal::SIGCONT);
    let (code, stderr) = run.wait();
    assert_eq!(code, 0, "{stderr}");
    scene.begins(2);
}

#[test]
fn the_next_master_takes_over_what_runs() {
    let scene = Scene::new(6, "4");
    let run = scene.start("2", &["--launch", "local", "--jobstate-log"]);
    scene.wait_for("begin", 2);
    // Dropping a run kills its master.
    drop(run);
    let (code, stderr) = result(&scene.command(&["x.dag"]).output().unwrap());
    assert_eq!(code, 1, "{stderr}");
    assert!(stderr.contains("may still run tasks of x.dag"), "{stderr}");
    // Results that come meanwhile are kept.
    scene.wait_for("end", 2);
    let run = scene.start("2", &["--launch", "local", "--jobstate-log"]);
    scene.wait_for("begin", 4);
    drop(run);
    let (code, stderr) = scene.start("2", &["--launch", "local", "--jobstate-log"]).wait();
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(scene.begins(6).values().sum::<usize>(), 6, "{}", scene.log());
    let rescue = fs::read_to_string(scene.path("x.dag.rescue")).unwrap();
    let done = rescue.lines().filter(|line| line.starts_with("DONE "));
    assert_eq!(done.count(), 6, "{rescue}");
    // What goes on is not lost.
    let status = scene.pmc(&["status", "."]);
    assert!(status.starts_with("x succeeded after "), "{status}");
    assert!(!status.contains("  lost "), "{status}");
}

/// An agent of the dead master does not come back: its task starts again, after its lease.
#[test]
fn the_next_master_waits_for_agents_that_may_run_tasks() {
    let scene = Scene::new(2, "2");
    let run = scene.start("2", &["--launch", "local"]);
    scene.wait_for("begin", 2);
    let (guard, agent) = run.agents()[0];
    drop(run);
    // Guards do not know their agents any more, so nothing starts again.
    kill(guard, Signal::SIGSTOP).unwrap();
    kill(agent, Signal::SIGKILL).unwrap();
    let run = scene.start("1", &["--launch", "local"]);
    let (code, stderr) = run.wait();
    let _ = kill(guard, Signal::SIGKILL);
    assert_eq!(code, 0, "{stderr}");
    assert!(stderr.contains("has not come back"), "{stderr}");
}

#[test]
fn an_agent_that_comes_late_takes_part_and_one_that_leaves_keeps_its_task() {
    let scene = Scene::new(4, "2");
    let run = scene.start("2", &[]);
    wait_for_file(&scene.path("x.dag.endpoint"));
    let endpoint = scene.path("x.dag.endpoint");
    let asked = wait_until_answered(&scene);
    assert!(asked.contains("the run waits for agents"), "{asked}");
    let first = Run::new(scene.command(&["--agent", endpoint.to_str().unwrap()]));
    scene.wait_for("begin", 1);
    let second = Run::new(scene.command(&["--agent", endpoint.to_str().unwrap()]));
    scene.wait_for("begin", 2);
    first.signal(Signal::SIGTERM);
    let (code, stderr) = first.wait();
    assert_eq!(code, 0, "{stderr}");
    let (code, stderr) = run.wait();
    assert_eq!(code, 0, "{stderr}");
    let endpoint = endpoint.canonicalize().unwrap_or(endpoint);
    let invitation = format!(
        "[info] Waiting for 2 agents, as there is no --launch. To start one on a host: {} --agent {}\n",
        testutils::programs::path("pegasus-mpi-cluster"),
        endpoint.display()
    );
    assert_eq!(stderr.matches(&invitation).count(), 1, "{stderr}");
    assert_eq!(scene.begins(4).values().sum::<usize>(), 4, "{}", scene.log());
    assert_eq!(second.wait().0, 0);
}

/// Asks `pmc why` about the first task until the run answers.
fn wait_until_answered(scene: &Scene) -> String {
    let begun = Instant::now();
    loop {
        let mut command = Command::new(testutils::programs::path("pmc"));
        let output = command
            .args(["why", "t0", "."])
            .current_dir(scene.0.path())
            .output();
        let output = output.unwrap();
        if output.status.success() {
            return String::from_utf8(output.stdout).unwrap();
        }
        assert!(begun.elapsed() < PATIENCE, "{output:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_task_that_brings_down_agents_fails() {
    let scene = Scene::new(0, "0");
    // The parent of the task is the agent.
    fs::write(
        scene.path("x.dag"),
        "TASK bad /bin/sh -c \"kill -9 $PPID; sleep 60\"\n",
    )
    .unwrap();
    let run = scene.start("1", &["--launch", "local", "--crash-limit", "2", "--tries", "5"]);
    let (code, stderr) = run.wait();
    assert_eq!(code, 1, "{stderr}");
    assert!(
        stderr.contains("Task bad failed: 2 of its workers were lost"),
        "{stderr}"
    );
}

/// A master that is killed after its last task leaves nothing to do, and its agents have ended.
#[test]
fn a_run_with_nothing_left_needs_no_agents() {
    let scene = Scene::new(2, "0");
    let (code, stderr) = scene.start("1", &["--launch", "local"]).wait();
    assert_eq!(code, 0, "{stderr}");
    let (code, stderr) = scene.start("3", &["--jobstate-log"]).wait();
    assert_eq!(code, 0, "{stderr}");
    let log = fs::read_to_string(scene.path("jobstate.log")).unwrap();
    assert!(log.contains("PMC_FINISHED 0"), "{log}");
    assert_eq!(scene.begins(2).values().sum::<usize>(), 2);
    for file in ["x.dag.endpoint", "x.dag.agents"] {
        assert!(!scene.path(file).exists(), "{file}");
    }
}

/// All nodes are gone, and none comes.
#[test]
fn a_run_without_nodes_ends_in_order() {
    let scene = Scene::new(3, "1");
    let run = scene.start("1", &["--join-timeout", "2", "--jobstate-log"]);
    wait_for_file(&scene.path("x.dag.endpoint"));
    let agent = Run::new(scene.command(&["--agent", "x.dag.endpoint", "--host-name", "n7"]));
    scene.wait_for("begin", 2);
    // The guard is the parent of the agent: neither comes again.
    kill(agent.pid, Signal::SIGKILL).unwrap();
    let (code, stderr) = run.wait();
    assert_eq!(code, 76, "{stderr}");
    let last = stderr.lines().last().unwrap();
    assert!(last.starts_with("ABORT: Task t"), "{last}");
    assert!(
        last.contains(" s (--join-timeout). Hosts that are gone: n7. Tasks that are left: 2."),
        "{last}"
    );
    let rescue = fs::read_to_string(scene.path("x.dag.rescue")).unwrap();
    assert!(rescue.contains("DONE t0"), "{rescue}");
    let log = fs::read_to_string(scene.path("jobstate.log")).unwrap();
    assert!(log.contains("PMC_FINISHED 1"), "{log}");
    let (code, stderr) = scene.start("1", &["--launch", "local"]).wait();
    assert_eq!(code, 0, "{stderr}");
}

/// Stand-ins for launchers that start a command on each node of a batch job. The nodes do not see the
/// endpoint file: they have its value only.
#[test]
fn launchers_of_batch_systems_start_agents() {
    for (name, words) in [("pbsdsh", "-u --"), ("flux", "run -N 2 -n 2"), ("blaunch", "")] {
        let scene = Scene::new(4, "0.2");
        let own = words.split_whitespace().count();
        let script = format!(
            "#!/bin/sh\necho \"$@\" >words\nshift {own}\n\"$1\" --agent nowhere &\n\"$1\" --agent nowhere &\nwait\n"
        );
        fs::write(scene.path(name), script).unwrap();
        fs::set_permissions(scene.path(name), fs::Permissions::from_mode(0o755)).unwrap();
        let path = std::env::var("PATH").unwrap();
        let mut command = scene.command(&["--agents", "2", "--launch", name, "--slots", "1", "x.dag"]);
        command.env("PATH", format!("{}:{path}", scene.0.path().display()));
        let (code, stderr) = Run::new(command).wait();
        assert_eq!(code, 0, "{name}: {stderr}");
        assert_eq!(scene.begins(4).values().sum::<usize>(), 4, "{name}");
        let started = fs::read_to_string(scene.path("words")).unwrap();
        let program = testutils::programs::path("pegasus-mpi-cluster");
        let expected = format!("{words} {program} --agent ").trim_start().to_owned();
        assert!(started.starts_with(&expected), "{started}");
        assert!(
            started.trim_end().ends_with("x.dag.endpoint"),
            "no key: {started}"
        );
    }
}

/// A stand-in for `srun`: it keeps its variables, and gives agents those of a step.
const SRUN: &str = "#!/bin/sh
echo \"$@\" > words
env > srun.env
while [ \"${1#--}\" != \"$1\" ]; do shift; done
export SLURM_STEP_NUM_TASKS=2 SLURM_STEP_ID=0 SLURM_STEPID=0 SLURM_GTIDS=0,1 PMI_RANK=0 PMIX_RANK=0
export SLURM_JOB_NODELIST=n[1-2] PALS_RANKID=0 FLUX_TASK_RANK=0 SLURM_CPU_BIND=quiet,mask_cpu:0x1
SLURM_PROCID=0 SLURM_LOCALID=0 \"$@\" &
SLURM_PROCID=1 SLURM_LOCALID=0 \"$@\" &
wait
";

/// Starts a run with agents by the stand-in, in a batch job that was submitted in a step of another one.
fn run_by_srun(scene: &Scene) -> String {
    fs::write(scene.path("srun"), SRUN).unwrap();
    fs::set_permissions(scene.path("srun"), fs::Permissions::from_mode(0o755)).unwrap();
    let path = std::env::var("PATH").unwrap();
    let mut command = scene.command(&["--agents", "2", "--launch", "srun", "--slots", "1", "x.dag"]);
    command.env("PATH", format!("{}:{path}", scene.0.path().display()));
    for (name, value) in [
        ("SLURM_JOB_ID", "7"),
        ("SLURM_CPU_BIND", "quiet,mask_cpu:0x1"),
        ("SLURM_CPU_BIND_TYPE", "mask_cpu:"),
        ("SLURM_CPUS_PER_TASK", "1"),
        ("SLURM_MEM_PER_CPU", "300"),
        ("SLURM_MEM_PER_NODE", "500"),
        ("SLURM_NTASKS_PER_NODE", "4"),
    ] {
        command.env(name, value);
    }
    let (code, stderr) = Run::new(command).wait();
    assert_eq!(code, 0, "{stderr}");
    let names = |text: String| {
        let names = text
            .lines()
            .map(|line| line.split('=').next().unwrap_or_default().to_owned());
        names.collect::<Vec<_>>()
    };
    let kept = names(fs::read_to_string(scene.path("srun.env")).unwrap());
    let kept: Vec<_> = kept
        .into_iter()
        .filter(|name| name.starts_with("SLURM_"))
        .collect();
    assert_eq!(kept, ["SLURM_JOB_ID"]);
    fs::read_to_string(scene.path("words")).unwrap()
}

#[test]
fn the_submitting_step_neither_binds_nor_shrinks_agents_of_srun() {
    let words = run_by_srun(&Scene::new(2, "0.1"));
    // One agent that leaves must not end the others.
    for option in [
        "--wait=0",
        "--no-kill",
        "--cpu-bind=none",
        "--mem=0",
        "--export=ALL",
    ] {
        assert!(words.split(' ').any(|word| word == option), "{option}: {words}");
    }
}

#[test]
fn programs_of_tasks_under_agents_are_no_ranks_of_the_launcher() {
    let scene = Scene::new(1, "0");
    let task = "TASK a /bin/sh -c \"env > seen\"\n";
    fs::write(scene.path("x.dag"), task).unwrap();
    run_by_srun(&scene);
    let seen = fs::read_to_string(scene.path("seen")).unwrap();
    let wanted = ["SLURM_", "PMI", "PALS_", "FLUX_"];
    let mut seen: Vec<&str> = seen
        .lines()
        .filter(|line| wanted.iter().any(|start| line.starts_with(start)))
        .collect();
    seen.sort_unstable();
    assert_eq!(seen, ["SLURM_JOB_ID=7", "SLURM_JOB_NODELIST=n[1-2]"]);
}

#[test]
fn launchers_that_fail_have_the_last_word() {
    let scene = Scene::new(1, "0");
    let launch = scene.path("launch.sh");
    fs::write(&launch, "#!/bin/sh\necho \"$1: no route to host\" >&2\nexit 1\n").unwrap();
    fs::set_permissions(&launch, fs::Permissions::from_mode(0o755)).unwrap();
    let how = format!("{} {{host}}", launch.display());
    let (code, stderr) = scene.start("n7,n8", &["--launch", &how]).wait();
    assert_eq!(code, 76);
    let last = stderr.lines().last().unwrap();
    assert_eq!(
        last,
        "ABORT: 2 agents did not come: what should start them has ended; n7 said last: n7: no route to host; \
         n8 said last: n8: no route to host"
    );
    let (code, stderr) = scene.start("1", &["--launch", "/no/such/launcher"]).wait();
    assert_eq!(code, 1);
    assert!(stderr.contains("Unable to start /no/such/launcher: "), "{stderr}");
    let (code, stderr) = scene
        .start("1", &["--launch", "sleep 60 ; true", "--join-timeout", "1"])
        .wait();
    assert_eq!(code, 76);
    assert!(stderr.contains("1 agent did not come"), "{stderr}");
}

/// The endpoint is in the first environment of an agent and its guard, and the key in their memory.
#[test]
fn a_task_cannot_read_the_key_of_the_run() {
    /// A user without rights: nothing is closed to root.
    const NOBODY: u32 = 65534;
    let scene = Scene::new(0, "0");
    let script = "#!/bin/sh
parent() { cut -d' ' -f4 /proc/$1/stat; }
guard=$(parent $PPID)
for process in $PPID $guard $(parent $guard); do
    for file in environ mem; do head -c 1 /proc/$process/$file >/dev/null && exit 9; done
    [ -e /proc/$process/environ ] || exit 8
done
head -c 1 /proc/$$/environ >/dev/null
";
    fs::write(scene.path("task.sh"), script).unwrap();
    fs::write(scene.path("x.dag"), "TASK t ./task.sh\n").unwrap();
    let mut command = scene.command(&["--agents", "1", "--slots", "1", "--launch", "local", "x.dag"]);
    if fs::metadata(scene.path("x.dag")).unwrap().uid() == 0 {
        for name in ["", "task.sh", "x.dag"] {
            chown(scene.path(name), Some(NOBODY), Some(NOBODY)).unwrap();
        }
        command.uid(NOBODY).gid(NOBODY);
    }
    let (code, stderr) = Run::new(command).wait();
    assert_eq!(code, 0, "{stderr}");
}

#[test]
fn bad_endpoints_and_options_are_refused() {
    let scene = Scene::new(1, "0");
    let run = |words: &[&str]| result(&scene.command(words).output().unwrap());
    let (code, stderr) = run(&["--agents", "n1,n2,n1", "--launch", "ssh", "x.dag"]);
    assert_eq!(code, 1);
    assert!(stderr.contains("names the host n1 twice"), "{stderr}");
    let (code, stderr) = run(&["--agent"]);
    assert_eq!(code, 1);
    assert!(stderr.contains("An agent needs an endpoint"), "{stderr}");
    let endpoint = scene.path("e");
    for (text, mode, message) in [
        ("{}", 0o600, "is no endpoint of a run"),
        ("{\"version\": 99}", 0o600, "has version 99, not 3"),
        ("{}", 0o644, "may be read or written by other users (mode 644)"),
    ] {
        fs::write(&endpoint, text).unwrap();
        fs::set_permissions(&endpoint, fs::Permissions::from_mode(mode)).unwrap();
        let (code, stderr) = run(&["--agent", "e"]);
        assert_eq!(code, 1);
        assert!(stderr.contains(message), "{stderr}");
    }
    let (code, stderr) = run(&["--agent", "missing", "--join-timeout", "0"]);
    assert_eq!(code, 1);
    assert!(
        stderr.contains("Unable to read the endpoint file missing"),
        "{stderr}"
    );
}

/// The endpoint of another run: the key differs.
#[test]
fn an_agent_with_a_wrong_key_does_not_join() {
    let scene = Scene::new(1, "1");
    let other = Scene::new(1, "1");
    let run = scene.start("1", &[]);
    let stranger = other.start("1", &[]);
    for scene in [&scene, &other] {
        wait_for_file(&scene.path("x.dag.endpoint"));
    }
    let read = |scene: &Scene| -> serde_json::Value {
        let text = fs::read_to_string(scene.path("x.dag.endpoint")).unwrap();
        serde_json::from_str(&text).unwrap()
    };
    let mut mixed = read(&scene);
    mixed["key"] = read(&other)["key"].clone();
    fs::write(scene.path("mixed"), mixed.to_string()).unwrap();
    fs::set_permissions(scene.path("mixed"), fs::Permissions::from_mode(0o600)).unwrap();
    let (code, stderr) = result(&scene.command(&["--agent", "mixed"]).output().unwrap());
    assert_eq!(code, 1);
    assert!(stderr.contains("has another key"), "{stderr}");
    drop(stranger);
    // The run has not suffered.
    let agent = Run::new(scene.command(&["--agent", "x.dag.endpoint"]));
    let (code, stderr) = run.wait();
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(agent.wait().0, 0);
}
