//! The list of all workflows of a user, `~/.pegasus/workflow.db`, that the dashboard begins with.
//!
//! Many runs write into this file: transactions are short, and what is there already stays, so that
//! writing twice changes nothing.

use std::fs::{DirBuilder, OpenOptions, Permissions};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::time::Duration;

use rusqlite::Connection;

use crate::rows::{WorkflowRow, WorkflowState};
use crate::schema;

/// Writes the workflow, the URL of its database, and its states. With `anew`, what the list says about it is removed first. `now`
/// is the time in seconds since the epoch.
///
/// # Errors
/// A text that says why; the run goes on without the list.
pub fn update(
    path: &Path,
    workflow: &WorkflowRow,
    database: &str,
    states: &[WorkflowState],
    anew: bool,
    now: i64,
) -> Result<(), String> {
    if let Some(dir) = path.parent() {
        let made = DirBuilder::new().recursive(true).mode(0o755).create(dir);
        made.map_err(|error| format!("{}: {error}", dir.display()))?;
    }
    let told = |error: rusqlite::Error| format!("{}: {error}", path.display());
    // SQLite would make it readable for everybody.
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path);
    if let Ok(file) = file {
        let private = file.set_permissions(Permissions::from_mode(0o600));
        private.map_err(|error| format!("{}: {error}", path.display()))?;
    }
    let connection = Connection::open(path).map_err(told)?;
    write(&connection, workflow, database, states, anew, now).map_err(told)
}

fn write(
    connection: &Connection,
    workflow: &WorkflowRow,
    database: &str,
    states: &[WorkflowState],
    anew: bool,
    now: i64,
) -> rusqlite::Result<()> {
    connection.busy_timeout(Duration::from_secs(20))?;
    connection.execute_batch("PRAGMA foreign_keys = ON; BEGIN IMMEDIATE")?;
    let tables = "SELECT count(*) FROM sqlite_master WHERE name = 'master_workflow'";
    if connection.query_row(tables, (), |row| row.get::<_, i64>(0))? == 0 {
        schema::create_tables(connection, now)?;
        schema::create_indexes(connection)?;
    }
    if anew {
        connection.execute(
            "DELETE FROM master_workflow WHERE wf_uuid = ?1",
            [&workflow.wf_uuid],
        )?;
    }
    connection.execute(
        "INSERT OR IGNORE INTO master_workflow (wf_uuid, dax_label, dax_version, dax_file, dag_file_name, timestamp,
             submit_hostname, submit_dir, planner_arguments, user, grid_dn, planner_version, db_url, archived)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, 0)",
        (
            &workflow.wf_uuid,
            &workflow.dax_label,
            &workflow.dax_version,
            &workflow.dax_file,
            &workflow.dag_file_name,
            workflow.timestamp,
            &workflow.submit_hostname,
            &workflow.submit_dir,
            &workflow.planner_arguments,
            &workflow.user,
            &workflow.grid_dn,
            &workflow.planner_version,
            database,
        ),
    )?;
    for state in states {
        connection.execute(
            "INSERT OR IGNORE INTO master_workflowstate
             SELECT wf_id, ?1, ?2, ?3, ?4, NULL FROM master_workflow WHERE wf_uuid = ?5",
            (
                state.state,
                state.timestamp,
                state.restart_count,
                state.status,
                &workflow.wf_uuid,
            ),
        )?;
    }
    connection.execute_batch("COMMIT")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(path: &Path, table: &str) -> i64 {
        let connection = Connection::open(path).unwrap();
        connection
            .query_row(&format!("SELECT count(*) FROM {table}"), (), |row| row.get(0))
            .unwrap()
    }

    #[test]
    fn writing_twice_changes_nothing() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join(".pegasus/workflow.db");
        let workflow = |uuid: &str| WorkflowRow {
            wf_uuid: uuid.to_owned(),
            ..WorkflowRow::default()
        };
        let state = |state, timestamp, status| WorkflowState {
            state,
            timestamp,
            restart_count: 0,
            status,
        };
        let states = [
            state("WORKFLOW_STARTED", 1.0, None),
            state("WORKFLOW_TERMINATED", 1.001, Some(0)),
        ];
        let write = |uuid, states, anew| {
            update(&path, &workflow(uuid), "sqlite:////x.db", states, anew, 0).unwrap();
        };
        write("a", &states[..1], false);
        write("a", &states, false);
        write("b", &states, false);
        assert_eq!(
            (
                count(&path, "master_workflow"),
                count(&path, "master_workflowstate")
            ),
            (2, 4)
        );
        write("a", &states[..1], true);
        assert_eq!(
            (
                count(&path, "master_workflow"),
                count(&path, "master_workflowstate")
            ),
            (2, 3)
        );
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_reason_that_says_where() {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join(".pegasus"), "").unwrap();
        let path = home.path().join(".pegasus/workflow.db");
        let reason = update(&path, &WorkflowRow::default(), "sqlite:////x.db", &[], false, 0).unwrap_err();
        assert!(reason.contains(".pegasus: "), "{reason}");
    }
}
