//! The README's first command, and a synthetic workflow that resembles published ones.

use std::fs;

use crate::support::command::Program;
use crate::support::programs::{Build, example, project};

#[test]
#[ignore = "needs all programs built: tests/run e2e"]
fn example_runs_with_one_command() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let result = Program::new(Build::Local.program("pmc"))
        .arg("run")
        .arg(project().join("examples/diamond/workflow.yml"))
        .in_directory(directory.path())
        .run()
        .ok();
    let output = directory.path().join("pmc-runs/diamond/latest/output/f.d");
    let text = fs::read_to_string(&output).unwrap_or_else(|e| panic!("{e}: {}", result.details()));
    assert!(!text.trim().is_empty(), "the output has contents");
    let summary = format!("{}{}", result.stdout, result.stderr);
    assert!(
        summary.contains("output"),
        "the output names the directory of outputs: {summary}"
    );
}

/// Plans and runs the synthetic survey workflow, whose programs check the size of each file.
fn run_survey(build: Build) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let dax = project().join("examples/synthetic/survey.xml");
    let prepared = directory.path().join("prepared");
    Program::new(example("synthetic"))
        .arg("prepare")
        .arg("--dax")
        .arg(&dax)
        .arg("--out")
        .arg(&prepared)
        .args(["--scale", "0.01"])
        .run()
        .ok();
    Program::new(build.program("pmc-plan"))
        .arg("--conf")
        .arg(prepared.join("pegasus.properties"))
        .args(["--sites", "local", "--output-sites", "local", "--dir"])
        .arg(directory.path().join("submit"))
        .args(["--relative-submit-dir", "run"])
        .arg(&dax)
        .in_directory(directory.path())
        .run()
        .ok();
    let submit = directory.path().join("submit/run");
    let dag = crate::support::pegasus::only_file(&submit, ".dag");
    build
        .executor_with(3)
        .arg("--per-task-stdio")
        .arg(&dag)
        .in_directory(&submit)
        .run()
        .ok();
    Program::new(example("synthetic"))
        .arg("check")
        .arg("--prepared")
        .arg(&prepared)
        .run()
        .ok();
}

#[test]
#[ignore = "needs all programs built: tests/run e2e"]
fn synthetic_workflow_runs_locally() {
    run_survey(Build::Local);
}

#[test]
#[ignore = "needs all programs built: tests/run e2e"]
fn synthetic_workflow_runs_in_agents() {
    run_survey(Build::Agents);
}

#[test]
#[ignore = "needs Open MPI: tests/run e2e"]
fn synthetic_workflow_runs_under_open_mpi() {
    run_survey(Build::OpenMpi);
}
