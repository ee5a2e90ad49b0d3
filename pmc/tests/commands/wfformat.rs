//! Instances of WfFormat: run, simulated, and written from a run.

use serde_json::Value;

use crate::support::Place;

/// Two tasks in a chain: the first reads an input of the workflow, the second what the first wrote.
const CHAIN: &str = r#"{
  "name": "chain", "schemaVersion": "1.5",
  "workflow": {
    "specification": {
      "tasks": [
        {"name": "cut_1", "id": "cut_1", "parents": [], "children": ["sum_2"],
         "inputFiles": ["input"], "outputFiles": ["middle"]},
        {"name": "sum_2", "id": "sum_2", "parents": ["cut_1"], "children": [],
         "inputFiles": ["middle"], "outputFiles": ["result"]}
      ],
      "files": [{"id": "input", "sizeInBytes": 3000}, {"id": "middle", "sizeInBytes": 200},
                {"id": "result", "sizeInBytes": 64}]
    },
    "execution": {
      "makespanInSeconds": 30, "executedAt": "2026-01-01T00:00:00Z",
      "tasks": [{"id": "cut_1", "runtimeInSeconds": 0.01}, {"id": "sum_2", "runtimeInSeconds": 0.02}],
      "machines": [{"nodeName": "n1"}, {"nodeName": "n2"}]
    }
  }
}"#;

#[test]
fn stand_ins_read_and_write_as_much_as_the_programs() {
    let place = Place::new();
    place.write("chain.json", CHAIN);
    place.run(["run", "chain.json"]).code(0);
    let files = place.path().join("pmc-runs/chain/latest/commands/files");
    let size = |name: &str| files.join(name).metadata().expect("the file").len();
    assert_eq!((size("input"), size("middle"), size("result")), (3000, 200, 64));
    let refused = place.run(["run", "--sleep", "pmc-runs/chain/latest/commands/chain.txt"]);
    refused.code(2);
    assert!(
        refused.stderr().contains("--sleep is for instances of WfFormat"),
        "{}",
        refused.stderr()
    );
}

#[test]
fn an_instance_is_simulated() {
    let place = Place::new();
    place.write("chain.json", CHAIN);
    let simulated = place
        .run(["simulate", "--json", "--nodes", "1", "chain.json"])
        .json();
    assert_eq!(simulated["recorded"]["seconds"], 30.0);
    assert_eq!(simulated["recorded"]["nodes"], 2);
    let seconds = simulated["simulated"][0]["seconds"].as_f64().expect("seconds");
    assert!((seconds - 0.03).abs() < 1e-6, "{simulated}");
}

/// Returns the tasks of a part of an instance, by their ids.
fn tasks<'a>(instance: &'a Value, part: &str) -> Vec<(&'a str, &'a Value)> {
    let tasks = instance["workflow"][part]["tasks"].as_array().expect("tasks");
    tasks
        .iter()
        .map(|task| (task["id"].as_str().expect("an id"), task))
        .collect()
}

#[test]
fn a_run_becomes_an_instance_that_runs_again() {
    let place = Place::new();
    place.write(
        "words.txt",
        "#@ label=one -c 1\nsleep 0.1\n#@ after=one\necho two\nfalse\n",
    );
    place.run(["run", "words.txt"]).code(1);
    place
        .run(["report", "--wfformat", "words.json", "pmc-runs/words/latest"])
        .code(0);
    assert!(!place.path().join("report.html").exists());
    let instance: Value = serde_json::from_str(&place.read("words.json")).expect("JSON");
    assert_eq!(instance["schemaVersion"], "1.6");
    let specified = tasks(&instance, "specification");
    assert_eq!(
        specified.iter().map(|task| task.0).collect::<Vec<_>>(),
        ["one", "n4", "n5"]
    );
    assert_eq!(specified[0].1["children"][0], "n4");
    assert_eq!(specified[1].1["parents"][0], "one");
    // What failed has not run, as far as the format can tell.
    let executed = tasks(&instance, "execution");
    assert_eq!(
        executed.iter().map(|task| task.0).collect::<Vec<_>>(),
        ["one", "n4"]
    );
    assert!(
        executed[0].1["runtimeInSeconds"].as_f64() >= Some(0.1),
        "{instance}"
    );
    place.run(["run", "--sleep=0.1", "words.json"]).code(0);
}
