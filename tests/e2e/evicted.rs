//! What the batch system ends is evicted, and has not failed: in the log, and for Pegasus' monitoring. It
//! runs again in the next job.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::stampede::assert_monitors_agree_on;
use crate::support::command::Program;
use crate::support::programs::{Build, project};
use crate::support::slurm::{Cluster, Job, batch_options};
use crate::support::workflow::{Format, Planned, Request};

/// Jobs of partition `urgent` take the nodes of others, which are queued again.
const PREEMPTION: &str = "PreemptType=preempt/partition_prio\nPreemptMode=REQUEUE\n\
    PartitionName=urgent Nodes=n1,n2,n3 PriorityTier=10 MaxTime=INFINITE\n";

/// A step that goes on at once if there is a file `go`, and else when there is a file `on`.
const STEP: &str = "#!/bin/sh\nhere=$(dirname \"$0\")\necho x >>\"$here/begun\"\n\
    [ -e \"$here/go\" ] || until [ -e \"$here/on\" ]; do sleep 0.2; done\nexec STEP \"$@\"\n";

/// A run on the three nodes whose steps go on only when they may.
struct Run {
    planned: Planned,
}

impl Run {
    fn new(build: Build) -> Self {
        let mut request = Request::new(build, Format::Yaml);
        request.options = batch_options();
        let planned = request.plan();
        let step = project().join("examples/chains/bin/step").display().to_string();
        let place = planned.top().join("step");
        fs::write(&place, STEP.replace("STEP", &step)).expect("a script");
        fs::set_permissions(&place, fs::Permissions::from_mode(0o755)).expect("a script that can be run");
        let dag = planned.dag();
        let plan = fs::read_to_string(&dag).expect("the plan");
        fs::write(&dag, plan.replace(&step, &place.display().to_string())).expect("the plan");
        Self { planned }
    }

    fn log(&self) -> PathBuf {
        format!("{}.dagman.out", self.planned.dag().display()).into()
    }

    /// Submits the run, and waits until steps run. What starts from now on goes on.
    fn submit<'c>(&self, cluster: &'c Cluster) -> Job<'c> {
        let job = cluster.sbatch(&self.planned);
        let begun = Instant::now();
        while !self.planned.top().join("begun").exists() {
            assert!(begun.elapsed() < Duration::from_secs(120), "no step begins");
            std::thread::sleep(Duration::from_millis(50));
        }
        // Others begin at the same time.
        std::thread::sleep(Duration::from_secs(1));
        fs::write(self.planned.top().join("go"), "").expect("a file");
        job
    }

    /// Checks that steps were evicted and none has failed, and that both monitors say so.
    fn check(&self, what: &str) {
        let log = fs::read_to_string(self.log()).expect("a log");
        let evicted = log.matches("ULOG_JOB_EVICTED for Condor Node step_").count();
        assert!(
            evicted > 0 && log.contains("EXITING WITH STATUS 0"),
            "{what}: {log}"
        );
        assert!(!log.contains(" failed with status "), "{what}: {log}");
        assert_monitors_agree_on(&self.planned);
        let rows = |state: &str| {
            let query = format!("select count(*) from jobstate where state = '{state}'");
            self.planned.monitored().query(&query)
        };
        assert_eq!(rows("JOB_EVICTED"), [[evicted.to_string()]], "{what}");
        assert_eq!(rows("JOB_FAILURE"), [["0"]], "{what}");
        println!("{what}: {evicted} steps were evicted");
    }
}

/// Calls a program of Slurm.
fn slurm(cluster: &Cluster, line: &str) {
    let mut words = line.split(' ');
    let program: Program = cluster.job_command(words.next().unwrap_or_default());
    program.args(words).run().ok();
}

fn cancel(build: Build) {
    let cluster = Cluster::start();
    let run = Run::new(build);
    run.submit(&cluster).cancel();
    if build == Build::Local {
        // No step starts in another agent that is ended a moment later.
        let log = fs::read_to_string(run.log()).expect("a log");
        let after = log.split_once("ULOG_JOB_EVICTED").map_or("", |(_, after)| after);
        assert!(!after.is_empty() && !after.contains("ULOG_EXECUTE"), "{log}");
    }
    cluster.sbatch(&run.planned).assert_ends_as("COMPLETED");
    run.check(&format!("scancel, {build:?}"));
}

#[test]
#[ignore = "needs Slurm: tests/run e2e"]
fn steps_of_a_cancelled_job_are_evicted() {
    cancel(Build::Local);
}

#[test]
#[ignore = "needs Slurm and Open MPI: tests/run e2e"]
fn steps_of_a_cancelled_job_of_ranks_are_evicted() {
    cancel(Build::OpenMpi);
}

#[test]
#[ignore = "needs Slurm: tests/run e2e"]
fn steps_of_a_job_that_is_queued_again_are_evicted() {
    let cluster = Cluster::configured(PREEMPTION);
    let run = Run::new(Build::Local);
    let job = run.submit(&cluster);
    slurm(&cluster, &format!("scontrol requeue {}", job.number()));
    job.assert_ends_as("COMPLETED");
    run.check("requeue");

    let run = Run::new(Build::Local);
    let job = run.submit(&cluster);
    slurm(
        &cluster,
        "sbatch --partition=urgent --nodes=3 --exclusive --output=/dev/null --wrap true",
    );
    job.assert_ends_as("COMPLETED");
    run.check("preemption");
}

#[test]
#[ignore = "needs Slurm: tests/run e2e"]
fn steps_of_a_node_that_is_off_are_evicted() {
    let mut cluster = Cluster::configured("SlurmdTimeout=10\n");
    let run = Run::new(Build::Local);
    let first = run.submit(&cluster).value("BatchHost");
    let other = ["n1", "n2", "n3"].into_iter().find(|node| **node != first);
    cluster.kill_node(other.expect("a node"));
    // Steps on the other nodes go on.
    fs::write(run.planned.top().join("on"), "").expect("a file");
    let has_ended = || fs::read_to_string(run.log()).is_ok_and(|log| log.contains("EXITING WITH"));
    wait_until("the run does not end", &has_ended, &cluster);
    run.check("a node is off");
    wait_until("the job does not end", &|| cluster.queue().is_empty(), &cluster);
}

fn wait_until(what: &str, is_so: &dyn Fn() -> bool, cluster: &Cluster) {
    let begun = Instant::now();
    while !is_so() {
        assert!(
            begun.elapsed() < Duration::from_secs(120),
            "{what}: {}",
            cluster.logs()
        );
        std::thread::sleep(Duration::from_millis(200));
    }
}
