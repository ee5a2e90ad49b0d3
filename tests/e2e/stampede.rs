//! Pegasus' monitoring and ours store the same data about runs of our executor.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use regex::Regex;
use serde_json::Value;
use testutils::golden::Case;
use testutils::golden::stampede::{self, Executed, Loaded};

use crate::support::command::Program;
use crate::support::pegasus::Monitored;
use crate::support::programs::{Build, venv_bin};
use crate::support::workflow::{Format, Planned, Request};

/// Values that differ by design: the name of a machine, its memory, and the exit status.
const INTENDED_DIFFERENCES: [&str; 5] = [
    "host/*/hostname",
    "host/*/total_memory",
    "job_instance/*/host/hostname",
    "job_instance/*/host/total_memory",
    "job_instance/*/exitcode",
];

/// Asserts that two databases are equal except for the intended differences.
#[track_caller]
fn assert_same_database(expected: &Value, got: &Value) {
    let problems = stampede::compare(expected, got, &INTENDED_DIFFERENCES.map(str::to_owned));
    assert_eq!(problems, []);
}

/// Executes a golden case and loads the run with Pegasus' monitoring. The database must equal the recorded
/// one.
fn execute(case: &str, build: Build, options: &[&str]) -> (Executed, Loaded) {
    let case = Case::read("stampede", case);
    let executor = build.program("pegasus-mpi-cluster").display().to_string();
    let start = |ranks| {
        let mut words = build.launcher(ranks);
        words.push(executor.clone());
        words.extend(options.iter().map(|word| (*word).to_owned()));
        words
    };
    let executed = stampede::execute(&case, &build.bin(), &start);
    let loaded = executed.load(&venv_bin().join("pegasus-monitord"));
    assert_same_database(&stampede::expected(&case), &loaded.dump);
    (executed, loaded)
}

/// Returns the output of statistics and analyzer, without values that differ between copies of a directory.
fn reports(loaded: &Loaded, executed: &Executed) -> String {
    let submit = loaded.submit();
    let monitored = Monitored {
        submit: &submit,
        home: &loaded.home(),
    };
    monitored.statistics();
    let mut all = monitored.analyzer().stdout;
    let mut files: Vec<PathBuf> = fs::read_dir(submit.join("statistics"))
        .expect("the directory that pegasus-statistics makes")
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
    // Our records name the host, those of Pegasus may not. The widths of columns depend on their content.
    let host = nix::unistd::gethostname().expect("a name of this machine");
    let all = all
        .replace(&*host.to_string_lossy(), "HOST")
        .replace("unknown", "HOST");
    let blanks = Regex::new("[ -]{2,}").expect("an expression");
    blanks.replace_all(&all, "  ").into_owned()
}

/// Runs a golden case with our executor and asserts that Pegasus' monitoring and ours agree.
#[track_caller]
fn assert_monitors_agree(case: &str) {
    let (executed, theirs) = execute(case, Build::Local, &["--workers", "3", "--stampede"]);
    let ours = executed.load(&Build::Local.program("pmc-monitord"));
    // This script replaces a monitord: it copies the database that the executor wrote during the run.
    let place = tempfile::tempdir().expect("a temporary directory");
    let copy_script = place.path().join("copy");
    let run = executed.submit();
    let script = format!("#!/bin/sh\ncp '{}'/*.stampede.db \"${{3%/*}}\"\n", run.display());
    fs::write(&copy_script, script).expect("a script");
    fs::set_permissions(&copy_script, fs::Permissions::from_mode(0o755)).expect("a script that can be run");
    let during = executed.load(&copy_script);
    assert_same_database(&theirs.dump, &ours.dump);
    assert_same_database(&theirs.dump, &during.dump);
    for marker in ["monitord.started", "monitord.done"] {
        fs::copy(run.join(marker), during.submit().join(marker)).expect("a marker");
    }
    let theirs = reports(&theirs, &executed);
    assert_similar(case, &theirs, &reports(&during, &executed));
    assert_similar(case, &theirs, &reports(&ours, &executed));
}

/// Asserts equal reports. Sums and means of times are rounded, so the order of their terms may change the
/// last digit.
#[track_caller]
fn assert_similar(case: &str, theirs: &str, ours: &str) {
    let is_close = |(a, b): (&str, &str)| {
        let decimals = |word: &str| word.split_once('.').map(|(_, decimals)| decimals.len() as i32);
        let numbers = (a.parse::<f64>(), b.parse::<f64>());
        a == b
            || match (numbers, decimals(a), decimals(b)) {
                ((Ok(x), Ok(y)), Some(m), Some(n)) => (x - y).abs() < 1.1 * 0.1_f64.powi(m.max(n)),
                _ => false,
            }
    };
    let is_similar = |a: &str, b: &str| {
        let (a, b) = (a.split_whitespace(), b.split_whitespace());
        a.clone().count() == b.clone().count() && a.zip(b).all(is_close)
    };
    let mut lines = theirs.lines().zip(ours.lines());
    let differing = lines.find(|(a, b)| !is_similar(a, b));
    assert_eq!(differing, None, "{case}: theirs:\n{theirs}\nours:\n{ours}");
    assert_eq!(theirs.lines().count(), ours.lines().count(), "{case}");
}

#[test]
#[ignore = "needs Pegasus' monitoring: tests/run e2e"]
fn both_agree_on_a_success() {
    assert_monitors_agree("success");
}

#[test]
#[ignore = "needs Pegasus' monitoring: tests/run e2e"]
fn both_agree_on_a_failure() {
    assert_monitors_agree("failing");
}

#[test]
#[ignore = "needs Pegasus' monitoring: tests/run e2e"]
fn both_agree_on_retries() {
    assert_monitors_agree("retried");
}

#[test]
#[ignore = "needs Pegasus' monitoring: tests/run e2e"]
fn both_agree_on_a_rerun() {
    assert_monitors_agree("rescued-appended");
}

#[test]
#[ignore = "needs Pegasus' monitoring: tests/run e2e"]
fn both_agree_on_clusters() {
    assert_monitors_agree("clustered");
}

#[test]
#[ignore = "needs Open MPI: tests/run e2e"]
fn database_after_a_run_under_open_mpi_is_the_golden_one() {
    execute("chains", Build::OpenMpi, &[]);
}

/// The first two tasks bring down their agents, each with what its other slot runs or has not begun.
const LOSE: &str = "#!/bin/sh\nhere=$(dirname \"$0\")\n\
    if mkdir \"$here/lost1\" || mkdir \"$here/lost2\"; then kill -9 $PPID; sleep 600; fi 2>/dev/null\nexec \"$@\"\n";

/// A task says that it has begun, and takes long enough for the next master to come.
const LINGER: &str = "#!/bin/sh\ntouch \"$(dirname \"$0\")/begun\"\nsleep 2\nexec \"$@\"\n";

/// Plans a workflow whose compute jobs run through this script.
fn planned_through(script: &str) -> Planned {
    let planned = Request::new(Build::Local, Format::Yaml).plan();
    let path = planned.top().join("through");
    fs::write(&path, script).expect("a script");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("a script that can be run");
    let dag = planned.dag();
    let plan = fs::read_to_string(&dag).expect("the plan");
    let through = |line: &str| {
        let kickstart = line.split(' ').find(|word| word.ends_with("pegasus-kickstart"));
        match kickstart.filter(|_| line.starts_with("TASK step_")) {
            Some(word) => line.replacen(word, &format!("{} {word}", path.display()), 1),
            None => line.to_owned(),
        }
    };
    let changed: Vec<String> = plan.lines().map(through).collect();
    fs::write(&dag, changed.join("\n") + "\n").expect("the plan");
    planned
}

/// A run of a plan in three agents on this machine.
fn in_agents(planned: &Planned) -> Program {
    Program::new(Build::Local.program("pegasus-mpi-cluster"))
        .args(["--agents", "3", "--launch", "local", "--slots", "2"])
        .args(["--monitord-hack", "--per-task-stdio"])
        .arg(planned.dag().file_name().expect("a file name"))
        .in_directory(planned.submit())
}

/// Asserts that Pegasus' monitoring and ours agree on a run in which all jobs have succeeded in the end.
pub fn assert_monitors_agree_on(planned: &Planned) {
    planned.assert_outputs(0..20);
    let monitored = planned.monitored();
    monitored.replay();
    let (tasks, jobs) = monitored.statistics();
    assert_eq!((tasks.succeeded, tasks.failed, tasks.incomplete), (40, 0, 0));
    assert_eq!((jobs.succeeded, jobs.failed, jobs.incomplete), (46, 0, 0));
    monitored.analyzer().ok();
    // monitord has found the output of each attempt that succeeded.
    let without_records = monitored.query(
        "select j.exec_job_id from job_instance i join job j using (job_id) where i.exitcode = 0 and \
         i.stdout_text is null",
    );
    assert_eq!(without_records, Vec::<Vec<String>>::new());
    let theirs = stampede::load(planned.submit(), &venv_bin().join("pegasus-monitord"));
    let ours = stampede::load(planned.submit(), &Build::Local.program("pmc-monitord"));
    assert_same_database(&theirs.dump, &ours.dump);
}

#[test]
#[ignore = "needs Pegasus' monitoring: tests/run e2e"]
fn both_agree_on_a_run_that_lost_nodes() {
    let planned = planned_through(LOSE);
    let result = in_agents(&planned).run().ok();
    let log = fs::read_to_string(format!("{}.dagman.out", planned.dag().display())).expect("a log");
    let lost = log.matches("ULOG_JOB_EVICTED").count();
    assert!(lost >= 2, "{}", result.details());
    assert_monitors_agree_on(&planned);
    let evicted = "select count(*) from jobstate where state = 'JOB_EVICTED'";
    assert_eq!(planned.monitored().query(evicted), [[lost.to_string()]]);
}

/// The next master submits what still runs again, so its output gets another number.
#[test]
#[ignore = "needs Pegasus' monitoring: tests/run e2e"]
fn both_agree_on_a_run_whose_master_died() {
    let planned = planned_through(LINGER);
    let master = in_agents(&planned).start();
    let started = Instant::now();
    while !planned.top().join("begun").exists() {
        assert!(started.elapsed() < Duration::from_secs(60), "no task begins");
        std::thread::sleep(Duration::from_millis(20));
    }
    master.signal(Signal::SIGKILL);
    // Its agents are in other process groups.
    drop(master);
    let result = in_agents(&planned).run().ok();
    let details = result.details();
    assert!(details.contains(" still runs"), "{details}");
    assert_monitors_agree_on(&planned);
}
