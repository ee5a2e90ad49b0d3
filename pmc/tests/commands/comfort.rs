//! `pmc init`, `--on-end`, commands without a directory, and provenance.

use std::collections::BTreeSet;

use crate::support::Place;
use serde_json::Value;

#[test]
fn each_template_runs_at_once() {
    let place = Place::new();
    for (template, output) in [
        ("single", "counts.txt"),
        ("pipeline", "f.d"),
        ("fan-out", "total.txt"),
    ] {
        let written = place.run(["init", "--template", template, "--python", template]);
        let command = format!("to run it: pmc run {template}/workflow.yml\n");
        assert!(
            written.code(0).stdout().ends_with(&command),
            "{}",
            written.stdout()
        );
        let summary = place.run(["run", "-j", "2", "--json", &format!("{template}/workflow.yml")]);
        let outputs = summary.code(0).json()["outputs"].to_string();
        assert!(outputs.contains(output), "{outputs}");
        assert!(
            place
                .read(&format!("{template}/workflow.py"))
                .contains("from Pegasus.api import")
        );
    }
    let total = place.read("pmc-runs/fan-out/latest/output/total.txt");
    assert!(total.starts_with("10 the\n"), "{total}");
}

#[test]
fn init_overwrites_nothing() {
    let place = Place::new();
    place.write("replicas.yml", "mine");
    let refused = place.run(["init"]);
    assert!(refused.code(2).stderr().contains("replicas.yml exists already"));
    assert_eq!(place.read("replicas.yml"), "mine");
    assert!(!place.path().join("workflow.yml").exists());
}

#[test]
fn a_command_runs_at_the_end() {
    let place = Place::new();
    place.chain("exit 3", "true");
    let command = "echo out; echo $PMC_RESULT $PMC_EXIT_CODE $PMC_TASKS_FAILED $PMC_RUN_DIR > ended; exit 7";
    let run = place.run(["run", "--json", "--on-end", command, "workflow.yml"]);
    // Standard output is for the summary.
    assert_eq!(run.code(1).json()["status"], "failed");
    assert!(
        run.stderr()
            .contains("the command of --on-end failed: exit status: 7"),
        "{}",
        run.stderr()
    );
    let ended = place.read("ended");
    let words: Vec<&str> = ended.split_whitespace().collect();
    assert_eq!(words[..3], ["failure", "1", "1"]);
    assert!(words[3].ends_with("pmc-runs/chain/run0001"), "{ended}");
}

#[test]
fn commands_take_the_latest_run() {
    let place = Place::new();
    place.chain("exit 3", "true");
    assert!(
        place
            .run(["status"])
            .code(2)
            .stderr()
            .contains("no braindump.yml")
    );
    place.run(["run", "-q", "workflow.yml"]).code(1);
    for command in ["analyzer", "resume"] {
        let shown = place.run([command]).code(1).stderr();
        assert!(
            shown.contains("pmc: pmc-runs/chain/run0001\n"),
            "{command}: {shown}"
        );
    }
    for command in ["status", "statistics", "report"] {
        place.run([command]).code(0);
    }
    assert_eq!(place.run(["status", "--json"]).code(0).stderr(), "");
}

#[test]
fn provenance_is_one_graph() {
    let place = Place::new();
    place.chain("cp in.txt mid.txt", "cp mid.txt out.txt");
    place.run(["run", "-q", "workflow.yml"]).code(0);
    place.run(["report", "-q", "--ro-crate", "crate"]).code(0);
    assert!(!place.path().join("report.html").exists());
    assert_eq!(place.read("crate/outputs/out.txt"), "something\n");
    let metadata: Value = serde_json::from_str(&place.read("crate/ro-crate-metadata.json")).expect("JSON");
    let graph = metadata["@graph"].as_array().expect("entities");
    let ids: BTreeSet<&str> = graph.iter().filter_map(|entity| entity["@id"].as_str()).collect();
    assert_eq!(ids.len(), graph.len(), "each entity is there once");
    for entity in graph {
        for value in entity.as_object().expect("an object").values() {
            let references = value
                .as_array()
                .map_or(std::slice::from_ref(value), Vec::as_slice);
            for id in references
                .iter()
                .filter_map(|reference| reference["@id"].as_str())
            {
                assert!(
                    ids.contains(id) || id.starts_with("https://"),
                    "{id} is not described"
                );
            }
        }
    }
    let find = |id: &str| graph.iter().find(|entity| entity["@id"] == id).expect(id);
    let second = find("#execution-second_B-0");
    assert_eq!(second["object"]["@id"], "#file-mid.txt");
    assert_eq!(second["result"]["@id"], "outputs/out.txt");
    assert_eq!(find("inputs/in.txt")["contentSize"], "10");
    // A crate is not overwritten.
    place.run(["report", "--ro-crate", "crate"]).code(2);
}
