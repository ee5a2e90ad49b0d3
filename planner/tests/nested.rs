//! Sub-workflows that are planned when their turn comes.

#[expect(dead_code, reason = "only a part of the helpers is needed here")]
mod common;
#[path = "nested/fetched.rs"]
mod fetched;
#[path = "nested/outputs.rs"]
mod outputs;

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use common::{Case, Plan};
use pmc_plan::cli::{self, Invocation};
use pmc_plan::plan::{Prepared, prepare};
use pmc_plan::request::Environment;

type Done = Result<(), Box<dyn Error>>;

const LINE: &str = "--sites local --output-sites local --dir submit";
const NESTED: &str = "--sites local --output-sites local --dir submit -Dpegasus.subworkflow=nested";

/// `make` writes `mid` and the workflow of S, which turns `mid` into `end`.
const OUTER: &str = r#"pegasus: "5.0"
name: outer
jobs:
- type: job
  id: A
  name: make
  uses:
  - {lfn: made.yml, type: output, stageOut: false, registerReplica: false}
  - {lfn: mid, type: output, stageOut: false, registerReplica: false}
- type: pegasusWorkflow
  id: S
  file: made.yml
  arguments: [--basename, made, --sites, local]
  uses:
  - {lfn: made.yml, type: input, forPlanning: true}
  - {lfn: mid, type: input}
  - {lfn: end, type: output, stageOut: true, registerReplica: false}
"#;

const MADE: &str = r#"pegasus: "5.0"
name: inner
jobs:
- type: job
  id: C
  name: turn
  uses:
  - {lfn: mid, type: input}
  - {lfn: end, type: output, stageOut: true, registerReplica: false}
  - {lfn: more, type: output, stageOut: true, registerReplica: false}
"#;

fn case(workflow: &str) -> Case {
    let case = Case::new(workflow);
    case.programs(&["make", "turn", "look"]);
    case
}

/// The words of the planner in the preparation of a job, after the program.
fn preparation(plan: &Plan, job: &str) -> Vec<String> {
    let words = plan.command(job);
    let program = words.iter().position(|word| word.ends_with("/pmc-plan"));
    words[program.expect("the planner") + 1..].to_vec()
}

/// Runs the planner as the preparation of a job would.
fn plan_child(words: &[String], directory: &Path, uuid: &str) -> Result<Prepared, String> {
    let line: Vec<String> = std::iter::once("pmc-plan".to_owned())
        .chain(words.iter().cloned())
        .collect();
    let environment = Environment {
        is_of_other: false,
        variables: BTreeMap::new(),
        working_dir: directory.to_owned(),
        user: "tester".into(),
        host: "here".into(),
        own_bin: Some("/opt/pegasus/bin".into()),
        now: chrono::DateTime::UNIX_EPOCH.fixed_offset(),
        uuid: uuid.into(),
    };
    match cli::parse(&line, environment).map_err(|e| e.to_string())? {
        Invocation::Plan(request, _) => prepare(&request).map_err(|e| e.to_string()),
        other => Err(format!("{other:?}")),
    }
}

/// A planned workflow with a sub-workflow that a job makes, and the scratch directory with that.
fn with_made(case: &Case) -> Result<(Plan, PathBuf), Box<dyn Error>> {
    let plan = case.plan(LINE)?;
    let scratch = case.path().join("scratch/tester/pegasus/outer/run0001");
    fs::create_dir_all(&scratch)?;
    fs::write(scratch.join("made.yml"), MADE)?;
    Ok((plan, scratch))
}

#[test]
fn a_workflow_that_a_job_makes_is_nested() -> Done {
    let case = case(OUTER);
    let plan = case.plan(LINE)?;
    let base = case.path().display().to_string();
    let run = format!("{base}/submit/tester/pegasus/outer/run0001");
    let dag = plan.file("outer-0.dag");
    let lines = format!(
        " pegasus::pegasus-plan:5.1.3 S \n\
         SUBDAG PLANNED pegasus-plan_S {run}/00/00/made/made.dag DIR {run}/00/00/made\n\
         JOB pegasus-plan_S 00/00/pegasus-plan_S.sub\n\
         SCRIPT PRE pegasus-plan_S -m 2048 -c 1 /opt/pegasus/bin/pegasus-kickstart "
    );
    assert!(dag.contains(&lines), "{dag}");
    let words = preparation(&plan, "pegasus-plan_S").join(" ").replace(&base, "@");
    assert_eq!(
        words,
        "-Dpegasus.log.*=@/submit/tester/pegasus/outer/run0001/pegasus-plan_S.pre.log \
         -Dpegasus.workflow.root.uuid=01234567-89ab-cdef-0123-456789abcdef \
         --conf @/submit/tester/pegasus/outer/run0001/pegasus.1.properties --dir @/submit \
         --relative-dir tester/pegasus/outer/run0001/00/00/./made \
         --relative-submit-dir tester/pegasus/outer/run0001/00/00/./made --basename made --sites local \
         --cache @/submit/tester/pegasus/outer/run0001/00/00/pegasus-plan_S.input.cache \
         --output-map @/submit/tester/pegasus/outer/run0001/00/00/pegasus-plan_S.output.map \
         --cleanup none --deferred made.yml"
    );
    let at = |name: &str| {
        plan.file(&format!("00/00/pegasus-plan_S.{name}"))
            .replace(&base, "@")
    };
    let url = "file://@/scratch/tester/pegasus/outer/run0001/.";
    assert_eq!(
        at("input.cache"),
        format!("made.yml {url}/made.yml site=\"local\"\nmid {url}/mid site=\"local\"\n")
    );
    assert_eq!(at("output.map"), format!("end {url}/end site=\"local\"\n"));
    let log = format!(
        "environment = \"_CONDOR_DAGMAN_LOG={}/00/00/made/made.dag.dagman.out\"\n",
        run.replace(&base, "@")
    );
    assert!(at("sub").contains(&log), "{}", at("sub"));
    let events = plan.file("outer-0.static.bp");
    assert!(
        events.contains("task.id=\"S\" type=\"10\" type_desc=\"dax\""),
        "{events}"
    );
    plan.assert_edges(&[
        ("make_A", "pegasus-plan_S"),
        ("pegasus-plan_S", "stage_out_local_local_1_0"),
        ("pegasus-plan_S", "cleanup_outer_0_local"),
    ]);
    let said = |w: &String| w.contains("planned during the run: S (the job A makes its file)");
    assert!(plan.warnings().iter().any(said), "{:?}", plan.warnings());
    // The user has asked for it.
    assert!(
        !case
            .plan(NESTED)?
            .warnings()
            .iter()
            .any(|w| w.contains("during the run"))
    );
    Ok(())
}

#[test]
fn a_workflow_that_a_job_makes_may_be_in_a_hashed_directory() -> Done {
    let case = case(OUTER);
    for (properties, expected) in [
        ("", "made.yml"),
        (" -Dpegasus.data.configuration=nonsharedfs", "00/00/made.yml"),
    ] {
        let plan = case.plan(&format!("{LINE}{properties}"))?;
        let words = preparation(&plan, "pegasus-plan_S");
        assert_eq!(words.last().map(String::as_str), Some(expected));
    }
    Ok(())
}

/// Command lines are in the DAG, which others may read, and `ps` shows them. A file of properties that the
/// nested job has for itself does not have the secrets.
#[test]
fn secrets_among_the_options_of_a_nested_job_are_in_no_command_line() -> Done {
    for more in ["", "--conf, @DIR@/own.properties,"] {
        let case = case(&OUTER.replace(
            "arguments: [--basename, made,",
            &format!("arguments: [-Dpegasus.x.password=xyzzy, -Dpegasus.y=1, {more} --basename, made,"),
        ));
        let (plan, scratch) = with_made(&case)?;
        let words = preparation(&plan, "pegasus-plan_S");
        let define = "-Dpegasus.x.password=${pmc.secret.pegasus-plan_S.pegasus.x.password}";
        assert!(words.iter().any(|word| word == define), "{words:?}");
        assert!(words.iter().any(|word| word == "-Dpegasus.y=1"), "{words:?}");
        assert!(!plan.file("outer-0.dag").contains("xyzzy"));
        let outer = plan.file("pegasus.1.properties");
        let catalogs = outer.lines().filter(|line| line.starts_with("pegasus.catalog."));
        let own: String = catalogs.map(|line| format!("{line}\n")).collect();
        fs::write(
            case.path().join("own.properties"),
            own + "pegasus.z = ${pegasus.home.bindir}/\n",
        )?;
        // The planner of the sub-workflow has the value.
        plan_child(&words, &scratch, "11234567-89ab-cdef-0123-456789abcdef")?;
        let mode = |path: &Path| Ok(fs::metadata(path)?.permissions().mode() & 0o777);
        let mode = |path: &str| -> std::io::Result<u32> { mode(&plan.planned.submit_dir.join(path)) };
        let files = ["pegasus.1.properties", "00/00/made/pegasus.1.properties"];
        assert_eq!((mode(files[0])?, mode(files[1])?), (0o600, 0o600));
        let inner = plan.file(files[1]).replace(" = ", "=");
        assert!(inner.contains("pegasus.x.password=xyzzy\n"), "{inner}");
        // Other properties of the outer plan do not come along.
        assert_eq!(inner.contains("pegasus.z=/\n"), !more.is_empty(), "{inner}");
        // A file that is gone is no empty password.
        fs::remove_file(plan.planned.submit_dir.join(files[0]))?;
        match plan_child(&words, &scratch, "21234567-89ab-cdef-0123-456789abcdef") {
            Err(error) => assert!(error.contains(files[0]), "{error}"),
            Ok(_) => panic!("the secret is missing"),
        }
    }
    Ok(())
}

#[test]
fn the_options_of_a_nested_job_come_in_a_settled_order() -> Done {
    let case = case(
        "pegasus: \"5.0\"\nname: top\njobs:\n\
         - {type: pegasusWorkflow, id: m1, file: mid.yml, arguments: [--output-sites, local, -vv], uses: [{lfn: mid.yml, type: input}]}\n\
         - type: pegasusWorkflow\n  id: p2\n  file: in.yml\n  arguments: [--output-dir, @DIR@/there, --cleanup, leaf, --staging-site, local, \
         --cluster, label, -f, --relative-dir, rel, -j, in_, -Dpegasus.x=1, --force-replan]\n  uses: [{lfn: in.yml, type: input}]\n\
         jobDependencies: [{id: m1, children: [p2]}]\n\
         replicaCatalog: {replicas: [{lfn: in.yml, pfns: [{site: local, pfn: \"file://@DIR@/in.yml\"}]}]}\n",
    );
    case.put(
        "mid.yml",
        "pegasus: \"5.0\"\nname: mid\njobs:\n- {type: job, id: A, name: make}\n",
    );
    case.put(
        "in.yml",
        "pegasus: \"5.0\"\nname: in\njobs:\n- {type: job, id: A, name: make}\n",
    );
    let plan = case.plan(NESTED)?;
    let run = "@/submit/tester/pegasus/top/run0001";
    let own = |job: &str| {
        let words = preparation(&plan, job).join(" ");
        let words = words.replace(&case.path().display().to_string(), "@");
        words[words.find("--relative-submit-dir").expect("a directory")..].to_owned()
    };
    assert_eq!(
        own("pegasus-plan_m1"),
        format!(
            "--relative-submit-dir tester/pegasus/top/run0001/00/00/./mid_m1 --sites local \
             --cache {run}/00/00/pegasus-plan_m1.input.cache --inherited-rc-files {run}/top-0.replica.store \
             --output-map {run}/00/00/pegasus-plan_m1.output.map --output-sites local --cleanup none --verbose --verbose \
             --deferred @/mid.yml"
        )
    );
    assert_eq!(
        own("pegasus-plan_p2"),
        format!(
            "--relative-submit-dir tester/pegasus/top/run0001/00/00/./in_p2 --job-prefix in_ --sites local \
             --staging-site local, --cache {run}/00/00/mid_m1/mid-0.cache,{run}/00/00/pegasus-plan_p2.input.cache \
             --inherited-rc-files {run}/top-0.replica.store --cluster label --output-dir @/there \
             --output-map {run}/00/00/pegasus-plan_p2.output.map --force --force-replan --cleanup leaf --deferred @/in.yml"
        )
    );
    assert!(preparation(&plan, "pegasus-plan_p2").contains(&"-Dpegasus.x=1".to_owned()));
    // Sub-workflows that clean up after themselves pass on only what the outer workflow keeps.
    let plan = case.plan(&format!("{NESTED} -Dpegasus.file.cleanup.scope=deferred"))?;
    let words = preparation(&plan, "pegasus-plan_p2").join(" ");
    assert!(words.contains("pegasus-plan_m1.output.map,"), "{words}");
    assert!(!preparation(&plan, "pegasus-plan_m1").contains(&"--cleanup".to_owned()));
    Ok(())
}

#[test]
fn the_preparation_makes_the_plan_of_the_child() -> Done {
    let case = case(OUTER);
    let (plan, scratch) = with_made(&case)?;
    let words = preparation(&plan, "pegasus-plan_S");
    let Prepared::Planned(child) = plan_child(&words, &scratch, "child")? else {
        panic!("there was a plan already");
    };
    let directory = plan.planned.submit_dir.join("00/00/made.000");
    assert_eq!(child.submit_dir, directory);
    assert_eq!(
        fs::read_link(directory.with_extension(""))?,
        Path::new("made.000")
    );
    let braindump = fs::read_to_string(directory.join("braindump.yml"))?;
    for line in [
        "root_wf_uuid: \"01234567-89ab-cdef-0123-456789abcdef\"",
        "wf_uuid: \"child\"",
        &format!("submit_dir: \"{}\"", directory.display()),
    ] {
        assert!(braindump.lines().any(|l| l == line), "{line}: {braindump}");
    }
    // What the outer workflow wants goes into its work directory, from which inputs come; the rest stays.
    let lists = fs::read_dir(directory.join("00/00"))?
        .map(|entry| fs::read_to_string(entry?.path()))
        .collect::<Result<Vec<_>, _>>()?
        .concat();
    let url = |name: &str| format!("\"url\": \"file://{}/./{name}\"", scratch.display());
    let own = |name: &str| format!("\"url\": \"file://{}/00/00/./made/./{name}\"", scratch.display());
    for part in [url("mid"), url("end"), own("end").replace("/./made", "/made")] {
        let there = lists.replace("/00/00/./made", "/00/00/made");
        assert!(there.contains(&part), "{part}: {lists}");
    }
    assert!(!lists.contains("\"more\""), "{lists}");
    Ok(())
}

#[test]
fn the_plan_of_a_child_has_no_files_that_only_its_submission_would_need() -> Done {
    let case = case(OUTER);
    let (plan, scratch) = with_made(&case)?;
    plan_child(&preparation(&plan, "pegasus-plan_S"), &scratch, "child")?;
    let directory = plan.planned.submit_dir.join("00/00/made.000");
    for name in ["catalogs", "made.pbs", "made.sbatch"] {
        assert!(!directory.join(name).exists(), "{name}");
    }
    assert!(directory.join("made.dag").is_file());
    Ok(())
}

/// As programs for DAX files do it: the job that writes the workflow says nothing of it, and a catalog says
/// where it will be.
#[test]
fn a_workflow_that_a_job_writes_to_a_cataloged_place_is_nested() -> Done {
    let undeclared = OUTER.replace(
        "  - {lfn: made.yml, type: output, stageOut: false, registerReplica: false}\n",
        "",
    );
    let case = case(&format!(
        "{undeclared}jobDependencies: [{{id: A, children: [S]}}]\n"
    ));
    let later = case.path().join("later.yml");
    let catalog = format!(
        "pegasus: \"5.0\"\nreplicas: [{{lfn: made.yml, pfns: [{{site: local, pfn: '{}'}}]}}]\n",
        later.display()
    );
    case.put("replicas.yml", &catalog);
    let plan = case.plan(LINE)?;
    let words = preparation(&plan, "pegasus-plan_S");
    assert_eq!(words.last(), Some(&later.display().to_string()));
    // Nothing brings the file to the staging site before it is written.
    assert!(
        !plan.tasks().iter().any(|task| task.starts_with("stage_in")),
        "{:?}",
        plan.tasks()
    );
    let said = plan
        .warnings()
        .iter()
        .any(|w| w.ends_with("planned during the run: S (its file is not there yet)"));
    assert!(said, "{:?}", plan.warnings());
    fs::write(&later, MADE)?;
    let scratch = case.path().join("scratch/tester/pegasus/outer/run0001");
    fs::create_dir_all(&scratch)?;
    assert!(matches!(
        plan_child(&words, &scratch, "child")?,
        Prepared::Planned(_)
    ));

    // Without a job before it, nothing can write it.
    let alone = "pegasus: \"5.0\"\nname: outer\njobs:\n- {type: pegasusWorkflow, id: S, file: made.yml, \
                 arguments: [--basename, made], uses: [{lfn: made.yml, type: input}]}\n";
    let case = self::case(alone);
    case.put("replicas.yml", &catalog.replace("later.yml", "never.yml"));
    let refusal = case.fail(LINE);
    assert!(
        refusal.contains("a file that is there when the plan is made"),
        "{refusal}"
    );
    Ok(())
}

#[test]
fn a_plan_of_the_same_inputs_is_kept() -> Done {
    let case = case(OUTER);
    let (plan, scratch) = with_made(&case)?;
    let words = preparation(&plan, "pegasus-plan_S");
    let number = |words: &[String]| match plan_child(words, &scratch, "child") {
        Ok(Prepared::Planned(planned)) => planned.submit_dir.display().to_string(),
        Ok(Prepared::Kept(_)) => "kept".to_owned(),
        Err(error) => error,
    };
    assert!(number(&words).ends_with("/made.000"));
    assert_eq!(number(&words), "kept");
    let forced: Vec<String> = std::iter::once("--force-replan".to_owned())
        .chain(words.clone())
        .collect();
    assert!(number(&forced).ends_with("/made.001"));
    assert_eq!(number(&words), "kept");
    fs::write(scratch.join("made.yml"), MADE.replace("id: C", "id: D"))?;
    assert!(number(&words).ends_with("/made.002"));
    let other: Vec<String> = std::iter::once("--force".to_owned())
        .chain(words.clone())
        .collect();
    assert!(number(&other).ends_with("/made.003"));
    // A planner that fails leaves the last plan in its place.
    fs::write(scratch.join("made.yml"), "pegasus: [\n")?;
    assert!(number(&words).contains("made.yml:"));
    let link = plan.planned.submit_dir.join("00/00/made");
    assert_eq!(fs::read_link(&link)?, Path::new("made.003"));
    fs::write(scratch.join("made.yml"), MADE)?;
    assert!(number(&words).ends_with("/made.004"));
    assert_eq!(number(&words), "kept");
    // The machine failed before the whole plan was on the disk.
    fs::write(link.join("made.static.bp"), "")?;
    assert!(number(&words).ends_with("/made.005"));
    Ok(())
}

#[test]
fn a_workflow_does_not_plan_itself() -> Done {
    let case = case(
        "pegasus: \"5.0\"\nname: outer\njobs:\n\
         - {type: pegasusWorkflow, id: S, file: other.yml, uses: [{lfn: other.yml, type: input}]}\n",
    );
    case.put(
        "other.yml",
        &case.file("workflow.yml").replace("other.yml", "workflow.yml"),
    );
    let plan = case.plan(NESTED)?;
    let error = {
        let words = preparation(&plan, "pegasus-plan_S");
        let Prepared::Planned(child) = plan_child(&words, case.path(), "child")? else {
            panic!("there was a plan already");
        };
        let dag = pmc_dag::Dag::open(&child.dag)?;
        let command = dag.task(dag.find(b"pegasus-plan_S").ok_or("no task")?).command;
        let words: Vec<String> = pmc_dag::words::split(command)
            .into_iter()
            .map(|word| String::from_utf8_lossy(&word).into_owned())
            .collect();
        let program = words.iter().position(|word| word.ends_with("/pmc-plan"));
        plan_child(
            &words[program.ok_or("no planner")? + 1..],
            case.path(),
            "grandchild",
        )
    };
    assert!(error.is_err_and(|message| message.contains("there would be no end")));
    case.put("other.yml", &case.file("workflow.yml"));
    case.put(
        "workflow.yml",
        &case.file("workflow.yml").replace("other.yml", "workflow.yml"),
    );
    assert!(case.fail(NESTED).contains("there would be no end"));
    Ok(())
}

#[test]
fn only_what_cannot_be_part_of_the_plan_is_nested() -> Done {
    let part = |id: &str, file: &str, arguments: &str| {
        format!(
            "- {{type: pegasusWorkflow, id: {id}, file: {file}, arguments: [{arguments}], uses: [{{lfn: {file}, type: input}}]}}\n"
        )
    };
    let workflow = |parts: &[String]| format!("pegasus: \"5.0\"\nname: outer\njobs:\n{}", parts.concat());
    let inner = |file: &str| {
        format!(
            "pegasus: \"5.0\"\nname: in\njobs:\n- {{type: job, id: A, name: make, uses: [{{lfn: {file}, type: output}}]}}\n"
        )
    };
    let case = case(&workflow(&[
        part("P", "a.yml", "--output-dir, there"),
        part("Q", "b.yml", ""),
        part("R", "b.yml", ""),
        part("T", "c.yml", ""),
        "jobDependencies: [{id: P, children: [T]}]\n".to_owned(),
    ]));
    case.put("a.yml", &inner("x"))
        .put("b.yml", &inner("y"))
        .put("c.yml", &inner("z"));
    let plan = case.plan(LINE)?;
    let warning = plan
        .warnings()
        .into_iter()
        .find(|w| w.contains("planned during the run"));
    assert_eq!(
        warning.unwrap_or_default(),
        "these sub-workflows are planned during the run: P (it has the argument --output-dir there), Q (its file y is \
         another one than that of other jobs), R (its file y is another one than that of other jobs), T (it may share \
         files with the nested P)"
    );
    case.put(
        "workflow.yml",
        &workflow(&[part("P", "a.yml", "--output-dir, there"), part("Q", "b.yml", "")]),
    );
    let tasks = case.plan(LINE)?.tasks();
    assert!(
        tasks.contains(&"make_Q_A".to_owned()) && tasks.contains(&"pegasus-plan_P".to_owned()),
        "{tasks:?}"
    );
    // A sub-workflow of a part of the plan can be nested, too.
    case.put("b.yml", &workflow(&[part("P", "a.yml", "--output-dir, there")]));
    let tasks = case.plan(LINE)?.tasks();
    assert!(tasks.contains(&"pegasus-plan_Q_P".to_owned()), "{tasks:?}");
    // A plan whose workflow is not there yet has no other name.
    case.put("workflow.yml", &OUTER.replace("--basename, made, ", ""));
    assert!(case.fail(LINE).contains("--basename"));
    Ok(())
}

#[test]
fn dags_are_run_as_they_are_or_planned() -> Done {
    let case = case(
        "pegasus: \"5.0\"\nname: outer\njobs:\n\
         - {type: condorWorkflow, id: D, file: ready.dag, uses: [{lfn: ready.dag, type: input}]}\n\
         - {type: condorWorkflow, id: E, file: other.dag, profiles: {dagman: {dir: jobs}}, uses: [{lfn: other.dag, type: input}]}\n",
    );
    case.put("ready.dag", "TASK a /bin/true\n")
        .put("other.dag", "JOB one a.sub\n")
        .put("jobs/a.sub", "executable = run\nqueue\n");
    let plan = case.plan(NESTED)?;
    let base = case.path().display().to_string();
    let dag = plan.file("outer-0.dag").replace(&base, "@");
    let run = "@/submit/tester/pegasus/outer/run0001";
    for line in [
        "SUBDAG EXTERNAL dagman_D @/ready.dag DIR @\n",
        &format!("SUBDAG EXTERNAL dagman_E {run}/00/00/other_E/other-0.dag DIR {run}/00/00/other_E\n"),
    ] {
        assert!(dag.contains(line), "{line}: {dag}");
    }
    assert!(
        !dag.contains("SCRIPT PRE dagman_D") && !dag.contains("\nJOB "),
        "{dag}"
    );
    let Prepared::Planned(child) = plan_child(&preparation(&plan, "dagman_E"), case.path(), "child")? else {
        panic!("there was a plan already");
    };
    let text = fs::read_to_string(&child.dag)?;
    assert!(text.contains(&format!("{base}/jobs/run")), "{text}");
    assert_eq!(
        child.dag,
        plan.planned.submit_dir.join("00/00/other_E.000/other-0.dag")
    );
    Ok(())
}

#[test]
fn sites_without_directories_run_nested_workflows() -> Done {
    let case = case(&OUTER.replace("--sites, local]", "--sites, condorpool]"));
    let programs = case
        .file("transformations.yml")
        .replace("name: local,", "name: condorpool,");
    case.put("transformations.yml", &programs);
    for local in [
        "{type: localStorage, path: /out, fileServers: [{url: 'file:///out', operation: all}]}",
        "",
    ] {
        for (profile, line) in [
            ("style: condor", "-Dpegasus.data.configuration=condorio"),
            ("data.configuration: condorio", ""),
            ("data.configuration: nonsharedfs", "--staging-site local"),
        ] {
            case.put(
                "sites.yml",
                &format!(
                    "pegasus: \"5.0\"\nsites:\n- name: local\n  directories: [{local}]\n- name: condorpool\n  directories: \
                     []\n  profiles: {{pegasus: {{{profile}}}}}\n"
                ),
            );
            let _ = fs::remove_dir_all(case.path().join("submit"));
            let line = format!("--sites condorpool --output-sites local --dir submit {line}");
            let plan = case.plan(&line)?;
            let scratch = case.path().join("wf-scratch/LOCAL/tester/pegasus/outer/run0001");
            fs::create_dir_all(&scratch)?;
            fs::write(scratch.join("made.yml"), MADE)?;
            let planned = plan_child(&preparation(&plan, "pegasus-plan_S"), &scratch, "child")?;
            let Prepared::Planned(planned) = planned else {
                return Err("the plan is an old one".into());
            };
            let dag = fs::read_to_string(&planned.dag)?;
            assert!(dag.contains("/pegasus-lite "), "{line}: {dag}");
            assert!(dag.contains(" create_dir_inner_0_local "), "{line}: {dag}");
            let made = case.path().join("wf-scratch").display().to_string();
            let created = fs::read_to_string(planned.submit_dir.join("00/00/create_dir_inner_0_local.in"))?;
            assert!(created.contains(&made), "{line}: {created}");
        }
    }
    Ok(())
}
