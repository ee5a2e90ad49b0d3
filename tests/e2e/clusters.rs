//! Chains in clusters are planned and run. Pegasus' monitoring must count every task.

use std::fs;

use crate::support::pegasus::Monitored;
use crate::support::programs::Build;
use crate::support::workflow::{Format, Planned, Request};

fn plan(build: Build, options: &[&str], broken: Vec<u32>) -> Planned {
    let mut request = Request::new(build, Format::Yaml);
    request.options = options.iter().map(|&word| word.to_owned()).collect();
    request.broken = broken;
    request.plan()
}

/// Asserts that the database has all forty tasks in this number of clusters.
#[track_caller]
fn assert_tasks_in_clusters(monitored: &Monitored<'_>, clusters: usize) {
    let linked = monitored.query(
        "select count(*), count(distinct abs_task_id) from invocation \
         where abs_task_id is not null and exitcode = 0",
    );
    assert_eq!(linked, [["40", "40"]], "invocations of tasks");
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
fn check(build: Build, options: &[&str], clusters: usize) {
    let planned = plan(build, options, Vec::new());
    planned.executor(2).run().ok();
    planned.assert_outputs(0..20);
    let monitored = planned.monitored();
    monitored.replay();
    assert_tasks_in_clusters(&monitored, clusters);
    let (tasks, jobs) = monitored.statistics();
    assert_eq!((tasks.succeeded, tasks.failed, tasks.total), (40, 0, 40));
    assert_eq!(jobs.failed, 0);
    assert!(jobs.succeeded < 46, "{jobs:?}");
    monitored.analyzer().ok();
}

const MPIEXEC: &str = "-Dpegasus.clusterer.job.aggregator=MPIExec";
const LITE: &str = "-Dpegasus.data.configuration=nonsharedfs";

#[test]
#[ignore = "needs Pegasus' monitoring: tests/run e2e"]
fn clusters_by_size_are_monitored() {
    check(
        Build::Local,
        &["--cluster", "horizontal", "-Dpegasus.clusters.size=6"],
        8,
    );
}

#[test]
#[ignore = "needs Pegasus' monitoring: tests/run e2e"]
fn workflow_in_one_cluster_is_monitored() {
    check(Build::Local, &["--cluster", "whole"], 1);
    check(Build::Local, &["--cluster", "whole", MPIEXEC], 1);
}

#[test]
#[ignore = "needs Pegasus' monitoring: tests/run e2e"]
fn clusters_in_agents_are_monitored() {
    check(
        Build::Agents,
        &["--cluster", "horizontal", "-Dpegasus.clusters.num=3", MPIEXEC],
        6,
    );
}

/// The run of a cluster has an agent on each of two hosts: all of its records are those of other clusters.
#[test]
#[ignore = "needs Pegasus' monitoring: tests/run e2e"]
fn clusters_over_two_nodes_are_monitored() {
    let mut request = Request::new(Build::Agents, Format::Yaml);
    let executor = Build::Agents.program("pegasus-mpi-cluster");
    request.transformations = format!(
        "- namespace: pegasus\n  name: mpiexec\n  sites: [{{name: local, type: installed, pfn: {}}}]\n  \
         profiles:\n    pegasus: {{nodes: '2', ppn: '2', job.aggregator.arguments: --start-with 2}}\n",
        executor.display()
    );
    let options = ["--cluster", "horizontal", "-Dpegasus.clusters.num=1", MPIEXEC];
    let resources = ["-Dpegasus.memory=10"];
    request.options = options.into_iter().chain(resources).map(str::to_owned).collect();
    let planned = request.plan();
    let dag = fs::read_to_string(planned.dag()).expect("a DAG");
    assert!(
        dag.contains("-N 2 --ranks-per-node 2 ") && dag.contains(" --agents gang "),
        "{dag}"
    );
    planned
        .executor_on("n1,n2", &["--slots", "2", "--host-cpus", "2"])
        .run()
        .ok();
    planned.assert_outputs(0..20);
    let monitored = planned.monitored();
    monitored.replay();
    assert_tasks_in_clusters(&monitored, 2);
    let (tasks, jobs) = monitored.statistics();
    assert_eq!((tasks.succeeded, tasks.failed, tasks.total), (40, 0, 40));
    assert_eq!(jobs.failed, 0);
    monitored.analyzer().ok();
}

#[test]
#[ignore = "needs Open MPI: tests/run e2e"]
fn nested_runs_under_open_mpi_are_monitored() {
    check(
        Build::OpenMpi,
        &["--cluster", "horizontal", "-Dpegasus.clusters.num=3", MPIEXEC],
        6,
    );
}

#[test]
#[ignore = "needs MPICH: tests/run e2e"]
fn nested_runs_under_mpich_are_monitored() {
    check(
        Build::Mpich,
        &["--cluster", "horizontal", "-Dpegasus.clusters.num=3", MPIEXEC],
        6,
    );
}

#[test]
#[ignore = "needs Pegasus' monitoring: tests/run e2e"]
fn clusters_without_a_shared_file_system_are_monitored() {
    check(
        Build::Local,
        &["--cluster", "horizontal", "-Dpegasus.clusters.size=6", LITE],
        8,
    );
    check(Build::Local, &["--cluster", "whole", LITE], 1);
    check(Build::Local, &["--cluster", "horizontal,whole", LITE], 1);
    check(Build::Local, &["--cluster", "whole", MPIEXEC, LITE], 1);
}

#[track_caller]
fn check_failure(more: &[&str]) {
    let mut options = vec!["--cluster", "horizontal", "-Dpegasus.clusters.size=5"];
    options.extend(more);
    let planned = plan(Build::Local, &options, vec![7]);
    assert_ne!(planned.executor(2).run().code(), 0);
    planned.repair();
    planned.executor(2).run().ok();
    planned.assert_outputs(0..20);
    let monitored = planned.monitored();
    monitored.replay();
    let failed = monitored.query("select count(*) from invocation where exitcode != 0");
    assert_eq!(failed, [["1"]], "failed invocations");
    let done = monitored.query("select count(distinct abs_task_id) from invocation where exitcode = 0");
    assert_eq!(done, [["40"]]);
    let (tasks, jobs) = monitored.statistics();
    assert_eq!((tasks.succeeded, tasks.total, jobs.failed), (40, 40, 0));
}

#[test]
#[ignore = "needs Pegasus' monitoring: tests/run e2e"]
fn failed_cluster_is_run_again() {
    check_failure(&[]);
}

#[test]
#[ignore = "needs Pegasus' monitoring: tests/run e2e"]
fn failed_cluster_without_a_shared_file_system_is_run_again() {
    check_failure(&[LITE]);
    // The run inside the cluster does not skip what it has done before: that is gone.
    let planned = plan(Build::Local, &["--cluster", "whole", MPIEXEC, LITE], vec![7]);
    assert_ne!(planned.executor(2).run().code(), 0);
    planned.repair();
    planned.executor(2).run().ok();
    planned.assert_outputs(0..20);
}
