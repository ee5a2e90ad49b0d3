//! Keys of properties and profiles: what they change, and the warnings about those that change nothing.

#[expect(dead_code, reason = "only a part of the helpers is needed here")]
mod common;

use std::error::Error;

use common::{Case, Plan};
use pmc_plan::keys::{self, Key, PROFILES, PROPERTIES, State};
use pmc_plan::profiles::Namespace;

const LINE: &str = "--sites local --output-sites local --dir submit";

type Outcome = Result<(), Box<dyn Error>>;

/// A chain of two jobs; `more` are keys of the first.
fn chain(more: &str) -> Case {
    let case = Case::new(&format!(
        "pegasus: \"5.0\"\nname: chain\njobs:\n- type: job\n  id: A\n  name: first\n  uses: [{{lfn: in, type: input}}, \
         {{lfn: mid, type: output, stageOut: false}}]\n{more}- type: job\n  id: B\n  name: second\n  uses: [{{lfn: mid, \
         type: input}}, {{lfn: out, type: output}}]\n"
    ));
    case.programs(&["first", "second"]).replicas(&["in"]);
    case
}

/// Profiles of a job, in the workflow.
fn profiles(text: &str) -> String {
    format!("  profiles: {{{text}}}\n")
}

/// The warnings of a plan about its inputs.
fn warnings(plan: &Plan) -> Vec<String> {
    let mut warnings = plan.warnings();
    warnings.retain(|warning| !warning.starts_with("pegasus-mpi-cluster is neither"));
    warnings
}

/// A name for a pattern.
fn example(name: &str) -> String {
    name.replace("pegasus.transfer.*", "pegasus.transfer.stagein")
        .replace('*', "x")
}

/// Warnings of a plan that name a key.
fn about<'w>(warnings: &'w [String], subject: &str) -> Vec<&'w String> {
    let names = |warning: &&String| {
        let text = warning.split_once("the p").map_or("", |(_, text)| text);
        text.split_once(' ')
            .is_some_and(|(_, text)| text.split(' ').next() == Some(subject))
    };
    warnings.iter().filter(names).collect()
}

#[test]
fn every_ignored_property_draws_one_warning_with_its_line() -> Outcome {
    let mut keys: Vec<(String, &Key)> = PROPERTIES.iter().map(|key| (example(key.name), key)).collect();
    for (namespace, of) in PROFILES {
        let name = |key: &Key| format!("{}.{}", namespace.as_str(), example(key.name));
        let is_property = !matches!(namespace, Namespace::Metadata | Namespace::Stat);
        keys.extend(of.iter().filter(|_| is_property).map(|key| (name(key), key)));
    }
    // Some properties have the name of a profile key and another entry.
    keys.retain(|(name, key)| keys::property(name) == Some(key));
    let ignored = |key: &Key| matches!(key.state, State::Ignored { .. });
    let mut text = String::new();
    for (name, _) in keys.iter().filter(|(_, key)| ignored(key)) {
        text.push_str(&format!("{name} = 7\n"));
    }
    let case = chain("");
    case.put("p", &text);
    let plan = case.plan(&format!("{LINE} --conf p"))?;
    let warnings = warnings(&plan);
    let count = keys.iter().filter(|(_, key)| ignored(key)).count();
    assert!(count > 70, "{count}");
    for (n, (name, key)) in keys.iter().filter(|(_, key)| ignored(key)).enumerate() {
        let State::Ignored { why, .. } = key.state else {
            continue;
        };
        let [only] = about(&warnings, name)[..] else {
            panic!("{name}: {warnings:#?}");
        };
        assert!(only.contains(&format!("/p:{}:", n + 1)), "{only}");
        assert!(only.ends_with(why), "{only}");
    }
    assert_eq!(warnings.len(), count, "{warnings:#?}");
    Ok(())
}

#[test]
fn every_ignored_profile_draws_one_warning_in_all_files() -> Outcome {
    let mut text = String::new();
    let mut subjects = Vec::new();
    for (namespace, keys) in PROFILES {
        let ignored = keys
            .iter()
            .filter(|key| matches!(key.state, State::Ignored { .. }));
        let names: Vec<String> = ignored.map(|key| example(key.name)).collect();
        if !names.is_empty() {
            let list: Vec<String> = names.iter().map(|name| format!("'{name}': '7'")).collect();
            text.push_str(&format!("{}: {{{}}}, ", namespace.as_str(), list.join(", ")));
        }
        subjects.extend(names.iter().map(|name| format!("{}::{name}", namespace.as_str())));
    }
    let case = chain(&profiles(&text));
    case.put(
        "transformations.yml",
        &format!(
            "pegasus: \"5.0\"\ntransformations:\n- name: first\n  sites: [{{name: local, type: installed, pfn: /bin/first, \
             profiles: {{{text}}}}}]\n- name: second\n  sites: [{{name: local, type: installed, pfn: /bin/second}}]\n"
        ),
    );
    let warnings = warnings(&case.plan(LINE)?);
    for subject in &subjects {
        let [only] = about(&warnings, subject)[..] else {
            panic!("{subject}: {warnings:#?}");
        };
        assert!(only.contains("workflow.yml:8:"), "{only}");
    }
    assert_eq!(warnings.len(), subjects.len(), "{warnings:#?}");
    Ok(())
}

#[test]
fn values_that_change_nothing_need_no_warning() -> Outcome {
    let mut text = String::new();
    for key in PROPERTIES {
        if let State::Ignored { idle, .. } = key.state {
            text.extend(
                idle.split('|')
                    .map(|value| format!("{} = {value}\n", example(key.name))),
            );
        }
    }
    for (namespace, of) in PROFILES {
        for key in *of {
            if let State::Ignored { idle, .. } | State::EffectiveFor { values: idle, .. } = key.state {
                let value = idle.split('|').next().unwrap_or_default();
                text.push_str(&format!(
                    "{}.{} = {value}\n",
                    namespace.as_str(),
                    example(key.name)
                ));
            }
        }
    }
    let case = chain("");
    case.put("p", &text);
    let warnings = warnings(&case.plan(&format!("{LINE} --conf p"))?);
    assert!(warnings.is_empty(), "{warnings:#?}");
    Ok(())
}

#[test]
fn refused_values_end_the_planning() {
    let refused = PROPERTIES
        .iter()
        .filter(|key| matches!(key.state, State::Refused(_)));
    let names: Vec<&str> = refused.map(|key| key.name).collect();
    assert_eq!(names, ["pegasus.code.generator"]);
    for name in names {
        let message = chain("").fail(&format!("{LINE} -D{name}=glue"));
        assert!(message.contains("glue is not offered"), "{message}");
    }
}

#[test]
fn misspelt_keys_draw_a_hint() -> Outcome {
    let case = chain(&profiles(
        "pegasus: {memroy: '1', gpu: '1'}, dagman: {rety: '1'}, selector: {execution.sit: x}",
    ));
    case.put(
        "p",
        "pegasus.dir.usetimestamp = true\npegasus.memmory = 3\npegaus.register = false\nlog4j.level = 3\n\
         pegasus.nothing.like.it = 1\npmc.unknown = 1\ndagman.retries = 1\n",
    );
    let line = format!("{LINE} --conf p -Dsite=['CCG'] -Dpegasus.transfer.link=true");
    let warnings = warnings(&case.plan(&line)?);
    let here = case.path().display().to_string();
    let warnings: Vec<String> = warnings
        .iter()
        .map(|w| w.replace(&format!("{here}/"), ""))
        .collect();
    let expected = [
        "-Dsite=['CCG']: `site` is not a property of the planner and has no effect\n  hint: keys start with pegasus., \
         pmc., env., condor., globus., dagman., selector., hints.; a directory is set by --dir",
        "p:7:1: the property dagman.retries is not known and has no effect\n  hint: did you mean dagman.retry?",
        "p:1:1: the property pegasus.dir.usetimestamp is not known and has no effect\n  \
         hint: did you mean pegasus.dir.useTimestamp?",
        "p:2:1: the property pegasus.memmory is not known and has no effect\n  hint: did you mean pegasus.memory?",
        "p:5:1: the property pegasus.nothing.like.it is not known and has no effect",
        "-Dpegasus.transfer.link: the property pegasus.transfer.link is not known and has no effect\n  \
         hint: did you mean pegasus.transfer.links?",
        "p:3:1: the property pegaus.register is not known and has no effect\n  hint: did you mean pegasus.register?",
        "p:6:1: the property pmc.unknown is not known and has no effect",
        "workflow.yml:8:32: the profile pegasus::memroy is not known and has no effect\n  \
         hint: did you mean pegasus::memory?",
        "workflow.yml:8:42: the profile pegasus::gpu is not known and has no effect\n  \
         hint: did you mean pegasus::gpus?",
        "workflow.yml:8:63: the profile dagman::rety is not known and has no effect\n  \
         hint: did you mean dagman::retry?",
        "workflow.yml:8:95: the profile selector::execution.sit is not known and has no effect\n  \
         hint: did you mean selector::execution.site?",
    ];
    assert_eq!(warnings, expected, "{warnings:#?}");
    Ok(())
}

#[test]
fn old_names_are_effective_with_a_warning() -> Outcome {
    let case = chain(&profiles(
        "pegasus: {job.runtime: '600', checkpoint_time: '1'}, hints: {executionPool: local}",
    ));
    let line = format!(
        "{LINE} -Dpegasus.dir.create=Tentacles -Dpegasus.transformation.selector=Installed -Dpegasus.bundle.stagein=1"
    );
    let plan = case.plan(&line)?;
    let waits = |plan: &Plan| plan.has_edge("create_dir_chain_0_local", "second_B");
    assert!(waits(&plan));
    let command = plan.command("first_A");
    assert!(command.windows(2).any(|w| w == ["-k", "60"]), "{command:?}");
    let hints: Vec<String> = plan
        .warnings()
        .iter()
        .filter_map(|warning| Some(warning.split_once(" has an old name\n  hint: use ")?.1.to_owned()))
        .collect();
    let expected = [
        "pegasus.stagein.clusters",
        "pegasus.dir.create.strategy",
        "pegasus.selector.transformation",
        "pegasus::runtime",
        "pegasus::checkpoint.time",
        "selector::execution.site",
    ];
    assert_eq!(hints, expected, "{:#?}", plan.warnings());
    // The new name wins.
    let plan = case.plan(&format!("{line} -Dpegasus.dir.create.strategy=Minimal"))?;
    assert!(!waits(&plan));
    Ok(())
}

/// The options of a task line.
fn options(plan: &Plan, task: &str) -> String {
    let dag = std::fs::read_to_string(&plan.planned.dag).expect("a DAG");
    let line = dag
        .lines()
        .find_map(|line| line.strip_prefix(&format!("TASK {task} ")))
        .expect(task);
    let end = line.find('/').unwrap_or(line.len());
    line[..end].trim().to_owned()
}

#[test]
fn keys_of_other_systems_become_task_options() -> Outcome {
    for (text, expected) in [
        ("", "-m 2048 -c 1"),
        ("dagman: {RETRY: '3'}", "-m 2048 -c 1 -t 4"),
        ("dagman: {retry: '0', priority: '-5'}", "-m 2048 -c 1 -p -5 -t 1"),
        (
            "dagman: {retry: '3', RETRY.DELAY: '5,2,60'}",
            "-m 2048 -c 1 -t 4 --retry-delay 5,2,60",
        ),
        (
            "dagman: {priority: '5'}, pegasus: {pmc_priority: '7'}",
            "-m 2048 -c 1 -p 7",
        ),
        (
            "dagman: {retry: '1'}, pegasus: {pmc_task_arguments: -t 9}",
            "-m 2048 -c 1 -t 2 -t 9",
        ),
        (
            "condor: {request_memory: 3 GB, request_cpus: '4', request_gpus: '2'}",
            "-m 3072 -c 4 -g 2",
        ),
        ("condor: {Request_Memory: 3000 KB}", "-m 3 -c 1"),
        (
            "condor: {request_memory: '3'}, pegasus: {memory: '5'}",
            "-m 5 -c 1",
        ),
        (
            "condor: {request_memory: '3'}, pegasus: {pmc_request_memory: '6'}",
            "-m 6 -c 1",
        ),
        ("globus: {count: '8', maxMemory: '900'}", "-m 900 -c 8"),
        (
            "globus: {totalmemory: '900'}, condor: {request_memory: '800'}",
            "-m 800 -c 1",
        ),
    ] {
        let case = chain(&profiles(text));
        let plan = case.plan(LINE)?;
        assert_eq!(options(&plan, "first_A"), expected, "{text}");
        assert_eq!(warnings(&plan), Vec::<String>::new(), "{text}");
        assert_eq!(options(&plan, "second_B"), "-m 2048 -c 1");
    }
    // Properties reach auxiliary jobs, too.
    let case = chain("");
    let plan = case.plan(&format!("{LINE} -Ddagman.retry=2 -Dcondor.request_memory=64"))?;
    assert_eq!(options(&plan, "second_B"), "-m 64 -c 1 -t 3");
    assert_eq!(options(&plan, "stage_in_local_local_0_0"), "-m 64 -t 3");
    let message = chain(&profiles("dagman: {retry.delay: '1,0.5'}")).fail(LINE);
    assert!(
        message.contains("Invalid Value specified for retry.delay 1,0.5 for job first_A"),
        "{message}"
    );
    let message = chain(&profiles("dagman: {retry: often}")).fail(LINE);
    assert!(
        message.contains("Invalid Value specified for retry often for job first_A"),
        "{message}"
    );
    Ok(())
}

#[test]
fn a_cluster_is_retried_as_a_whole() -> Outcome {
    let case = chain(&profiles("dagman: {retry: '3', priority: '9'}"));
    let line = format!("{LINE} --cluster whole -Dpegasus.clusterer.job.aggregator=mpiexec -Ddagman.retry=3");
    let plan = case.plan(&line)?;
    let cluster = plan
        .tasks()
        .into_iter()
        .find(|task| task.starts_with("merge_"))
        .expect("a cluster");
    assert_eq!(
        options(&plan, &cluster),
        "-m 4096 -c 1 -p 9 -t 4".replace("4096", "2048")
    );
    let list = plan.file(&format!("00/00/{cluster}.in"));
    assert!(list.contains("-p 9") && !list.contains("-t 4"), "{list}");
    Ok(())
}

#[test]
fn jobs_may_end_the_run_and_have_limited_categories() -> Outcome {
    let case = chain(&profiles(
        "dagman: {ABORT-DAG-ON: 3 RETURN 0, CATEGORY: Sim}, pegasus: {pmc_task_arguments: -t 2}",
    ));
    let limits =
        "-Ddagman.maxjobs=9 -Ddagman.sim.maxjobs=4 -Ddagman.stagein.maxjobs=1 -Ddagman.cleanup.maxjobs=0";
    let plan = case.plan(&format!("{LINE} {limits}"))?;
    assert_eq!(
        options(&plan, "first_A"),
        "-m 2048 -c 1 --abort-on 3=0 --category sim -t 2"
    );
    assert_eq!(options(&plan, "stage_in_local_local_0_0"), "--category stagein");
    assert_eq!(options(&plan, "clean_up_local_level_4_0"), "");
    let dag = std::fs::read_to_string(&plan.planned.dag)?;
    assert!(
        dag.contains("\nMAXJOBS * 9\nMAXJOBS sim 4\nMAXJOBS stagein 1\n\nEDGE "),
        "{dag}"
    );
    assert_eq!(plan.dag.category_limits(), [4, 1]);
    assert_eq!(warnings(&plan), Vec::<String>::new());
    // A category without a limit needs no option.
    assert_eq!(
        options(&case.plan(LINE)?, "first_A"),
        "-m 2048 -c 1 --abort-on 3=0 -t 2"
    );
    // The run inside a cluster must fail, so that the one around it sees the code.
    let line = format!("{LINE} {limits} --cluster whole -Dpegasus.clusterer.job.aggregator=mpiexec");
    let plan = case.plan(&line)?;
    let cluster = plan.tasks().into_iter().find(|task| task.starts_with("merge_"));
    let cluster = cluster.expect("a cluster");
    assert!(options(&plan, &cluster).ends_with("--abort-on 3=0 --category sim"));
    let list = plan.file(&format!("00/00/{cluster}.in"));
    assert!(
        list.contains(" --abort-on 3 -t 2 ") && !list.contains("--category"),
        "{list}"
    );
    let message = chain(&profiles("dagman: {abort-dag-on: soon}")).fail(LINE);
    assert!(message.contains("abort-dag-on soon for job first_A"), "{message}");
    let message = chain("").fail(&format!("{LINE} -Ddagman.sim.maxjobs=few"));
    assert!(
        message.contains("dagman.sim.maxjobs must be a whole number, not few"),
        "{message}"
    );
    Ok(())
}

#[test]
fn keys_of_globus_size_the_batch_job() -> Outcome {
    let case = chain("");
    let line = format!(
        "{LINE} -Dglobus.queue=long -Dglobus.project=sky -Dglobus.hostcount=3 -Dglobus.xcount=4 -Dglobus.maxwalltime=90"
    );
    let script = case.plan(&line)?.file("chain-0.sbatch");
    for text in ["long", "sky", "3", "4", "1:30:00"] {
        let is_in = |line: &str| line.starts_with("#SBATCH") && line.ends_with(text);
        assert!(script.lines().any(is_in), "{text}: {script}");
    }
    Ok(())
}

#[test]
fn messages_in_the_output_decide() -> Outcome {
    let case = chain(&profiles(
        "pegasus: {exitcode.failuremsg: bad@it's worse, exitcode.successmsg: All is well}",
    ));
    let expected =
        "--failure-message bad --failure-message \"it\\'s worse\" --success-message \"All is well\"";
    let plan = case.plan(LINE)?;
    assert!(
        options(&plan, "first_A").ends_with(expected),
        "{}",
        options(&plan, "first_A")
    );
    assert_eq!(warnings(&plan), Vec::<String>::new());
    let id = plan.dag.find(b"first_A").expect("the task");
    assert_eq!(plan.dag.task(id).failure_messages, [&b"bad"[..], b"it's worse"]);
    assert_eq!(plan.dag.task(id).success_messages, [b"All is well"]);
    // The job that runs a list has the messages of all, a run inside a cluster gives each job its own.
    for (aggregator, on_cluster) in [("seqexec", true), ("mpiexec", false)] {
        let line = format!("{LINE} --cluster whole -Dpegasus.clusterer.job.aggregator={aggregator}");
        let plan = case.plan(&line)?;
        let cluster = plan.tasks().into_iter().find(|task| task.starts_with("merge_"));
        let cluster = cluster.expect("a cluster");
        assert_eq!(options(&plan, &cluster).contains(expected), on_cluster);
        let list = plan.file(&format!("00/00/{cluster}.in"));
        assert_eq!(list.contains(expected), !on_cluster, "{list}");
    }
    Ok(())
}

#[test]
fn the_manual_page_lists_every_key() {
    let page = keys::page();
    for key in PROPERTIES {
        assert!(page.contains(&format!("| `{}` |", key.name)), "{}", key.name);
    }
    assert!(page.contains("| `request_memory` | task option `-m`"), "{page}");
    assert!(
        page.contains("| `job.runtime` | old name of `runtime` |"),
        "{page}"
    );
}

#[test]
fn standard_input_can_be_pushed() -> Outcome {
    let case = chain(&profiles("pegasus: {pmc_stdin: push}"));
    let plan = case.plan(LINE)?;
    let given = options(&plan, "first_A");
    assert!(given.ends_with("--stdin push"), "{given}");
    let id = plan.dag.find(b"first_A").expect("the task");
    assert_eq!(plan.dag.task(id).stdin, Some(&pmc_dag::Stdin::Push));
    let command = String::from_utf8_lossy(plan.dag.task(id).command).into_owned();
    assert!(command.contains(" -i - "), "{command}");
    let refused = case.plan(&format!("{LINE} --cluster whole"));
    let message = refused.err().map_or_else(String::new, |error| error.to_string());
    assert!(message.contains("is a part of a clustered job"), "{message}");
    Ok(())
}

#[test]
fn amounts_of_memory_may_have_units() -> Outcome {
    for (value, option) in [
        ("16GB", "16384"),
        ("'2 g'", "2048"),
        ("3GiB", "3072"),
        ("1000", "1000"),
        ("512MB", "512"),
    ] {
        let case = chain(&profiles(&format!("pegasus: {{memory: {value}}}")));
        let plan = case.plan(LINE)?;
        let dag = std::fs::read_to_string(&plan.planned.dag)?;
        assert!(dag.contains(&format!(" -m {option} ")), "{value}: {dag}");
        assert!(warnings(&plan).is_empty(), "{value}: {:?}", warnings(&plan));
    }
    let message = chain(&profiles("pegasus: {memory: 2 XB}")).fail(LINE);
    assert!(
        message.contains("pegasus::memory must be a whole number of MiB, not `2 XB`"),
        "{message}"
    );
    Ok(())
}

#[test]
fn an_unknown_scope_of_clean_up_is_the_default() -> Outcome {
    let case = chain("");
    let plan = case.plan(&format!("{LINE} -Dpegasus.file.cleanup.scope=inplace"))?;
    let warnings = warnings(&plan).join("\n");
    assert!(
        warnings.contains("pegasus.file.cleanup.scope = inplace is no scope, so that fullahead counts"),
        "{warnings}"
    );
    assert_eq!(plan.tasks(), case.plan(LINE)?.tasks());
    Ok(())
}

#[test]
fn documented_names_are_known() -> Outcome {
    let case = chain("");
    case.put(
        "p",
        "pegasus.metrics.app = harvest\npegasus.catalog.workflow.amqp.url = amqp://h/x\npegasus.monitord.encoding = json\n",
    );
    let plan = case.plan(&format!("{LINE} --conf p"))?;
    assert!(warnings(&plan).is_empty(), "{:?}", warnings(&plan));
    Ok(())
}

#[test]
fn several_keys_without_effect_are_one_line() -> Outcome {
    let case = chain(&profiles("pegasus: {style: condor}, condor: {universe: vanilla}"));
    let plan = case.plan(LINE)?;
    let mut all = plan.planned.warnings.clone();
    all.retain(|warning| warning.message.starts_with("the profile "));
    assert_eq!(all.len(), 2, "{all:?}");
    let brief = pmc_plan::warnings::in_brief(&all, false);
    let [one] = &*brief else {
        return Err(format!("{brief:?}").into());
    };
    assert!(
        one.message
            .contains("2 keys have no effect, for example the profile "),
        "{one}"
    );
    assert!(one.message.contains("-v names them"), "{one}");
    assert!(
        pmc_plan::warnings::in_brief(&all, true).is_empty(),
        "the outer plan has said it"
    );
    assert_eq!(pmc_plan::warnings::in_brief(&all[..1], false), all[..1]);
    Ok(())
}

#[test]
fn what_counts_for_the_batch_job_only_is_said_once() -> Outcome {
    let case = chain(&profiles("pegasus: {glite.arguments: --gres=gpu, queue: fast}"));
    let warnings = warnings(&case.plan(LINE)?);
    let said = warnings
        .iter()
        .filter(|w| w.contains("do not count: all jobs run in one batch job"));
    assert_eq!(said.count(), 1, "{warnings:?}");
    Ok(())
}

#[test]
fn a_workflow_that_runs_nothing_says_why() -> Outcome {
    let case = chain("");
    let text = case.file("workflow.yml");
    case.put(
        "workflow.yml",
        &text.replace(
            "{lfn: out, type: output}",
            "{lfn: out, type: output, stageOut: false}",
        ),
    );
    let plan = case.plan(LINE)?;
    let warnings = warnings(&plan);
    let said = "no job runs, since no output of the workflow is to be kept";
    assert_eq!(plan.tasks(), ["noop_chain_0"]);
    assert!(warnings.iter().any(|w| w.starts_with(said)), "{warnings:?}");
    Ok(())
}

#[test]
fn a_hook_whose_program_does_not_exist_is_said() -> Outcome {
    let case =
        chain("  hooks: {shell: [{_on: end, cmd: /nowhere/notify --all}, {_on: end, cmd: /bin/true}]}\n");
    let warnings = warnings(&case.plan(LINE)?).join("\n");
    let said = "the hook of the job A for end runs /nowhere/notify, which does not exist on this machine";
    assert_eq!(warnings.matches(said).count(), 1, "{warnings}");
    Ok(())
}

/// Only HTCondor evaluates such an expression. What it can be at most is requested, and the job is named.
#[test]
fn an_expression_of_htcondor_requests_the_largest_value_that_it_can_have() -> Outcome {
    for (text, expected, said) in [
        (
            "condor: {request_memory: 'ifThenElse(isUndefined(MemoryUsage), 3000, MemoryUsage * 2)'}",
            "-m 3000 -c 1",
            "condor::request_memory of the job A is an expression, which only HTCondor evaluates, \
             `ifThenElse(isUndefined(MemoryUsage), 3000, MemoryUsage * 2)`: the largest value that it can have is \
             requested, 2.93 GiB",
        ),
        (
            "condor: {request_cpus: 'NumJobStarts > 0 ? 8 : 4'}",
            "-m 2048 -c 8",
            "`NumJobStarts > 0 ? 8 : 4`: the largest value that it can have is requested, 8",
        ),
        (
            "condor: {request_memory: MemoryUsage * 2}",
            "-m 2048 -c 1",
            "`MemoryUsage * 2`: its largest value is not known, so that the job requests what a job without it does",
        ),
    ] {
        let case = chain(&profiles(text));
        let plan = case.plan(LINE)?;
        assert_eq!(options(&plan, "first_A"), expected, "{text}");
        let [warning] = &warnings(&plan)[..] else {
            panic!("{:#?}", plan.warnings());
        };
        assert!(warning.contains(said), "{warning}");
    }
    let hidden = "condor: {request_memory: MemoryUsage * 2}, pegasus: {memory: '70'}";
    let case = chain(&profiles(hidden));
    let plan = case.plan(LINE)?;
    assert_eq!(options(&plan, "first_A"), "-m 70 -c 1");
    assert_eq!(warnings(&plan), Vec::<String>::new());
    Ok(())
}
