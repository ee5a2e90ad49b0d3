//! The executor recognizes its launcher.

use std::fs;

use crate::support::command::Run;
use crate::support::programs::Flavour;

const EXECUTOR: &str = "pegasus-mpi-cluster";

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    fs::write(folder.path().join("small.dag"), "TASK a /bin/echo hello\n").expect("a file");
    folder
}

#[test]
#[ignore = "needs MPI: tests/run e2e"]
fn build_without_mpi_refuses_a_launcher() {
    for launcher in [Flavour::OpenMpi, Flavour::Mpich] {
        let folder = folder();
        let words = launcher.launcher(2);
        let said = Run::new(&words[0])
            .args(&words[1..])
            .arg(Flavour::Local.program(EXECUTOR))
            .arg("small.dag")
            .within(folder.path())
            .envs(&launcher.environment())
            .go()
            .refused();
        assert!(
            said.stderr.contains("without MPI"),
            "{launcher:?}: {}",
            said.account()
        );
        assert!(
            !said.stdout.contains("hello"),
            "nothing has run: {}",
            said.account()
        );
    }
}

#[test]
#[ignore = "needs MPI: tests/run e2e"]
fn build_with_mpi_runs_alone() {
    for flavour in [Flavour::OpenMpi, Flavour::Mpich] {
        let folder = folder();
        let said = Run::new(flavour.program(EXECUTOR))
            .arg("small.dag")
            .within(folder.path())
            .limit(60)
            .go()
            .ok();
        assert!(said.stdout.contains("hello\n"), "{flavour:?}: {}", said.account());
    }
}

/// Launchers bind each rank to a core; tasks may use all of them, unless the user wants it so.
#[test]
#[ignore = "needs Open MPI: tests/run e2e"]
fn tasks_are_freed_from_the_core_of_their_rank() {
    let folder = folder();
    let task = "sed -n s/Cpus_allowed_list:.//p /proc/self/status";
    fs::write(folder.path().join("x.dag"), format!("TASK a {task}\n")).expect("a file");
    let allowed = |launcher: &str, options: &[&str]| {
        let flavour = Flavour::OpenMpi;
        let mut words = flavour.launcher(2);
        words.extend(launcher.split_whitespace().map(str::to_owned));
        let said = Run::new(&words[0])
            .args(&words[1..])
            .arg(flavour.program(EXECUTOR))
            .args(["--skip-rescue", "--quiet", "x.dag"])
            .args(options)
            .within(folder.path())
            .envs(&flavour.environment())
            .go()
            .ok();
        let mut lines = said.stdout.lines();
        lines.find(|line| !line.starts_with('[')).map(str::to_owned)
    };
    let all = allowed("--bind-to none", &["--keep-affinity"]);
    let one = allowed("--bind-to core", &["--keep-affinity"]);
    assert!(one.as_ref().is_some_and(|cpus| cpus.parse::<u32>().is_ok()) || one == all);
    assert_eq!(allowed("--bind-to core", &[]), all);
    // Tasks can be bound only to CPUs that their worker may use.
    assert_eq!(
        allowed("--bind-to core", &["--keep-affinity", "--set-affinity"]),
        all
    );
}
