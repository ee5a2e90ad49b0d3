//! Jobs that are workflows themselves.

#[expect(dead_code, reason = "only a part of the helpers is needed here")]
mod common;

use common::Case;

/// `make` writes `raw` and `mid`. The inner workflow turns `mid` into `end`, which `look` reads.
const OUTER: &str = r#"pegasus: "5.0"
name: outer
jobs:
- type: job
  id: A
  name: make
  uses:
  - {lfn: mid, type: output, stageOut: false, registerReplica: false}
  - {lfn: own, type: output, stageOut: false, registerReplica: false}
- type: pegasusWorkflow
  id: S
  file: inner.yml
  arguments: [--output-sites, local, -vvv, --basename, in]
  uses:
  - {lfn: inner.yml, type: input}
  - {lfn: mid, type: input}
  - {lfn: end, type: output, stageOut: true, registerReplica: false}
- type: job
  id: Z
  name: look
  uses: [{lfn: end, type: input}, {lfn: own, type: input}]
"#;

const INNER: &str = r#"pegasus: "5.0"
name: inner
replicaCatalog: {replicas: [{lfn: table, pfns: [{site: local, pfn: /data/table}]}]}
transformationCatalog:
  transformations:
  - {name: deep, sites: [{name: local, type: installed, pfn: /bin/deep}]}
jobs:
- type: job
  id: B
  name: first
  uses: [{lfn: table, type: input}, {lfn: tmp, type: output, stageOut: false, registerReplica: false}]
- type: job
  id: C
  name: deep
  arguments: [mid]
  stdout: end
  uses:
  - {lfn: tmp, type: input}
  - {lfn: mid, type: input}
  - {lfn: end, type: output, stageOut: false, registerReplica: false}
- {type: job, id: D, name: first, uses: [{lfn: end, type: input}]}
"#;

const LINE: &str = "--sites local --output-sites local --dir submit";
/// All jobs must be part of the plan.
const INLINE: &str = "--sites local --output-sites local --dir submit -Dpegasus.subworkflow=inline";

fn case() -> Case {
    let case = Case::new(OUTER);
    case.put("inner.yml", INNER)
        .programs(&["make", "look", "first"])
        .replicas(&[]);
    case
}

#[test]
fn jobs_of_a_subworkflow_become_jobs_of_the_plan() -> Result<(), Box<dyn std::error::Error>> {
    let case = case();
    let plan = case.plan(LINE)?;
    let mut compute: Vec<String> = plan
        .tasks()
        .into_iter()
        .filter(|task| !task.contains("local"))
        .collect();
    compute.sort_unstable();
    assert_eq!(
        compute,
        ["deep_S_C", "first_S_B", "first_S_D", "look_Z", "make_A"]
    );
    plan.assert_edges(&[
        // The job's parents precede the inner workflow, which precedes the job's children.
        ("make_A", "first_S_B"),
        ("first_S_D", "look_Z"),
        // Files passed into and out of the inner workflow.
        ("make_A", "deep_S_C"),
        ("deep_S_C", "look_Z"),
        // Edges inside the inner workflow.
        ("first_S_B", "deep_S_C"),
        ("deep_S_C", "first_S_D"),
    ]);
    // Only the inner workflow's raw input is staged in; its own replica catalog locates it.
    let staged: Vec<_> = plan
        .tasks()
        .into_iter()
        .filter(|task| task.starts_with("stage_in"))
        .collect();
    assert_eq!(staged.len(), 1, "{staged:?}");
    assert_eq!(plan.orders(&staged[0])[0]["src_urls"][0]["url"], "/data/table");
    // The job stages out a file that the inner workflow marks as not staged out.
    let out: Vec<_> = plan
        .tasks()
        .into_iter()
        .filter(|task| task.starts_with("stage_out"))
        .collect();
    assert_eq!(out.len(), 1, "{out:?}");
    assert_eq!(plan.orders(&out[0])[0]["lfn"], "end");
    assert!(
        plan.warnings().iter().any(|w| w.contains("--basename")),
        "{:?}",
        plan.planned.warnings
    );
    let events = plan.file("outer-0.static.bp");
    assert!(events.contains("task.id=\"S.C\""), "{events}");
    Ok(())
}

#[test]
fn subworkflows_nest_and_mix_xml_with_yaml() -> Result<(), Box<dyn std::error::Error>> {
    let case = case();
    case.put(
        "workflow.yml",
        r#"<?xml version="1.0" encoding="UTF-8"?>
<adag xmlns="http://pegasus.isi.edu/schema/DAX" version="3.6" name="top">
  <dax id="X" file="outer.yml"><argument>--output-sites local</argument>
    <uses name="end" link="output" transfer="true" register="false"/></dax>
  <job id="Y" name="look"><uses name="end" link="input"/></job>
  <child ref="Y"><parent ref="X"/></child>
</adag>
"#,
    );
    case.put("outer.yml", OUTER);
    let plan = case.plan(LINE)?;
    plan.assert_edges(&[
        ("deep_X_S_C", "look_Y"),
        ("look_X_Z", "look_Y"),
        ("make_X_A", "deep_X_S_C"),
    ]);
    Ok(())
}

#[test]
fn one_workflow_may_be_used_by_several_jobs() -> Result<(), Box<dyn std::error::Error>> {
    let case = case();
    let two = |uses: &str| {
        format!(
            "pegasus: \"5.0\"\nname: twice\njobs:\n\
             - {{type: pegasusWorkflow, id: S, file: sub.yml, uses: [{{lfn: sub.yml, type: input}}{uses}]}}\n\
             - {{type: pegasusWorkflow, id: T, file: sub.yml, uses: [{{lfn: sub.yml, type: input}}]}}\n"
        )
    };
    case.put("workflow.yml", &two(""));
    case.put(
        "sub.yml",
        "pegasus: \"5.0\"\nname: sub\njobs:\n- {type: job, id: A, name: first, uses: [{lfn: in, type: input}]}\n",
    );
    case.replicas(&["in"]);
    let plan = case.plan(LINE)?;
    assert!(plan.tasks().contains(&"first_S_A".to_owned()) && plan.tasks().contains(&"first_T_A".to_owned()));
    // Both copies would write `out` into the same work directory.
    case.put(
        "sub.yml",
        "pegasus: \"5.0\"\nname: sub\njobs:\n- {type: job, id: A, name: first, uses: [{lfn: out, type: output}]}\n",
    );
    let message = case.fail(INLINE);
    for word in ["S.A and T.A", "the file out", "another name"] {
        assert!(message.contains(word), "{word}: {message}");
    }
    // Only one of them shares `out` with the outer workflow.
    case.put("workflow.yml", &two(", {lfn: out, type: output}"));
    assert!(case.fail(INLINE).contains("the file out"));
    Ok(())
}

#[test]
fn subworkflows_that_cannot_join_the_plan_are_refused() {
    for (from, to, words) in [
        (
            "file: inner.yml",
            "file: other.yml",
            &[
                "Can't determine a location to transfer input file for lfn other.yml for job pegasus-plan_S",
                "list other.yml",
            ][..],
        ),
        (
            "lfn: own, type: output",
            "lfn: inner.yml, type: output",
            &["job S", "job A makes"],
        ),
        (
            "type: pegasusWorkflow",
            "type: condorWorkflow",
            &["inner.yml:1:", "`pegasus:` is no command of DAGMan"],
        ),
        (
            "--output-sites, local",
            "--output-sites, far",
            &["job S", "--output-sites far"],
        ),
        ("--output-sites, local", "--sites, far", &["job S", "--sites far"]),
        (
            "-vvv",
            "-Dpegasus.register=false",
            &["pegasus.register = false", "planned without"],
        ),
        ("-vvv", "--frobnicate", &["job S", "--frobnicate"]),
        ("-vvv", "--input-dir, more", &["job S", "--input-dir"]),
        ("-vvv, --basename, in", "--conf, p", &["pegasus.dir.exec = x"]),
    ] {
        let case = case();
        case.put("workflow.yml", &OUTER.replace(from, to));
        case.put("p", "pegasus.dir.exec = x\n");
        case.replicas(&["other.yml"]);
        let message = case.fail(INLINE);
        for word in words {
            assert!(message.contains(word), "{to}: {word}: {message}");
        }
    }
    let case = case();
    case.put("workflow.yml", &OUTER.replace("inner.yml", "other.yml"));
    let message = case.fail(LINE);
    for word in [
        "for lfn other.yml for job pegasus-plan_S",
        "a file that is there when the plan is made",
        "/other.yml",
    ] {
        assert!(message.contains(word), "{word}: {message}");
    }
    case.put("workflow.yml", OUTER);
    case.put("inner.yml", &INNER.replace("name: deep\n", "name: nowhere\n"));
    assert!(
        case.fail(INLINE).contains("nowhere"),
        "problems of the inner workflow are reported"
    );
    case.put("inner.yml", OUTER);
    assert!(
        case.fail(INLINE).contains("no end"),
        "a workflow that contains itself"
    );
    case.put(
        "inner.yml",
        &INNER
            .replace("/bin/deep", "/bin/make")
            .replace("name: deep", "name: make"),
    );
    case.put("transformations.yml", "pegasus: \"5.0\"\ntransformations:\n- name: make\n  sites: [{name: local, type: installed, pfn: /opt/make}]\n");
    assert!(case.fail(INLINE).contains("another program make"));
    case.put("inner.yml", "pegasus: [\n");
    assert!(case.fail(INLINE).contains("inner.yml:"), "with file and line");
}

#[test]
fn options_equal_to_those_of_the_outer_plan_are_accepted() -> Result<(), Box<dyn std::error::Error>> {
    let case = case();
    case.put("p", "pegasus.register = false\n");
    case.put(
        "workflow.yml",
        &OUTER.replace(
            "-vvv",
            "--conf, p, --sites, local, --output-dir, results, -Dpegasus.register=false",
        ),
    );
    case.plan("--sites local --output-sites local --output-dir results --dir submit --conf p")?;
    Ok(())
}

/// Two sub-workflows in turn; `second.yml` reads what `first.yml` writes, and neither job lists it.
fn siblings(edges: &str) -> Case {
    let case = Case::new(&format!(
        "pegasus: \"5.0\"\nname: siblings\njobs:\n\
         - {{type: pegasusWorkflow, id: S, file: one.yml, uses: [{{lfn: one.yml, type: input}}]}}\n\
         - {{type: pegasusWorkflow, id: T, file: two.yml, uses: [{{lfn: two.yml, type: input}}]}}\n{edges}"
    ));
    case.put(
        "one.yml",
        "pegasus: \"5.0\"\nname: one\njobs:\n- {type: job, id: A, name: make, uses: [{lfn: mid, type: output}]}\n",
    )
    .put(
        "two.yml",
        "pegasus: \"5.0\"\nname: two\njobs:\n- {type: job, id: B, name: look, uses: [{lfn: mid, type: input}]}\n",
    )
    .programs(&["make", "look"]);
    case
}

const IN_TURN: &str = "jobDependencies: [{id: S, children: [T]}]\n";

#[test]
fn files_pass_between_sub_workflows_that_depend_on_each_other() -> Result<(), Box<dyn std::error::Error>> {
    let case = siblings(IN_TURN);
    let plan = case.plan(LINE)?;
    plan.assert_edges(&[("make_S_A", "look_T_B")]);
    assert!(!plan.tasks().iter().any(|task| task.starts_with("stage_in")));
    // The file of the first sub-workflow is preferred to one in a catalog, as Pegasus prefers its cache file.
    case.replicas(&["mid"]);
    let plan = case.plan(&format!("{LINE} --force"))?;
    assert!(!plan.tasks().iter().any(|task| task.starts_with("stage_in")));
    // Without the dependency it is not known which of them is meant.
    let case = siblings("");
    case.replicas(&["mid"]);
    assert!(case.fail(INLINE).contains("the file mid"));
    // Two writers make two files.
    let case = siblings(IN_TURN);
    let two = case.file("two.yml").replace("type: input", "type: output");
    case.put("two.yml", &two);
    assert!(case.fail(INLINE).contains("the file mid"));
    Ok(())
}

#[test]
fn a_sub_workflow_has_catalogs_of_its_own() -> Result<(), Box<dyn std::error::Error>> {
    let case = siblings(IN_TURN);
    let workflow = case.file("workflow.yml").replace(
        "file: two.yml,",
        "file: two.yml, arguments: [--conf, two.properties, --output-sites, local],",
    );
    case.put("workflow.yml", &workflow)
        .put(
            "two.yml",
            "pegasus: \"5.0\"\nname: two\njobs:\n- {type: job, id: B, name: own, uses: [{lfn: extra, type: input}]}\n",
        )
        .put(
            "two.properties",
            "pegasus.catalog.transformation.file = two-programs.yml\npegasus.catalog.replica.file = \
             two-replicas.yml\npegasus.data.configuration = condorio\n",
        )
        .put(
            "two-programs.yml",
            "pegasus: \"5.0\"\ntransformations:\n- name: own\n  sites: [{name: local, type: installed, pfn: /bin/own}]\n",
        )
        .put(
            "elsewhere.yml",
            "pegasus: \"5.0\"\nreplicas:\n- {lfn: extra, pfns: [{site: local, pfn: /data/extra}]}\n",
        )
        // The name of a catalog may be that of a logical file.
        .put(
            "replicas.yml",
            "pegasus: \"5.0\"\nreplicas:\n- {lfn: two-replicas.yml, pfns: [{site: local, pfn: \"@DIR@/elsewhere.yml\"}]}\n",
        );
    let plan = case.plan(LINE)?;
    assert!(plan.command("own_T_B").ends_with(&["/bin/own".to_owned()]));
    let staged = plan.tasks().into_iter().find(|task| task.starts_with("stage_in"));
    let order = plan.orders(&staged.ok_or("no stage-in task")?);
    assert_eq!(order[0]["src_urls"][0]["url"], "/data/extra");
    let ignored = |w: &String| w.contains("pegasus.data.configuration") && w.contains("ignored");
    assert!(plan.warnings().iter().any(ignored), "{:?}", plan.warnings());
    case.put(
        "two-programs.yml",
        "pegasus: \"5.0\"\ntransformations:\n- name: make\n  sites: [{name: local, type: installed, pfn: /bin/own}]\n",
    );
    assert!(case.fail(INLINE).contains("another program make"));
    Ok(())
}

/// A workflow in which the job `D` runs `sub.dag`.
const WITH_DAG: &str = r#"pegasus: "5.0"
name: outer
jobs:
- {type: job, id: A, name: make, uses: [{lfn: mid, type: output, stageOut: false, registerReplica: false}]}
- type: condorWorkflow
  id: D
  file: sub.dag
  profiles: {dagman: {dir: jobs}}
  uses: [{lfn: sub.dag, type: input}, {lfn: mid, type: input}]
- {type: job, id: Z, name: look}
jobDependencies: [{id: D, children: [Z]}]
"#;

fn with_dag(dag: &str) -> Case {
    let case = Case::new(WITH_DAG);
    case.put("sub.dag", dag).programs(&["make", "look"]);
    case.put(
        "jobs/a.sub",
        "executable = run\narguments = $(JOB)\nrequest_cpus = 2\nqueue\n",
    );
    case
}

#[test]
fn nodes_of_dagman_files_join_the_plan() -> Result<(), Box<dyn std::error::Error>> {
    let case = with_dag(
        "JOB one a.sub\nJOB two a.sub\nJOB end a.sub\nPARENT one two CHILD end\nCATEGORY two Few\nMAXJOBS Few 1\n",
    );
    let plan = case.plan(&format!("{LINE} --cleanup inplace"))?;
    plan.assert_edges(&[
        ("make_A", "run_D_one"),
        ("make_A", "run_D_two"),
        ("run_D_one", "run_D_end"),
        ("run_D_end", "look_Z"),
    ]);
    let text = plan.file("outer-0.dag");
    assert!(
        text.contains("MAXJOBS d.few 1\n") && text.contains("--category d.few "),
        "{text}"
    );
    let jobs = case.path().join("jobs").display().to_string();
    let command = plan.command("run_D_end");
    assert!(
        command.ends_with(&[format!("{jobs}/run"), "end".to_owned()]),
        "{command:?}"
    );
    assert!(text.contains(&format!(" -w {jobs} ")), "{text}");
    // `mid` is there until the last node has ended.
    let mut cleanups = plan
        .edges
        .iter()
        .filter(|(_, child)| child.starts_with("clean_up"));
    assert!(
        cleanups.any(|(parent, _)| parent == "run_D_end"),
        "{:?}",
        plan.edges
    );
    Ok(())
}

#[test]
fn the_jobs_that_a_node_queues_join_the_plan() -> Result<(), Box<dyn std::error::Error>> {
    let case =
        with_dag("JOB one n.sub\nJOB end a.sub\nPARENT one CHILD end\nRETRY one 2 \\\r\n UNLESS-EXIT 3\r\n");
    case.put(
        "jobs/n.sub",
        "executable = run\narguments = $(x) $(Process)\nqueue x from (\n p q\n r\n)\n",
    );
    let plan = case.plan(LINE)?;
    plan.assert_edges(&[
        ("run_D_one_0", "run_D_end"),
        ("run_D_one_1", "run_D_end"),
        ("run_D_end", "look_Z"),
    ]);
    let command = plan.command("run_D_one_0");
    assert!(
        command.ends_with(&["p", "q", "0"].map(String::from)),
        "{command:?}"
    );
    let text = plan.file("outer-0.dag");
    assert!(
        text.contains("TASK run_D_one_1 -m 2048 -c 1 -t 3 --unless-exit 3 "),
        "{text}"
    );
    Ok(())
}

#[test]
fn tasks_of_dags_for_the_executor_join_the_plan() -> Result<(), Box<dyn std::error::Error>> {
    let case = with_dag(
        "MAXJOBS net 3\n#@ 1 lab::work:2 X\nTASK one -m 100 -t 3 --category net -T 60 /bin/echo 'a  b' $HOME\n\
         TASK two pegasus-kickstart /bin/true\nEDGE one two\n",
    );
    let plan = case.plan(LINE)?;
    let text = plan.file("outer-0.dag");
    let jobs = case.path().join("jobs").display().to_string();
    for part in [
        "MAXJOBS d.net 3\n",
        "TASK work_D_one -m 100 -c 1 -t 3 --category d.net -T 60 ",
        "/bin/echo \"a  b\" \"\\\\$HOME\"\n",
        "EDGE work_D_one pegasus-kickstart_D_two\n",
        &format!("{jobs} /usr/bin/env pegasus-kickstart /bin/true\n"),
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    Ok(())
}

#[test]
fn dags_that_cannot_join_the_plan_are_refused() {
    for (dag, words) in [
        ("JOB one none.sub\n", &["sub.dag:1:", "none.sub"][..]),
        ("JOB one a.sub\nFINAL f a.sub\n", &["sub.dag:2:", "FINAL"]),
        ("TASK a --abort-on 3 /bin/a\n", &["sub.dag:1:", "--abort-on"]),
        (
            "TASK a /bin/a\nTASK b -F x=y /bin/b\n",
            &["sub.dag:2:", "-F", "forwarded"],
        ),
        ("MAXJOBS * 3\nTASK a /bin/a\n", &["sub.dag:1:", "MAXJOBS *"]),
        ("TASK a /bin/a\nEDGE a b\n", &["sub.dag:2:", "b"]),
    ] {
        let message = with_dag(dag).fail(LINE);
        for word in words {
            assert!(message.contains(word), "{dag}: {word}: {message}");
        }
    }
    let case = with_dag("JOB one a.sub\nABORT-DAG-ON one 3\n");
    let message = case.fail(LINE);
    assert!(
        message.contains("sub.dag:1: the node one has ABORT-DAG-ON"),
        "{message}"
    );
}

#[test]
fn the_catalog_in_the_workflow_knows_files_that_no_job_uses() -> Result<(), Box<dyn std::error::Error>> {
    let case = case();
    let bare = OUTER.replace("  - {lfn: inner.yml, type: input}\n", "");
    case.put("workflow.yml", &bare);
    let message = case.fail(LINE);
    assert!(
        message.contains("list inner.yml under the inputs in the uses of the job S"),
        "{message}"
    );
    let path = case.path().join("inner.yml").display().to_string();
    let catalog = format!(
        "replicaCatalog: {{replicas: [{{lfn: inner.yml, pfns: [{{site: local, pfn: '{path}'}}]}}]}}\n"
    );
    case.put("workflow.yml", &(bare + &catalog));
    assert!(case.plan(LINE)?.tasks().contains(&"first_S_B".to_owned()));
    Ok(())
}
