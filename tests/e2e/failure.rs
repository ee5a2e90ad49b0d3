//! A job fails, the cause is removed, and the same run is started again.

use std::fs;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::support::pegasus::no_complaint;
use crate::support::programs::Flavour;
use crate::support::slurm::{Cluster, batch_options};
use crate::support::workflow::{Format, Planned, Request, says};

/// The chain whose second step fails, and the name of that step's job.
const BROKEN: u32 = 3;
const JOB: &str = "step_ID0000008";

fn plan(flavour: Flavour, options: Vec<String>) -> Planned {
    let mut request = Request::new(flavour, Format::Yaml);
    request.broken = vec![BROKEN];
    request.options = options;
    request.plan()
}

/// Demands that one job failed, that all which did not depend on it ran, and that Pegasus names it.
#[track_caller]
fn failed_as_it_should(planned: &Planned) {
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
    assert!(says(&report, &["# jobs failed", " 1 ("]), "{}", report.account());
    assert!(says(&report, &["=", JOB, "="]), "{}", report.account());
    assert!(
        says(&report, &["step: cannot go on while", "broken exists"]),
        "{}",
        report.account()
    );
    assert!(says(&report, &["exitcode", ": 3"]), "{}", report.account());
    let rescue = fs::read_to_string(format!("{}.rescue", planned.dag().display())).expect("a rescue file");
    assert!(!rescue.contains(JOB), "the failed job is not done:\n{rescue}");
    assert_eq!(
        rescue.lines().filter(|l| l.contains("step_ID")).count(),
        39,
        "{rescue}"
    );
}

/// Demands that the second run did the rest, and that Pegasus sees both runs.
#[track_caller]
fn finished_from_the_rescue_file(planned: &Planned) {
    planned.outputs_are_right(0..20);
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
    assert_eq!(
        monitored.count("job_instance"),
        47,
        "nothing that was done is done again"
    );
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
        says(&report, &["# jobs succeeded", "46 (100.00%)"]),
        "{}",
        report.account()
    );
}

#[test]
#[ignore = "needs Pegasus' monitoring: tests/run e2e"]
fn second_run_finishes_and_monitord_follows_both() {
    let planned = plan(Flavour::Local, Vec::new());
    let monitored = planned.monitored();
    let log = format!("{}.dagman.out", planned.dag().display());

    let monitord = monitored.follow();
    let said = planned.execution(2).go().refused();
    assert_eq!(said.code(), 1, "{}", said.account());
    no_complaint(&monitord.wait().ok());
    failed_as_it_should(&planned);
    let first = fs::read(&log).expect("a log");

    planned.repair();
    let monitord = monitored.follow();
    planned.execution(2).go().ok();
    no_complaint(&monitord.wait().ok());
    finished_from_the_rescue_file(&planned);
    let both = fs::read(&log).expect("a log");
    assert!(
        both.starts_with(&first) && both.len() > first.len(),
        "the log is appended to, never truncated"
    );

    // The same from the logs alone.
    monitored.replay();
    finished_from_the_rescue_file(&planned);
}

#[test]
#[ignore = "needs Open MPI: tests/run e2e"]
fn second_run_under_open_mpi_finishes() {
    fails_and_finishes(Flavour::OpenMpi);
}

#[test]
#[ignore = "needs MPICH: tests/run e2e"]
fn second_run_under_mpich_finishes() {
    fails_and_finishes(Flavour::Mpich);
}

fn fails_and_finishes(flavour: Flavour) {
    let planned = plan(flavour, Vec::new());
    let said = planned.execution(3).go().refused();
    assert_eq!(said.code(), 1, "{}", said.account());
    planned.monitored().replay();
    failed_as_it_should(&planned);
    planned.repair();
    planned.execution(3).go().ok();
    planned.monitored().replay();
    finished_from_the_rescue_file(&planned);
}

#[test]
#[ignore = "needs Slurm: tests/run e2e"]
fn same_batch_script_again_finishes() {
    let cluster = Cluster::start();
    let planned = plan(Flavour::OpenMpi, batch_options());
    cluster.sbatch(&planned).ends_as("FAILED");
    planned.monitored().replay();
    failed_as_it_should(&planned);
    planned.repair();
    cluster.sbatch(&planned).ends_as("COMPLETED");
    planned.monitored().replay();
    finished_from_the_rescue_file(&planned);
}

#[test]
#[ignore = "needs Pegasus' monitoring: tests/run e2e"]
fn run_that_is_cut_off_twice_is_one_workflow_for_pegasus() {
    let mut request = Request::new(Flavour::Local, Format::Yaml);
    request.chains = 80;
    let planned = request.plan();
    let rescue = format!("{}.rescue", planned.dag().display());
    let done = || fs::read_to_string(&rescue).map_or(0, |text| text.matches("DONE ").count());
    // Many tasks are queued when each of these runs ends: they have been submitted but not started.
    for _ in 0..2 {
        let before = done();
        let begin = Instant::now();
        let mut executor = planned.execution(2).start();
        while done() < 2 * before + 10 {
            assert!(executor.alive(), "over too soon: {}", executor.wait().account());
            assert!(begin.elapsed() < Duration::from_secs(60), "nothing gets done");
            std::thread::sleep(Duration::from_millis(1));
        }
        executor.signal(Signal::SIGTERM);
        executor.wait().refused();
    }
    planned.execution(2).go().ok();
    planned.outputs_are_right(0..80);

    let monitored = planned.monitored();
    monitored.replay();
    let (tasks, jobs) = monitored.statistics();
    assert_eq!((tasks.succeeded, tasks.failed, tasks.incomplete), (160, 0, 0));
    assert_eq!((jobs.succeeded, jobs.failed, jobs.incomplete), (jobs.total, 0, 0));
    monitored.analyzer().ok();
}
