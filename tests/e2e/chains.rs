//! Twenty chains of two steps: planned, run in every way, and read by Pegasus' own monitoring.

use crate::support::pegasus::no_complaint;
use crate::support::programs::Flavour;
use crate::support::slurm::{Cluster, batch_options};
use crate::support::workflow::{Format, Planned, Request};

const FORMATS: [Format; 2] = [Format::Yaml, Format::Dax];

fn complete(planned: &Planned) {
    planned.outputs_are_right(0..20);
    planned.is_complete_for_pegasus();
}

fn runs_with(flavour: Flavour, workers: u32) {
    for format in FORMATS {
        let planned = Request::new(flavour, format).plan();
        planned.execution(workers).go().ok();
        complete(&planned);
    }
}

#[test]
#[ignore = "needs Pegasus' monitoring: tests/run e2e"]
fn local_workers_run_chains() {
    runs_with(Flavour::Local, 2);
}

#[test]
#[ignore = "needs Open MPI: tests/run e2e"]
fn four_ranks_of_open_mpi_run_chains() {
    runs_with(Flavour::OpenMpi, 3);
}

#[test]
#[ignore = "needs MPICH: tests/run e2e"]
fn four_ranks_of_mpich_run_chains() {
    runs_with(Flavour::Mpich, 3);
}

#[test]
#[ignore = "needs Slurm: tests/run e2e"]
fn sbatch_runs_chains_on_three_nodes() {
    let cluster = Cluster::start();
    for format in FORMATS {
        let mut request = Request::new(Flavour::OpenMpi, format);
        request.options = batch_options();
        let planned = request.plan();
        cluster.sbatch(&planned).ends_as("COMPLETED");
        assert_eq!(hosts(&planned), cluster.node_names(), "hosts that ran tasks");
        complete(&planned);
    }
}

#[test]
#[ignore = "needs Slurm: tests/run e2e"]
fn qsub_runs_chains_on_three_nodes() {
    let cluster = Cluster::start();
    for format in FORMATS {
        let mut request = Request::new(Flavour::OpenMpi, format);
        request.options = batch_options();
        let planned = request.plan();
        cluster.qsub(&planned).ends_as("COMPLETED");
        assert_eq!(hosts(&planned), cluster.node_names(), "hosts that ran tasks");
        complete(&planned);
    }
}

/// The hosts of the resource log, in order.
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
    let planned = Request::new(Flavour::Local, Format::Yaml).plan();
    let monitored = planned.monitored();
    let monitord = monitored.follow();
    planned.execution(2).go().ok();
    no_complaint(&monitord.wait().ok());
    planned.outputs_are_right(0..20);
    planned.database_is_complete();
    let (tasks, jobs) = monitored.statistics();
    assert_eq!((tasks.succeeded, jobs.succeeded), (40, 46));
    monitored.analyzer().ok();
}
