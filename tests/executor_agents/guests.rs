//! Workflows that are handed to a run with agents.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use nix::sys::signal::{Signal, kill};
use pmc_control::{Answer, Request, ask};

use super::{Run, Scene, TASK};

const OPTIONS: [&str; 4] = ["--launch", "local", "--jobstate-log", "--per-task-stdio"];

/// Hands a workflow over whose tasks write to the same log.
fn hand_over(scene: &Scene, tasks: usize, seconds: &str) {
    fs::create_dir(scene.path("other")).unwrap();
    fs::write(scene.path("other/task.sh"), TASK.replace(">> log", ">> ../log")).unwrap();
    fs::set_permissions(scene.path("other/task.sh"), fs::Permissions::from_mode(0o755)).unwrap();
    let lines = (0..tasks).map(|n| format!("TASK g{n} ./task.sh g{n} {seconds}\n"));
    fs::write(scene.path("other/y.dag"), lines.collect::<String>()).unwrap();
    let dag = scene.path("other/y.dag").display().to_string();
    let answer = ask(&scene.path("x.dag"), &Request::Submit { dag, weight: 100 }).unwrap();
    assert!(matches!(answer, Answer::Done(_)), "{answer:?}");
}

fn done(rescue: &Path) -> usize {
    let text = fs::read_to_string(rescue).unwrap_or_default();
    text.lines().filter(|line| line.starts_with("DONE ")).count()
}

#[test]
fn a_lost_agent_costs_each_workflow_its_own_attempts() {
    let scene = Scene::new(3, "1");
    let run = scene.start("2", &OPTIONS);
    scene.wait_for("begin t", 2);
    hand_over(&scene, 3, "1");
    scene.wait_for("begin g", 1);
    let (_, agent) = run.agents()[0];
    kill(agent, Signal::SIGKILL).unwrap();
    let (code, stderr) = run.wait();
    assert_eq!(code, 0, "{stderr}");
    assert!(stderr.contains("Workflow y.dag succeeded"), "{stderr}");
    // The agent may have had nothing to do at that moment.
    assert!(scene.begins(6).values().sum::<usize>() <= 7, "{}", scene.log());
    assert_eq!(
        (
            done(&scene.path("x.dag.rescue")),
            done(&scene.path("other/y.dag.rescue"))
        ),
        (3, 3)
    );
    let log = fs::read_to_string(scene.path("other/jobstate.log")).unwrap();
    assert!(log.contains("PMC_FINISHED 0"), "{log}");
}

/// Agents have kept the results of tasks that ended while there was no master.
#[test]
fn what_tasks_of_a_guest_did_without_a_master_is_not_repeated() {
    let scene = Scene::new(2, "1");
    let run = scene.start("2", &OPTIONS);
    scene.wait_for("begin t", 2);
    hand_over(&scene, 2, "2");
    scene.wait_for("begin g", 2);
    drop(run);
    scene.wait_for("end g", 2);
    let (code, stderr) = scene.start("2", &OPTIONS).wait();
    assert_eq!(code, 0, "{stderr}");
    assert!(stderr.contains("has ended meanwhile"), "{stderr}");
    assert_eq!(done(&scene.path("other/y.dag.rescue")), 2, "{stderr}");
    let mut command = scene.command(&["--agents", "1", "--slots", "2", "--launch", "local"]);
    command.args(["--jobstate-log", "--per-task-stdio", "y.dag"]);
    command.current_dir(scene.path("other"));
    let (code, stderr) = Run::new(command).wait();
    assert_eq!(code, 0, "{stderr}");
    assert!(
        scene.begins(4).values().all(|times| *times == 1),
        "{}",
        scene.log()
    );
    // Both ends of both attempts are in the log.
    let log = fs::read_to_string(scene.path("other/jobstate.log")).unwrap();
    assert_eq!(log.matches("JOB_SUCCESS 0").count(), 2, "{log}");
}

/// What the next master does not take along is resumed by itself: the agents have ended its tasks, which run
/// again.
#[test]
fn the_next_master_runs_its_own_workflow_only() {
    let scene = Scene::new(2, "1");
    let run = scene.start("2", &OPTIONS);
    scene.wait_for("begin t", 2);
    // Long enough that the next master ends them.
    hand_over(&scene, 2, "8");
    scene.wait_for("begin g", 2);
    // Dropping a run kills its master.
    drop(run);
    let (code, stderr) = scene.start("2", &OPTIONS).wait();
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(done(&scene.path("x.dag.rescue")), 2);
    let mut command = scene.command(&["--agents", "1", "--slots", "2", "--launch", "local"]);
    command.args(["--jobstate-log", "--per-task-stdio", "y.dag"]);
    command.current_dir(scene.path("other"));
    let (code, stderr) = Run::new(command).wait();
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(done(&scene.path("other/y.dag.rescue")), 2);
    scene.begins(4);
}
