//! The README's first command, and a workflow like the published ones.

use std::fs;

use crate::support::command::Run;
use crate::support::programs::{Flavour, example, project};

#[test]
#[ignore = "needs all programs built: tests/run e2e"]
fn example_runs_with_one_command() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let said = Run::new(Flavour::Local.program("pmc"))
        .arg("run")
        .arg(project().join("examples/diamond/workflow.yml"))
        .within(folder.path())
        .go()
        .ok();
    let output = folder.path().join("pmc-runs/diamond/latest/output/f.d");
    let text = fs::read_to_string(&output).unwrap_or_else(|e| panic!("{e}: {}", said.account()));
    assert!(!text.trim().is_empty(), "the output has contents");
    let summary = format!("{}{}", said.stdout, said.stderr);
    assert!(
        summary.contains("output"),
        "says where the outputs are: {summary}"
    );
}

/// Plans and runs the stand-in for published workflows; its programs check each file's size.
fn survey(flavour: Flavour) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dax = project().join("examples/synthetic/survey.xml");
    let prepared = folder.path().join("prepared");
    Run::new(example("synthetic"))
        .arg("prepare")
        .arg("--dax")
        .arg(&dax)
        .arg("--out")
        .arg(&prepared)
        .args(["--scale", "0.01"])
        .go()
        .ok();
    Run::new(flavour.program("pmc-plan"))
        .arg("--conf")
        .arg(prepared.join("pegasus.properties"))
        .args(["--sites", "local", "--output-sites", "local", "--dir"])
        .arg(folder.path().join("submit"))
        .args(["--relative-submit-dir", "run"])
        .arg(&dax)
        .within(folder.path())
        .go()
        .ok();
    let submit = folder.path().join("submit/run");
    let dag = crate::support::pegasus::only_file(&submit, ".dag");
    flavour
        .executor_with(3)
        .arg("--per-task-stdio")
        .arg(&dag)
        .within(&submit)
        .go()
        .ok();
    Run::new(example("synthetic"))
        .arg("check")
        .arg("--prepared")
        .arg(&prepared)
        .go()
        .ok();
}

#[test]
#[ignore = "needs all programs built: tests/run e2e"]
fn stand_in_for_published_workflows_runs_locally() {
    survey(Flavour::Local);
}

#[test]
#[ignore = "needs Open MPI: tests/run e2e"]
fn stand_in_for_published_workflows_runs_under_open_mpi() {
    survey(Flavour::OpenMpi);
}
