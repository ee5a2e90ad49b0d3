//! Hosts that are prepared, set aside and drained.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::time::{Duration, Instant};

use pmc_control::{Answer, Request, ask};

use super::{PATIENCE, Run, Scene, TASK, wait_for_file};

#[test]
fn a_host_whose_tasks_succeed_elsewhere_is_set_aside() {
    let scene = Scene::new(8, "0.2");
    // A pause, so that the messages about failures fit into the pipe that is read at the end.
    let task = format!("#!/bin/sh\n[ -z \"$BROKEN\" ] || {{ sleep 0.03; exit 1; }}\n{TASK}");
    fs::write(scene.path("task.sh"), task).unwrap();
    let run = scene.start("2", &["--tries", "1000", "--start-with", "2"]);
    wait_for_file(&scene.path("x.dag.endpoint"));
    let agent = |name: &str, broken: bool| {
        let mut command = scene.command(&["--agent", "x.dag.endpoint", "--host-name", name]);
        if broken {
            command.env("BROKEN", "1");
        }
        Run::new(command)
    };
    let (good, bad) = (agent("good", false), agent("bad", true));
    // It leaves before the end of the run.
    let (code, stderr) = bad.wait();
    assert_eq!(code, 0, "{stderr}");
    let (code, stderr) = run.wait();
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(good.wait().0, 0);
    let said = "The host bad is set aside: 3 tasks in a row failed there";
    assert_eq!(stderr.matches(said).count(), 1, "{stderr}");
    scene.begins(8);
}

#[test]
fn a_host_that_is_drained_ends_what_runs_and_leaves() {
    let scene = Scene::new(6, "1");
    let run = scene.start("2", &["--start-with", "2"]);
    wait_for_file(&scene.path("x.dag.endpoint"));
    let agent = |name| {
        let words = ["--agent", "x.dag.endpoint", "--host-name", name];
        Run::new(scene.command(&words))
    };
    let (stays, goes) = (agent("stays"), agent("goes"));
    scene.wait_for("begin", 2);
    let drain = |host: &str| {
        let host = host.to_owned();
        ask(&scene.path("x.dag"), &Request::DrainNode { host }).unwrap()
    };
    assert!(matches!(drain("goes"), Answer::Done(_)));
    assert!(matches!(drain("other"), Answer::Refused(_)));
    // It leaves before the end of the run.
    let (code, stderr) = goes.wait();
    assert_eq!(code, 0, "{stderr}");
    assert!(scene.log().lines().count() < 12, "{}", scene.log());
    let (code, stderr) = run.wait();
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(stays.wait().0, 0);
    // Nothing was run again.
    assert!(scene.begins(6).values().all(|times| *times == 1));
}

const HOST_SCRIPT: &str = "#!/bin/sh\nsleep 0.5\n[ -z \"$BROKEN\" ] || exit 3\ntouch prepared.$HOST\n";

/// A task that succeeds only on a host whose script has ended.
const PREPARED_TASK: &str = "#!/bin/sh\n[ -e \"prepared.$HOST\" ] || exit 7\n";

impl Scene {
    /// Starts a master with a host script.
    fn start_prepared(&self, agents: &str, more: &[&str]) -> Run {
        let script = self.path("prepare");
        fs::write(&script, HOST_SCRIPT).unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        let words = ["--host-script", "./prepare", "--slots", "2"];
        let run = self.start(agents, &[&words, more].concat());
        wait_for_file(&self.path("x.dag.endpoint"));
        run
    }

    fn host(&self, name: &str, broken: bool) -> Run {
        let mut command = self.command(&["--agent", "x.dag.endpoint", "--host-name", name]);
        command.env("HOST", name);
        if broken {
            command.env("BROKEN", "1");
        }
        Run::new(command)
    }
}

/// No slot of a host starts a task while the script of the host runs.
#[test]
fn a_host_that_comes_late_is_prepared_first() {
    let scene = Scene::new(20, "0.2");
    let task = format!("{PREPARED_TASK}{}", TASK.trim_start_matches("#!/bin/sh\n"));
    fs::write(scene.path("task.sh"), task).unwrap();
    let run = scene.start_prepared("2", &[]);
    let first = scene.host("n1", false);
    scene.wait_for("begin", 2);
    let second = scene.host("n2", false);
    let (code, stderr) = run.wait();
    assert_eq!(code, 0, "{stderr}");
    assert!(scene.path("prepared.n2").exists());
    assert_eq!((first.wait().0, second.wait().0), (0, 0));
    assert_eq!(scene.begins(20).values().sum::<usize>(), 20);
}

#[test]
fn a_host_whose_script_fails_is_set_aside() {
    let scene = Scene::new(4, "0.5");
    let run = scene.start_prepared("2", &["--start-with", "2"]);
    let (good, bad) = (scene.host("good", false), scene.host("bad", true));
    // It leaves before the end of the run.
    let (code, stderr) = bad.wait();
    assert_eq!(code, 0, "{stderr}");
    let mut nodes = Command::new(testutils::programs::path("pmc"));
    let nodes = nodes.args(["nodes", "."]).current_dir(scene.0.path());
    let nodes = String::from_utf8(nodes.output().unwrap().stdout).unwrap();
    let line = nodes.lines().find(|line| line.starts_with("bad"));
    assert!(line.is_some_and(|line| line.contains("set aside")), "{nodes}");
    let (code, stderr) = run.wait();
    assert_eq!(code, 0, "{stderr}");
    let said = "The host bad is set aside: Host script failed with status 768";
    assert_eq!(stderr.matches(said).count(), 1, "{stderr}");
    assert_eq!(good.wait().0, 0);
    assert_eq!(scene.begins(4).values().sum::<usize>(), 4);
}

#[test]
fn a_run_on_whose_hosts_all_scripts_fail_ends_in_order() {
    let scene = Scene::new(1, "0");
    let run = scene.start_prepared("2", &["--jobstate-log"]);
    let agents = [scene.host("n1", true), scene.host("n2", true)];
    let (code, stderr) = run.wait();
    assert_eq!(code, 1, "{stderr}");
    assert_eq!(
        stderr
            .matches("is set aside: Host script failed with status 768")
            .count(),
        1,
        "{stderr}"
    );
    let last = stderr.lines().last().unwrap();
    assert!(last.starts_with("ABORT: Worker "), "{stderr}");
    assert!(last.ends_with(": Host script failed with status 768"), "{stderr}");
    assert!(agents.into_iter().all(|agent| agent.wait().0 == 0));
    assert_eq!(scene.log(), "");
    for file in ["x.dag.endpoint", "x.dag.agents"] {
        assert!(!scene.path(file).exists(), "{file}");
    }
}

/// It has a free slot whenever a task waits: before the first success elsewhere, it has failed all of them.
#[test]
fn a_host_that_fails_at_once_does_not_eat_the_attempts() {
    let scene = Scene::new(0, "0");
    let task = "#!/bin/sh\n[ \"$PMC_HOST_NAME\" = bad ] && exit 7\nsleep 0.3\n";
    fs::write(scene.path("task.sh"), task).unwrap();
    let lines = (0..24).map(|n| format!("TASK t{n} ./task.sh\n"));
    fs::write(scene.path("x.dag"), lines.collect::<String>()).unwrap();
    // Neither is it set aside, nor are there attempts to spare.
    let words = ["--launch", "env PMC_HOST_NAME={host}", "--tries", "2"];
    let run = scene.start("bad,n1,n2", &[&words[..], &["--bad-host-limit", "0"]].concat());
    let (code, stderr) = run.wait();
    assert_eq!(code, 0, "{stderr}");
}

/// The peak of the memory, the exit code and the host's size come from the agent.
#[test]
fn expressions_change_the_request_of_the_next_attempt_in_an_agent() {
    let scene = Scene::new(0, "0");
    let dag = "TASK a -m 100 -t 3 --request-expression 'memory=pegasus_memory_mb * 9 if maxrss > 100 and exitcode == 3 \
               else 1' --request-expression cores=64 ./needs.sh\n";
    fs::write(scene.path("x.dag"), dag).unwrap();
    let script = "#!/bin/sh\necho $PMC_MEMORY $PMC_CPUS >> log\nhead -c 90000000 /dev/zero | tail -n 1 >/dev/null\n[ $PMC_MEMORY -ge 900 ] || exit 3\n";
    fs::write(scene.path("needs.sh"), script).unwrap();
    fs::set_permissions(scene.path("needs.sh"), fs::Permissions::from_mode(0o755)).unwrap();
    let (code, stderr) = scene
        .start(
            "1",
            &["--launch", "local", "--host-memory", "4000", "--host-cpus", "4"],
        )
        .wait();
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(scene.log(), "100 1\n900 4\n", "{stderr}");
    assert!(
        stderr.contains("no host has what its expressions ask for: it requests 64 CPUs"),
        "{stderr}"
    );
}

/// The hosts of this test share a disk, so the program comes with the second one.
#[test]
fn a_program_that_is_missing_on_the_first_host_is_run_by_the_next_one() {
    let scene = Scene::new(0, "");
    fs::write(scene.path("x.dag"), "TASK a ./only-there a 0\n").unwrap();
    let run = scene.start("2", &["--tries", "2", "--start-with", "1"]);
    wait_for_file(&scene.path("x.dag.endpoint"));
    let first = scene.host("first", false);
    let waits = || scene.pmc(&["why", "a", "."]).contains("resting");
    let begun = Instant::now();
    while !waits() {
        assert!(begun.elapsed() < PATIENCE, "its attempts are used up");
        std::thread::sleep(Duration::from_millis(50));
    }
    fs::rename(scene.path("task.sh"), scene.path("only-there")).unwrap();
    let there = scene.host("second", false);
    let (code, stderr) = run.wait();
    assert_eq!(code, 0, "{stderr}");
    assert_eq!((first.wait().0, there.wait().0), (0, 0));
    scene.begins(1);
}

/// Nobody else comes: the task has failed, and its other attempts are left out.
#[test]
fn a_program_that_no_host_has_is_tried_once_on_each() {
    let scene = Scene::new(0, "");
    fs::write(scene.path("x.dag"), "TASK a ./missing\n").unwrap();
    let run = scene.start("2", &["--tries", "9", "--launch", "local"]);
    let (code, stderr) = run.wait();
    assert_eq!(code, 1, "{stderr}");
    let attempts = stderr.matches("Task a failed").count();
    assert!((1..=2).contains(&attempts), "{stderr}");
}

/// `--on` names a host that does not come.
#[test]
fn a_task_on_a_host_that_is_none_ends_the_run_with_a_message() {
    let scene = Scene::new(1, "0");
    fs::write(scene.path("x.dag"), "TASK t --on nowhere -N 1 ./task.sh t 0\n").unwrap();
    let (code, stderr) = scene
        .start("1", &["--launch", "local", "--join-timeout", "3"])
        .wait();
    assert_eq!(code, 76, "{stderr}");
    let said = "Task t needs 1 nodes, 0 are there";
    assert_eq!(stderr.matches(said).count(), 1, "{stderr}");
    assert_eq!(scene.log(), "");
}
