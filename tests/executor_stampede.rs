//! The database that the executor writes during the run (`--stampede`).

#![cfg(feature = "stampede")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use rusqlite::Connection;

fn run(folder: &Path, dag: &str, options: &[&str]) -> Output {
    fs::write(folder.join("x.dag"), dag).expect("a DAG");
    Command::new(testutils::programs::path("pegasus-mpi-cluster"))
        .args(["--workers", "2", "--stampede"])
        .args(options)
        .arg("x.dag")
        .current_dir(folder)
        .env("HOME", folder.join("home"))
        .output()
        .expect("the executor")
}

/// The columns of all rows of a query, as text.
fn rows(folder: &Path, sql: &str) -> Vec<String> {
    let connection = Connection::open(folder.join("x.stampede.db")).expect("a database");
    let mut statement = connection.prepare(sql).expect("SQL");
    let columns = statement.column_count();
    let row = statement.query_map((), |row| {
        let cells = (0..columns).map(|column| match row.get_ref(column)? {
            rusqlite::types::ValueRef::Null => Ok("-".to_owned()),
            rusqlite::types::ValueRef::Text(text) => Ok(String::from_utf8_lossy(text).into_owned()),
            value => value
                .as_f64()
                .map(|number| number.to_string())
                .or_else(|_| Ok(value.as_i64()?.to_string())),
        });
        cells.collect::<rusqlite::Result<Vec<_>>>()
    });
    row.expect("rows")
        .map(|cells| cells.expect("a row").join(" "))
        .collect()
}

const ATTEMPTS: &str = "SELECT exec_job_id, job_submit_seq, i.exitcode, v.exitcode, transformation, stdout_file
     FROM job JOIN job_instance i USING (job_id) JOIN invocation v USING (job_instance_id) ORDER BY job_submit_seq";

#[test]
fn rerun_of_an_unplanned_dag_continues_the_database() {
    let folder = tempfile::tempdir().unwrap();
    let dag = "TASK a /bin/echo hello\nTASK b /bin/sh -c \"test -e ok || exit 3\"\nTASK c /bin/true\nEDGE a b\nEDGE b c\n";
    let failed = run(folder.path(), dag, &[]);
    assert_eq!(failed.status.code(), Some(1));
    assert_eq!(
        rows(folder.path(), ATTEMPTS),
        ["a 1 0 0 echo a.out.000", "b 2 768 768 sh b.out.000"]
    );
    let uuid = rows(
        folder.path(),
        "SELECT wf_uuid, dax_label, user IS NOT NULL FROM workflow",
    );
    let text = rows(
        folder.path(),
        "SELECT stdout_text FROM job_instance WHERE job_submit_seq = 1",
    );
    assert_eq!(text, ["#@ 1 stdout%0Ahello%0A"]);

    fs::write(folder.path().join("ok"), "").unwrap();
    assert_eq!(run(folder.path(), dag, &[]).status.code(), Some(0));
    assert_eq!(
        rows(folder.path(), ATTEMPTS)[2..],
        ["b 3 0 0 sh b.out.001", "c 4 0 0 true c.out.000"]
    );
    let states = "SELECT state, restart_count, status FROM workflowstate ORDER BY timestamp";
    assert_eq!(
        rows(folder.path(), states),
        [
            "WORKFLOW_STARTED 0 -",
            "WORKFLOW_TERMINATED 0 1",
            "WORKFLOW_STARTED 1 -",
            "WORKFLOW_TERMINATED 1 0"
        ]
    );
    let again = rows(
        folder.path(),
        "SELECT wf_uuid, dax_label, user IS NOT NULL FROM workflow",
    );
    assert_eq!(again, uuid, "the same workflow");
    assert_eq!(rows(folder.path(), "SELECT count(*) FROM job_edge"), ["2"]);
    assert!(folder.path().join("monitord.done").exists());
    assert!(folder.path().join("home/.pegasus/workflow.db").exists());
    for left in ["x.stampede.db-wal", "x.stampede.db-journal", "monitord.pid"] {
        assert!(!folder.path().join(left).exists(), "{left}");
    }
}

/// The numbers of retries of jobs, as the loader counts them.
fn retries(folder: &Path) -> Vec<String> {
    let counts = fs::read_to_string(folder.join("monitord.info")).expect("the counts of the loader");
    let jobs = counts.lines().filter(|line| !line.starts_with("monitord_"));
    let mut jobs: Vec<String> = jobs.map(str::to_owned).collect();
    jobs.sort();
    jobs
}

#[test]
fn retries_are_counted_within_and_across_runs() {
    let folder = tempfile::tempdir().unwrap();
    let dag = "TASK fine /bin/true\nTASK fails /bin/false\nTASK never /bin/true\nEDGE fails never\n";
    run(folder.path(), dag, &["-t", "3"]);
    assert_eq!(retries(folder.path()), ["fails 2", "fine 0"]);
    run(folder.path(), dag, &["-t", "2"]);
    assert_eq!(retries(folder.path()), ["fails 4", "fine 0"]);
}

/// Rows about attempts, without times that the log has only in whole seconds.
const ATTEMPT_ROWS: [&str; 4] = [
    "SELECT j.*, i.* FROM job j JOIN job_instance i USING (job_id) ORDER BY job_submit_seq",
    // Not invocation_id: which attempts a live loader writes together depends on when it looks.
    "SELECT wf_id, job_instance_id, task_submit_seq, start_time, remote_duration, remote_cpu_time, exitcode, \
     transformation, executable, argv, abs_task_id, maxrss, avg_cpu FROM invocation \
     ORDER BY job_instance_id, task_submit_seq",
    "SELECT site, hostname, ip, uname, total_memory FROM host",
    "SELECT * FROM task ORDER BY task_id",
];

/// What does not depend on times and on the order of attempts.
const OUTPUTS: &str = "SELECT exec_job_id, i.exitcode, stdout_file, stdout_text, stderr_file, stderr_text, v.exitcode, \
     transformation, v.executable FROM job JOIN job_instance i USING (job_id) JOIN invocation v USING (job_instance_id) \
     ORDER BY exec_job_id, stdout_file";

#[test]
fn live_database_equals_a_replay() {
    let [files, packed] = [&[][..], &["--packed-output"]].map(check_live_database);
    assert_eq!(files, packed);
}

/// Returns the rows about outputs.
fn check_live_database(options: &[&str]) -> Vec<String> {
    let folder = tempfile::tempdir().expect("a directory");
    let options = [&["-t", "2"], options].concat();
    let dag = "\
        TASK silent /bin/true\nTASK prints /bin/echo hello\nTASK complains /bin/sh -c \"echo no >&2\"\n\
        #@ 7 x::y z\nTASK numbered /bin/sleep 0.01\nTASK fails /bin/false\n\
        TASK a_silent \"/bin/true\" -n x::y -N ID7\nTASK other /bin/true -N silent\n\
        TASK none /bin/no-such-program\nTASK odd \"/bin/../bin/true\" \"a\\\"b\" c\n";
    // In the second run, submit numbers start at 1 again, but file numbers do not.
    for _ in 0..2 {
        assert_eq!(run(folder.path(), dag, &options).status.code(), Some(1));
    }
    let live: Vec<_> = ATTEMPT_ROWS.map(|sql| rows(folder.path(), sql)).into();
    let options = pmc_stampede::session::Options {
        log: folder.path().join("x.dag.dagman.out"),
        state_log: Some("again.log".into()),
        ..Default::default()
    };
    let mut notices = Vec::new();
    pmc_stampede::session::replay(&options, &mut |notice| notices.push(notice.to_string()))
        .expect("a replay");
    assert_eq!(notices, Vec::<String>::new());
    let replayed: Vec<_> = ATTEMPT_ROWS.map(|sql| rows(folder.path(), sql)).into();
    assert_eq!(live, replayed);
    // A program that is missing is tried once a run.
    assert_eq!(live[0].len(), 13, "{live:?}");
    rows(folder.path(), OUTPUTS)
}

#[test]
fn unwritable_database_does_not_stop_the_run() {
    let folder = tempfile::tempdir().unwrap();
    // A folder that is not empty cannot be replaced by a file.
    fs::create_dir_all(folder.path().join("x.stampede.db/full")).unwrap();
    let ran = run(folder.path(), "TASK a /bin/true\n", &[]);
    let stderr = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(0), "{stderr}");
    assert!(
        stderr.contains("The database is not written any more: "),
        "{stderr}"
    );
    assert!(stderr.contains("x.stampede.db"), "{stderr}");
}

#[test]
fn damaged_plan_is_reported_before_anything_runs() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("braindump.yml"), "dag: x.dag\n").unwrap();
    let ran = run(folder.path(), "TASK a /bin/true\n", &[]);
    let stderr = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(1));
    assert!(stderr.contains("--stampede: "), "{stderr}");
    assert!(stderr.contains("braindump.yml: no wf_uuid"), "{stderr}");
    assert!(!folder.path().join("x.dag.rescue").exists() && !folder.path().join("a.out.000").exists());
}
