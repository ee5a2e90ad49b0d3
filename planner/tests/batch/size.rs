//! The batch job fits what its jobs request, and its script starts the executor that is there.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::common::{Case, Plan};

const LINE: &str = "--sites local --output-sites local --dir submit";

/// A workflow of one job, with profiles of the job, the program and the site.
fn one(job: &str, program: &str, site: &str) -> Case {
    let case = Case::new(&format!(
        "pegasus: \"5.0\"\nname: one\njobs:\n- {{type: job, id: A, name: first, profiles: {{{job}}}}}\n"
    ));
    case.put(
        "transformations.yml",
        &format!(
            "pegasus: \"5.0\"\ntransformations:\n- name: first\n  sites: [{{name: local, type: installed, pfn: \
             /bin/first, profiles: {{{program}}}}}]\n"
        ),
    );
    let mut sites = case.file("sites.yml");
    sites.push_str(&format!("    {site}\n"));
    case.put("sites.yml", &sites);
    case
}

/// Puts a program beside the planner that says about itself what our executor says.
fn with_executor(case: &Case, mpi: &str) {
    case.put(
        "bin/pegasus-mpi-cluster",
        &format!("#!/bin/sh\necho 'Version: 1'\necho 'MPI: {mpi}'\n"),
    );
    let path = case.path().join("bin/pegasus-mpi-cluster");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("a mode");
    let sites = case.file("sites.yml");
    case.put("sites.yml", &sites.replace("/opt/pegasus", "@DIR@"));
}

fn script(plan: &Plan, suffix: &str) -> String {
    let all = &plan.planned.scripts;
    let script = all
        .iter()
        .find(|script| script.path.extension().is_some_and(|e| e == suffix));
    fs::read_to_string(&script.expect("a script").path).expect("a text")
}

fn size(plan: &Plan) -> &str {
    plan.planned.batch_size.as_deref().expect("a size")
}

fn start(script: &str) -> &str {
    let line = script.lines().find(|line| line.contains("exec "));
    line.expect("it starts the executor")
}

#[test]
fn one_node_and_no_mpi_means_no_launcher() {
    let case = one("", "", "");
    with_executor(&case, "none");
    for launcher in ["", "--launcher srun", "--launcher mpiexec", "--nodes 1"] {
        let plan = case
            .plan(&format!("{LINE} {launcher} --batch slurm,lsf,flux,cobalt"))
            .expect("a plan");
        for suffix in ["sbatch", "pbs", "lsf", "flux", "cobalt"] {
            let text = script(&plan, suffix);
            let executor = case.path().join("bin/pegasus-mpi-cluster");
            let found = start(&text);
            assert!(
                found.contains(&format!(" {} --monitord-hack", executor.display()))
                    && !found.contains("mpiexec")
                    && !found.contains("srun")
                    && !found.contains("flux run")
                    && !found.contains("aprun"),
                "{launcher} {suffix}: {text}"
            );
        }
    }
}

#[test]
fn a_launcher_does_not_flip_to_mpi() {
    let case = one("", "", "");
    with_executor(&case, "none");
    let plan = case
        .plan(&format!("{LINE} --nodes 2 --launcher srun --batch slurm"))
        .expect("a plan");
    let text = script(&plan, "sbatch");
    assert!(
        start(&text).contains(" --agents \"${SLURM_JOB_NUM_NODES:-2}\" --launch srun "),
        "{text}"
    );
    let message = case.fail(&format!("{LINE} -Dpegasus.batch.transport=mpi"));
    assert!(message.contains("was built without MPI"), "{message}");
    // A link to our executor is our executor.
    let bin = case.path().join("bin");
    fs::create_dir(case.path().join("other")).expect("a directory");
    fs::create_dir(case.path().join("other/bin")).expect("a directory");
    std::os::unix::fs::symlink(
        bin.join("pegasus-mpi-cluster"),
        case.path().join("other/bin/pegasus-mpi-cluster"),
    )
    .expect("a link");
    let sites = case.file("sites.yml");
    let home = format!("PEGASUS_HOME: {}", case.path().display());
    case.put("sites.yml", &sites.replace(&home, &format!("{home}/other")));
    let plan = case.plan(&format!("{LINE} --batch slurm")).expect("a plan");
    let text = script(&plan, "sbatch");
    assert!(!start(&text).contains("mpiexec"), "{text}");

    let case = one("", "", "");
    with_executor(&case, "Open MPI 4.1");
    let plan = case
        .plan(&format!("{LINE} --launcher srun --batch slurm"))
        .expect("a plan");
    let text = script(&plan, "sbatch");
    assert!(
        start(&text).contains("exec \"$@\" srun --ntasks-per-node="),
        "{text}"
    );
}

#[test]
fn the_largest_request_counts_the_keys_of_all_systems() {
    for (profiles, request) in [
        (
            "condor: {request_memory: 4GB, request_cpus: '2'}",
            "2 CPUs and 4 GiB",
        ),
        (
            "condor: {request_gpus: '1', request_memory: '100'}",
            "1 CPU, 1 GPU and 100 MiB",
        ),
        (
            "pegasus: {cores: '3', memory: '3000', gpus: '2'}",
            "3 CPUs, 2 GPUs and 2.93 GiB",
        ),
        ("globus: {count: '5', maxmemory: '512'}", "5 CPUs and 512 MiB"),
        (
            "pegasus: {pmc_request_cpus: '6', pmc_request_memory: '64', pmc_request_gpus: '1'}",
            "6 CPUs, 1 GPU and 64 MiB",
        ),
    ] {
        for case in [
            one(profiles, "", ""),
            one("", profiles, ""),
            one("", "", profiles),
        ] {
            let plan = case
                .plan(&format!("{LINE} --batch slurm --node-cpus 16"))
                .expect("a plan");
            let expected = format!("a job requests up to {request}");
            assert!(size(&plan).contains(&expected), "{expected}: {}", size(&plan));
        }
    }
}

#[test]
fn one_process_of_a_job_or_site_is_no_size_of_the_batch_job() {
    let serial = "pegasus: {nodes: '1', ppn: '1'}";
    for case in [
        one("", "", serial),
        one(serial, "", ""),
        one("", "", "globus: {hostcount: '1', xcount: '1'}"),
    ] {
        let plan = case
            .plan(&format!("{LINE} --batch slurm --node-cpus 8"))
            .expect("a plan");
        assert!(size(&plan).starts_with("7 slots on 1 node; "), "{}", size(&plan));
        let plan = case.plan(&format!("{LINE} --batch lsf")).expect("a plan");
        assert!(size(&plan).starts_with("1 slot on 1 node; "), "{}", size(&plan));
    }
    // The size of a site, as before.
    let plan = one("", "", "pegasus: {nodes: '2', ppn: '4'}")
        .plan(&format!("{LINE} --batch lsf"))
        .expect("a plan");
    assert!(
        size(&plan).starts_with("7 slots on 2 nodes; a job requests up to 1 CPU"),
        "{}",
        size(&plan)
    );
}

#[test]
fn processes_of_a_job_are_its_cpus() {
    let parallel = "pegasus: {nodes: '1', ppn: '4'}";
    for (case, cpus) in [
        (one(parallel, "", ""), 4),
        (one("", parallel, ""), 4),
        (one("globus: {xcount: '3'}", "", ""), 3),
        (one("pegasus: {ppn: '4', cores: '2'}", "", ""), 2),
        (one("pegasus: {ppn: '4'}, condor: {request_cpus: '6'}", "", ""), 6),
    ] {
        let plan = case.plan(&format!("{LINE} --batch torque")).expect("a plan");
        let task = plan.dag.task(plan.dag.find(b"first_A").expect("the task"));
        assert_eq!(task.cpus, cpus);
        // The batch job has room for it.
        let text = script(&plan, "pbs");
        let expected = format!("#PBS -l nodes=1:ppn={} \n", cpus.max(2));
        assert!(text.contains(&expected), "{expected}: {text}");
    }
    let case = one("pegasus: {nodes: '3'}", "", "");
    let plan = case.plan(&format!("{LINE} --batch slurm")).expect("a plan");
    assert!(script(&plan, "sbatch").contains("#SBATCH --nodes=3\n"));
}

#[test]
fn the_wall_time_knows_declared_run_times() {
    let long = "pegasus: {runtime: '36000'}";
    for case in [one(long, "", ""), one("", long, ""), one("", "", long)] {
        let plan = case.plan(&format!("{LINE} --batch slurm")).expect("a plan");
        // Ten hours, a tenth more, and the time in which no task starts.
        let text = script(&plan, "sbatch");
        assert!(text.contains("#SBATCH --time=11:15:00\n"), "{text}");
        assert!(text.contains(" --max-wall-time job:670 "), "{text}");
        assert!(script(&plan, "pbs").contains("walltime=11:15:00"));
        let said = "; wall time 11:15:00 from the run times that jobs declare: the longest chain of jobs takes 10 h 00 \
                    min, and all jobs together 10 h 00 min";
        assert!(size(&plan).ends_with(said), "{}", size(&plan));
        let plan = case
            .plan(&format!("{LINE} --batch slurm --walltime 2:00:00"))
            .expect("a plan");
        assert!(script(&plan, "sbatch").contains("#SBATCH --time=2:00:00\n"));
        let warnings = plan.warnings();
        let is_said = |text: &String| text.contains("its longest chain of jobs takes 10 h 00 min");
        assert!(warnings.iter().any(is_said), "{warnings:?}");
    }
    let case = one("pegasus: {runtime: '60'}", "", "");
    let plan = case.plan(&format!("{LINE} --batch slurm")).expect("a plan");
    assert!(script(&plan, "sbatch").contains("#SBATCH --time=1:00:00\n"));
}

#[test]
fn the_wall_time_counts_slots_and_memory() {
    let mut workflow = String::from("pegasus: \"5.0\"\nname: many\njobs:\n");
    for n in 0..12 {
        workflow.push_str(&format!(
            "- {{type: job, id: J{n}, name: first, profiles: {{pegasus: {{runtime: '3600', memory: '1000'}}}}}}\n"
        ));
    }
    let case = Case::new(&workflow);
    case.programs(&["first"]);
    for (options, hours) in [
        ("--node-cpus 5", 3),
        ("--nodes 2 --node-cpus 3 --node-memory 3000", 3),
        // Two at a time.
        ("--node-cpus 5 --node-memory 2000", 6),
    ] {
        let plan = case
            .plan(&format!("{LINE} --batch torque {options}"))
            .expect("a plan");
        let minutes = hours * 66 + 15;
        let expected = format!("walltime={}:{:02}:00 ", minutes / 60, minutes % 60);
        let text = script(&plan, "pbs");
        assert!(text.contains(&expected), "{options} {expected}: {text}");
    }
}

#[test]
fn a_script_that_asks_for_no_gpus_is_said() {
    let case = one("pegasus: {gpus: '2'}", "", "");
    let said = |options: &str| {
        let plan = case
            .plan(&format!("{LINE} --batch slurm {options}"))
            .expect("a plan");
        let is_said = |text: &String| text.contains("jobs request GPUs (up to 2)");
        plan.warnings().iter().any(is_said)
    };
    assert!(said("") && said("-Dpegasus.batch.directives=--constraint=fast"));
    assert!(!said("-Dpegasus.batch.directives=--gpus-per-node=2"));
    assert!(!said("-Dpegasus.batch.directives=--gres=gpu:2"));
}

#[test]
fn memory_in_a_directive_replaces_ours() {
    let case = one("", "", "");
    for (options, ours) in [("--node-memory 32G", "--mem=32768M"), ("", "--mem=0")] {
        case.put(
            "pegasus.properties",
            "pegasus.batch.directives = --mem-per-cpu=2G\n",
        );
        let plan = case
            .plan(&format!("{LINE} --batch slurm {options}"))
            .expect("a plan");
        let text = script(&plan, "sbatch");
        assert!(
            !text.contains("--mem=") && !text.contains("--host-memory"),
            "{text}"
        );
        let expected = format!("--mem-per-cpu=2G contradicts {ours}");
        let warnings = plan.warnings();
        assert!(
            warnings.iter().any(|text| text.contains(&expected)),
            "{warnings:?}"
        );
    }
}

#[test]
fn the_run_schedules_by_what_the_script_asks_for() {
    let case = one("pegasus: {memory: '400'}", "", "");
    for suffix in ["sbatch", "pbs", "lsf", "flux"] {
        let options = "--batch slurm,torque,lsf,flux --nodes 2 --node-cpus 2 --node-memory 500";
        for transport in ["agents", "mpi"] {
            let plan = case
                .plan(&format!("{LINE} {options} -Dpegasus.batch.transport={transport}"))
                .expect("a plan");
            let text = script(&plan, suffix);
            assert!(
                text.contains(" --host-memory 500 --host-cpus 2 --monitord-hack "),
                "{text}"
            );
        }
    }
    // The node of another script may be shared, too; how much of it is known when the job runs.
    let plan = case
        .plan(&format!("{LINE} --batch slurm --ppn 4"))
        .expect("a plan");
    assert!(!script(&plan, "sbatch").contains("--host-"));
}

#[test]
fn a_pbs_script_leaves_minutes_before_the_limit() {
    for options in ["--batch torque", "--batch torque --ppn 4", "--batch pbspro"] {
        let case = one("", "", "");
        let plan = case.plan(&format!("{LINE} {options}")).expect("a plan");
        let text = script(&plan, "pbs");
        assert!(text.contains("-l walltime=1:00:00"), "{text}");
        assert!(text.contains(" --max-wall-time 55 "), "{text}");
    }
}

#[test]
fn a_job_over_several_nodes_gets_them_all_from_agents() {
    let nodes = "pegasus: {nodes: '4', ppn: '16', memory: '100'}";
    for (case, options) in [
        (one(nodes, "", ""), "-N 4 --ranks-per-node 16"),
        (one("", nodes, ""), "-N 4 --ranks-per-node 16"),
        (
            one("pegasus: {nodes: '4', cores: '64'}", "", ""),
            "-N 4 --ranks 64",
        ),
        (
            one(
                "globus: {jobtype: mpi, hostcount: '4', xcount: '16', count: '64'}",
                "",
                "",
            ),
            "-N 4 --ranks-per-node 16",
        ),
    ] {
        let plan = case
            .plan(&format!("{LINE} --batch slurm --node-cpus 16"))
            .expect("a plan");
        let task = plan.dag.find(b"first_A").expect("the task");
        let layout = plan.dag.gang(task).expect("several nodes").layout;
        assert_eq!((layout.nodes(), layout.ranks_of(0)), (Some(4), Some(16)));
        assert_eq!(plan.dag.task(task).cpus, 1, "for each rank");
        let text = plan.file("one-0.dag");
        assert!(text.contains(options), "{text}");
        let text = script(&plan, "sbatch");
        assert!(text.contains("#SBATCH --nodes=4\n"), "{text}");
        assert!(start(&text).contains("--agents"), "{text}");
        assert!(
            size(&plan).contains("largest job: 4 nodes × 16 ranks"),
            "{}",
            size(&plan)
        );
        assert!(plan.planned.needs_nodes, "one machine cannot run it");
    }
    let refused = |case: &Case, line: &str| case.fail(line);
    let case = one(nodes, "", "");
    let few = refused(&case, &format!("{LINE} --batch slurm --nodes 2 --node-cpus 16"));
    assert!(
        few.contains("the batch job has 2 nodes, but a job needs 4 nodes at once"),
        "{few}"
    );
    let mpi = refused(&case, &format!("{LINE} -Dpegasus.batch.transport=mpi"));
    assert!(mpi.contains("only agents run it"), "{mpi}");
    let lite = refused(&case, &format!("{LINE} -Dpegasus.data.configuration=nonsharedfs"));
    assert!(
        lite.contains("the job first_A needs 4 nodes, and its directory would be on one"),
        "{lite}"
    );
    let member = refused(
        &case,
        &format!("{LINE} --cluster horizontal -Dpegasus.clusterer.allow.single=true"),
    );
    assert!(
        member.contains("the job first_A needs 4 nodes, and its cluster runs on one"),
        "{member}"
    );
    let wrong = one("pegasus: {nodes: '4', ppn: '16', cores: '60'}", "", "");
    let wrong = refused(&wrong, LINE);
    assert!(
        wrong.contains("4 nodes with 16 processes each (ppn) are not 60 processes (cores)"),
        "{wrong}"
    );
}
