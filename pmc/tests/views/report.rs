//! `pmc report` of runs with sub-workflows.

use serde_json::Value;

use crate::support::Place;

const OUTER: &str = r#"pegasus: "5.0"
name: outer
transformationCatalog:
  transformations:
  - {name: before, sites: [{name: local, type: installed, pfn: /bin/true}]}
replicaCatalog:
  replicas:
  - {lfn: inner.yml, pfns: [{site: local, pfn: "@TOP@/inner.yml"}]}
jobs:
- {type: job, id: A, name: before, uses: []}
- {type: pegasusWorkflow, id: S, file: inner.yml, arguments: [--basename, inner], uses: [{lfn: inner.yml, type: input}]}
jobDependencies:
- {id: A, children: [S]}
"#;

const INNER: &str = r#"pegasus: "5.0"
name: inner
transformationCatalog:
  transformations:
  - {name: good, sites: [{name: local, type: installed, pfn: /bin/true}]}
  - {name: bad, sites: [{name: local, type: installed, pfn: /bin/false}]}
jobs:
- {type: job, id: G, name: good, uses: []}
- {type: job, id: B, name: bad, uses: []}
- {type: job, id: C, name: good, uses: []}
jobDependencies:
- {id: G, children: [B]}
- {id: B, children: [C]}
"#;

#[test]
fn the_tasks_of_a_sub_workflow_are_in_the_report() {
    let place = Place::new();
    place.write(
        "outer.yml",
        &OUTER.replace("@TOP@", &place.path().display().to_string()),
    );
    place.write("inner.yml", INNER);
    place
        .run(["run", "-q", "-Dpegasus.subworkflow=nested", "outer.yml"])
        .code(1);
    place
        .run([
            "report",
            "-q",
            "-o",
            "r.html",
            "--trace",
            "t.json",
            "--ro-crate",
            "crate",
            "pmc-runs/outer",
        ])
        .code(0);
    let page = place.read("r.html");
    let (_, data) = page
        .split_once(r#"<script type="application/json" id="data">"#)
        .expect("data");
    let (data, _) = data.split_once("</script>").expect("its end");
    let data: Value = serde_json::from_str(data).expect("JSON");
    let inner = |name: &str| name.contains("S/");
    let bars: Vec<&str> = data["bars"]
        .as_array()
        .expect("bars")
        .iter()
        .filter_map(|bar| bar[5].as_str())
        .collect();
    for task in ["before_A", "good_G", "bad_B"] {
        assert!(bars.iter().any(|name| name.ends_with(task)), "{task}: {bars:?}");
    }
    assert!(
        bars.iter().any(|name| inner(name) && name.ends_with("bad_B")),
        "{bars:?}"
    );
    assert!(
        !bars.iter().any(|name| name.ends_with("_S")),
        "it takes no slot: {bars:?}"
    );
    assert_eq!(data["verdict"]["text"], "failed");
    assert!(
        data["blocked"].as_u64().is_some_and(|count| count >= 1),
        "{}",
        data["blocked"]
    );
    let failures = data["failures"].to_string();
    assert!(failures.contains("/bad_B"), "{failures}");
    let trace = place.read("t.json");
    assert!(trace.contains("/good_G\""), "{trace}");
    let provenance = place.read("crate/ro-crate-metadata.json");
    for task in ["before_A", "S/good_G", "S/bad_B"] {
        assert!(
            provenance.contains(&format!("{task}-0\"")),
            "{task}: {provenance}"
        );
    }
}
