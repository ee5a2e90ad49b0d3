//! The Python API of Pegasus calls the scripts of `share/pegasus-shims` as if they were Pegasus' programs.

use std::fs;

use serde_json::Value;

use crate::support::command::Program;
use crate::support::programs::{Build, project, python};

/// Runs one of the scenarios of `workflow.py`. Returns what the script printed and the last status.
fn run(scenario: &str) -> (String, Value) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let work = directory.path().canonicalize().expect("it is there");
    let shims = project().join("share/pegasus-shims/bin");
    // Without HTCondor, batch systems and Java.
    let path = format!(
        "{}:{}:/usr/bin:/bin",
        shims.display(),
        Build::Local.bin().display()
    );
    let result = work.join("status.json");
    let ended = python()
        .arg(project().join("tests/e2e/pegasus_api/workflow.py"))
        .arg(scenario)
        .in_directory(&work)
        .env("PATH", path)
        .env("HOME", &work)
        .env("RESULT", &result)
        .run()
        .ok();
    let status = fs::read_to_string(&result).expect("the script writes the status");
    let status = serde_json::from_str(&status).expect("the status is JSON");
    (format!("{}{}", ended.stdout, ended.stderr), status)
}

#[test]
#[ignore = "needs Pegasus' Python packages: tests/run e2e"]
fn python_api_plans_runs_and_shows_a_workflow() {
    let (printed, status) = run("success");
    assert_eq!(
        (&status["state"], &status["percent_done"]),
        (&"Success".into(), &100.0.into())
    );
    for text in [
        "# pegasus-plan #",
        "100.0% ..Success",
        "# pegasus-analyzer #",
        "# pegasus-statistics #",
    ] {
        assert!(printed.contains(text), "{text}: {printed}");
    }
}

#[test]
#[ignore = "needs Pegasus' Python packages: tests/run e2e"]
fn python_api_waits_for_the_end_of_a_second_run() {
    let (_, status) = run("again");
    assert_eq!(
        (&status["state"], &status["failed"]),
        (&"Success".into(), &0.into())
    );
}

#[test]
#[ignore = "needs Pegasus' Python packages: tests/run e2e"]
fn python_api_removes_a_workflow() {
    let (_, status) = run("remove");
    assert_eq!(status["state"], "Failure");
}

#[test]
#[ignore = "needs Pegasus' Python packages: tests/run e2e"]
fn scripts_of_pmc_init_write_workflows_that_run() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let pmc = || Program::new(Build::Local.program("pmc")).in_directory(directory.path());
    for template in ["single", "pipeline", "fan-out"] {
        let dir = directory.path().join(template);
        pmc()
            .args(["init", "--python", "-t", template, template])
            .run()
            .ok();
        let by_hand = fs::read_to_string(dir.join("workflow.yml")).expect("a workflow");
        python().arg("workflow.py").in_directory(&dir).run().ok();
        let by_script = fs::read_to_string(dir.join("workflow.yml")).expect("a workflow");
        assert_ne!(by_hand, by_script, "the script has written it");
        pmc().args(["run", "-q"]).arg(dir.join("workflow.yml")).run().ok();
    }
}
