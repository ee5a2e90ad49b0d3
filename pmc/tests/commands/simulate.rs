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
        (0.4..1.01).contains(&ratio),
        "{foretold} s instead of {recorded} s"
    );
}

/// Three chains on three slots, then four tasks of which only one fits at a time.
///
/// The time does not depend on the order in which the scheduler takes the tasks. With a choice, a task
/// that takes a millisecond more can change that order, and with it the time of the whole run.
fn tasks() -> String {
    let mut dag = String::new();
    for n in 0..12 {
        let _ = writeln!(dag, "TASK chain{n} /bin/sleep 0.{}", 1 + n % 3);
    }
    for n in 3..12 {
        let _ = writeln!(dag, "EDGE chain{} chain{n}", n - 3);
    }
    for n in 0..4 {
        let _ = writeln!(dag, "TASK wide{n} -c 2 /bin/sleep 0.1");
        for last in 9..12 {
            let _ = writeln!(dag, "EDGE chain{last} wide{n}");
        }
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

#[test]
fn the_time_of_a_run_with_a_sub_workflow_is_foretold() {
    let place = Place::new();
    place.write("in/y.dag", &tasks());
    let outer = "TASK a /bin/sleep 0.1\nSUBDAG EXTERNAL s in/y.dag DIR in\nEDGE a s\n";
    check(&place, outer, &["--workers", "3"]);
    let simulated = place.run(["simulate", "--json", "--nodes", "1", "."]).json();
    assert_eq!(simulated["tasks"], 18, "{simulated}");
}

#[test]
fn tasks_that_save_themselves_lose_less() {
    let place = Place::new();
    place.write("w.dag", "TASK a /bin/true\nTASK b /bin/true\nTASK c /bin/true\n");
    let lossy = [
        "--nodes",
        "2",
        "--node-slots",
        "1",
        "--loss-rate",
        "1",
        "--set",
        "*.time=3600",
    ];
    let simulate = |more: &[&str]| {
        let options = ["simulate", "--json"].iter().chain(&lossy).chain(more);
        place.run(options.copied().chain(["."])).json()
    };
    let row = |value: &serde_json::Value, key: &str| value["simulated"][0][key].as_f64().unwrap();
    let (mut plain, mut saving) = (0.0, 0.0);
    for seed in ["1", "2", "3", "4", "5", "6", "7", "8"] {
        let without = simulate(&["--seed", seed]);
        assert!(without["saving"].is_null() && row(&without, "saving_seconds") == 0.0);
        plain += row(&without, "lost_seconds");
        let with = simulate(&["--seed", seed, "--checkpoint-cost", "2"]);
        // The root of 2 x 2 s x 3,600 s.
        assert_eq!(with["saving"]["every_seconds"], 120.0, "{with}");
        assert!(row(&with, "saving_seconds") >= 3.0 * 29.0 * 2.0, "{with}");
        saving += row(&with, "lost_seconds");
    }
    assert!(saving < plain / 5.0, "{saving} {plain}");
    let fixed = simulate(&["--checkpoint-cost", "2", "--checkpoint-every", "600"]);
    assert_eq!(fixed["saving"]["every_seconds"], 600.0);
    let refused = place.run([
        "simulate",
        "--checkpoint-every",
        "soon",
        "--checkpoint-cost",
        "2",
        ".",
    ]);
    let said = refused.code(2).stderr();
    assert!(said.contains("a number above 0, or auto"), "{said}");
}
