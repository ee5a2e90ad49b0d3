//! Twenty chains of two steps are planned and run in every way. Pegasus' monitoring reads the logs.

use crate::support::pegasus::assert_no_errors;
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
