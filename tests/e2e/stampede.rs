//! The database of a run: Pegasus' monitoring and ours agree on runs of our executor.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use regex::Regex;
use serde_json::Value;
use testutils::golden::Case;
use testutils::golden::stampede::{self, Executed, Loaded};

use crate::support::pegasus::Monitored;
use crate::support::programs::{Flavour, venv_bin};

/// Values that differ on purpose: the name of a machine, its memory, and the exit status.
const ON_PURPOSE: [&str; 5] = [
    "host/*/hostname",
    "host/*/total_memory",
    "job_instance/*/host/hostname",
    "job_instance/*/host/total_memory",
    "job_instance/*/exitcode",
];

/// Demands that two databases are equal but for the differences on purpose.
#[track_caller]
fn same_database(expected: &Value, got: &Value) {
    let problems = stampede::compare(expected, got, &ON_PURPOSE.map(str::to_owned));
    assert_eq!(problems, []);
}

/// Executes a golden case again and has Pegasus' monitoring load the result, which must be the recorded one.
fn execute(case: &str, flavour: Flavour, options: &[&str]) -> (Executed, Loaded) {
    let case = Case::read("stampede", case);
    let executor = flavour.program("pegasus-mpi-cluster").display().to_string();
    let start = |ranks| {
        let mut words = flavour.launcher(ranks);
        words.push(executor.clone());
        words.extend(options.iter().map(|word| (*word).to_owned()));
        words
    };
    let executed = stampede::execute(&case, &flavour.bin(), &start);
    let loaded = executed.load(&venv_bin().join("pegasus-monitord"));
    same_database(&stampede::expected(&case), &loaded.dump);
    (executed, loaded)
}

/// Returns what statistics and analyzer print about a database, without what differs between copies of a directory.
fn reports(loaded: &Loaded, executed: &Executed) -> String {
    let submit = loaded.submit();
    let monitored = Monitored {
        submit: &submit,
        home: &loaded.home(),
    };
    monitored.statistics();
    let mut all = monitored.analyzer().stdout;
    let mut files: Vec<PathBuf> = fs::read_dir(submit.join("statistics"))
        .expect("the folder that pegasus-statistics makes")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    files.sort();
    for file in files {
        all.push_str(&format!("==> {:?}\n", file.file_name()));
        all.push_str(&fs::read_to_string(&file).expect("a report"));
    }
    // A database that the executor wrote has the directory of the run.
    let all = [submit, executed.submit()]
        .iter()
        .fold(all, |all, path| all.replace(&*path.to_string_lossy(), "SUBMIT"));
    // Ours knows the host where the original does not. The widths of columns depend on their content.
    let host = nix::unistd::gethostname().expect("a name of this machine");
    let all = all
        .replace(&*host.to_string_lossy(), "HOST")
        .replace("unknown", "HOST");
    let blanks = Regex::new("[ -]{2,}").expect("an expression");
    blanks.replace_all(&all, "  ").into_owned()
}

/// Runs a golden case with our executor. Pegasus' monitoring and ours must agree on it.
#[track_caller]
fn both_agree(case: &str) {
    let (executed, theirs) = execute(case, Flavour::Local, &["--workers", "3", "--stampede"]);
    let ours = executed.load(&Flavour::Local.program("pmc-monitord"));
    // What the executor wrote during the run takes the place of what a monitord makes of it.
    let place = tempfile::tempdir().expect("a temporary directory");
    let take = place.path().join("take");
    let run = executed.submit();
    let script = format!("#!/bin/sh\ncp '{}'/*.stampede.db \"${{3%/*}}\"\n", run.display());
    fs::write(&take, script).expect("a script");
    fs::set_permissions(&take, fs::Permissions::from_mode(0o755)).expect("a script that can be run");
    let during = executed.load(&take);
    same_database(&theirs.dump, &ours.dump);
    same_database(&theirs.dump, &during.dump);
    for marker in ["monitord.started", "monitord.done"] {
        fs::copy(run.join(marker), during.submit().join(marker)).expect("a marker");
    }
    let theirs = reports(&theirs, &executed);
    similar(case, &theirs, &reports(&during, &executed));
    similar(case, &theirs, &reports(&ours, &executed));
}

/// Demands equal reports. A sum of times is rounded to hundredths, so the order of its terms may change its last digit.
#[track_caller]
fn similar(case: &str, theirs: &str, ours: &str) {
    let seconds = |line: &str| -> Option<f64> {
        let words = line.strip_prefix("Cumulative ")?.split_whitespace();
        words.filter_map(|word| word.parse().ok()).next()
    };
    let is_close = |a: &str, b: &str| match (seconds(a), seconds(b)) {
        (Some(a), Some(b)) => (a - b).abs() < 0.011,
        _ => false,
    };
    let mut lines = theirs.lines().zip(ours.lines());
    let differing = lines.find(|(a, b)| a != b && !is_close(a, b));
    assert_eq!(differing, None, "{case}: theirs:\n{theirs}\nours:\n{ours}");
    assert_eq!(theirs.lines().count(), ours.lines().count(), "{case}");
}

#[test]
#[ignore = "needs Pegasus' monitoring: tests/run e2e"]
fn both_agree_on_a_success() {
    both_agree("success");
}

#[test]
#[ignore = "needs Pegasus' monitoring: tests/run e2e"]
fn both_agree_on_a_failure() {
    both_agree("failing");
}

#[test]
#[ignore = "needs Pegasus' monitoring: tests/run e2e"]
fn both_agree_on_retries() {
    both_agree("retried");
}

#[test]
#[ignore = "needs Pegasus' monitoring: tests/run e2e"]
fn both_agree_on_a_rerun() {
    both_agree("rescued-appended");
}

#[test]
#[ignore = "needs Pegasus' monitoring: tests/run e2e"]
fn both_agree_on_clusters() {
    both_agree("clustered");
}

#[test]
#[ignore = "needs Open MPI: tests/run e2e"]
fn database_after_a_run_under_open_mpi_is_the_golden_one() {
    execute("chains", Flavour::OpenMpi, &[]);
}
