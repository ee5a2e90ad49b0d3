use super::*;

/// Four tasks; an edge is named at its parent or at its child.
const FORK: &str = r#"{
  "name": "fork", "schemaVersion": "1.5",
  "workflow": {
    "specification": {
      "tasks": [
        {"name": "split_00001", "id": "split_00001", "parents": [], "children": ["work_ID2", "work_ID3"],
         "inputFiles": ["in/a"], "outputFiles": ["b", "c"]},
        {"name": "work_ID2", "id": "work_ID2", "parents": [], "children": [], "inputFiles": ["b"]},
        {"name": "work_ID3", "id": "work_ID3", "parents": ["split_00001"], "children": []},
        {"name": "join", "id": "4", "parents": ["work_ID2", "work_ID3"], "children": []}
      ],
      "files": [{"id": "in/a", "sizeInBytes": 7}, {"id": "b", "sizeInBytes": 5}]
    },
    "execution": {
      "makespanInSeconds": 9.5, "executedAt": "2026-01-01T00:00:00Z",
      "tasks": [{"id": "work_ID2", "runtimeInSeconds": 1.5, "coreCount": 1.2}],
      "machines": [{"nodeName": "n1"}]
    }
  }
}"#;

fn parse(text: &str) -> Result<Instance, String> {
    Instance::parse(text.as_bytes()).map_err(|error| error.to_string())
}

#[test]
fn tasks_become_commands() {
    let instance = parse(FORK).unwrap();
    assert_eq!(
        commands(&instance, StandIn::Sleep(2.0)),
        "# fork\n\
         #@ label=split_00001 name=split\nexec sleep 0.000\n\
         #@ label=work_ID2 name=work after=split_00001 -c 2\nexec sleep 3.000\n\
         #@ label=work_ID3 name=work after=split_00001\nexec sleep 0.000\n\
         #@ label=n4 name=join after=work_ID2,work_ID3\nexec sleep 0.000\n"
    );
    let work = commands(&instance, StandIn::Work("/opt/p m/pmc"));
    assert!(
        work.contains(
            "\ntruncate -s '>7' in_a && cat in_a > /dev/null && exec '/opt/p m/pmc' pegasus keg -T 0.000 -o b=5 c=0\n"
        ),
        "{work}"
    );
    assert!(
        work.contains("\ncat b > /dev/null && exec '/opt/p m/pmc' pegasus keg -T 1.500\n"),
        "{work}"
    );
}

#[test]
fn tasks_become_a_dag() {
    let found = recorded(&parse(FORK).unwrap()).unwrap();
    assert_eq!((found.dag.len(), found.dag.edge_count()), (4, 4));
    assert_eq!(found.seconds, [None, Some(1.5), None, None]);
    assert_eq!(found.execution, Some((1, 9.5)));
    let task = found.dag.find(b"work_ID2").unwrap();
    assert_eq!(found.dag.cpus(task), 2);
}

#[test]
fn wrong_instances_are_refused() {
    let changed = |from: &str, to: &str| parse(&FORK.replacen(from, to, 1)).unwrap_err();
    assert!(changed("\"1.5\"", "\"1.3\"").contains("WfFormat 1.3 is not known"));
    assert_eq!(
        changed("[\"split_00001\"]", "[\"gone\"]"),
        "the task work_ID3 names the task gone, which is not there"
    );
    assert_eq!(
        changed("\"id\": \"4\"", "\"id\": \"work_ID3\""),
        "two tasks have the id work_ID3"
    );
    assert_eq!(
        changed("1.5, \"core", "-1, \"core"),
        "the run time of the task work_ID2 is -1"
    );
    let cycle = parse(&FORK.replacen("\"parents\": []", "\"parents\": [\"4\"]", 1)).unwrap();
    let error = recorded(&cycle).unwrap_err().to_string();
    assert!(error.contains("wait for each other"), "{error}");
}

#[test]
fn only_instances_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("workflow.json");
    for (text, is_instance) in [
        (FORK, true),
        ("{\"pegasus\": \"5.0\", \"jobs\": []}", false),
        ("{", false),
    ] {
        std::fs::write(&path, text).unwrap();
        assert_eq!(Instance::read(&path).unwrap().is_some(), is_instance, "{text}");
    }
    let other = dir.path().join("workflow.yml");
    std::fs::write(&other, FORK).unwrap();
    assert!(Instance::read(&other).unwrap().is_none());
}

#[test]
fn names_are_unique_parts_of_paths() {
    let mut names = Names::default();
    let made: Vec<String> = ["a/b", "a_b", "../x", "12", "", "-c", &"l".repeat(300)]
        .iter()
        .map(|text| names.make(text))
        .collect();
    assert_eq!(
        made[..6],
        ["a_b", "a_b-1", "n.._x", "n12", "n", "n-c"].map(str::to_owned)
    );
    assert!(made[6].len() <= MAX_NAME);
}
