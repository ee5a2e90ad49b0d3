//! Clusters of jobs without a shared file system.

use serde_json::{Value, json};

use super::{LINE, Result, case, events, job};
use crate::common::Plan;

const LITE: &str = "-Dpegasus.data.configuration=nonsharedfs";

fn description(plan: &Plan, name: &str) -> std::result::Result<Value, serde_json::Error> {
    serde_json::from_str(&plan.file(&format!("00/00/{name}.json")))
}

/// Names of the files in a list of transfers.
fn files<'d>(description: &'d Value, key: &str) -> Vec<&'d str> {
    let list = description[key].as_array().map_or(&[][..], Vec::as_slice);
    list.iter().filter_map(|file| file["lfn"].as_str()).collect()
}

#[test]
fn a_cluster_has_one_directory_and_moves_what_others_need() -> Result {
    let jobs = [
        job("A", "setup", &["raw"], "label: left"),
        job("B", "sim", &["outA", "raw"], "label: left, wntmp: /node"),
        job("C", "sim", &["raw"], "label: left"),
        job("D", "collect", &["outB"], ""),
    ];
    let case = case(&jobs);
    let plan = case.plan(&format!("{LINE} --cluster label {LITE}"))?;
    let file = |name: &str| plan.planned.submit_dir.join(name).display().to_string();
    assert_eq!(
        plan.command("merge_left"),
        [
            "/opt/pegasus/bin/pegasus-lite",
            "--cluster",
            &file("00/00/merge_left.json")
        ]
    );
    let cluster = description(&plan, "merge_left")?;
    assert_eq!(cluster["scratch"], "/node");
    assert_eq!(files(&cluster, "stage_in"), ["raw"]);
    // What only its own jobs read stays in the directory; nobody reads `outC`, but it is an output.
    assert_eq!(files(&cluster, "stage_out"), ["outC", "outB"]);
    assert_eq!(cluster["hashed"], json!(["outC", "outB"]));
    assert_eq!(cluster["checksum_file"], file("00/00/merge_left.meta"));
    assert_eq!(
        cluster["run"],
        json!({"program": ["/opt/pegasus/bin/pegasus-cluster", "-f", file("00/00/merge_left.in")]})
    );
    let reader = description(&plan, "collect_D")?;
    assert_eq!(
        reader["verify"],
        json!([{"lfn": "outB", "checksum_file": file("00/00/merge_left.meta")}])
    );
    let list = plan.file("00/00/merge_left.in");
    assert_eq!(list.lines().count(), 6, "{list}");
    assert!(!list.contains(" -w "), "{list}");
    assert!(!list.contains("pegasus-lite"), "{list}");
    let jobs = events(&plan, "job.info", &["job.id", "task_count"]);
    assert!(
        jobs.contains(&vec!["merge_left".to_owned(), "3".to_owned()]),
        "{jobs:?}"
    );
    Ok(())
}

#[test]
fn jobs_of_a_cluster_have_containers_of_their_own() -> Result {
    let jobs = [
        job("A", "setup", &["raw"], "label: left"),
        job("B", "sim", &["outA"], "label: left"),
    ];
    let case = case(&jobs);
    case.put(
        "transformations.yml",
        "pegasus: \"5.0\"\ntransformations:\n- name: setup\n  sites: [{name: local, type: installed, pfn: /bin/setup, container: box}]\n\
         - name: sim\n  sites: [{name: local, type: installed, pfn: /bin/sim}]\n\
         containers:\n- {name: box, type: singularity, image: 'http://host/box.sif', checksum: {sha256: abcd}}\n",
    );
    let plan = case.plan(&format!("{LINE} --cluster label {LITE}"))?;
    let cluster = description(&plan, "merge_left")?;
    assert_eq!(files(&cluster, "stage_in"), ["raw", "box.sif"]);
    assert!(cluster.get("container").is_none());
    let member = description(&plan, "setup_A")?;
    assert_eq!(member["work_directory"], ".");
    assert_eq!(member["in_cluster"], true);
    assert_eq!(member["container"]["image"], "box.sif");
    assert_eq!(
        member["container"]["verify"],
        json!([{"lfn": "box.sif", "sha256": "abcd"}])
    );
    for key in ["stage_in", "stage_out", "checksum_file"] {
        assert!(member.get(key).is_none(), "{key}");
    }
    let list = plan.file("00/00/merge_left.in");
    assert!(
        list.contains("\n/opt/pegasus/bin/pegasus-lite ") && list.contains("/00/00/setup_A.json\n"),
        "{list}"
    );
    assert!(
        list.contains("\n/opt/pegasus/bin/pegasus-kickstart -H -n sim "),
        "{list}"
    );
    Ok(())
}

#[test]
fn a_run_inside_a_cluster_does_not_go_on_with_an_earlier_one() -> Result {
    let jobs = [
        job("A", "setup", &["raw"], "label: left"),
        job("B", "sim", &["outA"], "label: left"),
    ];
    let line = format!("{LINE} --cluster label -Dpegasus.clusterer.job.aggregator=mpiexec");
    let case = case(&jobs);
    let skips = |plan: &Plan| plan.file("00/00/merge_left.json").contains("\"--skip-rescue\"");
    assert!(skips(&case.plan(&format!("{line} {LITE}"))?));
    let plan = case.plan(&line)?;
    assert!(!plan.command("merge_left").contains(&"--skip-rescue".to_owned()));
    Ok(())
}

#[test]
fn jobs_of_a_cluster_agree_about_their_files() {
    let jobs = [
        job(
            "A",
            "setup",
            &["raw"],
            "label: left, data.configuration: condorio",
        ),
        job("B", "sim", &["outA"], "label: left"),
    ];
    let case = case(&jobs);
    let hub = case
        .file("sites.yml")
        .replace("pegasus: \"5.0\"\nsites:\n", "")
        .replace("- name: local", "- name: hub")
        .replace("/scratch", "/hub");
    let sites = case.file("sites.yml") + &hub;
    case.put("sites.yml", &sites);
    let message = case.fail(&format!("{LINE} --cluster label {LITE} --staging-site local=hub"));
    assert!(
        message.contains(
            "the cluster merge_left would have jobs with different data configurations: setup_A has condorio"
        ),
        "{message}"
    );
    assert!(message.contains("sim_B has nonsharedfs"), "{message}");
}
