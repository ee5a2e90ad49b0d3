//! Why attempts failed, as all views show it.

use std::process::Command;

use serde_json::Value;

use crate::attach::wait_until;
use crate::log::spawn_executor;
use crate::support::{Finished, Place, bin};

/// A program that does not end on SIGTERM.
const DEAF: &str = "trap '' TERM\necho begun\nwhile :; do sleep 0.1; done";

const TIME_LIMIT: &str = "time limit: it ran longer than 1 s";
const OUTPUT_FILE: &str = "the file for its output could not be opened: No such file or directory";

/// Runs a task that is over its time and one whose output file is in a directory that is missing.
fn run(place: &Place, dir: &str, logs: &[&str]) {
    place.script(&format!("{dir}/deaf"), DEAF);
    place.write(
        &format!("{dir}/w.dag"),
        "TASK a -T 1 ./deaf\nTASK missing/b /bin/true\n",
    );
    let output = Command::new(bin().join("pegasus-mpi-cluster"))
        .args(["--workers", "2", "--per-task-stdio"])
        .args(logs)
        .arg("w.dag")
        .current_dir(place.path().join(dir))
        .output()
        .expect("the executor starts");
    Finished::from(output).code(1);
}

#[test]
fn the_reason_of_a_failure_is_the_same_in_all_views() {
    let place = Place::new();
    for (dir, logs) in [
        ("both", &["--monitord-hack", "--jobstate-log"][..]),
        ("jobstate", &["--jobstate-log"]),
    ] {
        run(&place, dir, logs);
        let analyzer = place.run(["analyzer", dir]).stdout();
        for reason in [TIME_LIMIT, OUTPUT_FILE] {
            assert!(
                analyzer.contains(&format!("   reason    {reason}\n")),
                "{analyzer}"
            );
            let status = place.run(["status", dir]).stdout();
            assert!(status.contains(reason), "{status}");
        }
        assert!(!analyzer.contains("likely"), "{analyzer}");
        let log = place.run(["log", "a", dir]);
        assert_eq!(log.code(0).stdout(), "begun\n");
        assert!(log.stderr().contains(TIME_LIMIT), "{}", log.stderr());
        let log = place.run(["log", "missing/b", dir]);
        assert!(log.code(4).stderr().contains(OUTPUT_FILE), "{}", log.stderr());
        place.run(["report", "-o", "report.html", dir]).code(0);
        assert!(place.read("report.html").contains(TIME_LIMIT));

        let json = place.run(["analyzer", "--json", dir]).json();
        let causes = json["causes"].as_array().expect("causes").iter();
        let mut names: Vec<&str> = causes
            .filter_map(|cause| cause["reason"]["name"].as_str())
            .collect();
        names.sort_unstable();
        assert_eq!(names, ["output_file", "time_limit"], "{json}");
        let json = place.run(["status", "--json", dir]).json();
        let failed = json["failed"].as_array().expect("failed tasks").iter();
        let late = failed
            .clone()
            .find(|task| task["task"] == "a")
            .expect("it failed");
        assert_eq!(late["reason"]["seconds"], 1.0, "{json}");
    }
}

/// Both as the run shows it at its end, and as it shows it while it goes on.
#[test]
fn pmc_run_shows_that_a_task_ran_out_of_memory() {
    let place = Place::new();
    place.chain("head -c 120000000 /dev/zero | tail -n 1 | sleep 1000", "true");
    let workflow = place.read("workflow.yml").replace(
        "name: first, ",
        "name: first, profiles: {pegasus: {memory: 100}}, ",
    );
    place.write("workflow.yml", &workflow);
    let output = place.run(["run", "--strict-limits", "--host-memory", "1000", "workflow.yml"]);
    let reason = "out of memory: it used 1";
    for text in [output.code(1).stdout(), output.stderr()] {
        assert!(text.contains(reason), "{text}");
        assert!(text.contains(" MiB and had requested 100 MiB"), "{text}");
    }
}

#[test]
fn pmc_run_shows_the_reason_of_a_failure() {
    let place = Place::new();
    place.chain("exit 1", "true");
    place.run(["run", "-q", "workflow.yml"]).code(1);
    let dag = "pmc-runs/chain/run0001/submit/chain-0.dag";
    place.write(
        dag,
        &place.read(dag).replace("TASK first_A ", "TASK first_A -T 1 "),
    );
    place.script("bin/first", DEAF);
    let output = place.run(["resume", "pmc-runs/chain"]);
    let expected = format!("  reason   {TIME_LIMIT}\n");
    assert!(output.code(1).stdout().contains(&expected), "{}", output.stdout());
    let expected = format!("failed: first_A ({TIME_LIMIT})");
    assert!(output.stderr().contains(&expected), "{}", output.stderr());
}

#[test]
fn attempts_that_failed_are_seen_while_the_task_runs_again() {
    for options in [&["--per-task-stdio"][..], &["--packed-output"]] {
        let place = Place::new();
        place.script(
            "run/flaky",
            "echo x >>count; n=$(wc -l <count)\n\
             if [ \"$n\" -le 3 ]; then echo \"try $n is broken\" >&2; exit 7; fi\n\
             touch again; n=0; while [ ! -e go ] && [ $((n += 1)) -lt 3000 ]; do sleep 0.02; done",
        );
        let mut all = vec!["--workers", "1", "--monitord-hack", "--jobstate-log", "-t", "6"];
        all.extend(options);
        let mut executor = spawn_executor(&place, "TASK a ./flaky\n", &all);
        wait_until(|| place.path().join("run/again").exists());
        wait_until(|| {
            place
                .run(["status", "run"])
                .stdout()
                .contains("retried  3 attempts failed; 1 task")
        });
        let status = place.run(["status", "run"]).stdout();
        assert!(status.contains("exit status 7"), "{status}");
        let line = place.run(["status", "--json", "run"]).json();
        assert_eq!(
            (&line["retried"][0]["task"], &line["retried"][0]["tries"]),
            (&"a".into(), &3.into())
        );
        let analyzer = place.run(["analyzer", "run"]);
        let text = analyzer.code(0).stdout();
        for part in [
            "Failed attempts of tasks that are tried again:",
            "exit status 7",
            "| try 3 is broken",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        place.write("run/go", "");
        assert!(executor.wait().expect("the executor ends").success());
        let json = place.run(["status", "--json", "run"]).json();
        assert_eq!(json["retried"], Value::Array(Vec::new()));
    }
}

#[test]
fn a_task_that_ran_out_of_memory_says_so_in_all_views() {
    let place = Place::new();
    place.script(
        "run/large",
        "echo begun; head -c 120000000 /dev/zero | tail -n 1 | sleep 1000",
    );
    place.write("run/w.dag", "TASK a -m 100 ./large\n");
    let output = Command::new(bin().join("pegasus-mpi-cluster"))
        .args([
            "--workers",
            "1",
            "--per-task-stdio",
            "--monitord-hack",
            "--jobstate-log",
        ])
        .args(["--watch-memory", "--host-memory", "1000", "w.dag"])
        .current_dir(place.path().join("run"))
        .output()
        .expect("the executor starts");
    Finished::from(output).code(1);
    let reason = "out of memory: it used 1";
    for (words, code) in [(&["status", "run"][..], 0), (&["analyzer", "run"], 1)] {
        let view = place.run(words);
        assert!(view.code(code).stdout().contains(reason), "{}", view.stdout());
        assert!(
            view.stdout().contains(" MiB and had requested 100 MiB"),
            "{}",
            view.stdout()
        );
    }
    let log = place.run(["log", "a", "run"]);
    assert!(log.stderr().contains(reason), "{}", log.stderr());
    place.run(["report", "-o", "report.html", "run"]).code(0);
    assert!(place.read("report.html").contains(reason));
}
