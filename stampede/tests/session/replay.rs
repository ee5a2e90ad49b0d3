//! Loading a finished run.

use std::fs;

use crate::support::{Fixture, dump};

#[test]
fn a_run_has_these_rows() {
    let run = Fixture::run(6);
    run.write_log();
    assert_eq!(run.load(&["-N", "-r"]), "");
    let count = |sql: &str| run.count(sql);
    assert_eq!(count("SELECT version_number FROM dbversion"), 14);
    assert_eq!(count("SELECT count(*) FROM job_instance"), 8);
    assert_eq!(count("SELECT count(*) FROM job_instance WHERE exitcode = 256"), 2);
    assert_eq!(count("SELECT max(job_submit_seq) FROM job_instance"), 8);
    assert_eq!(count("SELECT count(*) FROM jobstate"), 32);
    assert_eq!(
        count("SELECT count(*) FROM invocation WHERE exitcode = 256 AND start_time > 1772600767"),
        2
    );
    assert_eq!(count("SELECT count(*) FROM host"), 4);
    assert_eq!(count("SELECT count(*) FROM rc_meta"), 36);
    assert_eq!(
        count("SELECT count(*) FROM task WHERE argv = 'it\\''s' AND job_id IS NOT NULL"),
        6
    );
    assert_eq!(
        count("SELECT count(*) FROM job_instance WHERE stdout_file = 'work_ID5.out.001' AND exitcode = 0"),
        1
    );
    let text = "stdout_text = '#@ 1 stdout%0Ajob 0%0A%0A' AND stderr_text = 'careful%0A'";
    assert_eq!(
        count(&format!("SELECT count(*) FROM job_instance WHERE {text}")),
        1
    );
    assert_eq!(
        count("SELECT count(*) FROM workflowstate WHERE status IS 0 AND restart_count = 0"),
        1
    );
    let log = fs::read_to_string(run.dir.join("jobstate.log")).unwrap();
    assert!(
        log.contains(" work_ID0 SUBMIT 1.0 - - 1\n") && log.contains(" work_ID2 JOB_FAILURE 256 local - 3\n")
    );
    for file in ["monitord.started", "monitord.done", "monitord.info"] {
        assert!(run.dir.join(file).exists(), "{file}");
    }
    for file in [
        "monitord.pid",
        "monitord.recover",
        "x-0.stampede.db-journal",
        "x-0.stampede.db.part",
    ] {
        assert!(!run.dir.join(file).exists(), "{file}");
    }
    assert!(run.dashboard().exists());
}

#[test]
fn a_second_replay_keeps_the_old_database() {
    let run = Fixture::run(3);
    run.write_log();
    run.load(&["-r", "--no-dashboard"]);
    let first = dump(&run.database());
    run.load(&["-r", "--no-dashboard"]);
    assert_eq!(dump(&run.database()), first);
    assert_eq!(dump(&run.dir.join("x-0.stampede.db.000")), first);
    assert!(run.dir.join("jobstate.log.000").exists());
    assert!(!run.dashboard().exists());
}

#[test]
fn damage_affects_single_records_only() {
    let mut run = Fixture::run(6);
    run.write_log();
    run.load(&["-r"]);
    let jobs = run.count("SELECT count(*) FROM job_instance WHERE exitcode IS NOT NULL");
    let path = |name: &str| run.dir.join(name);
    // A torn record, a syntax error, no UTF-8, an empty file, missing files.
    let whole = fs::read(path("work_ID0.out.000")).unwrap();
    fs::write(path("work_ID0.out.000"), &whole[..whole.len() / 3]).unwrap();
    fs::write(path("work_ID1.out.000"), "- invocation: True\n  a: [\n").unwrap();
    fs::write(path("work_ID3.out.000"), [0xff; 100]).unwrap();
    fs::write(path("work_ID4.out.000"), "").unwrap();
    fs::remove_file(path("work_ID4.err.000")).unwrap();
    fs::remove_file(path("work_ID5.out.001")).unwrap();
    // Unknown lines, a torn line, and a job that was not planned.
    let text = String::from_utf8(run.log.clone()).unwrap();
    let text = text.replacen(
        "03/04/26",
        "garbage\nNode x\n03/04/26 05:06:08 Event: ULOG_\n03/04/26",
        1,
    );
    run.log = text.replace("work_ID5 ", "other ").into_bytes();
    run.write_log();
    let stderr = run.load(&["-r"]);
    for part in [
        "dagman.out:1: not a line of a log",
        "work_ID0.out.000:1: damaged record: the record ends before the status",
        "work_ID1.out.000:1: damaged record: line ",
        "cannot read ",
        "job other is in the log but not in the plan",
    ] {
        assert!(stderr.contains(part), "{part}: {stderr}");
    }
    assert_eq!(
        run.count("SELECT count(*) FROM job_instance WHERE exitcode IS NOT NULL"),
        jobs
    );
    assert_eq!(
        run.count("SELECT count(DISTINCT job_instance_id) FROM invocation"),
        jobs
    );
    assert_eq!(
        run.count("SELECT count(*) FROM invocation WHERE transformation = 'work'"),
        jobs - 2
    );
    assert_eq!(
        run.count("SELECT count(*) FROM job WHERE type_desc = 'unknown'"),
        1
    );
}

#[test]
fn a_log_without_an_end_is_reported() {
    let mut run = Fixture::run(3);
    let end = run.log.len() - 20;
    run.log.truncate(end);
    run.write_log();
    let stderr = run.load(&["-r"]);
    assert!(
        stderr.contains("the log ends before the end of the run"),
        "{stderr}"
    );
    assert_eq!(run.count("SELECT count(*) FROM workflowstate"), 1);
    // The last line needs no line feed.
    let mut run = Fixture::run(3);
    run.log.pop();
    run.write_log();
    assert_eq!(run.load(&["-r"]), "");
    assert_eq!(run.count("SELECT count(*) FROM workflowstate"), 2);
}

#[test]
fn several_runs_are_loaded() {
    let mut run = Fixture::planned(3);
    run.begin();
    run.job(0, 0);
    run.job(1, 256);
    run.end(false);
    run.begin();
    run.job(1, 9);
    // That run was killed, and another begins.
    run.begin();
    run.job(1, 0);
    run.job(2, 0);
    run.end(true);
    run.write_log();
    assert_eq!(run.load(&["-r"]), "");
    let states = "SELECT group_concat(substr(state, 10, 1) || restart_count || coalesce(status, ''), ' ')
                  FROM (SELECT * FROM workflowstate ORDER BY timestamp)";
    let connection = rusqlite::Connection::open(run.database()).unwrap();
    let states: String = connection.query_row(states, (), |row| row.get(0)).unwrap();
    assert_eq!(states, "S0 T01 S1 T12 S2 T20");
    let attempts =
        "SELECT group_concat(exitcode || ' ' || stdout_file, ', ') FROM job_instance JOIN job USING (job_id)
                 WHERE exec_job_id = 'work_ID1'";
    let attempts: String = connection.query_row(attempts, (), |row| row.get(0)).unwrap();
    assert_eq!(
        attempts,
        "256 work_ID1.out.000, 9 work_ID1.out.001, 0 work_ID1.out.002"
    );
    let text: String = connection
        .query_row(
            "SELECT stdout_text FROM job_instance WHERE exitcode = 9",
            (),
            |row| row.get(0),
        )
        .unwrap();
    assert!(
        text.ends_with("#@ 1 stderr%0AJob was killed with signal 9 (unknown)%0A%0A"),
        "{text}"
    );
}

#[test]
fn a_new_log_finds_the_files_of_its_attempts() {
    let mut run = Fixture::planned(2);
    run.begin();
    run.job(0, 0);
    run.job(1, 256);
    run.end(false);
    run.log.clear();
    run.begin();
    run.job(1, 0);
    run.end(true);
    run.write_log();
    run.load(&["-r"]);
    assert_eq!(
        run.count("SELECT count(*) FROM job_instance WHERE stdout_file = 'work_ID1.out.001'"),
        1
    );
    assert_eq!(run.count("SELECT exitcode FROM invocation"), 0);
}

#[test]
fn incomplete_runs_are_refused() {
    let run = Fixture::run(1);
    let refused = |options: &[&str]| {
        let output = run.monitord(options).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(refused(&["-r"]).contains("cannot read "), "no log");
    run.write_log();
    assert!(refused(&["-r", "--unknown"]).contains("--unknown"));
    fs::remove_file(run.dir.join("x-0.static.bp")).unwrap();
    let stderr = refused(&["-r"]);
    assert!(stderr.contains("x-0.static.bp: No such file"), "{stderr}");
    assert!(!run.database().exists() && !run.dir.join("x-0.stampede.db.part").exists());
    fs::write(run.dir.join("braindump.yml"), "dag: x-0.dag\n").unwrap();
    assert!(refused(&["-r"]).contains("braindump.yml: no wf_uuid"));
}

#[test]
fn no_events_writes_the_log_of_states_only() {
    let run = Fixture::run(2);
    run.write_log();
    run.load(&["-r", "--no-events"]);
    assert!(!run.database().exists() && !run.dashboard().exists());
    assert!(
        fs::read_to_string(run.dir.join("jobstate.log"))
            .unwrap()
            .contains("work_ID1 JOB_SUCCESS")
    );
}

#[test]
fn the_manual_shows_the_help() {
    let run = Fixture::planned(0);
    let help = run.monitord(&["--help"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let page = include_str!("../../../docs/manual/pmc-monitord.md");
    assert!(
        page.contains(help.trim_end()),
        "docs/manual/pmc-monitord.md is stale:\n{help}"
    );
}
