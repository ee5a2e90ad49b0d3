//! Agents whose master was killed: a batch system must get its nodes back.

use std::fs;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{PATIENCE, Run, Scene, wait_for_file};

/// Starts a master with an agent that it has not started, and waits until tasks run.
fn start(scene: &Scene, more: &[&str], begun: usize) -> (Run, Run) {
    let run = scene.start("1", more);
    wait_for_file(&scene.path("x.dag.endpoint"));
    let words = ["--agent", "x.dag.endpoint", "--join-timeout", "600"];
    let agent = Run::new(scene.command(&words));
    scene.wait_for("begin", begun);
    (run, agent)
}

fn is_there(pid: Pid) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

#[test]
fn orphaned_agents_end_after_the_master_timeout() {
    for seconds in ["60", "0.1"] {
        let scene = Scene::new(2, seconds);
        let (run, agent) = start(&scene, &["--master-timeout", "4"], 1);
        drop(run);
        let begun = Instant::now();
        let (code, stderr) = agent.wait();
        let waited = begun.elapsed();
        assert_eq!(code, 1, "{stderr}");
        assert!(stderr.contains("No master after 4 seconds"), "{stderr}");
        assert!(waited >= Duration::from_secs(3), "{waited:?}");
        assert!(waited < Duration::from_secs(8), "{waited:?}: {stderr}");
    }
}

/// The guard starts the agent again, which does not wait longer for that.
#[test]
fn an_orphan_that_is_killed_waits_no_longer() {
    let scene = Scene::new(1, "60");
    let (run, agent) = start(&scene, &["--master-timeout", "6"], 1);
    drop(run);
    let begun = Instant::now();
    std::thread::sleep(Duration::from_secs(3));
    kill(super::children(agent.pid)[0], Signal::SIGKILL).unwrap();
    let (code, stderr) = agent.wait();
    let waited = begun.elapsed();
    assert_eq!(code, 1, "{stderr}");
    assert!(waited < Duration::from_secs(10), "{waited:?}: {stderr}");
}

#[test]
fn an_idle_orphan_ends_at_once_on_sigterm() {
    let scene = Scene::new(1, "0.5");
    // A task that is left needs more than there is.
    let dag = "TASK t0 ./task.sh t0 0.5\nTASK never -m 1000000 /bin/true\nEDGE t0 never\n";
    fs::write(scene.path("x.dag"), dag).unwrap();
    let (run, agent) = start(&scene, &["--host-memory", "2000000"], 1);
    drop(run);
    scene.wait_for("end", 1);
    std::thread::sleep(Duration::from_millis(500));
    let begun = Instant::now();
    agent.signal(Signal::SIGTERM);
    let (code, stderr) = agent.wait();
    assert_eq!(code, 0, "{stderr}");
    assert!(begun.elapsed() < Duration::from_secs(3), "{stderr}");
}

#[test]
fn an_orphan_that_runs_a_task_ends_after_the_grace_on_sigterm() {
    for (seconds, grace, ends) in [("60", "2", 0), ("2", "60", 1)] {
        let scene = Scene::new(1, seconds);
        let (run, agent) = start(&scene, &["--drain-grace", grace], 1);
        drop(run);
        let begun = Instant::now();
        agent.signal(Signal::SIGTERM);
        let (code, stderr) = agent.wait();
        assert_eq!(code, 0, "{stderr}");
        assert!(begun.elapsed() < Duration::from_secs(6), "{stderr}");
        assert_eq!(scene.log().matches("end ").count(), ends, "{stderr}");
    }
}

/// No endpoint yet, and no master at the one that there is.
#[test]
fn an_agent_that_waits_for_its_first_master_ends_on_sigterm() {
    let scene = Scene::new(1, "60");
    let run = scene.start("1", &[]);
    wait_for_file(&scene.path("x.dag.endpoint"));
    drop(run);
    for endpoint in ["x.dag.endpoint", "y.dag.endpoint"] {
        let agent = Run::new(scene.command(&["--agent", endpoint]));
        let begun = Instant::now();
        // It has to come so far.
        while super::children(agent.pid).is_empty() {
            assert!(begun.elapsed() < PATIENCE);
            std::thread::sleep(Duration::from_millis(10));
        }
        std::thread::sleep(Duration::from_millis(1000));
        assert!(is_there(agent.pid));
        let begun = Instant::now();
        agent.signal(Signal::SIGTERM);
        agent.wait();
        assert!(begun.elapsed() < Duration::from_secs(3));
    }
}
