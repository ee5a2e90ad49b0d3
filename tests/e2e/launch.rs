//! The executor recognizes its launcher.

use std::fs;

use crate::support::command::Program;
use crate::support::programs::Build;

const EXECUTOR: &str = "pegasus-mpi-cluster";

fn directory_with_dag() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a temporary directory");
    fs::write(directory.path().join("small.dag"), "TASK a /bin/echo hello\n").expect("a file");
    directory
}

#[test]
#[ignore = "needs MPI: tests/run e2e"]
fn build_without_mpi_refuses_a_launcher() {
    for launcher in [Build::OpenMpi, Build::Mpich] {
        let directory = directory_with_dag();
        let words = launcher.launcher(2);
        let result = Program::new(&words[0])
            .args(&words[1..])
            .arg(Build::Local.program(EXECUTOR))
            .arg("small.dag")
            .in_directory(directory.path())
            .envs(&launcher.environment())
            .run()
            .refused();
        assert!(
            result.stderr.contains("without MPI"),
            "{launcher:?}: {}",
            result.details()
        );
        assert!(
            !result.stdout.contains("hello"),
            "nothing has run: {}",
            result.details()
        );
    }
}

#[test]
#[ignore = "needs MPI: tests/run e2e"]
fn build_with_mpi_runs_without_a_launcher() {
    for build in [Build::OpenMpi, Build::Mpich] {
        let directory = directory_with_dag();
        let result = Program::new(build.program(EXECUTOR))
            .arg("small.dag")
            .in_directory(directory.path())
            .limit(60)
            .run()
            .ok();
        assert!(
            result.stdout.contains("hello\n"),
            "{build:?}: {}",
            result.details()
        );
    }
}

/// Launchers bind each rank to a core. Tasks may use all cores unless `--keep-affinity` is given.
#[test]
#[ignore = "needs Open MPI: tests/run e2e"]
fn tasks_are_not_bound_to_the_core_of_their_rank() {
    let directory = directory_with_dag();
    let task = "sed -n s/Cpus_allowed_list:.//p /proc/self/status";
    fs::write(directory.path().join("x.dag"), format!("TASK a {task}\n")).expect("a file");
    let allowed = |launcher: &str, options: &[&str]| {
        let build = Build::OpenMpi;
        let mut words = build.launcher(2);
        words.extend(launcher.split_whitespace().map(str::to_owned));
        let result = Program::new(&words[0])
            .args(&words[1..])
            .arg(build.program(EXECUTOR))
            .args(["--skip-rescue", "--quiet", "x.dag"])
            .args(options)
            .in_directory(directory.path())
            .envs(&build.environment())
            .run()
            .ok();
        let mut lines = result.stdout.lines();
        lines.find(|line| !line.starts_with('[')).map(str::to_owned)
    };
    let all_cpus = allowed("--bind-to none", &["--keep-affinity"]);
    let one = allowed("--bind-to core", &["--keep-affinity"]);
    assert!(one.as_ref().is_some_and(|cpus| cpus.parse::<u32>().is_ok()) || one == all_cpus);
    assert_eq!(allowed("--bind-to core", &[]), all_cpus);
    // Tasks can be bound only to CPUs that their worker may use.
    assert_eq!(
        allowed("--bind-to core", &["--keep-affinity", "--set-affinity"]),
        all_cpus
    );
}
