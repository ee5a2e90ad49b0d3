//! Batch jobs that end before their workflow: the next one goes on, an agent takes the place of a lost
//! master, and nothing follows a job that was cancelled.

mod scenarios;
mod signals;
mod submitted;

use std::fs;
use std::time::{Duration, Instant, SystemTime};

use monitord_compat::batch_jobs::{self, Event};

use self::submitted::{Submitted, wait_until};
use crate::support::slurm::Cluster;

/// Tasks that are longer than a job save themselves and go on in the next one. `PMC_RECOVERY_TASKS=100` and
/// `PMC_RECOVERY_STEPS=60` are the full test; `PMC_RECOVERY_NODES=3` has six at a time instead of two.
#[test]
#[ignore = "needs Slurm: tests/run e2e"]
fn jobs_of_a_minute_run_a_longer_workflow() {
    let number = |name: &str, default| {
        let text = std::env::var(name).ok();
        text.map_or(default, |text| text.parse().expect("a number"))
    };
    let (tasks, steps) = (number("PMC_RECOVERY_TASKS", 2), number("PMC_RECOVERY_STEPS", 45));
    let nodes = number("PMC_RECOVERY_NODES", 1).to_string();
    let cluster = Cluster::start();
    let mut options = vec!["--nodes", &nodes];
    match nodes.as_str() {
        "1" => options.extend(["--launcher", "none"]),
        _ => options.push("-Dpegasus.batch.transport=agents"),
    }
    options.extend(["--walltime", "1", "-Dpegasus.batch.resubmit=100"]);
    let plan = Submitted::new(&cluster, tasks, steps, &options);
    let seconds = 240 + 60 * (tasks * steps / 60) as u64;
    wait_until(
        "the workflow does not end",
        seconds,
        || plan.details(),
        || {
            plan.ends()
                .last()
                .is_some_and(|end| end.ends_with("stop") || end.ends_with("give-up"))
        },
    );
    assert_eq!(
        plan.ends().last().map(String::as_str),
        Some("success stop"),
        "{}",
        plan.details()
    );
    assert!(
        plan.ends().len() >= 2 && plan.ends()[0].ends_with(" again"),
        "{:?}",
        plan.ends()
    );
    plan.assert_no_step_was_lost_or_doubled(tasks, steps);
    wait_until(
        "a job is left",
        60,
        || plan.details(),
        || cluster.queue().is_empty(),
    );
    let log = fs::read_to_string(format!("{}.dagman.out", plan.dag.display())).expect("a log");
    assert!(
        log.contains("EXITING WITH STATUS 0") && !log.contains(" failed with "),
        "{log}"
    );
    println!(
        "{} jobs, {} attempts of {tasks} tasks",
        plan.ends().len(),
        plan.lines("begun").len()
    );
    plan.monitored().replay();
}

/// Slurm notices a lost node after `SlurmdTimeout`. The agents of the others take part in what comes next.
#[test]
#[ignore = "needs Slurm: tests/run e2e"]
fn an_agent_starts_the_next_master_if_the_first_node_is_lost() {
    let mut cluster = Cluster::configured("SlurmdTimeout=10\n");
    let options = [
        "--nodes",
        "3",
        "--walltime",
        "10",
        "-Dpegasus.batch.transport=agents",
    ];
    let (tasks, steps) = (12, 15);
    let plan = Submitted::new(&cluster, tasks, steps, &options);
    wait_until(
        "no task runs",
        120,
        || plan.details(),
        || plan.lines("begun").len() >= 6,
    );
    let node = cluster.job(&plan.job).value("BatchHost");
    let before = plan.lines("begun").len();
    cluster.kill_node(&node);
    let (killed, at) = (Instant::now(), SystemTime::now());
    wait_until(
        "no task starts",
        3 * (10 + 60),
        || plan.details(),
        || plan.lines("begun").len() > before,
    );
    println!(
        "the next task starts {:.0?} after the loss of the first node",
        killed.elapsed()
    );
    let job = cluster.job(&plan.job);
    assert_eq!(job.value("JobState"), "RUNNING", "{}", plan.details());
    wait_until(
        "the workflow does not end",
        180,
        || plan.details(),
        || plan.ends().last().is_some_and(|end| end == "success stop"),
    );
    let successor = batch_jobs::read(&plan.dag)
        .into_iter()
        .find(|entry| matches!(entry.event, Event::Begin { successor: true, .. }));
    let lost = at
        .duration_since(SystemTime::UNIX_EPOCH)
        .expect("a time of today");
    let begins_after = successor.map(|entry| entry.at - lost.as_secs_f64());
    println!("the next master begins {begins_after:.0?} s after the loss of the first node");
    let begins = plan.events().into_iter().filter_map(|(job, event)| match event {
        Event::Begin { successor, .. } => Some((job, successor)),
        _ => None,
    });
    let own = format!("slurm {}", plan.job);
    assert_eq!(begins.collect::<Vec<_>>(), [(own.clone(), false), (own, true)]);
    // Two tasks were on the lost node; no other one has begun again.
    assert_eq!(plan.lines("begun").len(), tasks + 2, "{}", plan.details());
    wait_until(
        "the job does not end",
        60,
        || plan.details(),
        || cluster.queue().is_empty(),
    );
}

#[test]
#[ignore = "needs Slurm: tests/run e2e"]
fn nothing_follows_a_job_that_was_cancelled() {
    let cluster = Cluster::start();
    let options = [
        "--nodes",
        "2",
        "--walltime",
        "5",
        "-Dpegasus.batch.transport=agents",
        "-Dpegasus.batch.resubmit=3",
    ];
    let plan = Submitted::new(&cluster, 4, 100, &options);
    wait_until(
        "no task runs",
        120,
        || plan.details(),
        || !plan.lines("steps.0").is_empty(),
    );
    assert_eq!(cluster.queue().len(), 2, "the next job waits");
    cluster.job(&plan.job).cancel();
    wait_until(
        "a job is left",
        60,
        || plan.details(),
        || cluster.queue().is_empty(),
    );
    let begun = plan.lines("begun").len();
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(
        (plan.lines("begun").len(), cluster.queue().len()),
        (begun, 0),
        "{}",
        plan.details()
    );
    assert_eq!(plan.ends(), ["cancelled stop"], "{}", plan.details());
}
