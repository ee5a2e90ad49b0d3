//! `pmc serve` in a batch job, and the login node of the cluster.

use std::fs;

use crate::support::command::{Program, wait_until};
use crate::support::programs::Build;
use crate::support::slurm::Cluster;

/// The run goes on on another host than `pmc add`, which reaches it through its batch job.
#[test]
#[ignore = "needs Slurm: tests/run e2e"]
fn a_run_in_a_batch_job_takes_tasks_of_the_login_node() {
    let cluster = Cluster::start();
    let directory = tempfile::tempdir().expect("a temporary directory");
    let top = directory.path();
    let program = Build::Local.program("pmc");
    let pmc = |words: &[&str]| {
        let pmc = cluster.job_command(&program).in_directory(top).args(words);
        pmc.env("SLURM_NTASKS", "7").run()
    };
    let script = format!("{} serve work --agents 3 -w 2", program.display());
    let job = cluster.sbatch_script(Program::new("sbatch").in_directory(top), &script);
    wait_until("the run takes no tasks", 120, || {
        pmc(&["add", "work", "--label", "first", "--", "hostname"]).code() == 0
    });
    let tasks = (0..6).map(|number| {
        let command = format!("touch ran.{number}; while [ ! -e go ]; do sleep 0.1; done");
        format!("{{\"command\": \"{command}\", \"cpus\": 1, \"label\": \"t{number}\"}}\n")
    });
    fs::write(top.join("tasks"), tasks.collect::<String>()).expect("a file");
    let line = format!("{} add work < tasks", program.display());
    let shell = cluster.job_command("sh").in_directory(top);
    let added = shell.args(["-c", &line]).run().ok();
    assert_eq!(added.stdout.lines().count(), 6, "{}", added.details());
    let waits = [
        "add",
        "work",
        "--label",
        "waits",
        "--after",
        "t0",
        "--",
        "touch never",
    ];
    pmc(&waits).ok();

    // One that waits is cancelled from here, and those that run end when they may.
    let cancelled = pmc(&["cancel", "work", "waits"]).ok();
    assert!(
        cancelled.stdout.starts_with("1 will not run"),
        "{}",
        cancelled.details()
    );
    fs::write(top.join("go"), "").expect("a file");
    let told = pmc(&["wait", "work"]);
    assert_eq!(told.code(), 0, "{}", told.details());
    let told = pmc(&["wait", "work", "first", "t0", "t1", "t2", "t3", "t4", "t5"]).ok();
    assert_eq!(told.stdout.matches("\"done\"").count(), 7, "{}", told.details());
    let host = pmc(&["log", "first", "work"]).ok().stdout;
    assert!(
        cluster.node_names().contains(&host.trim().to_owned()),
        "it has run on {host}"
    );
    let stopped = pmc(&["serve", "work", "--stop"]).ok();
    assert!(
        stopped.stdout.contains("takes no more tasks"),
        "{}",
        stopped.details()
    );
    // A task that was cancelled is not done.
    job.assert_ends_as("FAILED");
    assert!(!top.join("never").exists());
    assert!((0..6).all(|number| top.join(format!("ran.{number}")).exists()));
}

/// The front end is not the program that its agents are.
#[test]
#[ignore = "starts agents: tests/run e2e"]
fn a_run_with_agents_on_this_host_takes_tasks() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let program = Build::Local.program("pmc");
    let pmc = |words: &[&str]| Program::new(&program).in_directory(directory.path()).args(words);
    let run = pmc(&["serve", "work", "--agents", "1", "--launch", "local", "-w", "2"]).start();
    wait_until("the run takes no tasks", 60, || {
        pmc(&["add", "work", "--label", "first", "--", "touch", "ran"])
            .run()
            .code()
            == 0
    });
    pmc(&["wait", "work"]).run().ok();
    assert!(directory.path().join("ran").exists());
    pmc(&["serve", "work", "--stop"]).run().ok();
    run.wait().ok();
}
