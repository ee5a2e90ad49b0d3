//! Defects of Pegasus' planner that this planner avoids, as far as no other test covers them.

#[expect(dead_code, reason = "only a part of the helpers is needed here")]
mod common;

use std::fs;

use common::Case;

const LINE: &str = "--sites local --output-sites local --dir submit";

/// One job that reads `in` and writes `out`, with extra keys.
fn one(more: &str) -> Case {
    let case = Case::new(&format!(
        "pegasus: \"5.0\"\nname: one\njobs:\n- type: job\n  id: A\n  name: work\n  uses:\n  - {{lfn: in, type: input}}\n  \
         - {{lfn: out, type: output, stageOut: true, registerReplica: true}}\n{more}"
    ));
    case.programs(&["work"]).replicas(&["in"]);
    case
}

#[test]
fn arguments_are_split_unless_literal_words_are_asked_for() -> Result<(), Box<dyn std::error::Error>> {
    let arguments = "  arguments: [\"-i \", \"two words\", \"'in quotes' and\", 1.50]\n";
    let tail = |plan: &common::Plan| -> Vec<String> {
        let words = plan.command("work_A");
        let at = words
            .iter()
            .position(|word| word == "/bin/work")
            .expect("the program");
        words[at + 1..].to_vec()
    };
    for options in ["", " -Dpegasus.parser.arguments.split=true"] {
        let plan = one(arguments).plan(&format!("{LINE}{options}"))?;
        assert_eq!(tail(&plan), ["-i", "two", "words", "in quotes", "and", "1.50"]);
    }
    let literal = format!("{LINE} -Dpegasus.parser.arguments.split=false");
    let plan = one(arguments).plan(&literal)?;
    assert_eq!(tail(&plan), ["-i ", "two words", "\\'in quotes\\' and", "1.50"]);
    Ok(())
}

#[test]
fn line_breaks_of_arguments_end_words_but_are_refused_in_words() -> Result<(), Box<dyn std::error::Error>> {
    let plan = one("  arguments: [\"-a 1\\n-b 2\\n\"]\n").plan(LINE)?;
    let words = plan.command("work_A");
    assert!(
        words.ends_with(&["-a", "1", "-b", "2"].map(str::to_owned)),
        "{words:?}"
    );
    for arguments in [
        "  arguments: [\"'a\\nb'\"]\n",
        "  arguments: [\"-a \\\\\\n -b\"]\n",
    ] {
        let refused = one(arguments).fail(LINE);
        assert!(
            refused.contains(
                "workflow.yml:4:3: the arguments of the job A contain a line break inside quotes or after a"
            ),
            "{refused}"
        );
    }
    Ok(())
}

#[test]
fn arguments_that_will_fail_are_warned_of() -> Result<(), Box<dyn std::error::Error>> {
    let warnings = |arguments: &str, options: &str| -> Result<String, Box<dyn std::error::Error>> {
        let plan = one(&format!("  arguments: {arguments}\n")).plan(&format!("{LINE}{options}"))?;
        let about_arguments = |w: &String| w.starts_with("the arguments of the job A contain ");
        Ok(plan.warnings().into_iter().filter(about_arguments).collect())
    };
    for arguments in ["[\"it's\", two]", "[5$]"] {
        assert_ne!(warnings(arguments, "")?, "", "{arguments}");
        assert_eq!(
            warnings(arguments, " -Dpegasus.parser.arguments.split=false")?,
            ""
        );
    }
    assert_eq!(warnings("[5$]", " -Dpegasus.gridstart=none")?, "");
    Ok(())
}

#[test]
fn site_profiles_set_the_number_of_transfer_jobs() -> Result<(), Box<dyn std::error::Error>> {
    let case = one("");
    let many: String = (0..6)
        .map(|n| format!("  - {{lfn: in{n}, type: input}}\n"))
        .collect();
    let workflow = fs::read_to_string(case.path().join("workflow.yml"))?;
    case.put(
        "workflow.yml",
        &workflow.replace("  - {lfn: in, type: input}\n", &many),
    );
    case.replicas(&["in0", "in1", "in2", "in3", "in4", "in5"]);
    let sites = fs::read_to_string(case.path().join("sites.yml"))?;
    case.put(
        "sites.yml",
        &sites.replace("    env:", "    pegasus: {stagein.clusters: 3}\n    env:"),
    );
    let stage_in = |line: &str| -> Result<usize, Box<dyn std::error::Error>> {
        let tasks = case.plan(line)?.tasks();
        Ok(tasks.iter().filter(|task| task.starts_with("stage_in")).count())
    };
    assert_eq!(stage_in(LINE)?, 3);
    assert_eq!(
        stage_in(&format!("{LINE} -Dpegasus.stagein.clusters=2"))?,
        3,
        "the site wins"
    );
    Ok(())
}

#[test]
fn both_names_of_task_arguments_work() -> Result<(), Box<dyn std::error::Error>> {
    for key in ["pmc_arguments", "pmc_task_arguments"] {
        let case = one(&format!("  profiles: {{pegasus: {{{key}: \"-t 3\"}}}}\n"));
        let plan = case.plan(LINE)?;
        let dag = fs::read_to_string(&plan.planned.dag)?;
        assert!(
            dag.contains("\nTASK work_A -m 2048 -c 1 -t 3 /opt"),
            "{key}: {dag}"
        );
    }
    Ok(())
}

#[test]
fn false_does_not_enable_reuse() -> Result<(), Box<dyn std::error::Error>> {
    for (value, reused) in [("false", false), ("true", true)] {
        let case = one(&format!(
            "  profiles: {{pegasus: {{enable_for_data_reuse: \"{value}\"}}}}\n"
        ));
        case.replicas(&["in", "out"]);
        let plan = case.plan(&format!("{LINE} -Dpegasus.data.reuse.scope=partial"))?;
        assert_eq!(!plan.tasks().contains(&"work_A".to_owned()), reused, "{value}");
    }
    Ok(())
}

#[test]
fn all_files_share_one_base_name() -> Result<(), Box<dyn std::error::Error>> {
    let case = one("");
    let plan = case.plan(&format!("{LINE} --basename mine"))?;
    for suffix in ["dag", "pbs", "sbatch", "cache", "metrics", "static.bp", "notify"] {
        assert!(
            plan.planned.submit_dir.join(format!("mine.{suffix}")).exists(),
            "{suffix}"
        );
    }
    assert!(plan.file("mine.pbs").contains(" mine.dag\n"));
    assert!(plan.file("braindump.yml").contains("/mine.dag\""));
    Ok(())
}

#[test]
fn hooks_and_multiline_values_are_written() -> Result<(), Box<dyn std::error::Error>> {
    let case =
        one("  metadata: {note: \"two\\nlines\"}\nhooks: {shell: [{_on: end, cmd: \"/bin/a\\n/bin/b\"}]}\n");
    let plan = case.plan(LINE)?;
    let uuid = "01234567-89ab-cdef-0123-456789abcdef";
    assert_eq!(
        plan.file("one-0.notify"),
        format!("WORKFLOW {uuid} end /bin/a /bin/b\n")
    );
    let events = plan.file("one-0.static.bp");
    assert!(events.contains("key=\"note\" value=\"two\\nlines\""), "{events}");
    assert!(
        events.lines().all(|line| line.starts_with("ts=2023-")),
        "{events}"
    );
    Ok(())
}

#[test]
fn a_dax_may_lack_a_schema_and_have_a_space_in_its_name() -> Result<(), Box<dyn std::error::Error>> {
    let case = one("");
    case.put(
        "workflow.yml",
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<adag version=\"3.6\" name=\"my work\">\
         <job id=\"A\" name=\"work\"/></adag>\n",
    );
    let plan = case.plan(LINE)?;
    assert!(plan.planned.dag.ends_with("my_work/run0001/my_work-0.dag"));
    Ok(())
}

#[test]
fn a_job_without_kickstart_starts_in_its_work_directory() -> Result<(), Box<dyn std::error::Error>> {
    let plan = one("  stdout: out\n  profiles: {pegasus: {gridstart: None}}\n").plan(LINE)?;
    let words = plan.command("work_A");
    assert_eq!(words[..2], ["/bin/sh", "-c"]);
    assert_eq!(words[2], "cd \"$0\" && exec \"$@\" >out");
    assert!(
        words[3].ends_with("/scratch/tester/pegasus/one/run0001"),
        "{words:?}"
    );
    assert_eq!(words[4], "/bin/work");
    Ok(())
}

#[test]
fn a_file_may_be_input_and_output() -> Result<(), Box<dyn std::error::Error>> {
    let case = one("");
    let workflow = fs::read_to_string(case.path().join("workflow.yml"))?;
    case.put(
        "workflow.yml",
        &workflow.replace("in, type: input", "in, type: inout"),
    );
    let plan = case.plan(&format!("{LINE} --force"))?;
    assert_eq!(plan.file("00/00/work_A.in.lof"), "in=in\n");
    assert!(plan.file("00/00/work_A.out.lof").contains("in=in\n"));
    Ok(())
}

#[test]
fn a_named_catalog_that_the_plan_needs_must_exist() {
    for (catalog, name, line) in [
        ("site", "sites.yml", "--sites cluster --dir submit"),
        ("transformation", "tc.yml", LINE),
        ("replica", "rc.yml", LINE),
    ] {
        let case = one("");
        let message = case.fail(&format!("{line} -Dpegasus.catalog.{catalog}.file=missing/{name}"));
        assert!(
            message.contains(&format!("missing/{name}")),
            "{catalog}: {message}"
        );
        assert!(
            !case.path().join("submit").exists(),
            "{catalog}: something is left"
        );
    }
}

#[test]
fn missing_and_duplicate_job_ids_are_handled() {
    let case = one("");
    case.put(
        "workflow.yml",
        "pegasus: \"5.0\"\nname: one\njobs:\n- {type: job, id: A, name: work}\n- {type: job, id: A, name: work}\n\
         - {type: job, name: work}\n",
    );
    let message = case.fail(LINE);
    for part in ["workflow.yml:5:", " A ", "workflow.yml:6:", "id"] {
        assert!(message.contains(part), "{part:?}: {message}");
    }
    case.put(
        "workflow.yml",
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<adag version=\"3.6\" name=\"one\">\n<job id=\"A\" name=\"work\"/>\n\
         <job id=\"A\" name=\"work\"/>\n</adag>\n",
    );
    let message = case.fail(LINE);
    assert!(
        message.contains("workflow.yml:4:") && message.contains(" A "),
        "{message}"
    );
}

#[test]
fn metrics_are_written_to_a_file_and_not_sent() -> Result<(), Box<dyn std::error::Error>> {
    let case = one("");
    let server = std::net::TcpListener::bind("127.0.0.1:0")?;
    let url = format!("http://{}/metrics", server.local_addr()?);
    let output = std::process::Command::new(testutils::programs::path("pmc-plan"))
        .args(LINE.split(' '))
        .current_dir(case.path())
        .env("HOME", case.path())
        .env("USER", "tester")
        .env("PEGASUS_METRICS", "1")
        .env("PEGASUS_METRICS_SERVER", &url)
        .env("PEGASUS_USER_METRICS_SERVER", &url)
        .output()?;
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let mut found = walkdir::WalkDir::new(case.path().join("submit"))
        .into_iter()
        .filter_map(Result::ok)
        .filter(|entry| entry.path().extension().is_some_and(|e| e == "metrics"));
    let metrics = fs::read_to_string(found.next().ok_or("no metrics")?.path())?;
    let metrics: serde_json::Value = serde_json::from_str(&metrics)?;
    assert_eq!(metrics["wf_metrics"]["compute_jobs"], 1);
    server.set_nonblocking(true)?;
    let visitor = server.accept().map(|(_, from)| from);
    assert!(visitor.is_err(), "{visitor:?} has come");
    Ok(())
}

#[test]
fn a_plan_may_have_more_files_than_a_process_may_open() {
    let jobs: Vec<String> = (0..1_500)
        .map(|i| format!("- {{type: job, id: J{i}, name: work, uses: [{{lfn: f{i}, type: output}}]}}\n"))
        .collect();
    let case = one("");
    case.put(
        "workflow.yml",
        &format!("pegasus: \"5.0\"\nname: one\njobs:\n{}", jobs.concat()),
    );
    let output = std::process::Command::new("sh")
        .args(["-c", "ulimit -n 100; exec \"$0\" \"$@\""])
        .arg(testutils::programs::path("pmc-plan"))
        .args(LINE.split(' '))
        .current_dir(case.path())
        .output()
        .expect("a shell");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    let lists = walkdir::WalkDir::new(case.path().join("submit"))
        .max_depth(6)
        .into_iter()
        .filter_map(Result::ok)
        .filter(|entry| entry.path().extension().is_some_and(|e| e == "in"));
    assert!(lists.count() > 100, "fewer files than it needs to show something");
}

#[test]
fn time_limits_in_properties_do_not_apply_to_auxiliary_jobs() -> Result<(), Box<dyn std::error::Error>> {
    let plan = one("").plan(&format!("{LINE} -Dpegasus.maxwalltime=10 -Dpegasus.runtime=60"))?;
    for task in plan.tasks() {
        let limited = plan.command(&task).contains(&"-k".to_owned());
        assert_eq!(limited, task == "work_A", "{task}");
    }
    Ok(())
}

#[test]
fn compound_transformations_stage_their_requirements() -> Result<(), Box<dyn std::error::Error>> {
    let case = one("");
    let programs = |kind: &str| {
        format!(
            "pegasus: \"5.0\"\ntransformations:\n- name: work\n  requires: [helper]\n  \
             sites: [{{name: local, type: {kind}, pfn: /opt/work}}]\n- name: helper\n  \
             sites: [{{name: local, type: stageable, pfn: /opt/helper}}]\n"
        )
    };
    case.put("transformations.yml", &programs("stageable"));
    let plan = case.plan(LINE)?;
    assert!(plan.file("00/00/work_A.in.lof").contains("helper=helper\n"));
    let chmod = plan.command("chmod_work_A_0");
    assert_eq!(
        chmod
            .iter()
            .filter(|word| word.starts_with('/') && word.contains("/run0001/./"))
            .count(),
        2
    );
    // The helpers of an installed program are installed, too.
    case.put("transformations.yml", &programs("installed"));
    let plan = case.plan(LINE)?;
    assert_eq!(plan.file("00/00/work_A.in.lof"), "in=in\n");
    Ok(())
}

#[test]
fn an_output_with_the_name_of_the_staged_program_is_refused() -> Result<(), Box<dyn std::error::Error>> {
    let case = one("");
    let programs = |name: &str| {
        format!(
            "pegasus: \"5.0\"\ntransformations:\n- {{name: {name}, sites: [{{name: local, type: stageable, pfn: /src/p}}]}}\n"
        )
    };
    case.put("transformations.yml", &programs("work"));
    case.plan(LINE)?;
    case.put("transformations.yml", &programs("out"));
    let workflow = fs::read_to_string(case.path().join("workflow.yml"))?;
    case.put("workflow.yml", &workflow.replace("name: work", "name: out"));
    let refused = case.fail(LINE);
    assert!(
        refused.contains(
            "the job A has an output out, which is also the name of the program out that is staged for it"
        ),
        "{refused}"
    );
    Ok(())
}

#[test]
fn negative_sizes_are_unknown() -> Result<(), Box<dyn std::error::Error>> {
    let case = one("");
    let workflow = fs::read_to_string(case.path().join("workflow.yml"))?;
    case.put(
        "workflow.yml",
        &workflow.replace("type: input", "type: input, size: -5"),
    );
    case.put(
        "w.dax",
        "<adag name=\"w\" version=\"3.6\"><job id=\"A\" name=\"work\"><uses name=\"in\" link=\"input\" size=\"-17\"/>\
         <uses name=\"out\" link=\"output\" size=\"-1.5\"/></job></adag>",
    );
    for (file, count) in [("workflow.yml", 1), ("w.dax", 2)] {
        let plan = case.plan(&format!("{LINE} {file}"))?;
        let warnings = plan.warnings().join("\n");
        let expected = format!("sizes of files are negative ({count} in all), so they count as unknown");
        assert_eq!(warnings.matches(&expected).count(), 1, "{warnings}");
    }
    case.put(
        "workflow.yml",
        &workflow.replace("type: input", "type: input, size: big"),
    );
    assert!(case.fail(LINE).contains("size must be a whole number, not `big`"));
    Ok(())
}

#[test]
fn deliveries_of_files_that_may_be_missing_are_marked() -> Result<(), Box<dyn std::error::Error>> {
    let case = one("  - {lfn: state, type: checkpoint, stageOut: true, registerReplica: true}\n");
    let plan = case.plan(LINE)?;
    let orders = plan.orders("stage_out_local_local_0_0");
    let optional: Vec<(&str, bool)> = orders
        .as_array()
        .into_iter()
        .flatten()
        .map(|order| {
            (
                order["lfn"].as_str().unwrap_or_default(),
                order["optional"] == true,
            )
        })
        .collect();
    assert!(optional.contains(&("state", true)) && optional.contains(&("out", false)));
    let list = plan.file("00/00/register_local_0_0.in");
    for line in list.lines() {
        assert_eq!(
            line.ends_with(" optional=\"true\""),
            line.starts_with("state "),
            "{line}"
        );
    }
    assert_eq!(list.lines().count(), 2);
    Ok(())
}

#[test]
fn no_registration_without_kickstart_is_beside_the_dag() -> Result<(), Box<dyn std::error::Error>> {
    let list = |plan: &common::Plan| plan.command("register_local_0_0").pop().unwrap_or_default();
    for (mapper, file) in [
        ("Hashed", "00/00/register_local_0_0.in"),
        ("Flat", "register_local_0_0.entries"),
    ] {
        let options = format!("{LINE} -Dpegasus.gridstart=none -Dpegasus.dir.submit.mapper={mapper}");
        let case = one("");
        let plan = case.plan(&options)?;
        assert!(
            !plan.planned.submit_dir.join("register_local_0_0.in").exists(),
            "{mapper}"
        );
        assert!(plan.file(file).starts_with("out "), "{mapper}");
        assert!(list(&plan).ends_with(file), "{}", list(&plan));
    }
    let case = one("");
    let plan = case.plan(LINE)?;
    assert!(plan.planned.submit_dir.join("register_local_0_0.in").exists());
    Ok(())
}

#[test]
fn lists_mark_the_outputs_that_a_job_must_write() -> Result<(), Box<dyn std::error::Error>> {
    let case = one("  - {lfn: state, type: checkpoint}\n  - {lfn: extra, type: output, optional: true}\n");
    let list = |options: &str| -> Result<String, Box<dyn std::error::Error>> {
        Ok(case
            .plan(&format!("{LINE} {options}"))?
            .file("00/00/work_A.out.lof"))
    };
    assert_eq!(list("")?, "state=state\nextra=extra\n# required\nout=out\n");
    assert_eq!(
        list("-Dpmc.check.outputs=false")?,
        "out=out\nstate=state\nextra=extra\n"
    );
    Ok(())
}

#[test]
fn checkpoint_files_are_kept_and_limited() -> Result<(), Box<dyn std::error::Error>> {
    let case = one("  profiles: {pegasus: {checkpoint.time: \"2\", runtime: \"600\"}}\n");
    let workflow = fs::read_to_string(case.path().join("workflow.yml"))?;
    case.put(
        "workflow.yml",
        &workflow.replace(
            "  - {lfn: in,",
            "  - {lfn: state, type: checkpoint}\n  - {lfn: in,",
        ),
    );
    let plan = case.plan(LINE)?;
    for list in ["in", "out"] {
        assert!(
            plan.file(&format!("00/00/work_A.{list}.lof"))
                .contains("state=state\n"),
            "{list}"
        );
    }
    let words = plan.command("work_A").join(" ");
    assert!(words.contains(" -k 120 -K 240 "), "{words}");
    Ok(())
}

#[test]
fn replicas_in_the_workflow_keep_their_priority() -> Result<(), Box<dyn std::error::Error>> {
    let case = one(
        "replicaCatalog:\n  replicas:\n  - {lfn: in, pfns: [{site: local, pfn: /data/in}, {site: web, pfn: \"http://w/in\"}]}\n  \
         - {lfn: other, pfns: [{site: local, pfn: /data/other}]}\n",
    );
    let plan = case.plan(LINE)?;
    assert_eq!(
        plan.file("one-0.replica.store")
            .lines()
            .skip(1)
            .collect::<Vec<_>>(),
        [
            "in /data/in priority=\"50\" site=\"local\"",
            "in http://w/in priority=\"10\" site=\"web\"",
            "other /data/other site=\"local\"",
        ]
    );
    Ok(())
}

#[test]
fn modes_set_only_unset_properties() -> Result<(), Box<dyn std::error::Error>> {
    for (mode, more, arguments, retries) in [
        ("production", "", "--threads 2", "1"),
        ("tutorial", "", "--threads 2 -m 1", "1"),
        ("debug", "", "--threads 2 --debug -m 1", "0"),
        ("development", "-Ddagman.retry=4", "--threads 2", "4"),
        (
            "tutorial",
            "-Dpegasus.transfer.arguments=-x",
            "--threads 2 -x",
            "1",
        ),
    ] {
        let case = one("");
        let plan = case.plan(&format!("{LINE} -Dpegasus.mode={mode} {more}"))?;
        let words = plan.command("stage_in_local_local_0_0").join(" ");
        assert!(
            words.ends_with(&format!("/pegasus-transfer {arguments}")),
            "{mode}: {words}"
        );
        let events = plan.file("one-0.static.bp");
        assert!(events.contains(&format!("max_retries=\"{retries}\"")), "{mode}");
    }
    let message = one("").fail(&format!("{LINE} -Dpegasus.mode=tutorials"));
    assert!(
        message.contains("must be one of production, development, debug, tutorial"),
        "{message}"
    );
    Ok(())
}

/// A relative path was taken as from wherever the transfer happened to run.
#[test]
fn relative_data_paths_begin_where_the_plan_is_made() -> Result<(), Box<dyn std::error::Error>> {
    for pfn in ["data/in", "./data/in", "file:data/in"] {
        let case = one("");
        let text = format!("replicas:\n- lfn: in\n  pfns: [{{site: local, pfn: '{pfn}'}}]\n");
        case.put("replicas.yml", &text).put("data/in", "x");
        let plan = case.plan(LINE)?;
        let file = case.path().join("data/in").display().to_string();
        let list = plan.orders("stage_in_local_local_0_0");
        assert_eq!(list[0]["src_urls"][0]["url"], file, "{pfn}");
        let warning = format!("the location {pfn} of a file is a relative path: it is taken as {file}");
        assert!(
            plan.warnings().iter().any(|line| line.ends_with(&warning)),
            "{:?}",
            plan.warnings()
        );
    }
    Ok(())
}

/// A catalog of another machine, or one that was made from where `pegasus-plan` was found.
#[test]
fn a_pegasus_home_without_kickstart_is_named_at_planning() -> Result<(), Box<dyn std::error::Error>> {
    let case = one("");
    let home = case.path().join("home");
    let sites = format!(
        "sites:\n- name: local\n  directories:\n  - {{type: sharedScratch, path: '@DIR@/scratch'}}\n  - {{type: \
         localStorage, path: '@DIR@/storage'}}\n  profiles: {{env: {{PEGASUS_HOME: {}}}}}\n",
        home.display()
    );
    case.put("sites.yml", &sites);
    let start = format!(
        "there is no {}/bin/pegasus-kickstart, which starts the jobs of the site",
        home.display()
    );
    let is_about = |warning: &String| warning.contains(&start) && warning.contains("PEGASUS_HOME");
    assert_eq!(
        case.plan(LINE)?
            .warnings()
            .iter()
            .filter(|line| is_about(line))
            .count(),
        1
    );
    case.put("home/bin/pegasus-kickstart", "");
    assert!(!case.plan(LINE)?.warnings().iter().any(is_about));
    Ok(())
}
