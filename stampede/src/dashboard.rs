//! The list of all workflows of a user, `~/.pegasus/workflow.db`, which the dashboard shows.
//!
//! Many runs write into this file, so transactions are short. Writing twice changes nothing.

use std::fs::{DirBuilder, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::Connection;

use crate::rows::{WorkflowRow, WorkflowState};
use crate::schema;

/// An entry of the list.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// The workflow.
    pub workflow: &'a WorkflowRow,
    /// URL of its database.
    pub database_url: &'a str,
    /// Starts and ends of its runs.
    pub states: &'a [WorkflowState],
}

/// The list cannot be updated.
#[derive(Debug, thiserror::Error)]
pub enum DashboardError {
    /// The file or its directory cannot be written.
    #[error("{}: {source}", path.display())]
    Io {
        /// File or directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The database cannot be written.
    #[error("{}: {source}", path.display())]
    Sqlite {
        /// Database.
        path: PathBuf,
        /// Why.
        source: rusqlite::Error,
    },
}

/// Adds an entry or its new states to the list. With `replace`, removes the old entry first. `now` is the
/// time in seconds since the epoch.
///
/// # Errors
/// The list cannot be written.
pub fn update(path: &Path, entry: &Entry<'_>, replace: bool, now: i64) -> Result<(), DashboardError> {
    let io_error = |path: &Path| {
        let path = path.to_owned();
        |source| DashboardError::Io { path, source }
    };
    if let Some(dir) = path.parent() {
        let created = DirBuilder::new().recursive(true).mode(0o755).create(dir);
        created.map_err(io_error(dir))?;
    }
    // SQLite would let everybody read it, and URLs may contain passwords.
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path);
    if let Ok(file) = file {
        let private = file.set_permissions(Permissions::from_mode(0o600));
        private.map_err(io_error(path))?;
    }
    let written = Connection::open(path).and_then(|connection| write(&connection, entry, replace, now));
    written.map_err(|source| DashboardError::Sqlite {
        path: path.to_owned(),
        source,
    })
}

fn write(connection: &Connection, entry: &Entry<'_>, replace: bool, now: i64) -> rusqlite::Result<()> {
    let workflow = entry.workflow;
    connection.busy_timeout(Duration::from_secs(20))?;
    connection.execute_batch("PRAGMA foreign_keys = ON; BEGIN IMMEDIATE")?;
    let tables = "SELECT count(*) FROM sqlite_master WHERE name = 'master_workflow'";
    if connection.query_row(tables, (), |row| row.get::<_, i64>(0))? == 0 {
        schema::create_tables(connection, now)?;
        schema::create_indexes(connection)?;
    }
    if replace {
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
            entry.database_url,
        ),
    )?;
    for state in entry.states {
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
        let write = |uuid, states, replace| {
            let entry = Entry {
                workflow: &workflow(uuid),
                database_url: "sqlite:////x.db",
                states,
            };
            update(&path, &entry, replace, 0).unwrap();
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
    fn an_error_names_the_file() {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join(".pegasus"), "").unwrap();
        let path = home.path().join(".pegasus/workflow.db");
        let entry = Entry {
            workflow: &WorkflowRow::default(),
            database_url: "sqlite:////x.db",
            states: &[],
        };
        let error = update(&path, &entry, false, 0).unwrap_err().to_string();
        assert!(error.contains(".pegasus: "), "{error}");
    }
}
