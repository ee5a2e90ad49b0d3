//! Simulated times of recorded runs.

use std::fmt::Write as _;
use std::process::Command;

use crate::support::{Place, bin};

/// The simulation knows the run times, edges, requests and slots, and nothing of the time between tasks. On a
/// busy machine, that takes a while.
#[track_caller]
fn check(place: &Place, dag: &str, options: &[&str]) {
    place.write("x.dag", dag);
    let mut command = Command::new(bin().join("pegasus-mpi-cluster"));
    let words = ["--host-cpus", "3", "--jobstate-log", "x.dag"];
    command.args(options).args(words).current_dir(place.path());
    command.env_clear().env("PATH", "/usr/bin:/bin");
    let ended = command.output().expect("the executor starts");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{said}");
    let simulated = place.run(["simulate", "--json", "--nodes", "1", "."]).json();
    let seconds = |value: &serde_json::Value| value["seconds"].as_f64().expect("a number");
    let recorded = seconds(&simulated["recorded"]);
    let foretold = seconds(&simulated["simulated"][0]);
    assert_eq!(simulated["simulated"][0]["slots"], 3, "{simulated}");
    let ratio = foretold / recorded;
    assert!(
        (0.6..1.05).contains(&ratio),
        "{foretold} s instead of {recorded} s"
    );
}

/// Runs tasks on three slots: each has an earlier one for its parent, some request two CPUs.
fn tasks() -> String {
    let mut dag = String::new();
    for n in 0..18 {
        let request = if n % 4 == 1 { "-c 2 " } else { "" };
        let _ = writeln!(dag, "TASK t{n} {request}/bin/sleep 0.{}", 1 + n % 3);
    }
    for n in 6..18 {
        let _ = writeln!(dag, "EDGE t{} t{n}", n * 5 % 6 + (n / 6 - 1) * 6);
    }
    dag
}

#[test]
fn the_time_of_a_local_run_is_foretold() {
    check(&Place::new(), &tasks(), &["--workers", "3"]);
}

#[test]
fn the_time_of_a_run_in_an_agent_is_foretold() {
    let options = ["--agents", "1", "--launch", "local", "--slots", "3"];
    check(&Place::new(), &tasks(), &options);
}
