//! Twenty chains of two steps are planned and run in every way. Pegasus' monitoring reads the logs.

use crate::support::command::Program;
use crate::support::pegasus::{Monitored, assert_no_errors};
use crate::support::programs::Build;
use crate::support::slurm::{Cluster, batch_options};
use crate::support::workflow::{Format, Planned, Request};

const FORMATS: [Format; 2] = [Format::Yaml, Format::Dax];

fn assert_complete(planned: &Planned) {
    planned.assert_outputs(0..20);
    planned.assert_complete_for_pegasus();
}

fn run_chains(build: Build, workers: u32) {
    for format in FORMATS {
        let planned = Request::new(build, format).plan();
        planned.executor(workers).run().ok();
        assert_complete(&planned);
    }
}

#[test]
#[ignore = "needs Pegasus' monitoring: tests/run e2e"]
fn local_workers_run_chains() {
    run_chains(Build::Local, 2);
}

#[test]
#[ignore = "needs Pegasus' monitoring: tests/run e2e"]
fn three_agents_run_chains() {
    run_chains(Build::Agents, 3);
}

#[test]
#[ignore = "needs Open MPI: tests/run e2e"]
fn four_ranks_of_open_mpi_run_chains() {
    run_chains(Build::OpenMpi, 3);
}

#[test]
#[ignore = "needs MPICH: tests/run e2e"]
fn four_ranks_of_mpich_run_chains() {
    run_chains(Build::Mpich, 3);
}

#[test]
#[ignore = "needs Slurm: tests/run e2e"]
fn sbatch_runs_chains_on_three_nodes() {
    let cluster = Cluster::start();
    for format in FORMATS {
        let mut request = Request::new(Build::OpenMpi, format);
        request.options = batch_options();
        let planned = request.plan();
        cluster.sbatch(&planned).assert_ends_as("COMPLETED");
        assert_eq!(hosts(&planned), cluster.node_names(), "hosts that ran tasks");
        assert_complete(&planned);
    }
}

#[test]
#[ignore = "needs Slurm: tests/run e2e"]
fn qsub_runs_chains_on_three_nodes() {
    let cluster = Cluster::start();
    for format in FORMATS {
        let mut request = Request::new(Build::OpenMpi, format);
        request.options = batch_options();
        let planned = request.plan();
        cluster.qsub(&planned).assert_ends_as("COMPLETED");
        assert_eq!(hosts(&planned), cluster.node_names(), "hosts that ran tasks");
        assert_complete(&planned);
    }
}

/// Returns the hosts in the resource log, sorted.
fn hosts(planned: &Planned) -> Vec<String> {
    let path = format!("{}.resource", planned.dag().display());
    let log = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let mut names: Vec<String> = log
        .lines()
        .filter_map(|l| Some(l.rsplit(',').next()?.to_owned()))
        .collect();
    names.sort_unstable();
    names.dedup();
    names
}

#[test]
#[ignore = "needs Pegasus' monitoring: tests/run e2e"]
fn monitord_follows_a_run_from_before_its_start() {
    let planned = Request::new(Build::Local, Format::Yaml).plan();
    let monitored = planned.monitored();
    let monitord = monitored.follow();
    planned.executor(2).run().ok();
    assert_no_errors(&monitord.wait().ok());
    planned.assert_outputs(0..20);
    planned.assert_database_complete();
    let (tasks, jobs) = monitored.statistics();
    assert_eq!((tasks.succeeded, jobs.succeeded), (40, 46));
    monitored.analyzer().ok();
}

#[test]
#[ignore = "needs Pegasus' monitoring: tests/run e2e"]
fn monitord_loads_registrations_without_kickstart() {
    for mapper in ["Hashed", "Flat"] {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let top = directory.path();
        std::fs::write(
            top.join("workflow.yml"),
            "pegasus: '5.0.4'\nname: bare\ntransformationCatalog:\n  transformations:\n  \
             - {name: touch, sites: [{name: local, type: installed, pfn: /usr/bin/touch}]}\n\
             jobs:\n- {type: job, id: A, name: touch, arguments: [a, b], uses: [{lfn: a, type: output}, {lfn: b, \
             type: output}]}\n",
        )
        .expect("a workflow");
        let submit = top.join("submit/run");
        Program::new(Build::Local.program("pmc-plan"))
            .in_directory(top)
            .args([
                "-s",
                "local",
                "-o",
                "local",
                "--dir",
                "submit",
                "--relative-submit-dir",
                "run",
            ])
            .args([
                "-Dpegasus.gridstart=none".into(),
                format!("-Dpegasus.dir.submit.mapper={mapper}"),
            ])
            .run()
            .ok();
        Program::new(Build::Local.program("pegasus-mpi-cluster"))
            .in_directory(&submit)
            .args(["--monitord-hack", "--per-task-stdio", "bare-0.dag"])
            .run()
            .ok();
        let monitored = Monitored {
            submit: &submit,
            home: top,
        };
        // It only logs that there is no list of registrations.
        monitored.load();
        assert_eq!(
            monitored.workflow_states(),
            ["WORKFLOW_STARTED 0 -", "WORKFLOW_TERMINATED 0 0"],
            "{mapper}"
        );
        let registered = monitored.query(
            "select exitcode from job_instance join job using (job_id) where exec_job_id like 'register_%'",
        );
        assert_eq!(registered, [["0"]], "{mapper}");
    }
}
