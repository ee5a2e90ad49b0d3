//! The STAMPEDE database of a generated run, written row by row. The loader would take minutes.

use std::path::Path;

use monitord_compat::database::{INDEXES, INSERT_VERSION, TABLES, VERSION};
use rusqlite::{Connection, Transaction};

use super::{BEGIN, GeneratedRun, UUID};

/// Writes the database of a run.
///
/// # Errors
/// The database cannot be written.
pub fn write_database(path: &Path, run: &GeneratedRun) -> rusqlite::Result<()> {
    let mut connection = Connection::open(path)?;
    connection.execute_batch("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;")?;
    connection.execute_batch(TABLES)?;
    let rows = connection.transaction()?;
    insert_workflow(&rows, run)?;
    insert_tasks(&rows, run)?;
    insert_attempts(&rows, run)?;
    rows.commit()?;
    connection.execute_batch(INDEXES)
}

fn insert_workflow(rows: &Transaction<'_>, run: &GeneratedRun) -> rusqlite::Result<()> {
    rows.execute(INSERT_VERSION, (VERSION, VERSION.to_string(), BEGIN as i64))?;
    rows.execute(
        "INSERT INTO workflow (wf_id, wf_uuid, dag_file_name, timestamp, submit_hostname, submit_dir, dax_label,
             root_wf_id)
         VALUES (1, ?1, 'study-0.dag', ?2, 'login', '/', 'study', 1)",
        (UUID, BEGIN as i64),
    )?;
    rows.execute(
        "INSERT INTO workflowstate VALUES (1, 'WORKFLOW_STARTED', ?1, 0, NULL, NULL)",
        [BEGIN as i64],
    )?;
    rows.execute(
        "INSERT INTO workflowstate VALUES (1, 'WORKFLOW_TERMINATED', ?1, 0, ?2, NULL)",
        (seconds(run.end), i64::from(!run.success)),
    )?;
    for (id, host) in (1_i64..).zip(&run.hosts) {
        rows.execute(
            "INSERT INTO host (host_id, wf_id, site, hostname, ip) VALUES (?1, 1, 'cluster', ?2, '10.0.0.1')",
            (id, host),
        )?;
    }
    Ok(())
}

fn insert_tasks(rows: &Transaction<'_>, run: &GeneratedRun) -> rusqlite::Result<()> {
    let mut insert_job = rows.prepare(
        "INSERT INTO job (job_id, wf_id, exec_job_id, submit_file, type_desc, clustered, max_retries, executable,
             task_count)
         VALUES (?1, 1, ?2, '', ?3, 0, 1, 'kickstart', ?4)",
    )?;
    let mut insert_task = rows.prepare(
        "INSERT INTO task (wf_id, job_id, abs_task_id, transformation, type_desc)
         VALUES (1, ?1, ?2, ?3, 'compute')",
    )?;
    for (id, task) in (1_i64..).zip(&run.tasks) {
        let compute = task.is_compute();
        let kind = if compute { "compute" } else { "unknown" };
        insert_job.execute((id, &task.name, kind, i64::from(compute)))?;
        if compute {
            insert_task.execute((id, &task.id, task.transformation))?;
        }
    }
    Ok(())
}

fn insert_attempts(rows: &Transaction<'_>, run: &GeneratedRun) -> rusqlite::Result<()> {
    let mut insert_instance = rows.prepare(
        "INSERT INTO job_instance (job_instance_id, job_id, host_id, job_submit_seq, sched_id, site, user,
             local_duration, stdout_text, multiplier_factor, exitcode)
         VALUES (?1, ?2, ?3, ?1, '', 'cluster', 'someone', ?4, ?5, 1, ?6)",
    )?;
    let mut insert_state = rows.prepare("INSERT INTO jobstate VALUES (?1, ?2, ?3, ?4, NULL)")?;
    let mut insert_invocation = rows.prepare(
        "INSERT INTO invocation (wf_id, job_instance_id, task_submit_seq, start_time, remote_duration,
             remote_cpu_time, exitcode, transformation, executable, abs_task_id, maxrss, avg_cpu)
         VALUES (1, ?1, 1, ?2, ?3, ?4, ?5, ?6, '/opt/study', ?7, ?8, ?9)",
    )?;
    for (id, attempt) in (1_i64..).zip(&run.attempts) {
        let task = &run.tasks[attempt.task as usize];
        let (start, end) = (seconds(attempt.start), seconds(attempt.end));
        insert_instance.execute((
            id,
            i64::from(attempt.task) + 1,
            attempt.host as i64 + 1,
            end - start,
            "#@ 1 stdout%0Aall is well%0A",
            attempt.status,
        ))?;
        let last = if attempt.status == 0 {
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
        for (sequence, (name, time)) in (1_i64..).zip(states) {
            insert_state.execute((id, name, time, sequence))?;
        }
        let duration = (attempt.end - attempt.start) as f64 / 1e6;
        insert_invocation.execute((
            id,
            attempt.start as f64 / 1e6,
            duration,
            attempt.cpu_seconds,
            attempt.status,
            task.transformation,
            task.is_compute().then_some(&task.id),
            attempt.peak_kib as i64,
            attempt.cpu_seconds / duration,
        ))?;
    }
    Ok(())
}

fn seconds(micros: u64) -> i64 {
    (micros / 1_000_000) as i64
}
