//! Chains in clusters: planned, run, and loaded by Pegasus' own monitoring, which must count every task.

use crate::support::pegasus::Monitored;
use crate::support::programs::Flavour;
use crate::support::workflow::{Format, Planned, Request};

fn plan(flavour: Flavour, options: &[&str], broken: Vec<u32>) -> Planned {
    let mut request = Request::new(flavour, Format::Yaml);
    request.options = options.iter().map(|&word| word.to_owned()).collect();
    request.broken = broken;
    request.plan()
}

/// Demands that the database has all forty tasks in so many clusters.
#[track_caller]
fn has_tasks_in_clusters(monitored: &Monitored<'_>, clusters: usize) {
    let tied = monitored.query(
        "select count(*), count(distinct abs_task_id) from invocation \
         where abs_task_id is not null and exitcode = 0",
    );
    assert_eq!(tied, [["40", "40"]], "invocations of tasks");
    let jobs = monitored.query("select task_count from job where clustered = 1");
    assert_eq!(jobs.len(), clusters, "{jobs:?}");
    let tasks: u32 = jobs
        .iter()
        .map(|row| row[0].parse::<u32>().expect("a number"))
        .sum();
    assert_eq!(tasks, 40);
    let mapped = monitored.query("select count(*) from task where job_id is null");
    assert_eq!(mapped, [["0"]], "tasks without a job");
    let untimed = monitored.query(
        "select count(*) from job_instance natural join job where clustered = 1 and cluster_duration is null",
    );
    assert_eq!(untimed, [["0"]], "clusters without a time");
}

#[track_caller]
fn runs(flavour: Flavour, options: &[&str], clusters: usize) {
    let planned = plan(flavour, options, Vec::new());
    planned.execution(2).go().ok();
    planned.outputs_are_right(0..20);
    let monitored = planned.monitored();
    monitored.replay();
    has_tasks_in_clusters(&monitored, clusters);
    let (tasks, jobs) = monitored.statistics();
    assert_eq!((tasks.succeeded, tasks.failed, tasks.total), (40, 0, 40));
    assert_eq!(jobs.failed, 0);
    assert!(jobs.succeeded < 46, "{jobs:?}");
    monitored.analyzer().ok();
}

const MPIEXEC: &str = "-Dpegasus.clusterer.job.aggregator=MPIExec";

#[test]
#[ignore = "needs Pegasus' monitoring: tests/run e2e"]
fn clusters_by_size_are_monitored() {
    runs(
        Flavour::Local,
        &["--cluster", "horizontal", "-Dpegasus.clusters.size=6"],
        8,
    );
}

#[test]
#[ignore = "needs Pegasus' monitoring: tests/run e2e"]
fn the_whole_workflow_in_one_cluster_is_monitored() {
    runs(Flavour::Local, &["--cluster", "whole"], 1);
    runs(Flavour::Local, &["--cluster", "whole", MPIEXEC], 1);
}

#[test]
#[ignore = "needs Open MPI: tests/run e2e"]
fn runs_inside_a_run_under_open_mpi_are_monitored() {
    runs(
        Flavour::OpenMpi,
        &["--cluster", "horizontal", "-Dpegasus.clusters.num=3", MPIEXEC],
        6,
    );
}

#[test]
#[ignore = "needs MPICH: tests/run e2e"]
fn runs_inside_a_run_under_mpich_are_monitored() {
    runs(
        Flavour::Mpich,
        &["--cluster", "horizontal", "-Dpegasus.clusters.num=3", MPIEXEC],
        6,
    );
}

#[test]
#[ignore = "needs Pegasus' monitoring: tests/run e2e"]
fn a_failed_cluster_is_run_again() {
    let options = ["--cluster", "horizontal", "-Dpegasus.clusters.size=5"];
    let planned = plan(Flavour::Local, &options, vec![7]);
    assert_ne!(planned.execution(2).go().code(), 0);
    planned.repair();
    planned.execution(2).go().ok();
    planned.outputs_are_right(0..20);
    let monitored = planned.monitored();
    monitored.replay();
    let failed = monitored.query("select count(*) from invocation where exitcode != 0");
    assert_eq!(failed, [["1"]], "the one task that failed");
    let done = monitored.query("select count(distinct abs_task_id) from invocation where exitcode = 0");
    assert_eq!(done, [["40"]]);
    let (tasks, jobs) = monitored.statistics();
    assert_eq!((tasks.succeeded, tasks.total, jobs.failed), (40, 40, 0));
}
