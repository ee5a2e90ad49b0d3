//! Plans without a shared file system.

use serde_json::Value;

use crate::common::Case;

const CHAIN: &str = r#"pegasus: "5.0"
name: chain
jobs:
- {type: job, id: A, name: first, uses: [{lfn: in, type: input}, {lfn: mid, type: output, stageOut: false}]}
- {type: job, id: B, name: second, stdin: mid, uses: [{lfn: mid, type: input}, {lfn: out, type: output}]}
jobDependencies:
- {id: A, children: [B]}
"#;

const LINE: &str = "--sites local --output-sites local --dir submit";

fn chain(properties: &str) -> Case {
    let case = Case::new(CHAIN);
    case.programs(&["first", "second"]).replicas(&["in"]);
    case.put("pegasus.properties", properties);
    case
}

#[test]
fn a_description_says_what_the_job_needs() -> Result<(), Box<dyn std::error::Error>> {
    let case = chain("pegasus.data.configuration = nonsharedfs\npegasus.transfer.lite.threads = 3\n");
    let plan = case.plan(LINE)?;
    let job: Value = serde_json::from_str(&plan.file("00/00/second_B.json"))?;
    assert_eq!(job["format"], 1);
    assert_eq!(job["transfer_arguments"], serde_json::json!(["--threads", "3"]));
    let source = job["stage_in"][0]["src_urls"][0]["url"]
        .as_str()
        .unwrap_or_default();
    assert!(
        source.starts_with("file:///") && source.ends_with("/00/00/mid"),
        "{source}"
    );
    assert_eq!(job["stage_in"][0]["dest_urls"][0]["url"], "file://$PWD/mid");
    let target = job["stage_out"][0]["dest_urls"][0]["url"]
        .as_str()
        .unwrap_or_default();
    assert!(target.ends_with("/00/00/out"), "{target}");
    assert_eq!(job["verify"][0]["lfn"], "mid");
    let words: Vec<&str> = job["run"]["kickstart"]
        .as_array()
        .ok_or("a command")?
        .iter()
        .filter_map(Value::as_str)
        .collect();
    assert_eq!(words[..2], ["-i", "mid"]);
    assert!(!words.contains(&"-w"), "{words:?}");
    let command = plan.command("second_B");
    assert!(
        command[0].ends_with("/pegasus-lite") && command[1].ends_with("/00/00/second_B.json"),
        "{command:?}"
    );
    assert!(
        plan.command("stage_out_local_local_1_0")
            .contains(&"--checksums-from".to_owned())
    );
    Ok(())
}

#[test]
fn the_dag_names_inputs_that_several_jobs_fetch_over_the_network() -> Result<(), Box<dyn std::error::Error>> {
    let case = chain("pegasus.data.configuration = nonsharedfs\n");
    let third = "- {type: job, id: C, name: first, uses: [{lfn: in, type: input}, {lfn: two words, type: input}]}\n\
                 - {type: job, id: D, name: first, uses: [{lfn: two words, type: input}]}\njobDependencies";
    case.replicas(&["in", "two words"]);
    case.put(
        "workflow.yml",
        &case.file("workflow.yml").replace("jobDependencies", third),
    );
    let hub = "- name: hub\n  directories:\n  - {type: sharedScratch, path: /hub, fileServers: \
               [{url: 'webdav://hub/stage', operation: all}]}\n- name: local\n";
    case.put(
        "sites.yml",
        &case.file("sites.yml").replacen("- name: local\n", hub, 1),
    );
    let inputs = |line: &str| {
        let plan = case.plan(line)?;
        let dag = plan.file("chain-0.dag");
        let lines = dag.lines().filter(|line| line.starts_with("#inputs"));
        Ok::<_, Box<dyn std::error::Error>>(lines.map(str::to_owned).collect::<Vec<_>>())
    };
    // What one job reads stays without a line, as do files of this machine and caches that are off.
    let line = format!("{LINE} --staging-site local=hub");
    let expected = ["#inputs in", "#inputs in \"two words\"", "#inputs \"two words\""];
    assert_eq!(inputs(&line)?, expected);
    assert_eq!(inputs(&format!("{line} -Dpegasus.lite.cache=off"))?, [""; 0]);
    assert_eq!(inputs(LINE)?, [""; 0]);
    Ok(())
}

#[test]
fn jobs_of_one_site_have_one_configuration() {
    let case = chain("");
    let text = case.file("workflow.yml").replace(
        "name: first,",
        "name: first, profiles: {pegasus: {data.configuration: nonsharedfs}},",
    );
    case.put("workflow.yml", &text);
    let message = case.fail(LINE);
    assert!(
        message.contains("for sites [local]") && message.contains("give all jobs of a site the same one"),
        "{message}"
    );
    case.put("workflow.yml", &text.replace("nonsharedfs", "nfs"));
    let message = case.fail(LINE);
    assert!(
        message.contains("of the job A must be sharedfs, nonsharedfs or condorio, not nfs"),
        "{message}"
    );
}

#[test]
fn what_cannot_be_staged_is_told() {
    let case = chain("pegasus.data.configuration = nonsharedfs\n");
    let sites = case.file("sites.yml");
    let hub = "- name: hub\n  directories:\n  - {type: sharedScratch, path: /hub}\n";
    case.put(
        "sites.yml",
        &sites.replacen("- name: local\n", &format!("{hub}- name: local\n"), 1),
    );
    let message = case.fail(&format!("{LINE} --staging-site local=hub"));
    assert!(
        message.contains("the staging site hub of the job first_A has no directory"),
        "{message}"
    );
    assert!(message.contains("add fileServers"), "{message}");
    let message = case.fail(&format!("{LINE} --staging-site local=moon"));
    assert!(message.contains("Staging site moon"), "{message}");
}

#[test]
fn with_a_shared_file_system_the_staging_site_is_the_execution_site() {
    let case = chain("");
    let sites = case.file("sites.yml");
    let hub = "- name: hub\n  directories:\n  - {type: sharedScratch, path: /hub}\n";
    case.put(
        "sites.yml",
        &sites.replacen("- name: local\n", &format!("{hub}- name: local\n"), 1),
    );
    let message = case.fail(&format!("{LINE} --staging-site hub"));
    let expected = "the staging site of local must be the execution site itself, not hub";
    assert_eq!(message.matches(expected).count(), 1, "{message}");
}

#[test]
fn condorio_is_nonsharedfs_with_local_staging_and_says_so() -> Result<(), Box<dyn std::error::Error>> {
    let case = chain("pegasus.data.configuration = condorio\n");
    let plan = case.plan(LINE)?;
    let said = plan.warnings().iter().filter(|w| w.contains("condorio")).count();
    assert_eq!(said, 1, "{:?}", plan.warnings());
    assert!(plan.file("00/00/first_A.json").contains("scratch/"));
    Ok(())
}

#[test]
fn inputs_that_several_jobs_fetch_over_the_network_come_through_the_cache() {
    let text = r#"pegasus: "5.0"
name: shared
jobs:
- {type: job, id: A, name: first, uses: [{lfn: in, type: input}, {lfn: a, type: input}, {lfn: x, type: output}]}
- {type: job, id: B, name: second, uses: [{lfn: in, type: input}, {lfn: y, type: output}]}
"#;
    let case = Case::new(text);
    case.programs(&["first", "second"]).replicas(&["in", "a"]);
    case.put(
        "sites.yml",
        r#"pegasus: "5.0"
sites:
- name: local
  directories:
  - {type: sharedScratch, path: /scratch, fileServers: [{url: "file:///scratch", operation: all}]}
  - {type: localStorage, path: /out, fileServers: [{url: "file:///out", operation: all}]}
- name: hub
  directories:
  - {type: sharedScratch, path: /stage, fileServers: [{url: "webdav://hub.example.org/stage", operation: all}]}
"#,
    );
    let plan = |properties: &str, line: &str| {
        case.put(
            "pegasus.properties",
            &format!("pegasus.data.configuration = nonsharedfs\n{properties}"),
        );
        let text = case.plan(line).expect("a plan").file("00/00/first_A.json");
        let job: Value = serde_json::from_str(&text).expect("JSON");
        (job["shared"].clone(), job["cache_limit"].clone())
    };
    let far = format!("{LINE} --staging-site local=hub");
    let shared = serde_json::json!(["in"]);
    assert_eq!(plan("", &far), (shared.clone(), Value::Null));
    assert_eq!(
        plan("pegasus.lite.cache = 2G", &far),
        (shared, (2_u64 << 30).into())
    );
    assert_eq!(plan("pegasus.lite.cache = off", &far).0, Value::Null);
    assert_eq!(plan("pegasus.integrity.checking = none", &far).0, Value::Null);
    assert_eq!(
        plan("", LINE).0,
        Value::Null,
        "files of a directory that nodes see"
    );
    case.put("pegasus.properties", "pegasus.lite.cache = much\n");
    let message = case.fail(LINE);
    assert!(
        message.contains("pegasus.lite.cache") && message.contains("or off"),
        "{message}"
    );
}

#[test]
fn nothing_is_cleaned_up_in_the_osdf() -> Result<(), Box<dyn std::error::Error>> {
    let case = chain("pegasus.data.configuration = nonsharedfs\n");
    let sites = case.file("sites.yml");
    for (server, count) in [("webdav://hub.example.org/stage", 3), ("osdf:///org/stage", 0)] {
        let hub = format!(
            "- name: hub\n  directories:\n  - {{type: sharedScratch, path: /stage, fileServers: [{{url: '{server}', \
             operation: all}}]}}\n"
        );
        case.put(
            "sites.yml",
            &sites.replacen("- name: local\n", &format!("{hub}- name: local\n"), 1),
        );
        let plan = case.plan(&format!("{LINE} --staging-site local=hub"))?;
        let tasks = plan.tasks();
        let removing = tasks.iter().filter(|task| task.starts_with("clean_up_hub"));
        assert_eq!(removing.count(), count, "{server}");
        assert!(tasks.iter().any(|task| task == "cleanup_chain_0_hub"));
    }
    Ok(())
}
