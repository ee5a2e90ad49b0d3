//! What views and figures say of runs in agents.

use std::fs;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use serde_json::Value;

use super::{PATIENCE, Run, Scene, children, wait_for_file};

impl Scene {
    /// The hosts that `pmc nodes` shows, by name.
    fn node(&self, host: &str) -> Option<Value> {
        let nodes: Value = serde_json::from_str(&self.pmc(&["nodes", ".", "--json"])).ok()?;
        let mut nodes = nodes.as_array()?.iter();
        nodes.find(|node| node["host"] == host).cloned()
    }
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// An estimate of an hour, or "too few workers", stood there.
#[test]
fn status_and_why_say_that_a_run_waits_for_agents() {
    let scene = Scene::new(1, "0");
    let run = scene.start("1", &["--monitord-hack"]);
    wait_for_file(&scene.path("x.dag.endpoint"));
    wait_until("it cannot be asked", || {
        scene.pmc(&["why", "t0", "."]).contains("waits for agents")
    });
    for dag in [".", "x.dag"] {
        let status = scene.pmc(&["status", dag]);
        let said = "end      unknown: the run waits for agents";
        assert!(status.contains(said), "{status}");
    }
    let agent = Run::new(scene.command(&["--agent", "x.dag.endpoint"]));
    assert_eq!((run.wait().0, agent.wait().0), (0, 0));
}

#[test]
fn nothing_is_free_on_a_host_that_is_gone() {
    let scene = Scene::new(2, "3");
    let run = scene.start("2", &["--start-with", "2"]);
    wait_for_file(&scene.path("x.dag.endpoint"));
    let agent = |name| {
        let words = ["--agent", "x.dag.endpoint", "--host-name", name];
        Run::new(scene.command(&[&words[..], &["--host-cpus", "3", "--host-memory", "2048"]].concat()))
    };
    let (stays, goes) = (agent("stays"), agent("goes"));
    scene.wait_for("begin", 2);
    let node = scene.node("goes").unwrap();
    assert_eq!(
        (&node["state"], &node["free_cpus"]),
        (&"working".into(), &2.into()),
        "{node}"
    );
    for pid in children(goes.pid).into_iter().chain([goes.pid]) {
        let tasks = children(pid);
        for pid in [pid].into_iter().chain(tasks) {
            let _ = kill(pid, Signal::SIGKILL);
        }
    }
    wait_until("it is not gone", || {
        scene.node("goes").is_some_and(|node| node["state"] == "gone")
    });
    let node = scene.node("goes").unwrap();
    assert_eq!(
        (&node["free_cpus"], &node["free_memory_mib"]),
        (&0.into(), &0.into()),
        "{node}"
    );
    let (code, stderr) = run.wait();
    assert_eq!((code, stays.wait().0), (0, 0), "{stderr}");
}

/// The record of a run counts the CPUs of all hosts.
#[test]
fn the_record_of_a_run_has_the_cpus_of_its_agents() {
    let scene = Scene::new(2, "0");
    let words = [
        "--agents",
        "1",
        "--launch",
        "local",
        "--slots",
        "2",
        "--host-cpus",
        "5",
        "x.dag",
    ];
    let output = scene.command(&words).output().unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(stdout.contains(" slots=2, cpus=5]"), "{stdout}");
}

/// What agents ran before this master began counts as run time, but not as its wall time.
#[test]
fn the_utilisation_of_a_master_that_takes_over_is_no_more_than_one() {
    let scene = Scene::new(1, "4");
    let agents = ["--launch", "local"];
    let run = scene.start("1", &agents);
    scene.wait_for("begin", 1);
    std::thread::sleep(Duration::from_secs(3));
    // Dropping a run kills its master.
    drop(run);
    let (code, stderr) = scene.start("1", &[&agents[..], &["-v"]].concat()).wait();
    assert_eq!(code, 0, "{stderr}");
    let figures = stderr
        .lines()
        .filter_map(|line| line.split_once("Resource utilization"));
    let figures: Vec<f64> = figures
        .filter_map(|(_, rest)| rest.rsplit(' ').next()?.parse().ok())
        .collect();
    assert!(
        figures.len() == 2 && figures.iter().all(|part| *part <= 1.0),
        "{figures:?}: {stderr}"
    );
    let begins = fs::read_to_string(scene.path("log")).unwrap();
    assert_eq!(begins.lines().count(), 2, "it was taken over: {begins}");
}

/// What traces a task does not disturb it, and its worker does not take a stop for an end.
#[test]
fn the_stacks_of_a_task_are_shown() {
    let scene = Scene::new(1, "1000");
    let run = scene.start("1", &["--launch", "local"]);
    scene.wait_for("begin", 1);
    for threads in [&[][..], &["--threads"]] {
        let words = [&["stack", "t0", "."][..], threads].concat();
        let mut shown = String::new();
        wait_until("no stack is shown", || {
            shown = scene.pmc(&words);
            shown.contains("(sleep) on ")
        });
        assert!(shown.contains("\n  #0 ") && shown.contains(" in libc"), "{shown}");
    }
    assert!(scene.pmc(&["why", "t0", "."]).contains("t0 is running"));
    scene.pmc(&["kill", "t0", "."]);
    assert_eq!(run.wait().0, 1);
}
