//! Details in which plans match those of Pegasus, found by planning the same workflows with both.

use std::error::Error;

use crate::common::Case;

const LINE: &str = "--sites local --output-sites local --dir submit";

/// Two jobs: the second reads the output of the first, which has extra keys.
fn chain(uses: &str, more: &str) -> Case {
    let case = Case::new(&format!(
        "pegasus: \"5.0\"\nname: chain\njobs:\n\
         - {{type: job, id: A, name: gen, uses: [{uses}]{more}}}\n\
         - {{type: job, id: B, name: use, uses: [{{lfn: mid, type: input}}, {{lfn: out, type: output}}]}}\n"
    ));
    case.programs(&["gen", "use"]).replicas(&["in"]);
    case
}

const USES: &str = "{lfn: in, type: input}, {lfn: mid, type: output}";

#[test]
fn attributes_of_a_text_catalog_are_metadata() -> Result<(), Box<dyn Error>> {
    let case = chain("{lfn: 'a b', type: input}, {lfn: mid, type: output}", "");
    case.put(
        "k.cache",
        "\"a b\" \"/d/a b\" site=\"local\" owner=\"x y\" size=\"7\"\n",
    );
    let plan = case.plan(&format!("{LINE} --cache k.cache"))?;
    let orders = plan.orders("stage_in_remote_local_0_0");
    assert_eq!(orders[0]["src_urls"][0]["url"], "file:///d/a b");
    assert_eq!(
        orders[0]["attributes"],
        serde_json::json!({"owner": "x y", "size": "7"})
    );
    let cache = plan.file("chain-0.cache");
    let first = cache.lines().next().unwrap_or_default();
    assert!(
        first.starts_with("\"a b\" \"file://") && first.ends_with("/./a b\" site=\"local\""),
        "{first}"
    );
    Ok(())
}

#[test]
fn the_copied_properties_include_those_of_the_mode() -> Result<(), Box<dyn Error>> {
    let case = chain(USES, "");
    let plan = case.plan(&format!(
        "{LINE} -Dpegasus.mode=debug -Ddagman.retry=3 -Dpegasus.catalog.replica.file=replicas.yml"
    ))?;
    let text = plan.file("pegasus.1.properties");
    for line in [
        "pegasus.transfer.arguments=--debug -m 1",
        "pegasus.monitord.arguments=-vvv",
        "pegasus.integrity.checking=none",
        "dagman.retry=3",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
    }
    assert!(!text.contains("dagman.RETRY"), "what is set stays: {text}");
    assert!(
        text.contains("pegasus.catalog.replica.file=/"),
        "absolute: {text}"
    );
    Ok(())
}

#[test]
fn kickstart_comes_from_the_catalog() -> Result<(), Box<dyn Error>> {
    let case = chain(USES, ", profiles: {pegasus: {gridstart.path: /own/ks}}");
    case.put(
        "transformations.yml",
        "pegasus: \"5.0\"\ntransformations:\n\
         - {name: gen, sites: [{name: local, type: installed, pfn: /bin/gen}]}\n\
         - {name: use, sites: [{name: local, type: installed, pfn: /bin/use}]}\n\
         - {namespace: pegasus, name: kickstart, sites: [{name: local, type: installed, pfn: /opt/ks}]}\n",
    );
    let plan = case.plan(LINE)?;
    assert_eq!(plan.command("gen_A")[0], "/own/ks");
    assert_eq!(plan.command("use_B")[0], "/opt/ks");
    assert_eq!(plan.command("create_dir_chain_0_local")[0], "/opt/ks");
    Ok(())
}

#[test]
fn contradictory_input_is_refused() {
    let message = chain(USES, ", profiles: {pegasus: {gridstart: Frob}}").fail(LINE);
    assert!(
        message.contains(
            "the profile pegasus::gridstart of the job gen_A must be Kickstart or None, not `Frob`"
        ),
        "{message}"
    );
    let case = chain(USES, "");
    let path = case.path().join("workflow.yml");
    let text = std::fs::read_to_string(&path).expect("the workflow");
    case.put(
        "workflow.yml",
        &format!("{text}jobDependencies:\n- {{id: A, children: [A]}}\n"),
    );
    let message = case.fail(LINE);
    assert!(
        message.contains("the dependency A -> A makes the job depend on itself"),
        "{message}"
    );
    case.put(
        "w.dax",
        "<adag version=\"3.6\" name=\"x\"><job id=\"A\" name=\"gen\"/><child ref=\"A\"><parent ref=\"A\"/></child></adag>",
    );
    let message = case.fail(&format!("{LINE} w.dax"));
    assert!(
        message.contains("the dependency A -> A makes the job depend on itself"),
        "{message}"
    );
}

#[test]
fn existing_in_out_files_do_not_make_a_job_reusable() -> Result<(), Box<dyn Error>> {
    let case = chain("{lfn: in, type: inout}", "");
    case.replicas(&["in", "mid"]);
    let tasks = case.plan(LINE)?.tasks();
    assert!(tasks.iter().any(|task| task == "gen_A"), "{tasks:?}");
    Ok(())
}

#[test]
fn metadata_lists_without_options_cover_all_transfers() -> Result<(), Box<dyn Error>> {
    let case = chain(USES, "");
    let plan = case.plan(&format!(
        "{LINE} -Dpegasus.gridstart.kickstart.stat=false -Dpegasus.gridstart.generate.lof=true"
    ))?;
    assert_eq!(plan.file("00/00/stage_out_local_local_0_0.out.lof"), "mid=mid\n");
    assert!(
        !plan
            .command("stage_out_local_local_0_0")
            .contains(&"-s".to_owned())
    );
    Ok(())
}

#[test]
fn registration_follows_its_stage_out_jobs() -> Result<(), Box<dyn Error>> {
    let uses = "{lfn: in, type: input}, {lfn: log, type: output, stageOut: false}, \
                {lfn: mid, type: output, registerReplica: false}";
    let case = chain(uses, "");
    let plan = case.plan(LINE)?;
    assert!(plan.has_edge("stage_out_local_local_0_0", "register_local_0_0"));
    assert!(plan.has_edge("gen_A", "register_local_0_0"));
    let case = chain(uses, "");
    let plan = case.plan(&format!("{LINE} -Dpegasus.transfer.refiner=Basic"))?;
    assert!(plan.has_edge("stage_out_local_gen_A_0", "register_gen_A"));
    assert!(!plan.has_edge("gen_A", "register_gen_A"));
    Ok(())
}

#[test]
fn links_are_made_only_to_local_paths() -> Result<(), Box<dyn Error>> {
    let case = chain(USES, "");
    case.put(
        "replicas.yml",
        "pegasus: \"5.0\"\nreplicas:\n- {lfn: in, pfns: [{site: local, pfn: 'http://h/in'}]}\n",
    );
    let plan = case.plan(&format!("{LINE} -Dpegasus.transfer.links=true"))?;
    let orders = plan.orders("stage_in_local_local_0_0");
    let target = orders[0]["dest_urls"][0]["url"].as_str().unwrap_or_default();
    assert!(target.starts_with("file://"), "{target}");
    Ok(())
}

#[test]
fn the_selector_local_sets_no_priorities() -> Result<(), Box<dyn Error>> {
    let case = chain(USES, "");
    let plan = case.plan(&format!("{LINE} -Dpegasus.selector.replica=Local"))?;
    let source = plan.orders("stage_in_local_local_0_0")[0]["src_urls"][0].clone();
    assert_eq!(
        source,
        serde_json::json!({"site_label": "local", "url": "/data/in"})
    );
    Ok(())
}

#[test]
fn dagman_keys_are_case_insensitive() -> Result<(), Box<dyn Error>> {
    let case = chain(USES, ", profiles: {dagman: {retry: '3', RETRY: '5'}}");
    let plan = case.plan(LINE)?;
    let events = plan.file("chain-0.static.bp");
    let of_job = events
        .lines()
        .find(|line| line.contains("job.id=\"gen_A\"") && line.contains("job.info"));
    assert!(
        of_job.is_some_and(|line| line.contains("max_retries=\"5\"")),
        "{of_job:?}"
    );
    Ok(())
}

#[test]
fn transformations_of_a_dax_require_data_and_programs() -> Result<(), Box<dyn Error>> {
    let case = chain(USES, "");
    case.replicas(&["in", "conf"]);
    case.put(
        "w.dax",
        r#"<adag version="3.6" name="comp">
<executable name="s" arch="x86_64" os="linux" installed="false"><pfn url="file:///d/s" site="local"/></executable>
<executable name="h" namespace="n" version="1" arch="x86_64" os="linux" installed="false"><pfn url="file:///d/h" site="local"/></executable>
<transformation name="s"><uses name="s" executable="true"/><uses name="conf" link="input"/></transformation>
<job id="A" name="gen"><uses name="in" link="input"/><uses name="h" namespace="n" version="1" link="input" executable="true"/>
<uses name="mid" link="output"/></job>
<job id="B" name="s"><uses name="mid" link="input"/><uses name="h" namespace="n" version="1" link="input" executable="true"/>
<uses name="out" link="output"/></job></adag>"#,
    );
    let plan = case.plan(&format!("{LINE} w.dax"))?;
    assert_eq!(
        plan.file("00/00/gen_A.in.lof"),
        "in=in\n",
        "nothing is staged for what is installed"
    );
    let list = plan.file("00/00/s_B.in.lof");
    let mut read: Vec<&str> = list.lines().collect();
    read.sort_unstable();
    assert_eq!(read, ["conf=conf", "mid=mid", "n-h-1=n-h-1", "s=s"]);
    let chmod = plan.command("chmod_s_B_0");
    assert!(chmod.iter().any(|word| word.ends_with("/./n-h-1")), "{chmod:?}");
    Ok(())
}
