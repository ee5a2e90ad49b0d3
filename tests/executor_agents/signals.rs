//! Tasks in agents that save themselves when they are asked to.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use nix::sys::signal::{Signal, kill};

use super::{Run, Scene, children, wait_for_file};

/// Counts its steps in a file, and goes on where its last attempt has ended. At USR1 it ends with 85.
const STEPS: &str = "#!/bin/sh
trap 'echo asked >> asked.$1; exit 85' USR1
i=0; [ ! -f step.$1 ] || i=$(cat step.$1)
echo x >> begun.$1
while [ $i -lt 10 ] || [ ! -f asked.$1 ]; do sleep 0.1; i=$((i + 1)); echo $i > step.$1; done
";

impl Scene {
    /// A folder with tasks that save themselves, and end only after they were asked to.
    fn of_steps(tasks: usize) -> Self {
        let scene = Self::new(tasks, "0");
        fs::write(scene.path("steps.sh"), STEPS).unwrap();
        fs::set_permissions(scene.path("steps.sh"), fs::Permissions::from_mode(0o755)).unwrap();
        let options = "--checkpoint-signal USR1@2 --checkpoint-exit 85";
        let lines = (0..tasks).map(|n| format!("TASK t{n} {options} ./steps.sh t{n}\n"));
        fs::write(scene.path("x.dag"), lines.collect::<String>()).unwrap();
        scene
    }

    fn wait_for_steps(&self, tasks: usize) {
        (0..tasks).for_each(|task| wait_for_file(&self.path(&format!("step.t{task}"))));
    }

    /// Checks that each task was asked once, and that no attempt has failed.
    fn check_asked(&self, tasks: usize, begins: usize) {
        for task in 0..tasks {
            let read = |name: &str| fs::read_to_string(self.path(&format!("{name}.t{task}"))).unwrap();
            assert_eq!(read("asked"), "asked\n", "t{task}");
            assert_eq!(read("begun").lines().count(), begins, "t{task}");
        }
        let log = fs::read_to_string(self.path("jobstate.log")).unwrap();
        assert!(
            log.contains("JOB_EVICTED") && !log.contains("JOB_FAILURE"),
            "{log}"
        );
    }
}

#[test]
fn a_drain_asks_tasks_of_agents_once() {
    let scene = Scene::of_steps(2);
    let run = scene.start("2", &["--launch", "local", "--jobstate-log", "--tries", "1"]);
    scene.wait_for_steps(2);
    run.signal(Signal::SIGUSR1);
    let (code, stderr) = run.wait();
    assert_eq!(code, 75, "{stderr}");
    scene.check_asked(2, 1);
    let (code, stderr) = scene
        .start("2", &["--launch", "local", "--jobstate-log", "--tries", "1"])
        .wait();
    assert_eq!(code, 0, "{stderr}");
    scene.check_asked(2, 2);
}

/// The tasks of a node that drains go on elsewhere.
#[test]
fn an_agent_that_leaves_asks_its_tasks() {
    let scene = Scene::of_steps(1);
    let run = scene.start("2", &["--jobstate-log", "--tries", "1"]);
    wait_for_file(&scene.path("x.dag.endpoint"));
    let start = |name| Run::new(scene.command(&["--agent", "x.dag.endpoint", "--host-name", name]));
    let first = start("n1");
    scene.wait_for_steps(1);
    let second = start("n2");
    kill(children(first.pid)[0], Signal::SIGUSR1).unwrap();
    assert_eq!(first.wait().0, 0);
    let (code, stderr) = run.wait();
    assert_eq!((code, second.wait().0), (0, 0), "{stderr}");
    scene.check_asked(1, 2);
}

#[test]
fn tasks_of_agents_are_asked_before_the_time_is_over() {
    let scene = Scene::of_steps(2);
    let more = ["--launch", "local", "--jobstate-log", "--tries", "1"];
    let time = ["--max-wall-time", "0.2", "--stop-grace", "1"];
    let (code, stderr) = scene.start("2", &[&more[..], &time].concat()).wait();
    assert_eq!(code, 1, "{stderr}");
    assert!(
        stderr.contains("it is for the next run") || stderr.contains("wall time exceeded"),
        "{stderr}"
    );
    scene.check_asked(2, 1);
}
