//! A run inside a gang: its agents are on the hosts of the task, and end with it.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{Mpi, Scene, output, ranks};
use crate::support::programs::Build;

/// Tasks of the inner run.
const TASKS: usize = 6;

/// Waits until tasks of the run have begun on two hosts, and until there is a file if its name is given.
const STEP: &str = "#!/bin/sh
: >seen.$(hostname)
until [ \"$(ls | grep -c '^seen[.]')\" -ge 2 ]; do sleep 0.05; done
echo \"rank on $(hostname)\"
until [ -z \"$1\" ] || [ -e \"$1\" ]; do sleep 0.05; done
";

impl Scene {
    /// A task over two hosts that is a run of other tasks.
    fn with_inner_run(options: &str, argument: &str) -> Self {
        let program = Build::Local.program("pegasus-mpi-cluster");
        let dag = format!(
            "TASK cluster {options} --on n[1-2] -N 2 --ranks-per-node 2 -c 1 -m 100 {} --agents gang \
             --agent-timeout 5 --no-resource-log inner.dag\nTASK after /bin/true\nEDGE cluster after\n",
            program.display()
        );
        let scene = Self::new(Mpi::debian("mpicc.openmpi"), &dag);
        let inner = (0..TASKS).map(|number| format!("TASK s{number} -c 1 -m 50 ./step {argument}\n"));
        fs::write(scene.path("inner.dag"), inner.collect::<String>()).expect("a DAG");
        fs::write(scene.path("step"), STEP).expect("a script");
        fs::set_permissions(scene.path("step"), fs::Permissions::from_mode(0o755)).expect("a mode");
        scene
    }

    /// Processes of the scene whose command lines have this word.
    fn with_word(&self, word: &str) -> Vec<Pid> {
        let mut found = self.processes("pegasus-mpi-clu");
        found.retain(|pid| {
            let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            words
                .split(|byte| *byte == 0)
                .any(|found| found.ends_with(word.as_bytes()))
        });
        found
    }

    /// Agents, guards and tasks of the inner run, and what carries their streams.
    fn of_inner_run(&self) -> BTreeSet<Pid> {
        let agents = self.with_word("inner.dag.endpoint");
        let others = ["step", "pmc-rsh"].map(|name| self.processes(name));
        agents.into_iter().chain(others.into_iter().flatten()).collect()
    }

    /// Waits until the inner run uses both hosts with all of its slots.
    fn wait_for_steps(&self) {
        self.wait_for("four tasks run", |scene| {
            scene.processes("step").len() == 4 && scene.with_word("inner.dag.endpoint").len() == 4
        });
    }

    /// Waits until nothing is left of what was there.
    fn all_are_gone(&self, before: &BTreeSet<Pid>) {
        self.wait_for("nothing is left", |scene| {
            scene.of_inner_run().is_disjoint(before)
        });
    }
}

#[test]
#[ignore = "needs network namespaces and Open MPI: tests/run e2e"]
fn a_run_inside_a_gang_has_its_hosts() {
    let mut scene = Scene::with_inner_run("", "");
    scene.start();
    scene.succeed();
    let said = output(scene.folder.path(), "cluster");
    let hosts = ranks(&said);
    assert_eq!(hosts.len(), 2, "{said}\n{}", scene.said());
    assert_eq!(hosts.values().sum::<usize>(), TASKS, "{said}");
    let records = said
        .lines()
        .filter(|line| line.starts_with("[cluster-task name=s"));
    assert_eq!(records.count(), TASKS, "{said}");
    let summary =
        format!("[cluster-summary stat=\"ok\", tasks={TASKS}, submitted={TASKS}, succeeded={TASKS}");
    assert!(said.contains(&summary), "{said}");
    assert!(!scene.path("inner.dag.endpoint").exists(), "the run is over");
    assert!(scene.of_inner_run().is_empty());
}

/// Whatever of it is killed: agents and tasks end on both hosts, and the next attempt does the rest.
#[test]
#[ignore = "needs network namespaces and Open MPI: tests/run e2e"]
fn nothing_is_left_of_a_run_inside_a_gang_that_is_killed() {
    let mut scene = Scene::with_inner_run("-t 2", "go");
    scene.start();
    scene.wait_for_steps();
    let before = scene.of_inner_run();
    let master = *scene.with_word("gang").first().expect("the inner executor");
    kill(master, Signal::SIGKILL).expect("a signal");
    scene.all_are_gone(&before);
    // The next attempt.
    scene.wait_for_steps();
    fs::write(scene.path("go"), "").expect("a file");
    scene.succeed();
    let hosts = ranks(&output(scene.folder.path(), "cluster"));
    assert_eq!(hosts.len(), 2, "{}", scene.said());
    assert!(scene.of_inner_run().is_empty());
}

/// A run that is aborted ends its gangs, and what runs inside them.
#[test]
#[ignore = "needs network namespaces and Open MPI: tests/run e2e"]
fn a_run_inside_a_gang_ends_with_the_run_around_it() {
    let mut scene = Scene::with_inner_run("", "never");
    scene.start();
    scene.wait_for_steps();
    let before = scene.of_inner_run();
    let master = scene.master.as_ref().expect("a master").id();
    kill(Pid::from_raw(master.cast_signed()), Signal::SIGTERM).expect("a signal");
    assert!(!scene.wait(), "{}", scene.said());
    scene.all_are_gone(&before);
}
