//! Job clustering: membership, execution, and events for monitoring.

mod lite;
mod random;

use std::fs;

use crate::common::{Case, Plan};

const LINE: &str = "--force --sites local --output-sites local --dir submit";

/// A job that makes `outN` from the files it reads.
fn job(id: &str, name: &str, reads: &[&str], profiles: &str) -> String {
    let mut text = format!("- type: job\n  id: {id}\n  name: {name}\n  uses:\n");
    for file in reads {
        text.push_str(&format!("  - {{lfn: {file}, type: input}}\n"));
    }
    text.push_str(&format!(
        "  - {{lfn: out{id}, type: output, stageOut: false, registerReplica: false}}\n"
    ));
    if !profiles.is_empty() {
        text.push_str(&format!("  profiles:\n    pegasus: {{{profiles}}}\n"));
    }
    text
}

fn case(jobs: &[String]) -> Case {
    let case = Case::new(&format!("pegasus: \"5.0\"\nname: many\njobs:\n{}", jobs.concat()));
    case.programs(&["setup", "sim", "collect"]).replicas(&["raw"]);
    case
}

/// `T1` to `Tn` read the output of `S`; `C` reads their outputs.
fn fan(n: usize, profiles: impl Fn(usize) -> String) -> Case {
    let mut jobs = vec![job("S", "setup", &["raw"], "")];
    let mut made = Vec::new();
    for k in 1..=n {
        jobs.push(job(&format!("T{k}"), "sim", &["outS"], &profiles(k)));
        made.push(format!("outT{k}"));
    }
    let made: Vec<&str> = made.iter().map(String::as_str).collect();
    jobs.push(job("C", "collect", &made, ""));
    case(&jobs)
}

/// Values of these keys in every event of a kind.
fn events(plan: &Plan, kind: &str, keys: &[&str]) -> Vec<Vec<String>> {
    let text = plan.file("many-0.static.bp");
    text.lines()
        .filter(|line| line.contains(&format!(" event={kind} ")))
        .map(|line| {
            keys.iter()
                .map(|key| {
                    let (_, rest) = line.split_once(&format!(" {key}=\"")).unwrap_or(("", ""));
                    rest.split('"').next().unwrap_or_default().to_owned()
                })
                .collect()
        })
        .collect()
}

/// Tasks of each job of the plan that has tasks: `job: task task`.
fn tasks_of_jobs(plan: &Plan) -> Vec<String> {
    let mut found: Vec<(String, Vec<String>)> = Vec::new();
    for pair in events(plan, "wf.map.task_job", &["job.id", "task.id"]) {
        match found.iter_mut().find(|(job, _)| *job == pair[0]) {
            Some((_, tasks)) => tasks.push(pair[1].clone()),
            None => found.push((pair[0].clone(), vec![pair[1].clone()])),
        }
    }
    found
        .into_iter()
        .map(|(job, tasks)| format!("{job}: {}", tasks.join(" ")))
        .collect()
}

type Result = std::result::Result<(), Box<dyn std::error::Error>>;

#[test]
fn jobs_are_clustered_by_size() -> Result {
    let case = fan(7, |_| "clusters.size: 3".into());
    let plan = case.plan(&format!("{LINE} --cluster horizontal"))?;
    assert_eq!(
        tasks_of_jobs(&plan),
        [
            "setup_S: S",
            "merge_sim_PID2_ID1: T1 T2 T3",
            "merge_sim_PID2_ID2: T4 T5 T6",
            "merge_sim_PID2_ID3: T7",
            "collect_C: C",
        ]
    );
    assert!(plan.has_edge("setup_S", "merge_sim_PID2_ID2"));
    assert!(plan.has_edge("merge_sim_PID2_ID2", "collect_C"));
    assert_eq!(
        (plan.planned.counts.compute, plan.planned.counts.clustered),
        (2, 3)
    );
    let jobs = events(
        &plan,
        "job.info",
        &["job.id", "type_desc", "clustered", "task_count"],
    );
    for expected in [
        ["merge_sim_PID2_ID1", "compute", "1", "3"],
        ["merge_sim_PID2_ID3", "compute", "1", "1"],
        ["collect_C", "compute", "0", "1"],
        ["create_dir_many_0_local", "create-dir", "0", "0"],
    ] {
        assert!(
            jobs.contains(&expected.map(str::to_owned).to_vec()),
            "{expected:?}: {jobs:?}"
        );
    }
    Ok(())
}

#[test]
fn jobs_are_clustered_into_a_number_of_clusters() -> Result {
    let case = fan(7, |_| "clusters.num: 3".into());
    let plan = case.plan(&format!("{LINE} --cluster horizontal"))?;
    let tasks = tasks_of_jobs(&plan);
    assert_eq!(tasks[1], "merge_sim_PID2_ID1: T1 T2 T3");
    assert_eq!(tasks[2], "merge_sim_PID2_ID2: T4 T5");
    assert_eq!(tasks[3], "merge_sim_PID2_ID3: T6 T7");
    Ok(())
}

#[test]
fn jobs_are_clustered_by_run_time() -> Result {
    let case = fan(5, |k| {
        format!(
            "runtime: {}, clusters.maxruntime: 100",
            [60, 50, 40, 150, 45][k - 1]
        )
    });
    for option in ["runtime", "horizontal -Dpegasus.clusterer.preference=runtime"] {
        let plan = case.plan(&format!("{LINE} --cluster {option}"))?;
        let tasks = tasks_of_jobs(&plan);
        assert!(
            tasks.contains(&"merge_sim_PID2_ID1: T1 T3".to_owned()),
            "{tasks:?}"
        );
        assert!(
            tasks.contains(&"merge_sim_PID2_ID2: T2 T5".to_owned()),
            "{tasks:?}"
        );
        assert!(tasks.contains(&"sim_T4: T4".to_owned()), "{tasks:?}");
    }
    let case = fan(4, |k| format!("runtime: {k}0, clusters.num: 2"));
    let tasks = tasks_of_jobs(&case.plan(&format!("{LINE} --cluster runtime"))?);
    assert!(
        tasks.contains(&"merge_sim_PID2_ID1: T1 T4".to_owned()),
        "{tasks:?}"
    );
    let case = fan(2, |_| "clusters.num: 1".into());
    let message = case.fail(&format!("{LINE} --cluster runtime"));
    assert!(
        message.contains("sim_T1") && message.contains("sim_T2"),
        "{message}"
    );
    assert!(message.contains("pegasus::runtime"), "{message}");
    Ok(())
}

#[test]
fn clusters_of_labelled_jobs_keep_their_order() -> Result {
    let jobs = [
        job("B", "sim", &["outA"], "label: left"),
        job("A", "setup", &["raw"], "label: left"),
        job("C", "sim", &["outA"], ""),
        job("D", "collect", &["outB", "outC"], "label: alone"),
    ];
    let case = case(&jobs);
    let plan = case.plan(&format!("{LINE} --cluster label"))?;
    assert_eq!(
        tasks_of_jobs(&plan),
        ["merge_left: A B", "sim_C: C", "collect_D: D"],
        "the cluster comes before what needs it"
    );
    let list = plan.file("00/00/merge_left.in");
    let (first, second) = list.split_once("#@ 2 sim B \n").ok_or("no second job")?;
    assert!(
        first.starts_with("#@ 1 setup A \n/opt/pegasus/bin/pegasus-kickstart -n setup -N A "),
        "{list}"
    );
    assert!(
        second.starts_with("/opt/pegasus/bin/pegasus-kickstart -H -n sim -N B "),
        "{list}"
    );
    // Files passed between jobs of one cluster are not staged.
    assert_eq!(
        plan.command("merge_left"),
        [
            "/opt/pegasus/bin/pegasus-cluster",
            "-f",
            &plan
                .planned
                .submit_dir
                .join("00/00/merge_left.in")
                .display()
                .to_string(),
        ]
    );
    let plan = case.plan(&format!(
        "{LINE} --cluster label -Dpegasus.clusterer.allow.single=true"
    ))?;
    assert!(tasks_of_jobs(&plan).contains(&"merge_alone: D".to_owned()));
    Ok(())
}

#[test]
fn a_property_selects_the_profile_used_as_label() -> Result {
    let jobs = [
        job("A", "setup", &["raw"], "group: g"),
        job("B", "sim", &["outA"], "group: g"),
    ];
    let case = case(&jobs);
    let plan = case.plan(&format!(
        "{LINE} --cluster label -Dpegasus.clusterer.label.key=Group"
    ))?;
    assert_eq!(tasks_of_jobs(&plan), ["merge_g: A B"]);
    Ok(())
}

#[test]
fn clusters_in_a_cycle_are_refused() {
    let jobs = [
        job("A", "setup", &["raw"], "label: x"),
        job("B", "sim", &["outA"], ""),
        job("C", "collect", &["outB"], "label: x"),
    ];
    let message = case(&jobs).fail(&format!("{LINE} --cluster label"));
    assert!(
        message.contains("merge_x needs sim_B needs merge_x")
            || message.contains("sim_B needs merge_x needs sim_B"),
        "{message}"
    );
}

#[test]
fn the_technique_whole_makes_one_cluster() -> Result {
    let case = fan(3, |_| String::new());
    let plan = case.plan(&format!("{LINE} --cluster whole"))?;
    assert_eq!(tasks_of_jobs(&plan), ["merge_whole-wf: S T1 T2 T3 C"]);
    Ok(())
}

#[test]
fn techniques_can_be_chained() -> Result {
    let case = fan(4, |k| {
        format!("clusters.size: 2, label: {}", if k < 3 { "a" } else { "b" })
    });
    let plan = case.plan(&format!("{LINE} --cluster label,horizontal"))?;
    let tasks = tasks_of_jobs(&plan);
    assert!(
        tasks.contains(&"merge_cluster_PID2_ID1: T1 T2 T3 T4".to_owned()),
        "{tasks:?}"
    );
    let plan = case.plan(&format!("{LINE} --cluster horizontal,whole"))?;
    assert_eq!(tasks_of_jobs(&plan), ["merge_whole-wf: S T1 T2 T3 T4 C"]);
    Ok(())
}

#[test]
fn a_cluster_requests_the_resources_of_its_largest_job() -> Result {
    let case = fan(3, |k| {
        format!(
            "clusters.num: 1, memory: {k}00, cores: {}, pmc_priority: {k}",
            4 - k
        )
    });
    let plan = case.plan(&format!("{LINE} --cluster horizontal"))?;
    let id = plan.dag.find(b"merge_sim_PID2_ID1").ok_or("no cluster")?;
    let task = plan.dag.task(id);
    assert_eq!((task.memory_mb, task.cpus, task.priority), (300, 3, 3));
    Ok(())
}

#[test]
fn properties_become_options_of_pegasus_cluster() -> Result {
    let case = fan(2, |_| {
        "clusters.num: 1, job.aggregator.arguments: -n 2 -S 3".into()
    });
    let line = format!(
        "{LINE} --cluster horizontal -Dpegasus.clusterer.job.aggregator.seqexec.firstjobfail=false \
         -Dpegasus.clusterer.job.aggregator.seqexec.log=true"
    );
    let plan = case.plan(&line)?;
    let dir = plan.planned.submit_dir.display().to_string();
    let command = plan.command("merge_sim_PID2_ID1");
    assert_eq!(
        command[1..],
        [
            "-R",
            &format!("{dir}/many-0.log"),
            "-n",
            "2",
            "-S",
            "3",
            &format!("{dir}/00/00/merge_sim_PID2_ID1.in")
        ]
    );
    let plan = case.plan(&format!(
        "{line} -Dpegasus.clusterer.job.aggregator.seqexec.log.global=false"
    ))?;
    let dir = plan.planned.submit_dir.display().to_string();
    assert_eq!(
        plan.command("merge_sim_PID2_ID1")[2],
        format!("{dir}/00/00/merge_sim_PID2_ID1.log")
    );
    Ok(())
}

#[test]
fn the_aggregator_mpiexec_runs_a_dag() -> Result {
    let jobs = [
        job("A", "setup", &["raw"], "label: x, memory: '400', cores: '1'"),
        job("B", "sim", &["outA"], "label: x, memory: '900', cores: '2'"),
        job(
            "C",
            "sim",
            &["outA"],
            "label: x, memory: '100', cores: '1', pmc_priority: '5'",
        ),
    ];
    let case = case(&jobs);
    let line = format!("{LINE} --cluster label -Dpegasus.clusterer.job.aggregator=MPIExec");
    let plan = case.plan(&line)?;
    let list = plan.planned.submit_dir.join("00/00/merge_x.in");
    let inner = pmc_dag::Dag::open(&list)?;
    assert_eq!(inner.len(), 3);
    let of = |name: &str| inner.find(name.as_bytes()).map(|id| inner.task(id));
    let task = of("sim_B").ok_or("no task")?;
    assert_eq!((task.memory_mb, task.cpus, task.id), (900, 2, Some(&b"2"[..])));
    assert_eq!(of("sim_C").ok_or("no task")?.priority, 5);
    let text = fs::read_to_string(&list)?;
    assert!(
        text.contains("\nEDGE setup_A sim_B\nEDGE setup_A sim_C\n"),
        "{text}"
    );
    let command = plan.command("merge_x").join(" ");
    assert!(
        command.starts_with("/usr/bin/env -u OMPI_COMM_WORLD_RANK "),
        "{command}"
    );
    assert!(
        command.contains(
            "/opt/pegasus/bin/pegasus-mpi-cluster --workers 2 --host-cpus 2 --host-memory 900 --no-resource-log "
        ),
        "{command}"
    );
    let id = plan.dag.find(b"merge_x").ok_or("no cluster")?;
    assert_eq!((plan.dag.task(id).memory_mb, plan.dag.task(id).cpus), (900, 2));
    // The catalog may give it more resources.
    let more = "\
- namespace: pegasus
  name: mpiexec
  sites: [{name: local, type: installed, pfn: /sw/pmc}]
  profiles:
    pegasus: {cores: '4', job.aggregator.arguments: --tries 3}
    globus: {maxwalltime: '60'}
";
    let catalog = fs::read_to_string(case.path().join("transformations.yml"))?;
    case.put("transformations.yml", &format!("{catalog}{more}"));
    let plan = case.plan(&line)?;
    let command = plan.command("merge_x").join(" ");
    assert!(
        command.contains(
            "/sw/pmc --workers 4 --host-cpus 4 --host-memory 1400 --no-resource-log --max-wall-time 55 --tries 3 "
        ),
        "{command}"
    );
    Ok(())
}

#[test]
fn a_run_in_a_cluster_has_the_nodes_that_the_aggregator_asks_for() -> Result {
    let jobs = [
        job("A", "setup", &["raw"], "label: x, memory: '400', cores: '1'"),
        job("B", "sim", &["outA"], "label: x, memory: '900', cores: '2'"),
    ];
    let case = case(&jobs);
    let line = format!("{LINE} --cluster label -Dpegasus.clusterer.job.aggregator=MPIExec");
    let catalog = fs::read_to_string(case.path().join("transformations.yml"))?;
    let entry = |profiles: &str| {
        let entry = "- namespace: pegasus\n  name: mpiexec\n  \
                     sites: [{name: local, type: installed, pfn: /sw/pmc}]\n  profiles:\n";
        case.put(
            "transformations.yml",
            &format!("{catalog}{entry}    {profiles}\n"),
        );
    };
    for (profiles, options) in [
        ("pegasus: {nodes: '3', ppn: '4'}", "-N 3 --ranks-per-node 4"),
        ("pegasus: {nodes: '3', cores: '12'}", "-N 3 --ranks 12"),
        (
            "globus: {jobtype: mpi, hostcount: '3', xcount: '4'}",
            "-N 3 --ranks-per-node 4",
        ),
    ] {
        entry(profiles);
        let plan = case.plan(&line)?;
        let text = plan.file("many-0.dag");
        assert!(text.contains(options), "{text}");
        let id = plan.dag.find(b"merge_x").ok_or("no cluster")?;
        let layout = plan.dag.gang(id).ok_or("one node")?.layout;
        assert_eq!((layout.nodes(), layout.ranks_of(0)), (Some(3), Some(4)));
        // Each rank has room for the largest job.
        assert_eq!((plan.dag.task(id).memory_mb, plan.dag.task(id).cpus), (900, 2));
        let command = plan.command("merge_x").join(" ");
        assert!(
            command.contains("/sw/pmc --agents gang --no-resource-log "),
            "{command}"
        );
        assert!(plan.planned.needs_nodes, "agents run it");
    }
    // What is not over several nodes stays as it is.
    entry("pegasus: {nodes: '1', cores: '4'}");
    let command = case.plan(&line)?.command("merge_x").join(" ");
    assert!(
        command.contains("/sw/pmc --workers 4 --host-cpus 4 "),
        "{command}"
    );
    entry("pegasus: {nodes: '3', ppn: '4', cores: '7'}");
    let wrong = case.fail(&line);
    assert!(
        wrong.contains("the job merge_x: 3 nodes with 4 processes each"),
        "{wrong}"
    );
    entry("pegasus: {nodes: '3', ppn: '4'}");
    let lite = case.fail(&format!("{line} -Dpegasus.data.configuration=nonsharedfs"));
    assert!(
        lite.contains("the job merge_x needs 3 nodes, and its directory"),
        "{lite}"
    );
    Ok(())
}

#[test]
fn a_job_profile_may_choose_the_aggregator() -> Result {
    let case = fan(2, |_| "clusters.num: 1, job.aggregator: mpiexec".into());
    let plan = case.plan(&format!("{LINE} --cluster horizontal"))?;
    assert!(
        plan.command("merge_sim_PID2_ID1")
            .iter()
            .any(|word| word.ends_with("/pegasus-mpi-cluster"))
    );
    let case = fan(2, |_| "clusters.num: 1, job.aggregator: awsbatch".into());
    let message = case.fail(&format!("{LINE} --cluster horizontal"));
    assert!(message.contains("seqexec or mpiexec, not awsbatch"), "{message}");
    Ok(())
}

#[test]
fn dependent_jobs_of_a_cluster_run_one_after_another() -> Result {
    let chain = || {
        case(&[
            job("A", "sim", &["raw"], "label: l"),
            job("B", "sim", &["outA"], "label: l"),
        ])
    };
    let line = format!("{LINE} --cluster label");
    let several = "-Dpegasus.clusterer.job.aggregator.arguments=-n4";
    let message = chain().fail(&format!("{line} {several}"));
    for part in ["merge_l", "depend on each other", "-n 4", "mpiexec"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    chain().plan(&format!(
        "{line} -Dpegasus.clusterer.job.aggregator.arguments=-n1"
    ))?;
    let message = chain().fail(&format!("{line} -Denv.SEQEXEC_CPUS=auto"));
    assert!(message.contains("SEQEXEC_CPUS"), "{message}");
    // Jobs of one level have no dependencies among themselves.
    let plan =
        fan(4, |_| "clusters.size: 2".into()).plan(&format!("{LINE} --cluster horizontal {several}"))?;
    assert!(plan.command("merge_sim_PID2_ID1").contains(&"-n4".to_owned()));
    Ok(())
}

#[test]
fn invalid_settings_are_refused() {
    let case = fan(2, |_| "clusters.size: none".into());
    let message = case.fail(&format!("{LINE} --cluster horizontal"));
    assert!(message.contains("clusters.size of the job sim_T1"), "{message}");
    for property in [
        "nodes=local",
        "nodes=local=0",
        "job.aggregator=x",
        "preference=y",
        "allow.single=z",
    ] {
        let message = case.fail(&format!("{LINE} -Dpegasus.clusterer.{property}"));
        let key = property.split('=').next().unwrap_or_default();
        assert!(
            message.contains(&format!("pegasus.clusterer.{key}")),
            "{property}: {message}"
        );
    }
}

#[test]
fn a_site_profile_may_set_the_cluster_size() -> Result {
    let case = fan(4, |_| String::new());
    let plan = case.plan(&format!(
        "{LINE} --cluster horizontal -Dpegasus.clusterer.nodes=other=3,local=2"
    ))?;
    assert!(tasks_of_jobs(&plan).contains(&"merge_sim_PID2_ID2: T3 T4".to_owned()));
    Ok(())
}

#[test]
fn hooks_of_clustered_jobs_become_invocations() -> Result {
    let mut jobs = vec![job("A", "sim", &["raw"], "clusters.num: 1")];
    jobs.push(format!(
        "{}  hooks:\n    shell:\n    - {{_on: success, cmd: /bin/mail}}\n",
        job("B", "sim", &["raw"], "")
    ));
    let case = case(&jobs);
    let plan = case.plan(&format!("{LINE} --cluster horizontal"))?;
    assert!(
        plan.file("many-0.notify")
            .contains("INVOCATION merge_sim_PID1_ID1 2 success /bin/mail"),
        "{}",
        plan.file("many-0.notify")
    );
    Ok(())
}
