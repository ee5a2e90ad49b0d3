//! The STAMPEDE database of a made run, written row by row. Loading it with the loader would take minutes.

use std::path::Path;

use monitord_compat::database::{INDEXES, INSERT_VERSION, TABLES, VERSION};
use rusqlite::Connection;

use crate::generate::{BEGIN, Made, UUID};

/// Writes the database of a run.
pub fn write(path: &Path, made: &Made) -> rusqlite::Result<()> {
    let mut connection = Connection::open(path)?;
    connection.execute_batch("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;")?;
    connection.execute_batch(TABLES)?;
    let rows = connection.transaction()?;
    rows.execute(INSERT_VERSION, (VERSION, VERSION.to_string(), BEGIN as i64))?;
    rows.execute(
        "INSERT INTO workflow (wf_id, wf_uuid, dag_file_name, timestamp, submit_hostname, submit_dir, dax_label, root_wf_id)
         VALUES (1, ?1, 'study-0.dag', ?2, 'login', '/', 'study', 1)",
        (UUID, BEGIN as i64),
    )?;
    rows.execute(
        "INSERT INTO workflowstate VALUES (1, 'WORKFLOW_STARTED', ?1, 0, NULL, NULL)",
        [BEGIN as i64],
    )?;
    rows.execute(
        "INSERT INTO workflowstate VALUES (1, 'WORKFLOW_TERMINATED', ?1, 0, ?2, NULL)",
        (seconds(made.end), i64::from(!made.success)),
    )?;
    for (number, host) in (1_i64..).zip(&made.hosts) {
        rows.execute(
            "INSERT INTO host (host_id, wf_id, site, hostname, ip) VALUES (?1, 1, 'cluster', ?2, '10.0.0.1')",
            (number, host),
        )?;
    }
    {
        let mut job = rows.prepare(
            "INSERT INTO job (job_id, wf_id, exec_job_id, submit_file, type_desc, clustered, max_retries, executable, task_count)
             VALUES (?1, 1, ?2, '', ?3, 0, 1, 'kickstart', ?4)",
        )?;
        let mut task = rows.prepare(
            "INSERT INTO task (wf_id, job_id, abs_task_id, transformation, type_desc) VALUES (1, ?1, ?2, ?3, 'compute')",
        )?;
        for (number, one) in (1_i64..).zip(&made.tasks) {
            let compute = one.id != "null";
            job.execute((
                number,
                &one.name,
                if compute { "compute" } else { "unknown" },
                i64::from(compute),
            ))?;
            if compute {
                task.execute((number, &one.id, one.transformation))?;
            }
        }
        let mut instance = rows.prepare(
            "INSERT INTO job_instance (job_instance_id, job_id, host_id, job_submit_seq, sched_id, site, user, local_duration,
                 stdout_text, multiplier_factor, exitcode)
             VALUES (?1, ?2, ?3, ?1, '', 'cluster', 'someone', ?4, ?5, 1, ?6)",
        )?;
        let mut state = rows.prepare("INSERT INTO jobstate VALUES (?1, ?2, ?3, ?4, NULL)")?;
        let mut invocation = rows.prepare(
            "INSERT INTO invocation (wf_id, job_instance_id, task_submit_seq, start_time, remote_duration, remote_cpu_time,
                 exitcode, transformation, executable, abs_task_id, maxrss, avg_cpu)
             VALUES (1, ?1, 1, ?2, ?3, ?4, ?5, ?6, '/opt/study', ?7, ?8, ?9)",
        )?;
        for (number, one) in (1_i64..).zip(&made.tries) {
            let what = &made.tasks[one.task as usize];
            let (start, end) = (seconds(one.start), seconds(one.end));
            instance.execute((
                number,
                i64::from(one.task) + 1,
                one.host as i64 + 1,
                end - start,
                "#@ 1 stdout%0Aall is well%0A",
                one.status,
            ))?;
            let last = if one.status == 0 {
                "JOB_SUCCESS"
            } else {
                "JOB_FAILURE"
            };
            let states = [
                ("SUBMIT", start),
                ("EXECUTE", start),
                ("JOB_TERMINATED", end),
                (last, end),
            ];
            for (at, (name, time)) in (1_i64..).zip(states) {
                state.execute((number, name, time, at))?;
            }
            let duration = (one.end - one.start) as f64 / 1e6;
            invocation.execute((
                number,
                one.start as f64 / 1e6,
                duration,
                one.cpu_seconds,
                one.status,
                what.transformation,
                (what.id != "null").then_some(&what.id),
                one.peak_kib as i64,
                one.cpu_seconds / duration,
            ))?;
        }
    }
    rows.commit()?;
    connection.execute_batch(INDEXES)
}

fn seconds(micros: u64) -> i64 {
    (micros / 1_000_000) as i64
}
