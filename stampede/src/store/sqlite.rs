//! A database in a file, with prepared statements.

use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{CachedStatement, Connection, ErrorCode, OpenFlags, OptionalExtension as _, Params, Row};

use super::hosts::Hosts;
use super::{Lookup as _, Position, Purpose, Queueing, Store, StoreError};
use crate::file_system::{self, Journal};
use crate::rows::{HostRow, InvocationRow, JobRow, TryEnd, WorkflowRow, WorkflowState};
use crate::schema;

mod query;
mod waiting;

use waiting::Waiting;

/// How long to wait for a reader that holds the database.
const BUSY: Duration = Duration::from_secs(60);

/// A database of one workflow.
#[derive(Debug)]
pub struct Sqlite {
    connection: Connection,
    path: PathBuf,
    purpose: Purpose,
    wf: i64,
    hosts: Hosts,
    waiting: RefCell<Waiting>,
    /// What sets the journal of the run, once the plan is there.
    journal: Cell<Option<&'static str>>,
}

impl Sqlite {
    /// Makes a new database with its tables. The file must not exist.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn create(path: &Path, purpose: Purpose, now: i64) -> Result<Self, StoreError> {
        let ahead = purpose == Purpose::Live && journal(path) == AHEAD;
        let open = || {
            let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
                | OpenFlags::SQLITE_OPEN_CREATE
                | OpenFlags::SQLITE_OPEN_NO_MUTEX;
            let connection = Connection::open_with_flags(path, flags)?;
            prepare(&connection)?;
            connection.execute_batch(match purpose {
                // What is new in the file needs no journal; with a write-ahead log, all of the plan would be written
                // twice.
                Purpose::Live if ahead => "PRAGMA synchronous = NORMAL",
                Purpose::Live => IN_PLACE,
                Purpose::Bulk => {
                    "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA locking_mode = EXCLUSIVE"
                }
            })?;
            connection.execute_batch("BEGIN IMMEDIATE")?;
            schema::create_tables(&connection, now)?;
            schema::create_position(&connection)?;
            schema::create_queue(&connection)?;
            if purpose == Purpose::Bulk {
                // To make them at the end takes memory for all rows, or files elsewhere, and as long.
                schema::create_indexes(&connection)?;
            }
            Ok(connection)
        };
        let connection = open().map_err(|source| StoreError::Sqlite {
            path: path.to_owned(),
            source,
        })?;
        let this = Self::new(connection, path, purpose, 0);
        this.journal.set(ahead.then_some(AHEAD));
        Ok(this)
    }

    fn new(connection: Connection, path: &Path, purpose: Purpose, wf: i64) -> Self {
        Self {
            connection,
            path: path.to_owned(),
            purpose,
            wf,
            hosts: Hosts::default(),
            waiting: RefCell::default(),
            journal: Cell::new(None),
        }
    }

    /// Changes the journal, which needs the file alone. While somebody reads, the next commit tries again.
    fn change_journal(&self, journal: &'static str) -> rusqlite::Result<()> {
        self.connection.busy_timeout(Duration::ZERO)?;
        let changed = self.connection.execute_batch(journal);
        self.connection.busy_timeout(BUSY)?;
        match changed {
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => {
                self.journal.set(Some(journal));
                Ok(())
            }
            changed => changed,
        }
    }

    /// Opens the database of the workflow `uuid` to go on with it. `None` if there is none, or not made
    /// by this loader.
    ///
    /// # Errors
    /// It is there but cannot be read or written.
    pub fn open(path: &Path, uuid: &str) -> Result<Option<(Self, Position)>, StoreError> {
        if !path.exists() {
            return Ok(None);
        }
        let open = || {
            let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
            let connection = Connection::open_with_flags(path, flags)?;
            prepare(&connection)?;
            connection.execute_batch(journal(path))?;
            let tables = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'pmc_loader'";
            if connection.query_row(tables, (), |row| row.get::<_, i64>(0))? == 0 {
                return Ok(None);
            }
            let position = connection
                .query_row(
                    "SELECT wf_id, log_bytes, log_lines, log_head, log_tail, jobstate_bytes
                     FROM pmc_loader JOIN workflow USING (wf_id) WHERE wf_uuid = ?1",
                    [uuid],
                    |row| {
                        let position = Position {
                            log_bytes: unsigned(row, 1)?,
                            log_lines: unsigned(row, 2)?,
                            log_head: row.get(3)?,
                            log_tail: row.get(4)?,
                            jobstate_bytes: unsigned(row, 5)?,
                        };
                        Ok((row.get(0)?, position))
                    },
                )
                .optional()?;
            // An earlier version of this loader made none.
            schema::create_queue(&connection)?;
            Ok(position.map(|(wf, position)| (connection, wf, position)))
        };
        match open() {
            Ok(found) => Ok(found.map(|(connection, wf, position)| {
                (Self::new(connection, path, Purpose::Live, wf), position)
            })),
            Err(source) => Err(StoreError::Sqlite {
                path: path.to_owned(),
                source,
            }),
        }
    }

    /// The workflow of a database that this loader made, if there is one.
    #[must_use]
    pub fn workflow_of(path: &Path) -> Option<String> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags).ok()?;
        let uuid = "SELECT wf_uuid FROM workflow JOIN pmc_loader USING (wf_id)";
        connection.query_row(uuid, (), |row| row.get(0)).ok()
    }

    /// File of the database.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Number of a logical file, which is made if it is new.
    fn lfn(&self, lfn: &str) -> Result<i64, StoreError> {
        if self.execute("INSERT OR IGNORE INTO rc_lfn (lfn) VALUES (?1)", [lfn])? > 0 {
            return Ok(self.connection.last_insert_rowid());
        }
        self.one("SELECT lfn_id FROM rc_lfn WHERE lfn = ?1", [lfn])?
            .ok_or_else(|| self.error(rusqlite::Error::QueryReturnedNoRows))
    }

    fn error(&self, source: rusqlite::Error) -> StoreError {
        StoreError::Sqlite {
            path: self.path.clone(),
            source,
        }
    }

    fn batch(&self, sql: &str) -> Result<(), StoreError> {
        self.connection
            .execute_batch(sql)
            .map_err(|source| self.error(source))
    }

    /// Begins a transaction, unless one is open.
    fn begin(&self) -> Result<(), StoreError> {
        if self.connection.is_autocommit() {
            self.batch("BEGIN IMMEDIATE")?;
        }
        Ok(())
    }

    /// Writes the rows that wait.
    fn settle(&self) -> Result<(), StoreError> {
        self.write(Waiting::write)
    }

    fn write(
        &self,
        write: impl FnOnce(&mut Waiting, &Connection, i64) -> rusqlite::Result<()>,
    ) -> Result<(), StoreError> {
        let mut waiting = self.waiting.borrow_mut();
        if waiting.is_empty() {
            return Ok(());
        }
        self.begin()?;
        write(&mut waiting, &self.connection, self.wf).map_err(|source| self.error(source))
    }

    /// Writes the rows that wait, if jobs and tasks are among them.
    fn settle_plan(&self) -> Result<(), StoreError> {
        let waits = self.waiting.borrow().last_job().is_some();
        if waits { self.settle() } else { Ok(()) }
    }

    /// Adds to the rows that wait.
    fn wait(&self, add: impl FnOnce(&mut Waiting)) -> Result<(), StoreError> {
        let full = {
            let mut waiting = self.waiting.borrow_mut();
            add(&mut waiting);
            waiting.is_full()
        };
        if !full {
            return Ok(());
        }
        self.advance()?;
        let full = self.waiting.borrow().is_full();
        if full { self.settle() } else { Ok(()) }
    }

    /// Writes, in a transaction; the number of rows.
    fn execute(&self, sql: &str, params: impl Params) -> Result<usize, StoreError> {
        self.begin()?;
        let run = || -> rusqlite::Result<usize> {
            let mut statement: CachedStatement<'_> = self.connection.prepare_cached(sql)?;
            statement.execute(params)
        };
        run().map_err(|source| self.error(source))
    }

    /// The first column of the first row.
    fn one(&self, sql: &str, params: impl Params) -> Result<Option<i64>, StoreError> {
        let run = || {
            let mut statement = self.connection.prepare_cached(sql)?;
            statement
                .query_row(params, |row| row.get::<_, Option<i64>>(0))
                .optional()
        };
        run().map(Option::flatten).map_err(|source| self.error(source))
    }
}

impl Store for Sqlite {
    fn commit(&self, position: Position) -> Result<(), StoreError> {
        self.settle()?;
        self.execute(
            "UPDATE pmc_loader SET log_bytes = ?1, log_lines = ?2, log_head = ?3, log_tail = ?4, jobstate_bytes = ?5
             WHERE wf_id = ?6",
            (
                position.log_bytes.cast_signed(),
                position.log_lines.cast_signed(),
                position.log_head,
                position.log_tail,
                position.jobstate_bytes.cast_signed(),
                self.wf,
            ),
        )?;
        self.batch("COMMIT")?;
        self.journal.take().map_or(Ok(()), |journal| {
            self.change_journal(journal).map_err(|source| self.error(source))
        })
    }

    fn advance(&self) -> Result<(), StoreError> {
        self.write(Waiting::write_ended)
    }

    fn plan_complete(&self) -> Result<(), StoreError> {
        self.settle()?;
        match self.purpose {
            // Those of jobs and tasks take less now than row by row. The others grow with the run, which has cores to
            // spare more often than its end, which would wait for them.
            Purpose::Live => schema::create_indexes(&self.connection).map_err(|source| self.error(source)),
            Purpose::Bulk => Ok(()),
        }
    }

    fn close(self: Box<Self>) -> Result<(), StoreError> {
        // An empty journal is left behind otherwise. While somebody reads, a write-ahead log stays one.
        match self.connection.execute_batch("PRAGMA journal_mode = DELETE") {
            Err(source) if source.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => {}
            result => result.map_err(|source| self.error(source))?,
        }
        let Self { path, connection, .. } = *self;
        connection
            .close()
            .map_err(|(_, source)| StoreError::Sqlite { path, source })
    }

    fn workflow(&mut self, row: &WorkflowRow) -> Result<(), StoreError> {
        self.execute(
            "INSERT INTO workflow (wf_uuid, dag_file_name, timestamp, submit_hostname, submit_dir, planner_arguments,
                 user, grid_dn, planner_version, dax_label, dax_version, dax_file)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
            (
                &row.wf_uuid,
                &row.dag_file_name,
                row.timestamp,
                &row.submit_hostname,
                &row.submit_dir,
                &row.planner_arguments,
                &row.user,
                &row.grid_dn,
                &row.planner_version,
                &row.dax_label,
                &row.dax_version,
                &row.dax_file,
            ),
        )?;
        self.wf = self.connection.last_insert_rowid();
        self.execute("UPDATE workflow SET root_wf_id = ?1 WHERE wf_id = ?1", [self.wf])?;
        self.execute("INSERT INTO pmc_loader VALUES (?1, 0, 0, 0, 0, 0)", [self.wf])?;
        Ok(())
    }

    fn workflow_state(&self, row: &WorkflowState) -> Result<(), StoreError> {
        self.execute(
            "INSERT INTO workflowstate VALUES (?1, ?2, ?3, ?4, ?5, NULL)",
            (self.wf, row.state, row.timestamp, row.restart_count, row.status),
        )
        .map(drop)
    }

    fn workflow_meta(&self, key: &str, value: &str) -> Result<(), StoreError> {
        self.execute(
            "INSERT OR REPLACE INTO workflow_meta VALUES (?1, ?2, ?3)",
            (self.wf, key, value),
        )
        .map(drop)
    }

    fn task(&self, id: &str, transformation: &str, argv: Option<&str>, kind: &str) -> Result<(), StoreError> {
        self.execute(
            "INSERT OR IGNORE INTO task (wf_id, abs_task_id, transformation, argv, type_desc)
             VALUES (?1, ?2, ?3, ?4, ?5)",
            (self.wf, id, transformation, argv, kind),
        )
        .map(drop)
    }

    fn task_edge(&self, parent: &str, child: &str) -> Result<(), StoreError> {
        self.execute(
            "INSERT OR IGNORE INTO task_edge VALUES (?1, ?2, ?3)",
            (self.wf, parent, child),
        )
        .map(drop)
    }

    fn task_meta(&self, task: &str, key: &str, value: &str) -> Result<bool, StoreError> {
        let rows = self.execute(
            "INSERT OR REPLACE INTO task_meta SELECT task_id, ?1, ?2 FROM task WHERE wf_id = ?3 AND abs_task_id = ?4",
            (key, value, self.wf, task),
        )?;
        Ok(rows > 0)
    }

    fn job(&self, row: &JobRow<'_>) -> Result<(), StoreError> {
        self.settle_plan()?;
        self.execute(
            "INSERT OR IGNORE INTO job (wf_id, exec_job_id, submit_file, type_desc, clustered, max_retries, executable,
                 argv, task_count)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
            (
                self.wf,
                row.exec_job_id,
                row.submit_file,
                row.type_desc,
                row.clustered,
                row.max_retries,
                row.executable,
                row.argv,
                row.task_count,
            ),
        )
        .map(drop)
    }

    fn job_edge(&self, parent: &str, child: &str) -> Result<(), StoreError> {
        self.execute(
            "INSERT OR IGNORE INTO job_edge VALUES (?1, ?2, ?3)",
            (self.wf, parent, child),
        )
        .map(drop)
    }

    fn task_of_job(&self, task: &str, job: &str) -> Result<bool, StoreError> {
        let Some(job) = self.job_id(job)? else {
            return Ok(false);
        };
        let rows = self.execute(
            "UPDATE task SET job_id = ?1 WHERE wf_id = ?2 AND abs_task_id = ?3",
            (job, self.wf, task),
        )?;
        Ok(rows > 0)
    }

    fn workflow_file(&self, task: &str, lfn: &str) -> Result<bool, StoreError> {
        let lfn = self.lfn(lfn)?;
        let rows = self.execute(
            "INSERT OR IGNORE INTO workflow_files (wf_id, task_id, lfn_id)
             SELECT ?1, task_id, ?2 FROM task WHERE wf_id = ?1 AND abs_task_id = ?3",
            (self.wf, lfn, task),
        )?;
        Ok(rows > 0)
    }

    fn file(&self, lfn: &str, values: &[(&str, &str)]) -> Result<(), StoreError> {
        let lfn = self.lfn(lfn)?;
        for (key, value) in values {
            self.execute(
                "INSERT OR REPLACE INTO rc_meta VALUES (?1, ?2, ?3)",
                (lfn, key, value),
            )?;
        }
        Ok(())
    }

    fn replica(&self, lfn: &str, pfn: &str, site: Option<&str>) -> Result<(), StoreError> {
        let lfn = self.lfn(lfn)?;
        self.execute(
            "INSERT OR IGNORE INTO rc_pfn (lfn_id, pfn, site) VALUES (?1, ?2, ?3)",
            (lfn, pfn, site),
        )
        .map(drop)
    }

    fn planned(&self, job: &JobRow<'_>, task: &str, transformation: &str) -> Result<(), StoreError> {
        let last = self.waiting.borrow().last_job();
        let last = match last {
            Some(last) => last,
            None => self.one("SELECT max(job_id) FROM job", ())?.unwrap_or(0),
        };
        self.wait(|waiting| waiting.planned(last + 1, job, task, transformation))
    }

    fn queueing(&self) -> Queueing {
        match self.purpose {
            Purpose::Live => Queueing::Kept,
            Purpose::Bulk => Queueing::Free,
        }
    }

    fn keep_queued(&self, text: &str) -> Result<(), StoreError> {
        self.execute("INSERT INTO pmc_queued VALUES (?1, ?2)", (self.wf, text))
            .map(drop)
    }

    fn forget_queued(&self) -> Result<(), StoreError> {
        self.execute("DELETE FROM pmc_queued", ()).map(drop)
    }

    fn new_try(&self, job_id: i64, seq: i64, sched_id: &str) -> Result<i64, StoreError> {
        // Nobody else makes any.
        self.wait(|waiting| waiting.new_try(seq, job_id, seq, sched_id))?;
        Ok(seq)
    }

    fn state(&self, try_id: i64, state: &str, time: i64, seq: i64) -> Result<(), StoreError> {
        self.wait(|waiting| waiting.state(try_id, state, time, seq))
    }

    fn invocation(&self, try_id: i64, row: InvocationRow) -> Result<(), StoreError> {
        self.wait(|waiting| waiting.invocation(try_id, row))
    }

    fn host(&mut self, row: &HostRow) -> Result<i64, StoreError> {
        if let Some(id) = self.hosts.get(row) {
            return Ok(id);
        }
        self.execute(
            "INSERT OR IGNORE INTO host (wf_id, site, hostname, ip, uname, total_memory) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            (self.wf, &row.site, &row.hostname, &row.ip, &row.uname, row.total_memory),
        )?;
        let id = self
            .one(
                "SELECT host_id FROM host WHERE wf_id = ?1 AND site = ?2 AND hostname = ?3 AND ip = ?4",
                (self.wf, &row.site, &row.hostname, &row.ip),
            )?
            .ok_or_else(|| self.error(rusqlite::Error::QueryReturnedNoRows))?;
        Ok(self.hosts.note(id))
    }

    fn integrity(
        &self,
        try_id: i64,
        kind: &str,
        files: &str,
        count: i64,
        seconds: f64,
    ) -> Result<(), StoreError> {
        self.execute(
            "INSERT OR REPLACE INTO integrity (wf_id, job_instance_id, type, file_type, count, duration)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            (self.wf, try_id, kind, files, count, seconds),
        )
        .map(drop)
    }

    fn integrity_errors(&self, try_id: i64, count: i64) -> Result<(), StoreError> {
        self.execute(
            "INSERT OR REPLACE INTO tag (wf_id, job_instance_id, name, count) VALUES (?1, ?2, 'int.error', ?3)",
            (self.wf, try_id, count),
        )
        .map(drop)
    }

    fn end_try(&self, try_id: i64, end: TryEnd, host: Option<i64>) -> Result<(), StoreError> {
        self.wait(|waiting| waiting.end(try_id, end, host))
    }

    fn texts_cut(&self) -> u64 {
        0
    }
}

/// SQLite has signed numbers only.
fn unsigned(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    row.get(column).map(i64::cast_unsigned)
}

/// Journals of a database that others read while it grows.
const IN_PLACE: &str = "PRAGMA journal_mode = TRUNCATE; PRAGMA synchronous = NORMAL";
const AHEAD: &str = "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL";

/// The journal that such a database can have where it lies.
fn journal(path: &Path) -> &'static str {
    match file_system::journal(path.parent().unwrap_or(Path::new("."))) {
        Journal::WriteAhead => AHEAD,
        Journal::Rollback => IN_PLACE,
    }
}

fn prepare(connection: &Connection) -> rusqlite::Result<()> {
    connection.busy_timeout(BUSY)?;
    connection.set_prepared_statement_cache_capacity(64);
    // Statements are not prepared anew for other values.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    // The rows fit together by the way they are made, and columns of a few values get those only; checking each
    // costs a third of the time.
    connection.execute_batch(
        "PRAGMA foreign_keys = OFF; PRAGMA ignore_check_constraints = ON; PRAGMA cache_size = -65536;
         PRAGMA temp_store = MEMORY",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_reads_holds_up_the_journal_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.db");
        let store = Sqlite::create(&path, Purpose::Live, 1).unwrap();
        // The reader comes between the first commit and the change.
        store.journal.set(None);
        store.commit(Position::default()).unwrap();
        let reader = Connection::open(&path).unwrap();
        reader
            .execute_batch("BEGIN; SELECT count(*) FROM sqlite_master")
            .unwrap();
        let began = std::time::Instant::now();
        store.change_journal(AHEAD).unwrap();
        assert!(began.elapsed() < BUSY / 2 && store.journal.get() == Some(AHEAD));
        reader.execute_batch("COMMIT").unwrap();
        store.change_journal(AHEAD).unwrap();
        let journal: String = store
            .connection
            .query_row("PRAGMA journal_mode", (), |row| row.get(0))
            .unwrap();
        assert_eq!(journal, "wal");
    }
}
