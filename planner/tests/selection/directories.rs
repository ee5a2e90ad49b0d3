//! Work directories: set by a profile, on several sites, and bypassed by inputs.

use super::one_job;
use crate::common::Case;

fn scratch(case: &Case) -> String {
    format!("{}/scratch", case.path().display())
}

/// The work directory in which a task starts.
fn work_dir(plan: &crate::common::Plan, task: &str) -> String {
    let words = plan.command(task);
    let at = words.iter().position(|word| word == "-w");
    at.map(|n| words[n + 1].clone()).unwrap_or_default()
}

#[test]
fn a_profile_sets_the_work_directory() -> Result<(), Box<dyn std::error::Error>> {
    let case = one_job();
    case.replicas(&["in"]);
    let scratch = scratch(&case);
    for (value, expected) in [
        ("mine/now", format!("{scratch}/mine/now")),
        ("/fast/mine/", "/fast/mine".to_owned()),
    ] {
        for key in [
            "pegasus.workdir",
            "pegasus.catalog.site.sites.local.profiles.pegasus.workdir",
        ] {
            let plan = case.plan(&format!("--sites local --output-sites local -D{key}={value}"))?;
            assert_eq!(work_dir(&plan, "x_A"), expected, "{key}");
            let url = &plan.orders("create_dir_w_0_local")[0]["target"]["url"];
            assert_eq!(*url, format!("file://{expected}"));
            let copied = &plan.orders("stage_in_local_local_0_0")[0]["dest_urls"][0]["url"];
            assert_eq!(*copied, format!("file://{expected}/./in"));
            // The directory may hold other files, so it stays; this run's files are removed.
            assert!(
                !plan.tasks().iter().any(|task| task.starts_with("cleanup_")),
                "{:?}",
                plan.tasks()
            );
            assert!(plan.tasks().iter().any(|task| task.starts_with("clean_up_local")));
            let notes = plan.planned.notes.join("\n");
            assert!(
                notes.contains(&format!("the work directory {expected} on the site local")),
                "{notes}"
            );
        }
    }
    Ok(())
}

#[test]
fn a_work_directory_for_one_job_is_refused() {
    let case = Case::new(
        "name: w\njobs:\n- {type: job, id: A, name: x, profiles: {pegasus: {workdir: other}}}\n- {type: job, id: B, name: \
         y}\n- {type: job, id: C, name: z}\n",
    );
    case.put(
        "transformations.yml",
        "transformations:\n- {name: x, sites: [{name: local, pfn: /x}]}\n- {name: y, profiles: {pegasus: {workdir: else}}, \
         sites: [{name: local, pfn: /y}]}\n- {name: z, sites: [{name: local, pfn: /z}]}\n",
    );
    let message = case.fail("--sites local");
    assert!(
        message.contains("the job A (x) has the profile pegasus::workdir = other"),
        "{message}"
    );
    assert!(
        message.contains("the job B (y) has the profile pegasus::workdir = else"),
        "{message}"
    );
    assert!(
        message.contains("set the profile for the site local in the site catalog"),
        "{message}"
    );
}

#[test]
fn bypass_has_no_effect_and_causes_a_warning() -> Result<(), Box<dyn std::error::Error>> {
    let case = Case::new(
        "name: w\njobs:\n- {type: job, id: A, name: x, uses: [{lfn: in, type: input, bypass: true}]}\n",
    );
    case.programs(&["x"]).replicas(&["in"]);
    let plan = case.plan("--sites local")?;
    let warnings = plan.warnings().join("\n");
    assert!(
        warnings.contains("bypass, as 1 inputs have it, for example in, has no effect"),
        "{warnings}"
    );
    assert!(plan.dag.find(b"stage_in_local_local_0_0").is_some());
    let plan = case.plan("--sites local -Dpegasus.transfer.bypass.input.staging=true")?;
    let warnings = plan.warnings().join("\n");
    assert!(
        warnings.contains("the property pegasus.transfer.bypass.input.staging = true has no effect"),
        "{warnings}"
    );
    Ok(())
}

/// A job on site `a` makes a file for two jobs on site `b`; the result goes to `local`.
fn two_sites() -> Case {
    let case = Case::new(
        "name: w\njobs:\n- {type: job, id: A, name: x, uses: [{lfn: in, type: input}, {lfn: mid, type: output, stageOut: \
         false, registerReplica: false}]}\n- {type: job, id: B, name: y, uses: [{lfn: mid, type: input}, {lfn: end, type: \
         output, stageOut: true, registerReplica: true}]}\n- {type: job, id: C, name: y, uses: [{lfn: mid, type: input}]}\n",
    );
    let mut sites = String::from("sites:\n");
    for name in ["a", "b", "local"] {
        sites.push_str(&format!(
            "- name: {name}\n  directories:\n  - {{type: sharedScratch, path: /{name}, fileServers: [{{url: \
             \"gsiftp://{name}.example.org/export\"}}]}}\n  - {{type: localStorage, path: /out, fileServers: [{{url: \
             \"file:///out\"}}]}}\n"
        ));
    }
    case.put("sites.yml", &sites);
    case.put(
        "transformations.yml",
        "transformations:\n- {name: x, sites: [{name: a, pfn: /x}]}\n- {name: y, sites: [{name: b, pfn: /y}]}\n",
    );
    case.put(
        "replicas.yml",
        "replicas:\n- {lfn: in, pfns: [{site: local, pfn: /data/in}]}\n",
    );
    case
}

#[test]
fn files_are_copied_between_sites() -> Result<(), Box<dyn std::error::Error>> {
    let case = two_sites();
    let plan = case.plan("--sites a,b --output-sites local")?;
    let tasks = plan.tasks();
    let inter: Vec<&str> = tasks
        .iter()
        .map(String::as_str)
        .filter(|task| task.starts_with("stage_inter_"))
        .collect();
    assert_eq!(inter.len(), 1, "{tasks:?}");
    let inter = inter[0];
    let orders = plan.orders(inter);
    assert_eq!(orders.as_array().map(Vec::len), Some(1), "one copy for both jobs");
    assert_eq!(
        orders[0]["src_urls"][0]["url"],
        "file:///a/tester/pegasus/w/run0001/./mid"
    );
    assert_eq!(
        orders[0]["dest_urls"][0]["url"],
        "file:///b/tester/pegasus/w/run0001/./mid"
    );
    assert_eq!(orders[0]["dest_urls"][0]["site_label"], "b");
    plan.assert_edges(&[
        ("x_A", inter),
        (inter, "y_B"),
        (inter, "y_C"),
        ("create_dir_w_0_b", inter),
    ]);
    // A file is removed only after its last reader has it.
    let removing = plan
        .tasks()
        .into_iter()
        .filter(|task| task.starts_with("clean_up_a_"));
    for task in removing {
        let lfns: Vec<String> = plan
            .orders(&task)
            .as_array()
            .into_iter()
            .flatten()
            .map(|order| order["target"]["url"].as_str().unwrap_or_default().to_owned())
            .collect();
        if lfns.iter().any(|url| url.ends_with("/mid")) {
            assert!(plan.has_edge(inter, &task), "{task}: {:?}", plan.edges);
        }
    }
    let notes = plan.planned.notes.join("\n");
    assert!(
        notes.contains("jobs of the sites a, b, local run together inside the one job"),
        "{notes}"
    );
    Ok(())
}

#[test]
fn problems_of_all_steps_come_in_one_message() {
    let case = Case::new(
        "name: w\njobs:\n- {type: job, id: A, name: x, uses: [{lfn: inn, type: input}, {lfn: in, type: input}]}\n- {type: \
         job, id: B, name: nothing, uses: [{lfn: inn, type: input}, {lfn: lost, type: input}]}\n",
    );
    case.programs(&["x", "y"]);
    case.replicas(&["in.dat", "in"]);
    let missing = [
        "There are no entries for the transformation \"nothing\" in the TC for sites [local]",
        "for lfn inn for job x_A and 1 more jobs\n  hint: the replica catalogs have in",
        "for lfn lost for job nothing_B",
    ];
    let message = case.fail("--sites local");
    for expected in missing {
        assert!(message.contains(expected), "{expected}: {message}");
    }
    let message = case.fail("--sites local,locale --output-sites nowhere");
    for expected in [
        "Execution site locale",
        "Output site nowhere",
        missing[1],
        missing[2],
    ] {
        assert!(message.contains(expected), "{expected}: {message}");
    }
    assert!(
        message.contains("the transformation \"nothing\" in the TC"),
        "{message}"
    );
    case.put("replicas.yml", "replicas: []\n");
    let message = case.fail("--sites local");
    assert!(
        message.contains("hint: no location of any file is given: name a replica catalog"),
        "{message}"
    );
    assert!(!case.path().join("tester").exists(), "nothing is left behind");
}
