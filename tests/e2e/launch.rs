//! The executor notices how it was started.

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
