//! Snakemake, and programs in Python, hand their jobs to one run of `pmc serve`.

use std::fs;
use std::path::Path;

use pmc_dag::Dag;

use crate::support::command::{CommandResult, Program};
use crate::support::programs::{Build, project, snakemake_bin};

/// A program of Snakemake's environment that finds our packages for Python and our programs.
fn python_program(name: &str, directory: &Path) -> Program {
    let bin = snakemake_bin();
    let own = Build::Local.program("pmc");
    let own = own.parent().expect("a program is in a directory");
    let path = format!("{}:{}:/usr/bin:/bin", own.display(), bin.display());
    let packages = project().join("packaging");
    let packages = format!("{0}/python:{0}/snakemake/src", packages.display());
    Program::new(bin.join(name))
        .in_directory(directory)
        .env("PATH", path)
        .env("PYTHONPATH", packages)
        .env("HOME", directory)
        .env("PYTHONDONTWRITEBYTECODE", "1")
}

fn snakemake(directory: &Path, target: &str) -> CommandResult {
    python_program("snakemake", directory)
        .args([
            "--executor",
            "pmc",
            "--jobs",
            "20",
            "--latency-wait",
            "20",
            "--snakefile",
        ])
        .arg(project().join("tests/e2e/snakemake/Snakefile"))
        .arg(target)
        .run()
}

#[test]
#[ignore = "needs Snakemake from PyPI: tests/run e2e"]
fn jobs_of_snakemake_are_tasks_of_one_run() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let work = directory.path();
    let finished = snakemake(work, "all").ok();
    let plot = fs::read_to_string(work.join("out/plot.txt")).expect("the result");
    assert_eq!(
        plot,
        "A THREADS 2\nB THREADS 2\nC THREADS 2\n",
        "{}",
        finished.details()
    );
    assert!(!work.join("out/A.sorted").exists(), "it is temporary");
    let runs = || fs::read_dir(work.join(".snakemake/pmc")).expect("runs").flatten();
    let run = runs().next().expect("a run").path();
    let dag = Dag::open(&run.join("tasks.dag")).expect("the DAG");
    // The rule `all` has no job of its own.
    assert_eq!((runs().count(), dag.len()), (1, 8));
    let mapped = dag.ids().find(|task| dag.transformation(*task) == Some(b"map"));
    let request = dag.request(mapped.expect("a job of the rule"));
    // `mem_mb: 100` are 95.4 MiB.
    assert_eq!((request.cpus, request.memory_mb), (2, 96));
    // Packs and their indexes, logs, and no file a job.
    let files = fs::read_dir(&run).expect("the run").count();
    assert!(files < 12, "{files} files");

    let failed = snakemake(work, "out/broken");
    assert_eq!(failed.code(), 1, "{}", failed.details());
    assert!(failed.stderr.contains("pmc log 1 "), "{}", failed.details());
}

#[test]
#[ignore = "needs a Python environment: tests/run e2e"]
fn the_executor_for_python_runs_commands_and_functions() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let tried = python_program("python", directory.path())
        .arg(project().join("packaging/python/try"))
        .arg("served")
        .run()
        .ok();
    assert!(
        tried.stdout.contains("the executor for Python works"),
        "{}",
        tried.details()
    );
}
