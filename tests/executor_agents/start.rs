//! Runs that wait for agents before their first task.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::{PATIENCE, Run, Scene, wait_for_file};

impl Scene {
    fn agent(&self, name: &str) -> Run {
        Run::new(self.command(&["--agent", "x.dag.endpoint", "--host-name", name]))
    }

    pub(super) fn pmc(&self, words: &[&str]) -> String {
        let mut command = Command::new(testutils::programs::path("pmc"));
        let output = command.args(words).current_dir(self.0.path()).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    /// Waits until `pmc nodes` shows that this host has joined.
    fn wait_until_joined(&self, host: &str) {
        let begun = Instant::now();
        loop {
            let nodes = self.pmc(&["nodes", "."]);
            let mut lines = nodes.lines().filter(|line| line.starts_with(host));
            if lines.any(|line| line.contains("joined")) {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "{nodes}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

#[test]
fn a_start_begins_with_the_agents_that_came_in_time() {
    // More than there are to be: the start waits for all of them.
    for start_with in ["2", "9"] {
        let scene = Scene::new(2, "0");
        let run = scene.start("2", &["--start-with", start_with, "--join-timeout", "3"]);
        wait_for_file(&scene.path("x.dag.endpoint"));
        let agent = scene.agent("n1");
        scene.wait_until_joined("n1");
        assert_eq!(scene.log(), "", "it waits");
        let (code, stderr) = run.wait();
        assert_eq!(code, 0, "{stderr}");
        let said = "The run begins with the one that is there (--start-with)";
        assert_eq!(stderr.matches(said).count(), 1, "{stderr}");
        assert_eq!(agent.wait().0, 0);
    }
}

#[test]
fn a_start_does_not_wait_for_agents_whose_launchers_have_ended() {
    let scene = Scene::new(2, "0");
    let launch = "#!/bin/sh\nhost=$1; shift\n[ $host = bad ] || exec \"$@\"\n";
    fs::write(scene.path("launch"), launch).unwrap();
    let how = format!("sh {} {{host}}", scene.path("launch").display());
    let begun = Instant::now();
    let run = scene.start("good,bad", &["--launch", &how, "--start-with", "2"]);
    let (code, stderr) = run.wait();
    assert_eq!(code, 0, "{stderr}");
    assert!(stderr.contains("The agent on bad did not come"), "{stderr}");
    assert!(begun.elapsed() < Duration::from_secs(60));
}

#[test]
fn a_start_to_which_no_agent_comes_is_stranded() {
    let scene = Scene::new(2, "0");
    let (code, stderr) = scene
        .start("2", &["--start-with", "2", "--join-timeout", "1"])
        .wait();
    assert_eq!(code, 76, "{stderr}");
    assert!(
        stderr.contains("2 agents did not come within 1 s (--join-timeout)\n"),
        "{stderr}"
    );
    assert!(!stderr.contains("said nothing"), "nothing starts them: {stderr}");
    for file in ["x.dag.endpoint", "x.dag.agents"] {
        assert!(!scene.path(file).exists(), "{file}");
    }
}

#[test]
fn a_drain_ends_the_wait_for_agents() {
    let scene = Scene::new(2, "0");
    let run = scene.start("2", &["--start-with", "2", "--jobstate-log"]);
    wait_for_file(&scene.path("x.dag.endpoint"));
    let agent = scene.agent("n1");
    scene.wait_until_joined("n1");
    scene.pmc(&["drain", "."]);
    let (code, stderr) = run.wait();
    assert_eq!(code, 75, "{stderr}");
    assert_eq!(agent.wait().0, 0);
    assert_eq!(scene.log(), "");
}

#[test]
fn sigterm_ends_the_wait_for_agents() {
    for has_agent in [false, true] {
        let scene = Scene::new(2, "0");
        let run = scene.start("2", &["--start-with", "2"]);
        wait_for_file(&scene.path("x.dag.endpoint"));
        let agent = has_agent.then(|| scene.agent("n1"));
        if has_agent {
            scene.wait_until_joined("n1");
        }
        let begun = Instant::now();
        run.signal(Signal::SIGTERM);
        let (code, stderr) = run.wait();
        assert_eq!(code, 1, "{stderr}");
        assert!(begun.elapsed() < Duration::from_secs(5), "{stderr}");
        assert!(agent.is_none_or(|agent| agent.wait().0 == 0));
        assert!(!scene.path("x.dag.endpoint").exists());
    }
}

/// Lines of the system's table of sockets that listen at a port: address and port in hexadecimal digits.
fn listening(port: u16) -> Vec<String> {
    let port = format!(":{port:04X}");
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| fs::read_to_string(path).unwrap_or_default());
    let words = tables.iter().flat_map(|table| table.lines());
    let words = words.map(|line| line.split_whitespace().collect::<Vec<_>>());
    let listens = words.filter(|words| words.get(3) == Some(&"0A") && words[1].ends_with(&port));
    listens.map(|words| words[1].to_owned()).collect()
}

#[test]
fn a_master_of_local_agents_listens_on_loopback_only() {
    let scene = Scene::new(1, "30");
    for (options, address) in [
        (&["--launch", "local"][..], Some("0100007F")),
        // Agents come from anywhere.
        (&[], None),
    ] {
        let run = scene.start("1", options);
        wait_for_file(&scene.path("x.dag.endpoint"));
        let endpoint = pmc_link::Endpoint::read(&scene.path("x.dag.endpoint")).unwrap();
        let (_, port) = endpoint.addresses[0].rsplit_once(':').unwrap();
        let sockets = listening(port.parse().unwrap());
        let at = sockets[0]
            .split(':')
            .next()
            .filter(|at| !at.trim_matches('0').is_empty());
        assert_eq!((sockets.len(), at), (1, address), "{sockets:?}");
        run.signal(Signal::SIGINT);
        run.wait();
    }
}
