//! Plans of small workflows, read back from the files in the submit directory.

mod bombs;
mod cleanup;
mod clusters;
mod commands;
mod common;
mod details;
mod names;
mod random;
mod selection;

use std::collections::BTreeSet;
use std::fs;

use common::Case;

/// `first` makes `mid` from `in`, `second` makes `end` from it.
const CHAIN: &str = r#"pegasus: "5.0"
name: chain
jobs:
- type: job
  id: A
  name: first
  arguments: [-i, in, -o, mid]
  uses:
  - {lfn: in, type: input}
  - {lfn: mid, type: output, stageOut: false, registerReplica: false}
- type: job
  id: B
  name: second
  arguments: [mid]
  uses:
  - {lfn: mid, type: input}
  - {lfn: end, type: output, stageOut: true, registerReplica: true}
"#;

fn chain() -> Case {
    let case = Case::new(CHAIN);
    case.programs(&["first", "second"]).replicas(&["in"]);
    case
}

const LINE: &str = "--sites local --output-sites local --dir submit";

#[test]
fn jobs_and_edges_of_a_chain() -> Result<(), Box<dyn std::error::Error>> {
    let plan = chain().plan(LINE)?;
    let tasks: BTreeSet<String> = plan.tasks().into_iter().collect();
    let expected = [
        "create_dir_chain_0_local",
        "stage_in_local_local_0_0",
        "first_A",
        "second_B",
        "stage_out_local_local_1_0",
        "register_local_1_0",
        "clean_up_local_level_3_0",
        "clean_up_local_level_4_0",
        "clean_up_local_level_5_0",
        "cleanup_chain_0_local",
    ];
    assert_eq!(tasks, expected.iter().map(|t| (*t).to_owned()).collect());
    let expected = [
        ("create_dir_chain_0_local", "stage_in_local_local_0_0"),
        ("stage_in_local_local_0_0", "first_A"),
        ("first_A", "second_B"),
        ("first_A", "clean_up_local_level_3_0"),
        ("second_B", "stage_out_local_local_1_0"),
        ("second_B", "clean_up_local_level_4_0"),
        ("stage_out_local_local_1_0", "register_local_1_0"),
        ("stage_out_local_local_1_0", "clean_up_local_level_5_0"),
        ("clean_up_local_level_3_0", "cleanup_chain_0_local"),
        ("clean_up_local_level_4_0", "cleanup_chain_0_local"),
        ("clean_up_local_level_5_0", "cleanup_chain_0_local"),
    ];
    assert_eq!(
        plan.edges,
        expected
            .iter()
            .map(|(p, c)| ((*p).to_owned(), (*c).to_owned()))
            .collect()
    );
    Ok(())
}

#[test]
fn kickstart_wraps_every_job() -> Result<(), Box<dyn std::error::Error>> {
    let case = chain();
    let plan = case.plan(LINE)?;
    let submit = plan.planned.submit_dir.display().to_string();
    let scratch = case
        .path()
        .join("scratch/tester/pegasus/chain/run0001")
        .display()
        .to_string();
    let words = plan.command("first_A");
    assert_eq!(words[0], "/opt/pegasus/bin/pegasus-kickstart");
    assert_eq!(
        words[1..13],
        [
            "-n",
            "first",
            "-N",
            "A",
            "-R",
            "local",
            "-w",
            scratch.as_str(),
            "-S",
            format!("@{submit}/00/00/first_A.in.lof").as_str(),
            "-s",
            format!("@{submit}/00/00/first_A.out.lof").as_str(),
        ]
    );
    assert_eq!(words[words.len() - 5..], ["/bin/first", "-i", "in", "-o", "mid"]);
    assert_eq!(plan.file("00/00/first_A.in.lof"), "in=in\n");
    assert_eq!(plan.file("00/00/first_A.out.lof"), "# required\nmid=mid\n");
    let words = plan.command("create_dir_chain_0_local");
    assert_eq!(
        words[1..3],
        [
            "-i",
            format!("{submit}/00/00/create_dir_chain_0_local.in").as_str()
        ]
    );
    assert_eq!(
        words.last().map(String::as_str),
        Some("/opt/pegasus/bin/pegasus-transfer")
    );
    let text = fs::read_to_string(&plan.planned.dag)?;
    assert!(
        text.contains(" first A \nTASK first_A -m 2048 -c 1 /opt/pegasus/bin/pegasus-kickstart  -n first")
    );
    let orders = plan.orders("stage_in_local_local_0_0");
    assert_eq!(orders[0]["src_urls"][0]["url"], "/data/in");
    assert_eq!(orders[0]["dest_urls"][0]["url"], format!("file://{scratch}/./in"));
    Ok(())
}

#[test]
fn two_plans_of_one_workflow_differ_only_in_the_run_number() -> Result<(), Box<dyn std::error::Error>> {
    let case = chain();
    let first = case.plan(LINE)?;
    let second = case.plan(LINE)?;
    assert!(second.planned.submit_dir.ends_with("run0002"));
    let same = second
        .files()
        .into_iter()
        .map(|(name, text)| (name, text.replace("run0002", "run0001")));
    assert_eq!(first.files(), same.collect());
    Ok(())
}

#[test]
fn concurrent_planners_get_separate_directories() {
    let case = chain();
    let directories: BTreeSet<_> = std::thread::scope(|scope| {
        let planners: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| case.plan(LINE).expect("a plan").planned.submit_dir))
            .collect();
        planners
            .into_iter()
            .map(|p| p.join().expect("no panic"))
            .collect()
    });
    assert_eq!(directories.len(), 8);
    for directory in directories {
        assert!(directory.join("braindump.yml").exists());
    }
}

#[test]
fn planning_again_into_a_directory_keeps_files_of_its_run() -> Result<(), Box<dyn std::error::Error>> {
    let case = chain();
    let line = format!("{LINE} --relative-dir mine");
    let plan = case.plan(&line)?;
    let rescue = plan.planned.submit_dir.join("chain-0.dag.rescue");
    fs::write(&rescue, "DONE first_A\n")?;
    let again = case.plan(&line)?;
    assert_eq!(again.planned.submit_dir, plan.planned.submit_dir);
    assert_eq!(fs::read_to_string(rescue)?, "DONE first_A\n");
    assert_eq!(fs::read_dir(case.path().join("submit"))?.count(), 1);
    Ok(())
}

#[test]
fn resources_come_from_profiles_then_properties_then_defaults() -> Result<(), Box<dyn std::error::Error>> {
    let case = chain();
    let options = |plan: &common::Plan, name: &str| {
        let id = plan.dag.find(name.as_bytes()).expect("the task");
        let task = plan.dag.task(id);
        (task.memory_mb, task.cpus)
    };
    let plan = case.plan(LINE)?;
    assert_eq!(options(&plan, "first_A"), (2048, 1));
    case.put(
        "pegasus.properties",
        "pegasus.memory = 777\npegasus.pmc_request_cpus = 3\n",
    );
    let plan = case.plan(LINE)?;
    assert_eq!(options(&plan, "first_A"), (777, 3));
    case.put("pegasus.properties", "pegasus.pmc_request_cpus = -1\n");
    let message = case.fail(LINE);
    assert!(
        message.contains("Invalid Value specified for cpu count -1 for job"),
        "{message}"
    );
    Ok(())
}

#[test]
fn all_missing_files_are_reported_at_once() {
    let case = Case::new(
        r#"pegasus: "5.0"
name: missing
jobs:
- {type: job, id: A, name: first, uses: [{lfn: x, type: input}, {lfn: y, type: input}, {lfn: o1, type: output}]}
- {type: job, id: B, name: first, uses: [{lfn: x, type: input}, {lfn: z, type: input, optional: true}, {lfn: o2, type: output}]}
"#,
    );
    case.programs(&["first"]);
    let message = case.fail(LINE);
    assert_eq!(
        message,
        "Can't determine a location to transfer input file for lfn x for job first_A and 1 more jobs\n  \
         hint: no location of any file is given: name a replica catalog (replicas.yml or rc.txt in the working \
         directory, or the property pegasus.catalog.replica.file) or a directory with --input-dir\n\
         Can't determine a location to transfer input file for lfn y for job first_A"
    );
    assert!(
        !case.path().join("submit").exists(),
        "a failed plan leaves no files"
    );
}

#[test]
fn unknown_names_come_with_suggestions() {
    let case = chain();
    case.programs(&["firstt", "second"]);
    let message = case.fail(LINE);
    assert!(
        message.contains("There are no entries for the transformation \"first\" in the TC for sites [local]")
    );
    assert!(message.contains("did you mean firstt?"), "{message}");
    let message = case.fail("--sites local --output-sites cluster9 --dir submit");
    assert!(message.contains(
        "Output site cluster9 not loaded into site store. Loaded sites are [condorpool, local]\n  \
         hint: describe it in the site catalog: sites.yml in the working directory"
    ));
    let message = case.fail("--sites local --output-sites moon --dir submit");
    assert!(message.contains("moon"), "{message}");
}

#[test]
fn without_named_sites_jobs_go_to_sites_with_a_work_directory() -> Result<(), Box<dyn std::error::Error>> {
    let case = chain();
    let plan = case.plan("--dir submit")?;
    assert!(plan.command("first_A").windows(2).any(|w| w == ["-R", "local"]));
    let sites = fs::read_to_string(case.path().join("sites.yml"))?;
    case.put(
        "sites.yml",
        &format!(
            "{sites}- name: archive\n  directories:\n  - {{type: localStorage, path: /a, fileServers: []}}\n"
        ),
    );
    let plan = case.plan("--dir submit")?;
    assert!(plan.command("first_A").windows(2).any(|w| w == ["-R", "local"]));
    let message = case.fail("--sites archive --dir submit");
    assert!(
        message.contains("archive has no directory of type sharedScratch"),
        "{message}"
    );
    Ok(())
}

#[test]
fn a_directory_that_cannot_be_created_is_named() {
    let case = chain();
    case.put("submit", "a file\n");
    let message = case.fail(LINE);
    assert!(message.contains("cannot make the directory"), "{message}");
    assert!(message.contains("submit/tester/pegasus/chain"), "{message}");
}

#[test]
fn jobs_whose_outputs_exist_need_not_run() -> Result<(), Box<dyn std::error::Error>> {
    let case = chain();
    case.replicas(&["in", "end"]);
    let plan = case.plan(LINE)?;
    assert_eq!(plan.planned.counts.deleted, 2);
    let tasks = ["stage_out_local_local_1000_0", "register_local_1000_0"];
    assert_eq!(plan.tasks(), tasks);
    // No job creates the work directory, so no job may need it.
    assert!(plan.command(tasks[0]).windows(2).any(|w| w == ["-w", "/tmp"]));
    assert_eq!(plan.orders(tasks[0])[0]["src_urls"][0]["url"], "/data/end");
    let plan = case.plan("--sites local --dir submit")?;
    assert_eq!(plan.tasks(), ["noop_chain_0"]);
    assert_eq!(plan.command("noop_chain_0"), ["/bin/true"]);
    let plan = case.plan(&format!("{LINE} --force"))?;
    assert_eq!(plan.planned.counts.compute, 2);
    case.replicas(&["in", "mid"]);
    let plan = case.plan(LINE)?;
    assert_eq!((plan.planned.counts.deleted, plan.planned.counts.compute), (1, 1));
    assert_eq!(plan.orders("stage_in_local_local_0_0")[0]["lfn"], "mid");
    Ok(())
}

#[test]
fn staged_programs_are_made_executable() -> Result<(), Box<dyn std::error::Error>> {
    let case = chain();
    case.put(
        "transformations.yml",
        "pegasus: \"5.0\"\ntransformations:\n- {name: first, sites: [{name: local, type: stageable, pfn: /src/first}]}\n\
         - {name: second, sites: [{name: local, type: installed, pfn: /bin/second}]}\n",
    );
    let plan = case.plan(LINE)?;
    let scratch = case
        .path()
        .join("scratch/tester/pegasus/chain/run0001")
        .display()
        .to_string();
    let program = format!("{scratch}/./first");
    assert!(plan.command("first_A").contains(&program));
    let words = plan.command("chmod_first_A_0");
    assert_eq!(
        words[words.len() - 3..],
        ["/bin/chmod".to_owned(), "+x".to_owned(), program]
    );
    assert!(plan.has_edge("stage_in_remote_local_0_0", "chmod_first_A_0"));
    assert!(plan.has_edge("chmod_first_A_0", "first_A"));
    Ok(())
}

#[test]
fn auxiliary_jobs_of_another_site_run_in_the_same_plan() -> Result<(), Box<dyn std::error::Error>> {
    let case = chain();
    case.put(
        "sites.yml",
        r#"pegasus: "5.0"
sites:
- name: local
  directories:
  - {type: localStorage, path: @DIR@/out, fileServers: [{url: "file://@DIR@/out", operation: all}]}
- name: hpc
  directories:
  - {type: sharedScratch, path: /lustre, fileServers: [{url: "gsiftp://hpc.example.org/lustre", operation: all}]}
  profiles: {env: {PEGASUS_HOME: /soft/pegasus}, pegasus: {queue: fast, nodes: "3"}}
"#,
    );
    case.put(
        "transformations.yml",
        "pegasus: \"5.0\"\ntransformations:\n- {name: first, sites: [{name: hpc, type: installed, pfn: /bin/first}]}\n\
         - {name: second, sites: [{name: hpc, type: installed, pfn: /bin/second}]}\n",
    );
    let plan = case.plan("--sites hpc --output-sites local --dir submit")?;
    let words = plan.command("first_A");
    assert_eq!(words[0], "/soft/pegasus/bin/pegasus-kickstart");
    assert!(
        words
            .windows(2)
            .any(|w| w == ["-w", "/lustre/tester/pegasus/chain/run0001"])
    );
    let words = plan.command("register_hpc_1_0");
    assert!(words.windows(2).any(|w| w == ["-R", "local"]));
    // The work directory may be removed before this job starts.
    assert!(words.windows(2).any(|w| w == ["-w", "/tmp"]));
    // All jobs run where the path is visible, so no transfer protocol is needed.
    let orders = plan.orders("stage_out_remote_hpc_1_0");
    assert_eq!(
        orders[0]["src_urls"][0]["url"],
        "file:///lustre/tester/pegasus/chain/run0001/./end"
    );
    let script = plan.file("chain-0.sbatch");
    assert!(script.contains("#SBATCH --partition=fast\n"), "{script}");
    assert!(script.contains("#SBATCH --nodes=3\n"), "{script}");
    assert!(plan.planned.notes.iter().any(|note| note.contains("hpc, local")));
    Ok(())
}

#[test]
fn batch_scripts_request_what_the_options_say() -> Result<(), Box<dyn std::error::Error>> {
    let case = chain();
    let plan = case.plan(LINE)?;
    let submit = plan.planned.submit_dir.display().to_string();
    assert_eq!(
        plan.file("chain-0.pbs"),
        format!(
            "#!/bin/bash\n#PBS -l nodes=1:ppn=2 \n#PBS -l walltime=1:00:00 \n#PBS -o chain-0.out\n#PBS -e chain-0.err\n\
             #PBS -N chain-0.pbs\ncd {submit}\nmpiexec /opt/pegasus/bin/pegasus-mpi-cluster --monitord-hack \
             --per-task-stdio --max-wall-time 55 chain-0.dag\n"
        )
    );
    let plan = case.plan(&format!(
        "{LINE} --nodes 4 --ppn 16 --walltime 2:30:00 --queue long --account p7 --launcher none"
    ))?;
    let script = plan.file("chain-0.pbs");
    for line in [
        "#PBS -l nodes=4:ppn=16 \n",
        "#PBS -l walltime=2:30:00 \n",
        "#PBS -q long\n",
        "#PBS -A p7\n",
        "[ ! -x /opt/pegasus/bin/pmc ] || set -- /opt/pegasus/bin/pmc supervise --minutes 145 --starts 10 chain-0.dag --\n",
        "exec \"$@\" /opt/pegasus/bin/pegasus-mpi-cluster --monitord-hack --per-task-stdio --max-wall-time 145 --stop-grace 10 chain-0.dag\n",
    ] {
        assert!(script.contains(line), "{line} is not in\n{script}");
    }
    assert!(plan.warnings().iter().any(|w| w.contains("launcher none")));
    case.put(
        "site/sbatch.j2",
        "#!/bin/sh\n#SBATCH -N {{ nodes }}\nsrun {{ executor }} {{ dag }}\n",
    );
    let plan = case.plan(&format!("{LINE} --template-dir site --nodes 2"))?;
    assert_eq!(
        plan.file("chain-0.sbatch"),
        "#!/bin/sh\n#SBATCH -N 2\nsrun /opt/pegasus/bin/pegasus-mpi-cluster chain-0.dag\n"
    );
    case.put("site/sbatch.j2", "#SBATCH -N {{ nodse }}\n");
    let message = case.fail(&format!("{LINE} --template-dir site"));
    assert!(message.contains("sbatch.j2"), "{message}");
    Ok(())
}

#[test]
fn files_for_monitoring_are_written() -> Result<(), Box<dyn std::error::Error>> {
    let case = chain();
    case.put(
        "workflow.yml",
        &format!("{CHAIN}  hooks: {{shell: [{{_on: error, cmd: /bin/mail me}}]}}\n"),
    );
    let plan = case.plan(LINE)?;
    assert_eq!(plan.file("chain-0.notify"), "\nJOB second_B error /bin/mail me\n");
    let braindump = plan.file("braindump.yml");
    for line in [
        "uses_pmc: \"true\"\n",
        "notify: \"chain-0.notify\"\n",
        "properties: \"pegasus.1.properties\"\n",
    ] {
        assert!(braindump.contains(line), "{braindump}");
    }
    let events = plan.file("chain-0.static.bp");
    let count = |name: &str| events.matches(&format!(" event={name} ")).count();
    assert_eq!((count("task.info"), count("task.edge")), (2, 1));
    assert_eq!((count("job.info"), count("job.edge")), (10, 11));
    assert_eq!(count("wf.map.task_job"), 2);
    assert!(events.starts_with("ts=2023-11-14T22:13:20.000000Z event=task.info"));
    // monitord expects it here.
    assert_eq!(
        plan.file("register_local_1_0.in"),
        plan.file("00/00/register_local_1_0.in")
    );
    let properties = plan.file("pegasus.1.properties");
    assert!(
        properties.contains("pegasus.catalog.replica.output.db.url=jdbc\\:sqlite\\:/"),
        "{properties}"
    );
    Ok(())
}

#[test]
fn unsupported_features_are_refused() {
    let case = chain();
    for (property, word) in [
        (
            "pegasus.data.configuration = nfs",
            "sharedfs, nonsharedfs or condorio",
        ),
        ("pegasus.code.generator = Glue", "PMC, Condor or Shell"),
        ("pegasus.transfer.refiner = Chain", "BalancedCluster"),
    ] {
        case.put("pegasus.properties", &format!("{property}\n"));
        let message = case.fail(LINE);
        assert!(message.contains(word), "{property}: {message}");
    }
    case.put("pegasus.properties", "");
    let message = case.fail(&format!("{LINE} --cluster vertical"));
    assert!(message.contains("known are horizontal"), "{message}");
}
#[test]
fn the_strategy_hourglass_joins_all_create_dir_jobs() -> Result<(), Box<dyn std::error::Error>> {
    let plan = chain().plan(&format!("{LINE} -D pegasus.dir.create.strategy=HourGlass"))?;
    assert!(plan.has_edge("create_dir_chain_0_local", "pegasus_concat_chain_0"));
    assert!(plan.has_edge("pegasus_concat_chain_0", "stage_in_local_local_0_0"));
    assert!(!plan.has_edge("create_dir_chain_0_local", "stage_in_local_local_0_0"));
    Ok(())
}

#[test]
fn the_refiner_empty_leaves_files_where_they_are() -> Result<(), Box<dyn std::error::Error>> {
    let case = chain();
    // An input that is not staged needs no replica.
    case.replicas(&[]);
    let line = format!("{LINE} -Dpegasus.transfer.refiner=Empty");
    let plan = case.plan(&line)?;
    let mut tasks = plan.tasks();
    tasks.sort_unstable();
    // Only `mid` is removed: `in` belongs to the user and `end` is an output, so the directory stays.
    assert_eq!(
        tasks,
        [
            "clean_up_local_level_3_0",
            "create_dir_chain_0_local",
            "first_A",
            "second_B"
        ]
    );
    let order = plan.orders("clean_up_local_level_3_0");
    assert_eq!(order.as_array().map(Vec::len), Some(1), "{order}");
    let url = order[0]["target"]["url"].as_str().unwrap_or_default();
    assert!(url.ends_with("/mid"), "{url}");
    let warnings = plan.warnings().join("\n");
    assert!(warnings.contains("refiner = Empty"), "{warnings}");
    Ok(())
}

/// The reference plans such a workflow and fails during the run.
#[test]
fn a_missing_local_input_is_said_at_planning() {
    let plan = chain().plan(LINE).unwrap();
    let warning = plan.missing_input().unwrap();
    assert!(
        warning.contains(" does not exist: there is no /data/"),
        "{warning}"
    );
}
