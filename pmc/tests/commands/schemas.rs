//! The JSON Schemas in `share/schemas`: of inputs, and of what is printed for plans.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::support::{Place, schema};

/// Reads a file of YAML.
fn yaml(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn workflows_and_catalogs_are_as_their_schemas_say() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = 0;
    for folder in [
        "examples/diamond",
        "examples/mpi",
        "templates/init/single",
        "templates/init/fan-out",
        "tests/condor/workflows",
    ] {
        for file in std::fs::read_dir(root.join(folder)).expect(folder).flatten() {
            let path = file.path();
            if path.extension().is_none_or(|ending| ending != "yml") {
                continue;
            }
            let value = yaml(&path);
            let name = ["jobs", "replicas", "transformations", "sites"]
                .iter()
                .zip([
                    "workflow",
                    "replica-catalog",
                    "transformation-catalog",
                    "site-catalog",
                ])
                .find_map(|(key, name)| value.get(key).is_some().then_some(name));
            schema::check(name.unwrap_or_else(|| panic!("{}", path.display())), &value);
            files += 1;
        }
    }
    assert!(files > 10, "{files}");
}

/// Both refuse the same faults, and take the same oddities.
#[test]
fn the_reader_and_the_schema_of_workflows_agree() {
    let place = Place::new();
    let job = |more: Value| {
        let mut job = json!({"type": "job", "id": "A", "name": "pegasus::date", "arguments": []});
        for (key, value) in more.as_object().into_iter().flatten() {
            job[key] = value.clone();
        }
        json!({"pegasus": "5.0", "name": "w", "jobs": [job]})
    };
    for (is_good, workflow) in [
        (true, job(json!({}))),
        (
            true,
            job(
                json!({"x-note": {"any": [1, 2]}, "profiles": {"pegasus": {"memory": 100}, "env": {"A": null}}}),
            ),
        ),
        (
            true,
            job(json!({"uses": [{"lfn": 7, "type": "output", "stageOut": "false", "size": "12"}]})),
        ),
        (
            true,
            job(json!({"hooks": {"shell": [{"_on": "at_end", "cmd": "/bin/true"}]}})),
        ),
        (
            false,
            job(json!({"hooks": {"shell": [{"_on": "sometimes", "cmd": "/bin/true"}]}})),
        ),
        (false, job(json!({"uses": [{"lfn": "f", "type": "temporary"}]}))),
        (false, job(json!({"uses": [{"type": "input"}]}))),
        (false, job(json!({"type": "cluster"}))),
        (false, job(json!({"arguments": [["a"]]}))),
        (false, job(json!({"profile": {}}))),
        (false, json!({"pegasus": "5.0", "name": "w", "jobs": {}})),
        (
            false,
            json!({"pegasus": "5.0", "name": "w", "jobs": [{"type": "job", "id": "A"}]}),
        ),
    ] {
        // JSON is YAML.
        place.write("workflow.yml", &workflow.to_string());
        let read = place.run(["plan", "--dry-run", "workflow.yml"]).stderr();
        let is_read = !read.contains("workflow.yml:1:");
        assert_eq!(is_read, is_good, "{workflow}: {read}");
        assert_eq!(
            schema::problems("workflow", &workflow).is_empty(),
            is_good,
            "{workflow}"
        );
    }
}

#[test]
fn what_the_planner_prints_is_as_its_schemas_say() {
    let place = Place::new();
    place.chain("cp in.txt mid.txt", "cp mid.txt out.txt");
    let preview = place.run(["plan", "--dry-run", "--json", "workflow.yml"]);
    schema::check("pmc-plan-preview", &preview.code(0).json());
    let planned = place.run([
        "plan",
        "--json",
        "--dir",
        "s",
        "--diagnostics",
        "json",
        "workflow.yml",
    ]);
    schema::check("pmc-plan", &planned.code(0).json());
    let said = planned.stderr();
    let lines: Vec<Value> = said
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect();
    assert!(!lines.is_empty());
    for line in &lines {
        schema::check("pmc-plan-diagnostic", line);
    }
}

/// Without that, no check would say anything.
#[test]
fn unknown_keys_are_found() {
    let nodes = json!([{"host": "a", "state": "working", "slots": 1, "busy": 0, "cpus": 1, "free_cpus": 1,
        "memory_mib": 1, "free_memory_mib": 1, "away": false}]);
    assert!(schema::problems("pmc-nodes", &nodes).is_empty());
    let mut more = nodes.clone();
    more[0]["more"] = 1.into();
    assert_eq!(schema::problems("pmc-nodes", &more).len(), 1);
    let mut less = nodes;
    less[0]["busy"].take();
    assert_eq!(schema::problems("pmc-nodes", &less).len(), 1);
}
