//! The database of a run: what Pegasus' monitoring makes of our executor's runs, what ours makes of
//! recorded runs, and both of the same runs.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use regex::Regex;

use crate::support::command::{Run, Said};
use crate::support::golden::{Differences, golden};
use crate::support::pegasus::Monitored;
use crate::support::programs::{Flavour, python, venv_bin};

/// Values that a machine's name, its memory and one more shift of the exit status make different.
const ON_PURPOSE: [&str; 5] = [
    "host/*/hostname",
    "host/*/total_memory",
    "job_instance/*/host/hostname",
    "job_instance/*/host/total_memory",
    "job_instance/*/exitcode",
];

fn tool(temporary: &Path) -> Run {
    let ignore = ON_PURPOSE.iter().flat_map(|glob| ["--ignore", glob]);
    python()
        .arg("-I")
        .arg(golden("tools/stampede_dump.py"))
        .env("TMPDIR", temporary)
        .args(ignore)
        .limit(600)
}

/// A folder with what the golden runs call: our kickstart, and something that runs clusters.
fn programs_of_jobs(flavour: Flavour, place: &Path) -> PathBuf {
    let bin = place.join("programs");
    fs::create_dir(&bin).expect("a folder");
    symlink(
        flavour.program("pegasus-kickstart"),
        bin.join("pegasus-kickstart"),
    )
    .expect("a link");
    symlink(golden("tools/standin_cluster.py"), bin.join("pegasus-cluster")).expect("a link");
    bin
}

/// Executes a golden case again and lets Pegasus' monitoring read the result, which must be the
/// recorded one.
fn execute(case: &str, flavour: Flavour, prefix: &str, place: &Path) -> Said {
    let executor = flavour.program("pegasus-mpi-cluster");
    tool(place)
        .arg("--golden")
        .arg(golden("stampede").join(case))
        .arg("--monitord")
        .arg(venv_bin().join("pegasus-monitord"))
        .arg("--rerun")
        .arg(prefix.replace("PMC", &executor.display().to_string()))
        .arg("--bin")
        .arg(programs_of_jobs(flavour, place))
        .arg("--keep")
        .envs(&flavour.environment())
        .go()
        .ok()
}

/// The folders that the tool was told to keep, in the order in which it was done with them.
fn kept(said: &Said) -> Vec<PathBuf> {
    said.stderr
        .lines()
        .filter_map(|line| line.strip_prefix("kept: "))
        .map(PathBuf::from)
        .collect()
}

/// What statistics and analyzer say of a database, without what differs from one copy of a directory to
/// another.
fn reports(copy: &Path, run: &Path) -> String {
    let submit = copy.join("submit");
    let monitored = Monitored {
        submit: &submit,
        home: &copy.join("home"),
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
    // Of a database that the executor wrote, the directory is that of the run.
    let all = [submit, run.join("submit")]
        .iter()
        .fold(all, |all, path| all.replace(&*path.to_string_lossy(), "SUBMIT"));
    // Ours knows the host where the original does not; columns are as wide as what is in them.
    let host = nix::unistd::gethostname().expect("a name of this machine");
    let all = all
        .replace(&*host.to_string_lossy(), "HOST")
        .replace("unknown", "HOST");
    let blanks = Regex::new("[ -]{2,}").expect("an expression");
    blanks.replace_all(&all, "  ").into_owned()
}

/// Runs a golden case with our executor; Pegasus' monitoring and ours must say the same of it.
fn both_agree(case: &str) {
    let place = tempfile::tempdir().expect("a temporary folder");
    let prefix = "\"PMC\" --workers 3 --stampede";
    let executed = execute(case, Flavour::Local, prefix, place.path());
    let [theirs, run] = &kept(&executed)[..] else {
        panic!("expected two folders: {}", executed.account())
    };
    let dump = |monitord: PathBuf, name: &str| {
        let said = tool(place.path())
            .arg(run.join("submit"))
            .arg("--monitord")
            .arg(monitord)
            .arg("--keep")
            .arg("--output")
            .arg(place.path().join(name))
            .go()
            .ok();
        kept(&said).remove(0)
    };
    dump(venv_bin().join("pegasus-monitord"), "theirs.json");
    let ours = dump(Flavour::Local.program("pmc-monitord"), "ours.json");
    // What the executor wrote during the run takes the place of what a monitord makes of it.
    let take = place.path().join("take");
    let script = format!(
        "#!/bin/sh\ncp '{}'/submit/*.stampede.db \"${{3%/*}}\"\n",
        run.display()
    );
    fs::write(&take, script).expect("a script");
    fs::set_permissions(&take, fs::Permissions::from_mode(0o755)).expect("a script that can be run");
    let during = dump(take, "during.json");
    for other in ["ours.json", "during.json"] {
        tool(place.path())
            .arg("--compare")
            .args(["theirs.json", other].map(|name| place.path().join(name)))
            .go()
            .ok();
    }
    fs::copy(
        run.join("submit/monitord.started"),
        during.join("submit/monitord.started"),
    )
    .expect("written");
    fs::copy(
        run.join("submit/monitord.done"),
        during.join("submit/monitord.done"),
    )
    .expect("written");
    let theirs = reports(theirs, run);
    similar(case, &theirs, &reports(&during, run));
    similar(case, &theirs, &reports(&ours, run));
}

#[track_caller]
fn similar(case: &str, theirs: &str, ours: &str) {
    let differing = theirs.lines().zip(ours.lines()).find(|(a, b)| a != b);
    assert_eq!(differing, None, "{case}: theirs:\n{theirs}\nours:\n{ours}");
    assert_eq!(theirs.len(), ours.len(), "{case}");
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
    let place = tempfile::tempdir().expect("a temporary folder");
    let prefix = "mpiexec.openmpi --oversubscribe -n {np} \"PMC\"";
    execute("chains", Flavour::OpenMpi, prefix, place.path());
}

#[test]
#[ignore = "needs Python: tests/run e2e"]
fn databases_of_recorded_runs_are_the_golden_ones() {
    let said = python()
        .arg("-I")
        .arg(golden("tools/stampede_dump.py"))
        .arg("--golden")
        .arg(golden("stampede"))
        .arg("--monitord")
        .arg(Flavour::Local.program("pmc-monitord"))
        .args(["--limit", "100000"])
        .go();
    // The differences of a case stand before the line with its name.
    let (mut cases, mut found, mut problems) = (Vec::new(), Vec::new(), Vec::new());
    for line in said.stdout.lines() {
        if let Some(problem) = line.strip_prefix("  ") {
            found.push(problem.to_owned());
        } else if let Some((case, _)) = line.split_once(": ").filter(|_| line.ends_with("values equal")) {
            problems.extend(found.drain(..).map(|problem| (case.to_owned(), problem)));
            cases.push(case.to_owned());
        }
    }
    let folders = fs::read_dir(golden("stampede")).expect("golden cases").count();
    assert_eq!(cases.len(), folders, "cases judged: {}", said.account());
    let report = Differences::read("stampede.differences").judge(Flavour::Local, &cases, &problems);
    assert!(report.is_empty(), "unexpected:\n{report}");
}
