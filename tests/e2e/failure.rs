//! A job fails, the cause is removed, and the same run is started again.

use std::fs;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::support::pegasus::assert_no_errors;
use crate::support::programs::Build;
use crate::support::slurm::{Cluster, batch_options};
use crate::support::workflow::{Format, Planned, Request, has_line_with};

/// The chain whose second step fails, and the name of that step's job.
const BROKEN: u32 = 3;
const JOB: &str = "step_ID0000008";

fn plan(build: Build, options: Vec<String>) -> Planned {
    let mut request = Request::new(build, Format::Yaml);
    request.broken = vec![BROKEN];
    request.options = options;
    request.plan()
}

/// Asserts that one job failed, that all independent jobs ran, and that Pegasus names the failed job.
#[track_caller]
fn assert_failed_as_expected(planned: &Planned) {
    let monitored = planned.monitored();
    let (tasks, jobs) = monitored.statistics();
    assert_eq!(
        (tasks.succeeded, tasks.failed, tasks.incomplete),
        (39, 1, 0),
        "independent tasks still run"
    );
    assert_eq!(jobs.failed, 1);
    let failed = monitored.query(
        "select exec_job_id, stderr_text from job_instance join job using (job_id) where exitcode != 0",
    );
    assert_eq!(failed.len(), 1, "failed job instances: {failed:?}");
    assert_eq!(failed[0][0], JOB);
    let report = monitored.analyzer().refused();
    assert!(
        has_line_with(&report, &["# jobs failed", " 1 ("]),
        "{}",
        report.details()
    );
    assert!(has_line_with(&report, &["=", JOB, "="]), "{}", report.details());
    assert!(
        has_line_with(&report, &["step: cannot go on while", "broken exists"]),
        "{}",
        report.details()
    );
    assert!(
        has_line_with(&report, &["exitcode", ": 3"]),
        "{}",
        report.details()
    );
    let rescue = fs::read_to_string(format!("{}.rescue", planned.dag().display())).expect("a rescue file");
    assert!(!rescue.contains(JOB), "the failed job is not done:\n{rescue}");
    assert_eq!(
        rescue.lines().filter(|l| l.contains("step_ID")).count(),
        39,
        "{rescue}"
    );
}

/// Asserts that the second run completed the workflow, and that Pegasus sees both runs.
#[track_caller]
fn assert_resumed_run_is_complete(planned: &Planned) {
    planned.assert_outputs(0..20);
    let monitored = planned.monitored();
    assert_eq!(
        monitored.workflow_states(),
        [
            "WORKFLOW_STARTED 0 -",
            "WORKFLOW_TERMINATED 0 1",
            "WORKFLOW_STARTED 1 -",
            "WORKFLOW_TERMINATED 1 0"
        ]
    );
    let (tasks, jobs) = monitored.statistics();
    assert_eq!(
        (tasks.succeeded, tasks.failed, tasks.incomplete, tasks.retries),
        (40, 0, 0, 1)
    );
    assert_eq!(
        (jobs.succeeded, jobs.failed, jobs.incomplete, jobs.retries),
        (46, 0, 0, 1)
    );
    assert_eq!(monitored.count("job_instance"), 47, "no completed job runs again");
    let last = monitored.query(&format!(
        "select exitcode, stdout_file from job_instance join job using (job_id) \
         where exec_job_id = '{JOB}' order by job_submit_seq"
    ));
    assert_eq!(last.last().expect("an instance")[0], "0");
    assert!(
        last[0][1].ends_with(".000") && last[1][1].ends_with(".001"),
        "{last:?}"
    );
    let report = monitored.analyzer().ok();
    assert!(
        has_line_with(&report, &["# jobs succeeded", "46 (100.00%)"]),
        "{}",
        report.details()
    );
}

#[test]
#[ignore = "needs Pegasus' monitoring: tests/run e2e"]
fn second_run_finishes_and_monitord_follows_both() {
    let planned = plan(Build::Local, Vec::new());
    let monitored = planned.monitored();
    let log = format!("{}.dagman.out", planned.dag().display());

    let monitord = monitored.follow();
    let result = planned.executor(2).run().refused();
    assert_eq!(result.code(), 1, "{}", result.details());
    assert_no_errors(&monitord.wait().ok());
    assert_failed_as_expected(&planned);
    let first = fs::read(&log).expect("a log");

    planned.repair();
    let monitord = monitored.follow();
    planned.executor(2).run().ok();
    assert_no_errors(&monitord.wait().ok());
    assert_resumed_run_is_complete(&planned);
    let both = fs::read(&log).expect("a log");
    assert!(
        both.starts_with(&first) && both.len() > first.len(),
        "the second run appends to the log"
    );

    // A replay of the logs gives the same.
    monitored.replay();
    assert_resumed_run_is_complete(&planned);
}

#[test]
#[ignore = "needs Pegasus' monitoring: tests/run e2e"]
fn second_run_with_agents_finishes() {
    fail_and_resume(Build::Agents);
}

#[test]
#[ignore = "needs Open MPI: tests/run e2e"]
fn second_run_under_open_mpi_finishes() {
    fail_and_resume(Build::OpenMpi);
}

#[test]
#[ignore = "needs MPICH: tests/run e2e"]
fn second_run_under_mpich_finishes() {
    fail_and_resume(Build::Mpich);
}

fn fail_and_resume(build: Build) {
    let planned = plan(build, Vec::new());
    let result = planned.executor(3).run().refused();
    assert_eq!(result.code(), 1, "{}", result.details());
    planned.monitored().replay();
    assert_failed_as_expected(&planned);
    planned.repair();
    planned.executor(3).run().ok();
    planned.monitored().replay();
    assert_resumed_run_is_complete(&planned);
}

#[test]
#[ignore = "needs Slurm: tests/run e2e"]
fn same_batch_script_again_finishes() {
    let cluster = Cluster::start();
    let planned = plan(Build::OpenMpi, batch_options());
    cluster.sbatch(&planned).assert_ends_as("FAILED");
    planned.monitored().replay();
    assert_failed_as_expected(&planned);
    planned.repair();
    cluster.sbatch(&planned).assert_ends_as("COMPLETED");
    planned.monitored().replay();
    assert_resumed_run_is_complete(&planned);
}

#[test]
#[ignore = "needs Pegasus' monitoring: tests/run e2e"]
fn run_that_is_stopped_twice_is_one_workflow_for_pegasus() {
    let mut request = Request::new(Build::Local, Format::Yaml);
    request.chains = 80;
    let planned = request.plan();
    let rescue = format!("{}.rescue", planned.dag().display());
    let done = || fs::read_to_string(&rescue).map_or(0, |text| text.matches("DONE ").count());
    // When these runs end, many tasks have been submitted but not started.
    for _ in 0..2 {
        let before = done();
        let started = Instant::now();
        let mut executor = planned.executor(2).start();
        while done() < 2 * before + 10 {
            assert!(
                executor.is_running(),
                "the run ended too early: {}",
                executor.wait().details()
            );
            assert!(started.elapsed() < Duration::from_secs(60), "no task completes");
            std::thread::sleep(Duration::from_millis(1));
        }
        executor.signal(Signal::SIGTERM);
        executor.wait().refused();
    }
    planned.executor(2).run().ok();
    planned.assert_outputs(0..80);

    let monitored = planned.monitored();
    monitored.replay();
    let (tasks, jobs) = monitored.statistics();
    assert_eq!((tasks.succeeded, tasks.failed, tasks.incomplete), (160, 0, 0));
    assert_eq!((jobs.succeeded, jobs.failed, jobs.incomplete), (jobs.total, 0, 0));
    monitored.analyzer().ok();
}
