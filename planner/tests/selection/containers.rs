//! Programs in containers.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::common::Case;

const WORKFLOW: &str = r#"pegasus: "5.0"
name: boxed
jobs:
- {type: job, id: A, name: tool, uses: [{lfn: in, type: input}, {lfn: out, type: output}]}
"#;

const TRANSFORMATIONS: &str = r#"pegasus: "5.0"
transformations:
- name: tool
  sites: [{name: local, type: installed, pfn: /opt/tool, container: base}]
  profiles: {env: {MODE: fast, API_TOKEN: t1}}
containers:
- name: base
  type: docker
  image: /images/base.tar
  mounts: ["/data:/in:ro"]
  profiles: {env: {MODE: slow, LEVEL: two words}, pegasus: {gpus: 1}}
"#;

const LINE: &str = "--sites local --output-sites local --dir submit";

fn case(properties: &str) -> Case {
    let case = Case::new(WORKFLOW);
    case.put("transformations.yml", TRANSFORMATIONS).replicas(&["in"]);
    case.put("pegasus.properties", properties);
    case
}

#[test]
fn a_shared_work_directory_needs_no_transfers() -> Result<(), Box<dyn std::error::Error>> {
    let case = case("pegasus.transfer.links = true\n");
    let plan = case.plan(LINE)?;
    let text = plan.file("00/00/tool_A.json");
    let job: Value = serde_json::from_str(&text)?;
    let directory = job["work_directory"].as_str().unwrap_or_default();
    let image = job["container"]["image"].as_str().unwrap_or_default();
    assert!(directory.contains("/scratch"), "{directory}");
    assert!(
        image.starts_with(directory) && image.ends_with("/base"),
        "{image}"
    );
    assert!(job.get("stage_in").is_none() && job["container"].get("fetch").is_none());
    assert_eq!(job["container"]["kind"], "docker");
    assert_eq!(job["container"]["mounts"], json!(["/data:/in:ro"]));
    assert_eq!(job["container"]["gpus"], true);
    // The transformation comes before the container. Secrets are in files that only the owner reads.
    assert_eq!(
        job["container"]["environment"],
        json!({"LEVEL": "two words", "MODE": "fast"})
    );
    assert_eq!(job["container"]["secrets"], json!(["API_TOKEN"]));
    assert!(!text.contains("t1"), "{text}");
    let command = plan.command("tool_A").join(" ");
    assert!(command.contains("/pegasus-lite "), "{command}");
    assert!(!command.contains("LEVEL"), "{command}");
    // A link to a file elsewhere would lead nowhere in the container.
    let stage_in = plan
        .tasks()
        .into_iter()
        .filter(|task| task.starts_with("stage_in_"));
    let moved: Vec<Value> = stage_in.map(|task| plan.orders(&task)).collect();
    let all = moved
        .iter()
        .flat_map(|list| list.as_array().into_iter().flatten());
    let targets: BTreeMap<&str, &Value> = all
        .map(|entry| (entry["lfn"].as_str().unwrap_or_default(), &entry["dest_urls"][0]))
        .collect();
    let is_link = |lfn| {
        targets[lfn]["url"]
            .as_str()
            .is_some_and(|url| url.starts_with("symlink:"))
    };
    assert_eq!((is_link("in"), is_link("base")), (false, true), "{targets:?}");
    assert_eq!(targets["base"]["type"], "docker");
    Ok(())
}

#[test]
fn a_program_without_kickstart_needs_no_shell() -> Result<(), Box<dyn std::error::Error>> {
    let case = case("pegasus.data.configuration = nonsharedfs\npegasus.gridstart = None\n");
    let plan = case.plan(LINE)?;
    let job: Value = serde_json::from_str(&plan.file("00/00/tool_A.json"))?;
    assert_eq!(job["run"], json!({"program": ["/opt/tool"]}));
    assert_eq!(job["required"], json!(["out"]));
    Ok(())
}

#[test]
fn what_cannot_run_is_told() {
    let message_of = |from: &str, to: &str| {
        let case = case("");
        case.put("transformations.yml", &TRANSFORMATIONS.replace(from, to));
        case.fail(LINE)
    };
    for (from, to, message) in [
        (
            "type: docker",
            "type: rocket",
            "transformations.yml:8:9: `rocket` is not a type of container\n  hint: types are docker, podman",
        ),
        (
            "/images/base.tar",
            "docker://base:1",
            "transformations.yml:9:10: Unable to parse URL `docker://base:1`: it has no path behind the host\n  hint: write \
             docker:///base:1",
        ),
        (
            "type: docker\n  image: /images/base.tar",
            "type: singularity\n  image: /images/base-1.2.sif",
            "transformations.yml:9:10: Invalid suffix `.2.sif`",
        ),
        (
            "  image: /images/base.tar\n",
            "",
            "a container needs the key image",
        ),
        (
            "container: base",
            "container: bass",
            "the transformation tool runs in the container bass, which is in no transformation catalog\n  hint: did you mean \
             base?",
        ),
        (
            "name: base",
            "name: in",
            "the transformation tool runs in the container base, which",
        ),
    ] {
        let found = message_of(from, to);
        assert!(found.contains(message), "{found}");
    }
    let case = case("pegasus.data.configuration = nonsharedfs\npegasus.transfer.container.onhost = false\n");
    let found = case.fail(LINE);
    assert!(
        found.contains(
            "source url directory is not mounted in the container base: the job tool_A is to transfer"
        ),
        "{found}"
    );
    let all = TRANSFORMATIONS.replace("/data:/in:ro", "/:/node");
    case.put("transformations.yml", &all);
    let plan = case.plan(LINE).unwrap();
    let job = plan.file("00/00/tool_A.json");
    assert!(job.contains("\"file:///node/"), "{job}");
}
