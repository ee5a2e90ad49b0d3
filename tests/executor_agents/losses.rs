//! Agents that die with their guards, tasks that the batch system ends, and where masters listen.

use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use super::{Run, Scene, children, wait_for_file};

/// The node is still there, and says that the connection is closed. Its lease does not matter.
#[test]
fn a_closed_connection_is_a_closed_connection() {
    let scene = Scene::new(3, "2");
    let run = scene.start("2", &["--agent-timeout", "80", "--start-with", "2"]);
    wait_for_file(&scene.path("x.dag.endpoint"));
    let agents = ["n1", "n2"].map(|name| {
        let words = ["--agent", "x.dag.endpoint", "--host-name", name];
        Run::new(scene.command(&words))
    });
    scene.wait_for("begin", 2);
    let agent = children(agents[0].pid)[0];
    let tasks = children(agent);
    let begun = Instant::now();
    for pid in [agents[0].pid, agent].into_iter().chain(tasks) {
        kill(pid, Signal::SIGKILL).unwrap();
    }
    scene.wait_for("begin", 4);
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    let (code, stderr) = run.wait();
    assert_eq!(code, 0, "{stderr}");
}

impl Scene {
    /// A folder with a task that waits at its first attempt.
    fn that_waits_once() -> Self {
        let scene = Self::new(1, "0");
        let task = "#!/bin/sh\n[ -e again ] && exit 0\ntouch again\nsleep 60\n";
        fs::write(scene.path("task.sh"), task).unwrap();
        fs::set_permissions(scene.path("task.sh"), fs::Permissions::from_mode(0o755)).unwrap();
        scene
    }

    /// Checks that an attempt was evicted, and none has failed.
    fn check_evicted(&self) {
        let log = fs::read_to_string(self.path("jobstate.log")).unwrap();
        assert!(log.contains("t0 JOB_EVICTED"), "{log}");
        assert!(!log.contains("JOB_FAILURE"), "{log}");
    }
}

#[test]
fn a_task_that_ends_with_its_agent_is_evicted() {
    let scene = Scene::that_waits_once();
    let run = scene.start("2", &["--tries", "1", "--jobstate-log"]);
    wait_for_file(&scene.path("x.dag.endpoint"));
    let start = |name| Run::new(scene.command(&["--agent", "x.dag.endpoint", "--host-name", name]));
    let first = start("n1");
    wait_for_file(&scene.path("again"));
    // The batch system sends it to all processes of a step.
    let agent = children(first.pid)[0];
    for task in children(agent) {
        killpg(task, Signal::SIGTERM).unwrap();
    }
    kill(agent, Signal::SIGTERM).unwrap();
    let (code, stderr) = first.wait();
    assert_eq!(code, 0, "{stderr}");
    let second = start("n2");
    let (code, stderr) = run.wait();
    assert_eq!(code, 0, "{stderr}");
    assert!(
        stderr.contains("Task t0 was ended with the batch job"),
        "{stderr}"
    );
    assert_eq!(second.wait().0, 0);
    scene.check_evicted();
}

/// What ends a batch job ends its nodes one after the other.
#[test]
fn after_an_eviction_no_task_starts_for_a_moment() {
    let scene = Scene::that_waits_once();
    let words = [
        "--agents",
        "2",
        "--slots",
        "1",
        "--start-with",
        "2",
        "--jobstate-log",
        "x.dag",
    ];
    let mut master = scene.command(&words);
    master.env("SLURM_JOB_ID", "1");
    let run = Run::new(master);
    wait_for_file(&scene.path("x.dag.endpoint"));
    let agents = ["n1", "n2"].map(|name| {
        let words = ["--agent", "x.dag.endpoint", "--host-name", name];
        Run::new(scene.command(&words))
    });
    wait_for_file(&scene.path("again"));
    let agent = agents.iter().map(|agent| children(agent.pid)[0]);
    let (agent, task) = agent
        .filter_map(|agent| Some((agent, *children(agent).first()?)))
        .next()
        .unwrap();
    killpg(task, Signal::SIGTERM).unwrap();
    kill(agent, Signal::SIGTERM).unwrap();
    let (code, stderr) = run.wait();
    assert_eq!(code, 0, "{stderr}");
    assert!(
        stderr.contains("The batch system ends tasks: starting no others for 5 s"),
        "{stderr}"
    );
    let log = fs::read_to_string(scene.path("jobstate.log")).unwrap();
    let time = |line: &str| line.split(' ').next().unwrap().parse::<f64>().unwrap();
    let mut lines = log.lines().skip_while(|line| !line.contains("t0 JOB_EVICTED"));
    let evicted = time(lines.next().unwrap());
    let started = time(lines.find(|line| line.contains("t0 EXECUTE")).unwrap());
    assert!(started - evicted > 4.5, "{log}");
}

#[test]
fn a_task_that_ends_with_its_run_is_evicted() {
    let scene = Scene::that_waits_once();
    let words = ["--workers", "1", "--tries", "1", "--jobstate-log", "x.dag"];
    let run = Run::new(scene.command(&words));
    wait_for_file(&scene.path("again"));
    for task in children(run.pid) {
        killpg(task, Signal::SIGTERM).unwrap();
    }
    run.signal(Signal::SIGTERM);
    let (code, stderr) = run.wait();
    assert_eq!(code, 75, "{stderr}");
    scene.check_evicted();
    let (code, stderr) = Run::new(scene.command(&words)).wait();
    assert_eq!(code, 0, "{stderr}");
}

#[test]
fn a_master_listens_where_it_is_asked_to() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let range = format!("127.0.0.1:{port}-{}", port.saturating_add(20));
    for words in [&["--launch", "local"][..], &["--listen", &range]] {
        let scene = Scene::new(1, "3");
        let run = scene.start("1", words);
        wait_for_file(&scene.path("x.dag.endpoint"));
        let text = fs::read_to_string(scene.path("x.dag.endpoint")).unwrap();
        let endpoint: serde_json::Value = serde_json::from_str(&text).unwrap();
        let addresses = endpoint["addresses"].as_array().unwrap();
        assert_eq!(addresses.len(), 1, "{text}");
        let (host, at) = addresses[0].as_str().unwrap().split_once(':').unwrap();
        let at: u16 = at.parse().unwrap();
        assert_eq!(host, "127.0.0.1");
        assert!(words[0] == "--launch" || (port..=port + 20).contains(&at));
        assert!(TcpStream::connect(("127.0.0.1", at)).is_ok());
        assert!(TcpStream::connect(("127.0.0.2", at)).is_err(), "another address");
        let agent = Run::new(scene.command(&["--agent", "x.dag.endpoint"]));
        let (code, stderr) = run.wait();
        assert_eq!(code, 0, "{stderr}");
        drop(agent);
    }
}

/// The second host is off for a moment: its launcher, its guard and its agent are gone. The third start of a
/// task can only be there, as the first host is busy.
#[test]
fn a_host_that_comes_again_gets_a_new_agent() {
    let scene = Scene::new(2, "100");
    let launch = "env PMC_HOST_NAME={host}";
    let run = scene.start("n1,n2", &["--launch", launch, "--start-with", "2"]);
    scene.wait_for("begin", 2);
    let agents = run.agents();
    let [_, (guard, agent)] = agents[..] else {
        panic!("{agents:?}")
    };
    let tasks = children(agent);
    for pid in [guard, agent].into_iter().chain(tasks) {
        kill(pid, Signal::SIGKILL).unwrap();
    }
    scene.wait_for("begin", 3);
    assert_eq!(run.agents().len(), 2);
    run.signal(Signal::SIGINT);
    run.wait();
}

/// The launcher of the first master has started all agents. One of them dies before the next master starts
/// the launcher again: that brings one agent, and not two.
#[test]
fn one_launcher_for_all_brings_no_second_agent() {
    let scene = Scene::new(8, "4");
    let script =
        "#!/bin/sh\nfor host in n1 n2; do PMC_HOST_NAME=$host \"$@\" & echo $! > $host.pid; done; wait\n";
    fs::write(scene.path("all.sh"), script).unwrap();
    fs::set_permissions(scene.path("all.sh"), fs::Permissions::from_mode(0o755)).unwrap();
    let more = ["--launch", "./all.sh", "--start-with", "2"];
    let first = scene.start("2", &more);
    scene.wait_for("begin", 2);
    // It kills the master, and waits until its locks are free.
    drop(first);
    let guard = fs::read_to_string(scene.path("n2.pid")).unwrap();
    let guard = Pid::from_raw(guard.trim().parse().unwrap());
    let agent = children(guard)[0];
    for pid in [guard, agent].into_iter().chain(children(agent)) {
        kill(pid, Signal::SIGKILL).unwrap();
    }
    let second = scene.start("2", &more);
    let (code, stderr) = second.wait();
    assert_eq!(code, 0, "{stderr}");
    let begins = scene.begins(8);
    assert_eq!(
        begins.values().sum::<usize>(),
        9,
        "only the task of n2 ran twice: {}",
        scene.log()
    );
}
