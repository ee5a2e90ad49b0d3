//! Batch jobs that end before their workflow: the next one goes on, an agent takes the place of a lost
//! master, and nothing follows a job that was cancelled.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use monitord_compat::batch_jobs::{self, Event};

use crate::support::programs::Build;
use crate::support::slurm::Cluster;

const SITES: &str = r#"pegasus: "5.0"
sites:
- name: local
  directories:
  - {type: sharedScratch, path: @DIR@/scratch, fileServers: [{url: "file://@DIR@/scratch", operation: all}]}
"#;

/// A program of steps of a second. At USR1 it ends with 85, and goes on with the next step in its next
/// attempt.
const STEPS: &str = "#!/bin/sh
echo \"$1\" >>@DIR@/begun
trap 'exit 85' USR1
i=$(tail -n 1 @DIR@/steps.$1 2>/dev/null || echo 0)
i=${i:-0}
while [ \"$i\" -lt \"$2\" ]; do sleep 1; i=$((i + 1)); echo $i >>@DIR@/steps.$1; done
";

/// A workflow that was submitted to Slurm.
struct Submitted {
    directory: tempfile::TempDir,
    dag: PathBuf,
    job: String,
}

impl Submitted {
    /// Submits this number of jobs with this number of steps.
    fn new(cluster: &Cluster, tasks: usize, steps: usize, options: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let top = directory.path();
        let put = |name: &str, text: &str| {
            let text = text.replace("@DIR@", &top.display().to_string());
            fs::write(top.join(name), text).expect("an input");
        };
        let mut workflow = String::from("pegasus: \"5.0\"\nname: steps\njobs:\n");
        for task in 0..tasks {
            workflow.push_str(&format!(
                "- {{type: job, id: S{task}, name: steps, arguments: [@DIR@/steps.sh, {task}, {steps}], uses: [], \
                 profiles: {{pegasus: {{pmc_checkpoint_signal: USR1@3, pmc_checkpoint_exit: '85'}}}}}}\n"
            ));
        }
        put("workflow.yml", &workflow);
        put("sites.yml", SITES);
        put("steps.sh", STEPS);
        put(
            "transformations.yml",
            "pegasus: \"5.0\"\ntransformations:\n- {name: steps, sites: [{name: local, type: installed, pfn: /bin/sh}]}\n",
        );
        let result = cluster
            .job_command(Build::Local.program("pmc-plan"))
            .in_directory(top)
            .args([
                "--sites",
                "local",
                "--dir",
                "submit",
                "--relative-submit-dir",
                "run",
            ])
            .args([
                "--cleanup",
                "none",
                "-Dpegasus.memory=1",
                "--ntasks-per-node",
                "2",
            ])
            .args(options)
            .args(["--submit", "--json", "workflow.yml"])
            .run()
            .ok();
        let object: serde_json::Value = serde_json::from_str(&result.stdout).expect("JSON");
        let text = |key: &str| object[key].as_str().expect("a text").to_owned();
        let dag = fs::read_dir(text("submit_dir"))
            .expect("a directory")
            .filter_map(|entry| Some(entry.ok()?.path()))
            .find(|path| path.extension().is_some_and(|ending| ending == "dag"));
        Self {
            dag: dag.expect("a DAG"),
            job: text("job_id"),
            directory,
        }
    }

    fn lines(&self, name: &str) -> Vec<usize> {
        let text = fs::read_to_string(self.directory.path().join(name)).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }

    fn events(&self) -> Vec<(String, Event)> {
        let entries = batch_jobs::read(&self.dag).into_iter();
        entries.map(|entry| (entry.job, entry.event)).collect()
    }

    /// The jobs that have ended, and how.
    fn ends(&self) -> Vec<String> {
        let ends = self.events().into_iter().filter_map(|(_, event)| match event {
            Event::End { end, action, .. } => Some(format!("{end} {action}")),
            _ => None,
        });
        ends.collect()
    }

    /// What a test that fails shows.
    fn details(&self) -> String {
        let base = self.dag.with_extension("");
        let read = |path: &Path| fs::read_to_string(path).unwrap_or_default();
        let mut text = format!("{:#?}\n", self.events());
        for ending in ["out", "err"] {
            text += &read(&base.with_extension(ending));
        }
        text
    }

    fn assert_no_step_was_lost_or_doubled(&self, tasks: usize, steps: usize) {
        for task in 0..tasks {
            let done = self.lines(&format!("steps.{task}"));
            assert_eq!(done, (1..=steps).collect::<Vec<_>>(), "{}", self.details());
        }
    }
}

fn wait_until(what: &str, seconds: u64, details: impl Fn() -> String, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(
            begun.elapsed() < Duration::from_secs(seconds),
            "{what}: {}",
            details()
        );
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Tasks that are longer than a job save themselves and go on in the next one. `PMC_RECOVERY_TASKS=100` and
/// `PMC_RECOVERY_STEPS=60` are the full test.
#[test]
#[ignore = "needs Slurm: tests/run e2e"]
fn jobs_of_a_minute_run_a_longer_workflow() {
    let number = |name: &str, default| {
        let text = std::env::var(name).ok();
        text.map_or(default, |text| text.parse().expect("a number"))
    };
    let (tasks, steps) = (number("PMC_RECOVERY_TASKS", 2), number("PMC_RECOVERY_STEPS", 45));
    let cluster = Cluster::start();
    let options = [
        "--nodes",
        "1",
        "--launcher",
        "none",
        "--walltime",
        "1",
        "-Dpegasus.batch.resubmit=100",
    ];
    let plan = Submitted::new(&cluster, tasks, steps, &options);
    let seconds = 180 + 60 * (tasks * steps / 60) as u64;
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
