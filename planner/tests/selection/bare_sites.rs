//! Sites that the site catalog describes in part or not at all.

use super::urls;
use crate::common::{Case, Plan};

/// The most common public set-up: a pool with nothing but a style.
const POOL: &str = "- name: condorpool\n  directories: []\n  profiles: {pegasus: {style: condor}}\n";

/// Two jobs, the second pinned if `pinned`, on the site `condorpool`; `local` has all directories.
fn pool(pool: &str, pinned: bool) -> Case {
    let profiles = if pinned {
        ", profiles: {selector: {execution.site: local}}"
    } else {
        ""
    };
    let case = Case::new(&format!(
        "pegasus: \"5.0\"\nname: w\njobs:\n\
         - {{type: job, id: A, name: cat, uses: [{{lfn: in, type: input}}, {{lfn: mid, type: output}}]}}\n\
         - {{type: job, id: B, name: cat, uses: [{{lfn: mid, type: input}}, {{lfn: end, type: output}}]{profiles}}}\n\
         jobDependencies: [{{id: A, children: [B]}}]\n"
    ));
    case.put("sites.yml", &format!("{}{pool}", case.file("sites.yml")));
    case.put(
        "transformations.yml",
        "pegasus: \"5.0\"\ntransformations:\n- name: cat\n  sites:\n  - {name: condorpool, type: installed, pfn: /bin/cat}\n  \
         - {name: local, type: installed, pfn: /bin/cat}\n",
    );
    case.replicas(&["in"]);
    case
}

const LINE: &str = "--dir submit --sites condorpool --output-sites local";

/// Fails unless both jobs have directories of their own, and exchange files through that of `local`.
fn assert_lite(plan: &Plan, what: &str) {
    for task in ["cat_A", "cat_B"] {
        let command = plan.command(task).join(" ");
        assert!(command.contains("/pegasus-lite "), "{what}: {command}");
    }
    let tasks = plan.tasks();
    assert!(
        tasks.contains(&"create_dir_w_0_local".to_owned()),
        "{what}: {tasks:?}"
    );
    assert!(
        !tasks.iter().any(|task| task.contains("condorpool")),
        "{what}: {tasks:?}"
    );
}

#[test]
fn a_site_whose_jobs_share_no_directory_needs_none() -> Result<(), Box<dyn std::error::Error>> {
    let with = |profiles: &str| POOL.replace("style: condor", &format!("style: condor{profiles}"));
    for directories in [
        "[]",
        "[{type: localStorage, path: /s, fileServers: []}]",
        "[{type: localScratch, path: /l, fileServers: []}]",
    ] {
        let case = |profiles: &str| {
            pool(
                &with(profiles).replace("[]\n", &format!("{directories}\n")),
                false,
            )
        };
        for (profiles, line) in [
            ("", "-Dpegasus.data.configuration=condorio"),
            (
                "",
                "-Dpegasus.data.configuration=nonsharedfs --staging-site local",
            ),
            (
                "",
                "-Dpegasus.data.configuration=nonsharedfs --staging-site condorpool=local",
            ),
            ("", "-Dpegasus.data.configuration=nonsharedfs"),
            (", data.configuration: condorio", ""),
            (", data.configuration: nonsharedfs", "--staging-site local"),
            (", data.configuration: nonsharedfs", ""),
            (
                ", data.configuration: condorio",
                "-Dpegasus.data.configuration=sharedfs",
            ),
        ] {
            let what = format!("{directories} {profiles} {line}");
            assert_lite(&case(profiles).plan(&format!("{LINE} {line}"))?, &what);
        }
        let case = case("");
        let text = case.file("workflow.yml");
        let by_job = text.replace(
            "uses:",
            "profiles: {pegasus: {data.configuration: condorio}}, uses:",
        );
        case.put("workflow.yml", &by_job);
        assert_lite(&case.plan(LINE)?, directories);
    }
    Ok(())
}

#[test]
fn a_site_without_directory_is_refused_for_shared_work_only() {
    let by_profile = POOL.replace("style: condor", "data.configuration: sharedfs");
    for (sites, line) in [
        (POOL, "-Dpegasus.data.configuration=sharedfs"),
        (&*by_profile, ""),
    ] {
        let message = pool(sites, false).fail(&format!("{LINE} {line}"));
        for expected in [
            "the site condorpool has no directory of type sharedScratch",
            "hint: add one to the site in the site catalog, or ",
            "the property pegasus.data.configuration, or the profile pegasus::data.configuration of the site, to condorio",
        ] {
            assert_eq!(message.matches(expected).count(), 1, "{message}");
        }
    }
}

#[test]
fn a_pool_with_nothing_but_a_style_runs_as_with_the_default_of_pegasus()
-> Result<(), Box<dyn std::error::Error>> {
    for pinned in [false, true] {
        let plan = pool(POOL, pinned).plan(LINE)?;
        assert_lite(&plan, "no configuration");
        let warnings = plan.warnings();
        let said = warnings
            .iter()
            .filter(|w| w.contains("the site condorpool has no directory of type sharedScratch"));
        assert_eq!(said.count(), 1, "{warnings:?}");
    }
    Ok(())
}

#[test]
fn without_named_sites_jobs_go_to_a_pool_without_directories() -> Result<(), Box<dyn std::error::Error>> {
    let case = pool(POOL, false);
    let plan = case.plan("--dir submit --output-sites local -Dpegasus.data.configuration=condorio")?;
    assert_lite(&plan, "property");
    assert!(plan.file("00/00/cat_A.json").contains("\"condorpool\""));
    let case = pool(
        "- name: condorpool\n  directories: [{type: localStorage, path: /s, fileServers: []}]\n  profiles: {pegasus: \
         {data.configuration: condorio}}\n- name: archive\n  directories: [{type: localStorage, path: /a, fileServers: []}]\n",
        false,
    );
    let plan = case.plan("--dir submit --output-sites local")?;
    assert_lite(&plan, "profile");
    assert!(plan.file("00/00/cat_A.json").contains("\"condorpool\""));
    Ok(())
}

#[test]
fn the_planner_makes_the_directories_that_the_catalog_does_not_give_local()
-> Result<(), Box<dyn std::error::Error>> {
    let storage = "{type: localStorage, path: /out, fileServers: [{url: 'file:///out', operation: all}]}";
    let scratch = "{type: sharedScratch, path: /scr, fileServers: [{url: 'file:///scr', operation: all}]}";
    for (directories, made) in [
        (storage, "wf-scratch/LOCAL"),
        (scratch, "wf-output"),
        ("", "wf-output"),
    ] {
        for (sites, configuration) in [
            ("condorpool", "condorio"),
            ("local", "sharedfs"),
            ("local", "nonsharedfs"),
        ] {
            let what = format!("{directories} {sites} {configuration}");
            let case = pool(POOL, false);
            case.put(
                "sites.yml",
                &format!("pegasus: \"5.0\"\nsites:\n- name: local\n  directories: [{directories}]\n{POOL}"),
            );
            let plan = case.plan(&format!(
                "--dir submit --sites {sites} --output-sites local -Dpegasus.data.configuration={configuration}"
            ))?;
            let warnings = plan.warnings().join("\n");
            let path = case.path().join(made).display().to_string();
            assert_eq!(warnings.matches(&path).count(), 1, "{what}: {warnings}");
            let orders = plan.orders("stage_out_local_local_1_0").to_string();
            let out = if directories == storage {
                "file:///out/".to_owned()
            } else {
                format!("file://{path}/")
            };
            assert!(orders.contains(&out), "{what}: {orders}");
        }
    }
    Ok(())
}

#[test]
fn a_pinned_job_follows_the_site_that_its_directory_serves() -> Result<(), Box<dyn std::error::Error>> {
    let scratch =
        "directories: [{type: sharedScratch, path: /p, fileServers: [{url: 'file:///p', operation: all}]}]";
    for directories in ["directories: []", scratch] {
        for (mode, line) in [
            ("condorio", ""),
            ("condorio", "-Dpegasus.data.configuration=sharedfs"),
            ("nonsharedfs", "--staging-site local"),
            ("nonsharedfs", "--staging-site condorpool=local"),
        ] {
            let sites = POOL.replace("directories: []", directories);
            let by_profile = sites.replace("style: condor", &format!("data.configuration: {mode}"));
            let case = pool(&by_profile, true);
            let plan = case.plan(&format!("{LINE} {line}"))?;
            assert_lite(&plan, &format!("{directories} {mode} {line}"));
            assert!(plan.file("00/00/cat_B.json").contains("\"local\""));
            if line.is_empty() {
                let by_property =
                    pool(&sites, true).plan(&format!("{LINE} -Dpegasus.data.configuration={mode}"))?;
                assert_eq!(plan.tasks(), by_property.tasks());
                assert_eq!(plan.edges, by_property.edges);
            }
        }
        // A site of its own is not touched: its jobs share their directory.
        let sites = POOL.replace("directories: []", scratch);
        let sites = sites.replace("style: condor", "data.configuration: nonsharedfs");
        let plan = pool(&sites, true).plan(LINE)?;
        assert!(plan.command("cat_A").join(" ").contains("/pegasus-lite "));
        assert!(!plan.command("cat_B").join(" ").contains("/pegasus-lite "));
    }
    Ok(())
}

#[test]
fn a_stageable_program_at_the_execution_site_is_reached_as_inputs_are()
-> Result<(), Box<dyn std::error::Error>> {
    for pfn in ["/opt/own/cat", "file:///opt/own/cat"] {
        for line in [
            "-Dpegasus.data.configuration=condorio",
            "-Dpegasus.data.configuration=nonsharedfs --staging-site local",
            "-Dpegasus.data.configuration=nonsharedfs",
        ] {
            let case = pool(POOL, false);
            case.put(
                "transformations.yml",
                &format!(
                    "pegasus: \"5.0\"\ntransformations:\n- name: cat\n  sites: [{{name: condorpool, type: stageable, pfn: \
                     {pfn}}}]\n"
                ),
            );
            let plan = case.plan(&format!("{LINE} {line}"))?;
            assert_eq!(urls(&plan, "cat"), ["file:///opt/own/cat"], "{line}");
        }
    }
    Ok(())
}

#[test]
fn a_program_in_a_container_is_on_every_site() -> Result<(), Box<dyn std::error::Error>> {
    let case = pool(POOL, true);
    let catalog = |container: &str| {
        case.put(
            "transformations.yml",
            &format!(
                "pegasus: \"5.0\"\ntransformations:\n- name: cat\n  sites: [{{name: incontainer, type: installed, pfn: \
                 /opt/x{container}}}]\ncontainers:\n- {{name: c, type: singularity, image: 'http://hub.example.org/c.sif'}}\n"
            ),
        );
    };
    catalog(", container: c");
    let condorio = format!("{LINE} -Dpegasus.data.configuration=condorio");
    let plan = case.plan(&condorio)?;
    assert!(plan.file("00/00/cat_A.json").contains("/opt/x"));
    // Sites of any release of the system: the container has its own.
    let sites = case.file("sites.yml");
    case.put(
        "sites.yml",
        &sites.replace("- name: condorpool\n", "- name: condorpool\n  os.release: rhel\n"),
    );
    case.plan(&condorio)?;
    case.put(
        "sites.yml",
        &sites.replace("- name: condorpool\n", "- name: condorpool\n  arch: aarch64\n"),
    );
    let message = case.fail(&condorio);
    assert!(
        message.contains("There are no entries for the transformation \"cat\""),
        "{message}"
    );
    case.put("sites.yml", &sites);
    catalog("");
    let message = case.fail(&condorio);
    assert!(message.contains("installed at incontainer"), "{message}");
    Ok(())
}

#[test]
fn an_execution_site_in_no_catalog_is_this_machine() -> Result<(), Box<dyn std::error::Error>> {
    let case = pool("", false);
    let programs = case.file("transformations.yml");
    for configuration in ["sharedfs", "condorio", "nonsharedfs"] {
        for site in ["condorpool", "expanse"] {
            case.put("transformations.yml", &programs.replace("condorpool", site));
            let plan = case.plan(&format!(
                "--dir submit --sites {site} --output-sites local -Dpegasus.data.configuration={configuration}"
            ))?;
            let said = format!("not in the site catalog, the site {site} means this machine");
            let warnings = plan.warnings();
            assert_eq!(warnings.iter().filter(|w| **w == said).count(), 1, "{warnings:?}");
        }
    }
    // A slip of the pen is none.
    let message = case.fail("--dir submit --sites locall");
    assert!(message.contains("did you mean local?"), "{message}");
    Ok(())
}
