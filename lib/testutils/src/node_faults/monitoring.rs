//! Pegasus' monitoring reads the logs of a round.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use monitord_compat::static_bp::Events;
use rusqlite::Connection;

use super::{Damage, Outcome};
use crate::golden::process;

/// A monitord that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(300);

/// Identifier of the workflow.
const WORKFLOW: &str = "11111111-2222-4333-8444-555555555555";

/// Attempts that have succeeded, by name of the task.
const SUCCEEDED: &str = "select exec_job_id, count(i.job_instance_id) from job \
    left join job_instance i on i.job_id = job.job_id and i.exitcode = 0 group by exec_job_id";

/// Attempts in this state.
const IN_STATE: &str = "select count(*) from jobstate where state = ?1";

/// Status of the workflow, and which event it comes from.
const END: &str = "select state || ' ' || ifnull(status, '') from workflowstate order by timestamp desc, rowid desc limit 1";

/// Writes what a planner writes for monitoring.
pub(super) fn write_plan(directory: &Path, tasks: &BTreeSet<String>) {
    let here = directory.display();
    let braindump = format!(
        "user: \"someone\"\ngrid_dn: null\nsubmit_hostname: \"login\"\nroot_wf_uuid: \"{WORKFLOW}\"\n\
         wf_uuid: \"{WORKFLOW}\"\ndax: \"x.yml\"\ndax_label: \"x\"\ndax_index: \"0\"\ndax_version: \"5.0.4\"\n\
         pegasus_wf_name: \"x-0\"\ntimestamp: \"20260921T000000+0000\"\nbasedir: \"{here}\"\n\
         submit_dir: \"{here}\"\nplanner_version: \"5.1.3\"\nplanner_arguments: \"\"\njsd: \"jobstate.log\"\n\
         rundir: \".\"\nproperties: \"x.properties\"\ndag: \"{here}/x.dag\"\n"
    );
    fs::write(directory.join("braindump.yml"), braindump).expect("a file");
    fs::write(directory.join("x.properties"), "").expect("a file");
    let events = Events {
        time: "2026-09-21T00:00:00.000000Z",
        workflow: WORKFLOW,
    };
    let mut text = String::new();
    for task in tasks {
        let event = events.begin(&mut text, "task.info").with("task.id", task);
        let event = event.with("type", "1").with("type_desc", "compute");
        drop(event.with("transformation", "task").with("argv", ""));
    }
    for task in tasks {
        let event = events.begin(&mut text, "job.info").with("job.id", task);
        let event = event.with("submit_file", &format!("{task}.sub"));
        let event = event.with("type", "1").with("type_desc", "compute");
        let event = event.with("clustered", "0").with("max_retries", "0");
        drop(
            event
                .with("executable", "/bin/sh")
                .with("argv", "")
                .with("task_count", "1"),
        );
    }
    for task in tasks {
        let event = events.begin(&mut text, "wf.map.task_job");
        drop(event.with("job.id", task).with("task.id", task));
    }
    fs::write(directory.join("x.static.bp"), text).expect("a file");
}

/// Has monitord load the logs of a run that is complete, and checks what it has stored.
pub(super) fn check(monitord: &Path, directory: &Path, tasks: &BTreeSet<String>, outcome: &mut Outcome) {
    let folder = monitord.parent().unwrap_or(monitord).display();
    let mut command = Command::new(monitord);
    command
        .args(["-N", "-r", "x.dag.dagman.out"])
        .current_dir(directory)
        .env("HOME", directory)
        .env("PATH", format!("{folder}:/usr/local/bin:/usr/bin:/bin"))
        .env("TZ", "UTC");
    let ended = process::run(&mut command, LIMIT, false);
    let said = format!("{}\n{}", ended.stdout, ended.stderr);
    // Which says why, if a round finds something.
    let _ = fs::write(directory.join("monitord"), &said);
    let is_complaint = |line: &&str| {
        let marks = [":ERROR:", ":CRITICAL:", "Traceback "];
        marks.iter().any(|mark| line.contains(mark))
    };
    if let Some(line) = said.lines().find(is_complaint) {
        outcome.find(Damage::Wrong, format!("monitord: {line}"));
    }
    if ended.code != Some(0) {
        outcome.find(Damage::Wrong, format!("monitord ended with {:?}", ended.code));
        return;
    }
    if let Err(error) = database(directory, tasks, outcome) {
        outcome.find(Damage::Wrong, format!("monitord's database: {error}"));
    }
}

/// Checks the rows: each task has succeeded once, and lost attempts are neither missing nor failures.
fn database(directory: &Path, tasks: &BTreeSet<String>, outcome: &mut Outcome) -> rusqlite::Result<()> {
    let database = Connection::open(directory.join("x.stampede.db"))?;
    let mut statement = database.prepare(SUCCEEDED)?;
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let succeeded = rows.collect::<rusqlite::Result<BTreeMap<String, u32>>>()?;
    for task in tasks {
        match succeeded.get(task).copied().unwrap_or(0) {
            0 => outcome.find(Damage::Lost, format!("monitord: {task} has not succeeded")),
            1 => {}
            times => outcome.find(Damage::Doubled, format!("monitord: {task}: {times} times")),
        }
    }
    let log = fs::read_to_string(directory.join("x.dag.dagman.out")).unwrap_or_default();
    let lost = log.matches("ULOG_JOB_EVICTED").count();
    for (state, expected) in [("JOB_FAILURE", 0), ("JOB_EVICTED", lost)] {
        let count: i64 = database.query_row(IN_STATE, [state], |row| row.get(0))?;
        if usize::try_from(count) != Ok(expected) {
            let what = format!("monitord: {count} attempts are {state}, not {expected}");
            outcome.find(Damage::Wrong, what);
        }
    }
    let end: String = database.query_row(END, [], |row| row.get(0))?;
    if end != "WORKFLOW_TERMINATED 0" {
        outcome.find(Damage::Wrong, format!("monitord: the workflow is {end}"));
    }
    outcome.monitored += 1;
    Ok(())
}
