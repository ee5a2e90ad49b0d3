//! Plans for HTCondor: what the golden cases do not show.

#[expect(dead_code, reason = "only a part of the helpers is needed here")]
mod common;

use std::error::Error;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use common::Case;
use pmc_plan::keys::{PROFILES, PROPERTIES};
use pmc_plan::plan::Planned;

type Outcome = Result<(), Box<dyn Error>>;

const LINE: &str = "-Dpegasus.code.generator=Condor --output-sites local --dir submit";

/// A chain of two jobs on a site; `site` are further lines of its entry, and `more` keys of the first job.
fn chain(site: &str, more: &str) -> Case {
    let case = Case::new(&format!(
        "pegasus: \"5.0\"\nname: chain\njobs:\n- type: job\n  id: A\n  name: first\n  uses: [{{lfn: in, type: input}}, \
         {{lfn: mid, type: output, stageOut: false}}]\n{more}- type: job\n  id: B\n  name: second\n  uses: [{{lfn: mid, \
         type: input}}, {{lfn: out, type: output}}]\njobDependencies:\n- {{id: A, children: [B]}}\n"
    ));
    case.replicas(&["in"]);
    case.put(
        "transformations.yml",
        "pegasus: \"5.0\"\ntransformations:\n- name: first\n  sites: [{name: far, type: installed, pfn: /bin/first}]\n\
         - name: second\n  sites: [{name: far, type: installed, pfn: /bin/second}]\n",
    );
    let sites = case.file("sites.yml");
    case.put("sites.yml", &format!("{sites}- name: far\n{site}"));
    case
}

/// A site with a work directory.
const SHARED: &str = "  directories: [{type: sharedScratch, path: /far, fileServers: [{url: \"file:///far\", operation: all}]}]\n";

/// The submit description of a job.
fn description(planned: &Planned, job: &str) -> Result<String, Box<dyn Error>> {
    let name = format!("{job}.sub");
    let files = walkdir::WalkDir::new(&planned.submit_dir).into_iter().flatten();
    let all: Vec<_> = files.map(|file| file.path().to_owned()).collect();
    let found = all.iter().find(|path| path.ends_with(&name));
    let path = found.ok_or_else(|| format!("there is no {name}: {all:?}"))?;
    Ok(fs::read_to_string(path)?)
}

#[test]
fn jobs_for_another_pool_say_their_directory() -> Outcome {
    let site = format!(
        "{SHARED}  grids:\n  - {{type: condor, contact: schedd.example.org, scheduler: condor, jobtype: compute}}\n  \
         profiles: {{env: {{PEGASUS_HOME: /opt/far}}, pegasus: {{style: condorc}}, condor: {{collector: cm.example.org}}}}\n"
    );
    let case = chain(&site, "");
    let planned = case.plan_only(&format!(
        "{LINE} --sites far -Dpegasus.data.configuration=sharedfs"
    ))?;
    let text = description(&planned, "first_A")?;
    assert!(
        text.contains("\ngrid_resource = condor schedd.example.org cm.example.org\n"),
        "{text}"
    );
    assert!(
        text.contains("\nremote_initialdir = /far/tester/pegasus/chain/run0001\n"),
        "{text}"
    );
    assert!(text.contains("\nremote_universe = vanilla\n"), "{text}");
    Ok(())
}

#[test]
fn cobalt_is_told_by_attributes() -> Outcome {
    let site = format!(
        "{SHARED}  profiles: {{env: {{PEGASUS_HOME: /opt/far}}, condor: {{grid_resource: batch cobalt}}, \
         pegasus: {{style: glite, project: lab, nodes: '2', ppn: '4', runtime: '600'}}}}\n"
    );
    let case = chain(&site, "");
    let planned = case.plan_only(&format!(
        "{LINE} --sites far -Dpegasus.data.configuration=sharedfs"
    ))?;
    let text = description(&planned, "first_A")?;
    for line in [
        "+NodeNumber = 8",
        "+HostNumber = 2",
        "+SMPGranularity = 4",
        "+BatchProject = \"lab\"",
        "+BatchWallclock = $(pegasus_job_runtime)",
    ] {
        assert!(text.lines().any(|of| of == line), "{line}: {text}");
    }
    assert!(
        !text.contains("batch_runtime") && !text.contains("batch_project"),
        "{text}"
    );
    Ok(())
}

#[test]
fn universes_are_those_of_the_style() -> Outcome {
    let of = |universe: &str| {
        let site = format!("  profiles: {{pegasus: {{style: condor}}, condor: {{universe: {universe}}}}}\n");
        chain(&site, "")
    };
    let line = format!("{LINE} --sites far -Dpegasus.data.configuration=condorio");
    // Only a job with an image runs in a container.
    let case = of("container");
    let planned = case.plan_only(&line)?;
    assert!(description(&planned, "first_A")?.contains("\nuniverse = vanilla\n"));
    let message = of("java").fail(&line);
    assert!(
        message.contains("first_A") && message.contains("java"),
        "{message}"
    );
    Ok(())
}

/// The depth of a job counts from the job that makes the work directory. What was there before is staged out
/// without it.
#[test]
fn files_that_exist_are_registered_first() -> Outcome {
    let site = format!("{SHARED}  profiles: {{pegasus: {{style: condor}}}}\n");
    let case = chain(&site, "");
    case.replicas(&["in", "out"]);
    let more =
        "- type: job\n  id: C\n  name: second\n  uses: [{lfn: out, type: input}, {lfn: end, type: output}]\n";
    let workflow = case.file("workflow.yml");
    case.put(
        "workflow.yml",
        &workflow.replace("jobDependencies:\n", &format!("{more}jobDependencies:\n")),
    );
    let planned = case.plan_only(&format!(
        "{LINE} --sites far -Dpegasus.data.configuration=sharedfs"
    ))?;
    let dag = fs::read_to_string(planned.submit_dir.join("chain-0.dag"))?;
    let of = |kind: &str| -> Vec<&str> {
        let begin = format!("PRIORITY {kind}");
        dag.lines()
            .filter(|line| line.starts_with(&begin))
            .filter_map(|line| line.rsplit(' ').next())
            .collect()
    };
    let mut registrations = of("register_");
    registrations.sort_unstable();
    assert_eq!(
        (of("second_C"), registrations),
        (vec!["20"], vec!["10", "40"]),
        "{dag}"
    );
    Ok(())
}

#[test]
fn of_the_stage_in_jobs_of_a_level_those_of_most_jobs_come_first() -> Outcome {
    let mut text = String::from("pegasus: \"5.0\"\nname: wide\njobs:\n");
    for (n, input) in ["a", "b", "b", "b"].iter().enumerate() {
        text.push_str(&format!(
            "- type: job\n  id: J{n}\n  name: work\n  uses: [{{lfn: {input}, type: input}}, {{lfn: out{n}, type: output}}]\n"
        ));
    }
    let case = Case::new(&text);
    case.programs(&["work"]).replicas(&["a", "b"]);
    let planned = case.plan_only(&format!("{LINE} --sites local -Dpegasus.stagein.clusters=2"))?;
    let dag = fs::read_to_string(planned.submit_dir.join("wide-0.dag"))?;
    let lines: Vec<&str> = dag
        .lines()
        .filter(|line| line.starts_with("PRIORITY stage_in"))
        .collect();
    assert_eq!(
        lines,
        [
            "PRIORITY stage_in_local_local_0_0 699",
            "PRIORITY stage_in_local_local_0_1 700"
        ],
        "{dag}"
    );
    Ok(())
}

/// A file that only its owner reads.
fn private(case: &Case, name: &str, text: &str) -> Outcome {
    case.put(name, text);
    fs::set_permissions(case.path().join(name), fs::Permissions::from_mode(0o600))?;
    Ok(())
}

#[test]
fn a_web_server_with_a_section_gets_the_credentials() -> Outcome {
    let case = chain("  profiles: {pegasus: {style: condor}}\n", "");
    case.put(
        "replicas.yml",
        "pegasus: \"5.0\"\nreplicas:\n- lfn: in\n  pfns: [{site: web, pfn: \"https://data.example.org/in\"}]\n",
    );
    let key = case.path().join("keys.conf").display().to_string();
    let line = format!(
        "{LINE} --sites far -Dpegasus.data.configuration=condorio -Dpegasus.pegasus_credentials={key}"
    );
    for (section, is_needed) in [
        ("https://data.example.org", true),
        ("https://other.example.org", false),
    ] {
        private(&case, "keys.conf", &format!("[{section}]\nhttp.username = me\n"))?;
        let planned = case.plan_only(&line)?;
        let text = description(&planned, "stage_in_local_local_0_0")?;
        assert_eq!(
            text.contains(&format!("PEGASUS_CREDENTIALS={key}")),
            is_needed,
            "{text}"
        );
    }
    Ok(())
}

#[test]
fn a_proxy_travels_as_htcondor_has_it() -> Outcome {
    let site = format!("{SHARED}  profiles: {{pegasus: {{style: condor}}}}\n")
        .replace("file:///far", "gsiftp://gs.example.org/far");
    let case = chain(&site, "");
    private(&case, "proxy", "a proxy\n")?;
    let proxy = case.path().join("proxy").display().to_string();
    let planned = case.plan_only(&format!(
        "{LINE} --sites far --staging-site far -Dpegasus.data.configuration=nonsharedfs -Dpegasus.x509_user_proxy={proxy}"
    ))?;
    let text = description(&planned, "first_A")?;
    assert!(text.contains(&format!("\nx509userproxy = {proxy}\n")), "{text}");
    assert!(!text.contains("X509_USER_PROXY_far"), "{text}");
    let text = description(&planned, "stage_in_local_far_0_0")?;
    assert!(text.contains(&format!("X509_USER_PROXY_far={proxy}")), "{text}");
    Ok(())
}

#[test]
fn no_key_for_htcondor_draws_a_warning() -> Outcome {
    let mut text = String::new();
    for key in PROPERTIES.iter().filter(|key| key.is_for_condor()) {
        text.push_str(&format!("{} = false\n", key.name));
    }
    for (namespace, keys) in PROFILES {
        for key in keys
            .iter()
            .filter(|key| key.is_for_condor() && !key.name.contains('*'))
        {
            let value = match key.name {
                "style" => "condor",
                "post" => "none",
                name if name.starts_with("max") || name.starts_with("request_") || name == "diskspace" => "7",
                _ => "false",
            };
            text.push_str(&format!("{}.{} = {value}\n", namespace.as_str(), key.name));
        }
    }
    let case = chain("  profiles: {pegasus: {style: condor}}\n", "");
    case.put("p", &text);
    let planned = case.plan_only(&format!(
        "{LINE} --sites far -Dpegasus.data.configuration=condorio --conf p -Dcondor.rank=1"
    ))?;
    let warnings: Vec<String> = planned.warnings.iter().map(ToString::to_string).collect();
    let idle: Vec<&String> = warnings
        .iter()
        .filter(|warning| warning.contains("has no effect"))
        .collect();
    assert!(idle.is_empty() && text.lines().count() > 20, "{idle:#?}");
    Ok(())
}

/// As in plans for one batch job, a million small files would cost more than the rest of the plan.
#[test]
fn jobs_of_large_plans_name_files_in_their_commands() -> Outcome {
    let case = chain("  profiles: {pegasus: {style: condor}}\n", "");
    let more: String = (0..1_000)
        .map(|number| {
            format!("- type: job\n  id: M{number}\n  name: first\n  uses: [{{lfn: in, type: input}}]\n")
        })
        .collect();
    let text = case.file("workflow.yml");
    case.put(
        "workflow.yml",
        &text.replace("jobDependencies:", &format!("{more}jobDependencies:")),
    );
    let planned = case.plan_only(&format!(
        "{LINE} --sites far -Dpegasus.data.configuration=condorio -Dpegasus.lite.form=native"
    ))?;
    let files = walkdir::WalkDir::new(&planned.submit_dir).into_iter().flatten();
    let all: Vec<_> = files.map(|file| file.path().to_owned()).collect();
    let is_list = |extension: &str| {
        all.iter()
            .any(|path| path.extension().is_some_and(|of| of == extension))
    };
    assert!(!is_list("lof"), "{all:?}");
    assert!(!description(&planned, "second_B")?.contains(".lof"));
    let of_job = all.iter().filter(|path| {
        let name = path.file_name().map(|name| name.to_string_lossy());
        name.is_some_and(|name| name.starts_with("second_B."))
    });
    let texts: String = of_job.filter_map(|path| fs::read_to_string(path).ok()).collect();
    assert!(texts.contains("mid=mid") && texts.contains("out=out"), "{texts}");
    Ok(())
}
