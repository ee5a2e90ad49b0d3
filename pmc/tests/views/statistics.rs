//! `pmc statistics` and `pmc report` after real runs and on a large generated one.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

use testutils::generated_run::{Shape, count_succeeded, generate, write_database};

use crate::support::{Finished, Place, bin};

#[test]
fn figures_of_a_run() {
    let place = Place::new();
    place.chain("cp in.txt mid.txt", "exit 3");
    place.run(["run", "-q", "workflow.yml"]).code(1);
    place.script("bin/second", "cp mid.txt out.txt");
    place.run(["resume", "-q", "pmc-runs/chain"]).code(0);
    // The directory may belong to another user: nothing is created in it.
    let submit = place.path().join("pmc-runs/chain/run0001/submit");
    let modified = || std::fs::metadata(&submit).and_then(|data| data.modified()).ok();
    let before = modified();
    let output = place.run(["statistics", "--json", "-s", "all", "pmc-runs/chain"]);
    output.code(0);
    assert_eq!(modified(), before);
    let json = output.json();
    let summary = &json["summary"];
    assert_eq!(summary["tasks"]["succeeded"], 3, "{json}");
    assert_eq!(
        (&summary["jobs"]["total"], &summary["jobs"]["retries"]),
        (&8.into(), &1.into())
    );
    assert_eq!(summary["restarts"], 1);
    let failed: Vec<&Value> = json["breakdown"].as_array().map_or(Vec::new(), |rows| {
        rows.iter().filter(|row| row["successful"] == false).collect()
    });
    assert_eq!(
        (failed.len(), &failed[0]["transformation"]),
        (1, &"second".into())
    );
    let jobs = json["jobs"].as_array().expect("all attempts");
    let second: Vec<_> = jobs.iter().filter(|job| job["job"] == "second_B").collect();
    assert_eq!(
        (&second[0]["exit"], &second[1]["exit"], &second[1]["try"]),
        (&3.into(), &0.into(), &2.into())
    );
    assert_eq!(json["hosts"][0]["tasks"], 9);
    let used = json["hosts"][0]["slot_use"].as_f64().expect("a number");
    assert!((0.0..=1.0).contains(&used), "{json}");

    let output = place.run([
        "statistics",
        "--csv",
        "-s",
        "summary,jobs",
        "-o",
        "figures",
        "pmc-runs/chain",
    ]);
    output.code(0);
    assert!(place.read("figures/summary.csv").contains("\nJobs,8,0,0,8,1,9\n"));
    assert_eq!(place.read("figures/jobs.csv").lines().count(), 10);
    // Nothing is left in the directory of the run.
    assert!(!submit.join("chain-0.stampede.db").exists() && !submit.join("monitord.done").exists());
}

#[test]
fn a_run_without_a_log() {
    let place = Place::new();
    place.write("hand/w.dag", "TASK a /bin/true\n");
    let output = place.run(["statistics", "hand"]);
    output.code(4);
    assert!(
        output.stderr().contains("w.dag.dagman.out"),
        "{}",
        output.stderr()
    );
    // A report is possible.
    place.run(["report", "-q", "-o", "r.html", "hand"]).code(0);
    assert!(place.read("r.html").contains("\"text\":\"not started\""));
}

/// A run by hand, whose only log is the other one. Its first master was killed, and the next one went on
/// with one of its two attempts.
#[test]
fn a_run_with_the_log_of_states_only() {
    let place = Place::new();
    place.write("hand/w.dag", "TASK a /bin/true\nTASK b /bin/true\nEDGE a b\n");
    let output = Command::new(bin().join("pegasus-mpi-cluster"))
        .args(["--jobstate-log", "hand/w.dag"])
        .current_dir(place.path())
        .output()
        .expect("it starts");
    assert!(output.status.success());
    let output = place.run(["statistics", "--json", "-s", "all", "hand"]);
    output.code(0);
    let json = output.json();
    assert_eq!(json["summary"]["jobs"]["succeeded"], 2, "{json}");
    assert_eq!(json["jobs"].as_array().map(Vec::len), Some(2), "{json}");
    assert_eq!(json["accounting"]["jobs"][0]["end"], "success", "{json}");

    let lines = [
        "INTERNAL *** PMC_STARTED ***",
        "a SUBMIT 1.0 - - 1",
        "a EXECUTE 1.0 - - 1",
        "b SUBMIT 2.0 - - 2",
        "b EXECUTE 2.0 - - 2",
        "a JOB_EVICTED 1.0 - - 1",
        "b JOB_EVICTED 2.0 - - 2",
        "INTERNAL *** PMC_FINISHED 1 ***",
        "INTERNAL *** PMC_STARTED ***",
        "INTERNAL *** PMC_REASON a 1.0 taken_over ***",
        "a SUBMIT 1.0 - - 1",
        "a EXECUTE 1.0 - - 1",
        "a JOB_SUCCESS 0 - - 1",
        "INTERNAL *** PMC_FINISHED 0 ***",
    ];
    let lines = (1..).zip(lines);
    let log: String = lines
        .map(|(second, line)| format!("{}.0 {line}\n", 1_700_000_000 + second))
        .collect();
    place.write("hand/jobstate.log", &log);
    let output = place.run(["statistics", "--json", "hand"]);
    output.code(0);
    assert_eq!(
        output.json()["summary"]["lost_attempts"],
        1,
        "{}",
        output.stdout()
    );
}

/// Several threads read the tables. Each reports damage.
#[test]
fn a_damaged_database_is_reported() {
    const PAGE: usize = 4096;
    let place = Place::new();
    let shape = Shape {
        tasks: 2_000,
        hosts: 4,
        slots: 8,
        failing: 30,
        records: false,
    };
    let run = place.path().join("run");
    let generated = generate(&run, shape).expect("the directory is writable");
    let path = run.join("study-0.stampede.db");
    write_database(&path, &generated).expect("the database can be written");
    let whole = std::fs::read(&path).expect("it is there");
    let pages = whole.len() / PAGE;
    place.run(["statistics", "-s", "all", "run"]).code(0);
    let mut reported = 0;
    // Pages in all tables, and a third of all of them.
    for (first, count) in (1..16)
        .map(|share| (pages * share / 16, 1))
        .chain([(pages / 3, pages / 3)])
    {
        let mut damaged = whole.clone();
        damaged[first * PAGE..(first + count) * PAGE].fill(0xff);
        std::fs::write(&path, damaged).expect("it can be written");
        let output = place.run(["statistics", "-s", "all", "run"]);
        let text = output.stderr();
        assert!(!text.contains("panicked"), "{text}");
        // Some pages hold indexes that are not read. Without others the file is no database, and the log is
        // read.
        if !text.contains("malformed") {
            continue;
        }
        output.code(4);
        reported += 1;
        assert!(
            text.starts_with("pmc: ")
                && text.contains("study-0.stampede.db: database disk image is malformed")
                && text.contains("\n  hint: remove that file to use the log of the run instead"),
            "{text}"
        );
    }
    assert!(reported > 3, "{reported}");
}

#[test]
fn the_report_of_a_large_run_is_small() {
    let place = Place::new();
    let shape = Shape {
        tasks: 20_000,
        hosts: 20,
        slots: 16,
        failing: 30,
        records: false,
    };
    let generated = generate(&place.path().join("run"), shape).expect("the directory is writable");
    place
        .run(["report", "-o", "r.html", "--trace", "t.json", "run"])
        .code(0);
    let page = place.read("r.html");
    assert!(page.len() < 1_000_000, "{}", page.len());
    let start = page.find("id=\"data\">").expect("the data") + "id=\"data\">".len();
    let end = page[start..].find("</script>").expect("its end") + start;
    let data: Value = serde_json::from_str(&page[start..end]).expect("JSON");
    assert_eq!(data["rows"].as_array().map(Vec::len), Some(20));
    assert_eq!(data["tries"]["all"], generated.attempts.len());
    let classes = data["classes"].as_array().expect("classes");
    let tries: u64 = classes.iter().filter_map(|class| class["count"].as_u64()).sum();
    assert_eq!(tries, generated.attempts.len() as u64);
    let simulated = classes
        .iter()
        .find(|class| class["name"] == "simulate")
        .expect("simulate");
    let succeeded = count_succeeded(&generated)["simulate"] as u64;
    assert!(simulated["count"].as_u64() >= Some(succeeded));
    // The area below the curves is the time of all attempts.
    let seconds = generated
        .attempts
        .iter()
        .map(|one| (one.end - one.start) as f64 / 1e6)
        .sum::<f64>();
    let drawn = data["parallel"].as_f64().unwrap_or(0.0) * data["seconds"].as_f64().unwrap_or(0.0);
    assert!((drawn / seconds - 1.0).abs() < 0.01, "{drawn} {seconds}");
    let trace: Value = serde_json::from_str(&place.read("t.json")).expect("JSON");
    let events = trace["traceEvents"].as_array().expect("events");
    assert_eq!(
        events.iter().filter(|event| event["ph"] == "X").count(),
        generated.attempts.len()
    );
    // `pmc status` agrees.
    let status = place.run(["status", "--json", "run"]).json();
    assert_eq!(status["tries"]["ended"], generated.attempts.len());
    assert_eq!(status["tasks"]["total"], generated.tasks.len());
}

/// Collects the names of fields, without keys that are data.
fn fields(value: &Value, found: &mut BTreeSet<String>) {
    const BY_NAME: [&str; 2] = ["by_kind", "hosts"];
    match value {
        Value::Object(object) => {
            for (key, inner) in object {
                found.insert(key.clone());
                match inner {
                    Value::Object(table) if BY_NAME.contains(&key.as_str()) => {
                        table.values().for_each(|inner| fields(inner, found));
                    }
                    _ => fields(inner, found),
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| fields(value, found)),
        _ => {}
    }
}

#[test]
fn every_field_is_in_the_manual() {
    const MANUAL: &str = include_str!("../../../docs/manual/pmc-json.md");
    let place = Place::new();
    place.chain("cp in.txt mid.txt", "exit 3");
    place.run(["run", "-q", "workflow.yml"]).code(1);
    for command in [
        &["status", "--json", "pmc-runs/chain"][..],
        &["analyzer", "--json", "pmc-runs/chain"],
        &["statistics", "--json", "-s", "all", "pmc-runs/chain"],
    ] {
        let json = place.run(command).json();
        let title = format!(
            "## {} {}\n",
            json["format"].as_str().expect("a format"),
            json["version"].as_str().expect("a version")
        );
        assert!(MANUAL.contains(&title), "no {title}");
        let mut found = BTreeSet::new();
        fields(&json, &mut found);
        assert!(found.len() > 20, "{found:?}");
        for field in found {
            assert!(
                MANUAL.contains(&format!("`{field}`")),
                "{field} is not in the manual"
            );
        }
    }
}

#[test]
fn attempts_that_were_cut_off_are_no_retries() {
    let place = Place::new();
    place.write(
        "hand/w.dag",
        "TASK begins -p 1 /bin/sh -c '[ -f again ] || { touch again; exec sleep 1000; }'\nTASK waits /bin/true\n",
    );
    let executor = |options: &[&str]| {
        let mut command = Command::new(bin().join("pegasus-mpi-cluster"));
        command.current_dir(place.path().join("hand")).args(options);
        command.args(["-q", "-q", "--workers", "1", "--monitord-hack", "w.dag"]);
        testutils::launcher::forget_launcher(&mut command);
        Finished::from(command.output().expect("the executor runs"))
    };
    executor(&["--max-wall-time", "0.02"]).code(1);
    executor(&[]).code(0);
    let output = place.run(["statistics", "--json", "hand"]);
    output.code(0);
    let jobs = &output.json()["summary"]["jobs"];
    assert_eq!(
        (&jobs["succeeded"], &jobs["retries"]),
        (&2.into(), &0.into()),
        "{jobs}"
    );
}

#[test]
fn the_property_of_the_plan_bounds_lost_time() {
    let place = Place::new();
    place.write("commands.txt", "true\n");
    place
        .run(["run", "-q", "-Dpegasus.accounting.max.lost=12.5", "commands.txt"])
        .code(0);
    let run = place.run(["statistics", "-s", "accounting", "--json", "pmc-runs/commands"]);
    assert_eq!(run.code(0).json()["accounting"]["max_lost_seconds"], 12.5);
    place
        .run(["run", "-q", "-Dpegasus.accounting.max.lost=much", "commands.txt"])
        .code(0);
    let run = place.run(["statistics", "-s", "accounting", "pmc-runs/commands"]);
    let said = run.code(2).stderr();
    assert!(said.contains("must be a number of seconds, not much"), "{said}");
}
