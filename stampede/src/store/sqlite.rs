//! A database in a file (SQLite).

use std::cell::{Cell, RefCell};
use std::path::PathBuf;

use rusqlite::{CachedStatement, Connection, ErrorCode, OptionalExtension as _, Params};

use super::host_ids::HostIds;
use super::{Lookup as _, Position, Purpose, QueueMode, Store, StoreError};
use crate::rows::{AttemptEnd, HostRow, InvocationRow, JobRow, WorkflowRow, WorkflowState};
use crate::schema;
use crate::text::{Metric, MetricKind};

mod insert;
mod lookup;
mod open;
mod write_buffer;

use write_buffer::WriteBuffer;

/// One workflow in a database.
#[derive(Debug)]
pub struct Sqlite {
    connection: Connection,
    path: PathBuf,
    purpose: Purpose,
    wf: i64,
    /// The outermost workflow, which has the hosts of all.
    root: i64,
    /// The workflow has no attempts from before.
    is_new: bool,
    /// Another store has the database open as long as this one.
    is_joined: bool,
    /// Id of the next attempt; unknown between two transactions, in which others may insert.
    next_attempt: Cell<Option<i64>>,
    hosts: HostIds,
    buffer: RefCell<WriteBuffer>,
    /// Statements that set the journal after the next commit.
    next_journal: Cell<Option<&'static str>>,
}

impl Sqlite {
    /// Returns the id of a logical file; inserts it if it is new.
    fn file_id(&self, lfn: &str) -> Result<i64, StoreError> {
        if self.execute("INSERT OR IGNORE INTO rc_lfn (lfn) VALUES (?1)", [lfn])? > 0 {
            return Ok(self.connection.last_insert_rowid());
        }
        self.query_id("SELECT lfn_id FROM rc_lfn WHERE lfn = ?1", [lfn])?
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

    /// Writes all rows of the buffer.
    fn flush(&self) -> Result<(), StoreError> {
        self.flush_with(WriteBuffer::write)
    }

    fn flush_with(
        &self,
        write: impl FnOnce(&mut WriteBuffer, &Connection, i64) -> rusqlite::Result<()>,
    ) -> Result<(), StoreError> {
        let mut buffer = self.buffer.borrow_mut();
        if buffer.is_empty() {
            return Ok(());
        }
        self.begin()?;
        write(&mut buffer, &self.connection, self.wf).map_err(|source| self.error(source))
    }

    /// Writes all rows of the buffer if jobs and tasks are among them.
    fn flush_plan(&self) -> Result<(), StoreError> {
        let has_jobs = self.buffer.borrow().last_job().is_some();
        if has_jobs { self.flush() } else { Ok(()) }
    }

    /// Adds to the buffer. Writes it if it is full.
    fn buffer(&self, add: impl FnOnce(&mut WriteBuffer)) -> Result<(), StoreError> {
        add(&mut self.buffer.borrow_mut());
        let is_full = || self.buffer.borrow().is_full();
        if is_full() {
            self.write_ended()?;
        }
        if is_full() { self.flush() } else { Ok(()) }
    }

    /// Executes a statement that writes, in a transaction. Returns the number of rows.
    fn execute(&self, sql: &str, params: impl Params) -> Result<usize, StoreError> {
        self.begin()?;
        let run = || -> rusqlite::Result<usize> {
            let mut statement: CachedStatement<'_> = self.connection.prepare_cached(sql)?;
            statement.execute(params)
        };
        run().map_err(|source| self.error(source))
    }

    /// Returns the first column of the first row.
    fn query_id(&self, sql: &str, params: impl Params) -> Result<Option<i64>, StoreError> {
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
        self.flush()?;
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
        self.next_attempt.set(None);
        let Some(journal) = self.next_journal.take() else {
            return Ok(());
        };
        self.change_journal(journal).map_err(|source| self.error(source))
    }

    fn write_ended(&self) -> Result<(), StoreError> {
        self.flush_with(WriteBuffer::write_ended)
    }

    fn finish_plan(&self) -> Result<(), StoreError> {
        self.flush()?;
        match self.purpose {
            // Indexes of jobs and tasks are faster to make now than row by row. The other indexes grow during
            // the run, which has cores to spare; at the end, everybody would wait for them.
            Purpose::Live => schema::create_indexes(&self.connection).map_err(|source| self.error(source)),
            Purpose::Bulk => Ok(()),
        }
    }

    fn close(self: Box<Self>) -> Result<(), StoreError> {
        if self.is_joined {
            return Ok(());
        }
        // Otherwise an empty journal stays behind. A reader keeps the database in write-ahead mode.
        match self.connection.execute_batch("PRAGMA journal_mode = DELETE") {
            Err(source) if source.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => {}
            result => result.map_err(|source| self.error(source))?,
        }
        let Self { path, connection, .. } = *self;
        connection
            .close()
            .map_err(|(_, source)| StoreError::Sqlite { path, source })
    }

    fn insert_workflow(&mut self, row: &WorkflowRow) -> Result<(), StoreError> {
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
        self.is_new = true;
        self.root = match &row.around {
            None => self.wf,
            Some(around) => {
                let id = |uuid| self.query_id("SELECT wf_id FROM workflow WHERE wf_uuid = ?1", [uuid]);
                let (parent, root) = (id(&around.parent)?, id(&around.root)?);
                self.execute(
                    "UPDATE workflow SET parent_wf_id = ?1 WHERE wf_id = ?2",
                    (parent, self.wf),
                )?;
                root.unwrap_or(self.wf)
            }
        };
        self.execute(
            "UPDATE workflow SET root_wf_id = ?1 WHERE wf_id = ?2",
            (self.root, self.wf),
        )?;
        self.execute("INSERT INTO pmc_loader VALUES (?1, 0, 0, 0, 0, 0)", [self.wf])?;
        Ok(())
    }

    fn insert_workflow_state(&self, row: &WorkflowState) -> Result<(), StoreError> {
        self.execute(
            "INSERT INTO workflowstate VALUES (?1, ?2, ?3, ?4, ?5, NULL)",
            (self.wf, row.state, row.timestamp, row.restart_count, row.status),
        )
        .map(drop)
    }

    fn set_workflow_meta(&self, key: &str, value: &str) -> Result<(), StoreError> {
        self.execute(
            "INSERT OR REPLACE INTO workflow_meta VALUES (?1, ?2, ?3)",
            (self.wf, key, value),
        )
        .map(drop)
    }

    fn insert_task(
        &self,
        id: &str,
        transformation: &str,
        argv: Option<&str>,
        kind: &str,
    ) -> Result<(), StoreError> {
        self.execute(
            "INSERT OR IGNORE INTO task (wf_id, abs_task_id, transformation, argv, type_desc)
             VALUES (?1, ?2, ?3, ?4, ?5)",
            (self.wf, id, transformation, argv, kind),
        )
        .map(drop)
    }

    fn insert_task_edge(&self, parent: &str, child: &str) -> Result<(), StoreError> {
        self.execute(
            "INSERT OR IGNORE INTO task_edge VALUES (?1, ?2, ?3)",
            (self.wf, parent, child),
        )
        .map(drop)
    }

    fn set_task_meta(&self, task: &str, key: &str, value: &str) -> Result<bool, StoreError> {
        let rows = self.execute(
            "INSERT OR REPLACE INTO task_meta SELECT task_id, ?1, ?2 FROM task WHERE wf_id = ?3 AND abs_task_id = ?4",
            (key, value, self.wf, task),
        )?;
        Ok(rows > 0)
    }

    fn insert_job(&self, row: &JobRow<'_>) -> Result<(), StoreError> {
        self.flush_plan()?;
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

    fn insert_job_edge(&self, parent: &str, child: &str) -> Result<(), StoreError> {
        self.execute(
            "INSERT OR IGNORE INTO job_edge VALUES (?1, ?2, ?3)",
            (self.wf, parent, child),
        )
        .map(drop)
    }

    fn assign_task(&self, task: &str, job: &str) -> Result<bool, StoreError> {
        let Some(job) = self.job_id(job)? else {
            return Ok(false);
        };
        let rows = self.execute(
            "UPDATE task SET job_id = ?1 WHERE wf_id = ?2 AND abs_task_id = ?3",
            (job, self.wf, task),
        )?;
        Ok(rows > 0)
    }

    fn insert_workflow_file(&self, task: &str, lfn: &str) -> Result<bool, StoreError> {
        let lfn = self.file_id(lfn)?;
        let rows = self.execute(
            "INSERT OR IGNORE INTO workflow_files (wf_id, task_id, lfn_id)
             SELECT ?1, task_id, ?2 FROM task WHERE wf_id = ?1 AND abs_task_id = ?3",
            (self.wf, lfn, task),
        )?;
        Ok(rows > 0)
    }

    fn set_file_meta(&self, lfn: &str, values: &[(&str, &str)]) -> Result<(), StoreError> {
        let lfn = self.file_id(lfn)?;
        for (key, value) in values {
            self.execute(
                "INSERT OR REPLACE INTO rc_meta VALUES (?1, ?2, ?3)",
                (lfn, key, value),
            )?;
        }
        Ok(())
    }

    fn insert_replica(&self, lfn: &str, pfn: &str, site: Option<&str>) -> Result<(), StoreError> {
        let lfn = self.file_id(lfn)?;
        self.execute(
            "INSERT OR IGNORE INTO rc_pfn (lfn_id, pfn, site) VALUES (?1, ?2, ?3)",
            (lfn, pfn, site),
        )
        .map(drop)
    }

    fn insert_job_with_task(
        &self,
        job: &JobRow<'_>,
        task: &str,
        transformation: &str,
    ) -> Result<(), StoreError> {
        let last = self.buffer.borrow().last_job();
        let last = match last {
            Some(last) => last,
            None => self.query_id("SELECT max(job_id) FROM job", ())?.unwrap_or(0),
        };
        self.buffer(|buffer| buffer.add_job_with_task(last + 1, job, task, transformation))
    }

    fn queue_mode(&self) -> QueueMode {
        match self.purpose {
            Purpose::Live => QueueMode::Persistent,
            Purpose::Bulk => QueueMode::Memory,
        }
    }

    fn save_queue(&self, text: &str) -> Result<(), StoreError> {
        self.execute("INSERT INTO pmc_queued VALUES (?1, ?2)", (self.wf, text))
            .map(drop)
    }

    fn clear_queue(&self) -> Result<(), StoreError> {
        self.execute("DELETE FROM pmc_queued WHERE wf_id = ?1", [self.wf])
            .map(drop)
    }

    fn link(&self, parent: &str, job: &str, seq: i64) -> Result<(), StoreError> {
        self.execute(
            "UPDATE job_instance SET subwf_id = ?1 WHERE job_submit_seq = ?2 AND job_id = (
                 SELECT job_id FROM job WHERE exec_job_id = ?3
                     AND wf_id = (SELECT wf_id FROM workflow WHERE wf_uuid = ?4))",
            (self.wf, seq, job, parent),
        )
        .map(drop)
    }

    fn insert_attempt(&self, job_id: i64, seq: i64, sched_id: &str) -> Result<i64, StoreError> {
        let id = match self.next_attempt.get() {
            Some(id) => id,
            None => {
                // From now on, no other store inserts.
                self.begin()?;
                let last = self.query_id("SELECT max(job_instance_id) FROM job_instance", ())?;
                last.unwrap_or(0) + 1
            }
        };
        self.next_attempt.set(Some(id + 1));
        self.buffer(|buffer| buffer.add_attempt(id, job_id, seq, sched_id))?;
        Ok(id)
    }

    fn set_sched_id(&self, attempt: i64, sched_id: &str) -> Result<(), StoreError> {
        self.buffer(|buffer| buffer.set_sched_id(attempt, sched_id))
    }

    fn insert_state(&self, attempt: i64, state: &str, time: i64, seq: i64) -> Result<(), StoreError> {
        self.buffer(|buffer| buffer.add_state(attempt, state, time, seq))
    }

    fn insert_invocation(&self, attempt: i64, row: InvocationRow) -> Result<(), StoreError> {
        self.buffer(|buffer| buffer.add_invocation(attempt, row))
    }

    fn host_id(&mut self, row: &HostRow) -> Result<i64, StoreError> {
        if let Some(id) = self.hosts.get(row) {
            return Ok(id);
        }
        self.execute(
            "INSERT OR IGNORE INTO host (wf_id, site, hostname, ip, uname, total_memory) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            (self.root, &row.site, &row.hostname, &row.ip, &row.uname, row.total_memory),
        )?;
        let id = self
            .query_id(
                "SELECT host_id FROM host WHERE wf_id = ?1 AND site = ?2 AND hostname = ?3 AND ip = ?4",
                (self.root, &row.site, &row.hostname, &row.ip),
            )?
            .ok_or_else(|| self.error(rusqlite::Error::QueryReturnedNoRows))?;
        Ok(self.hosts.insert(id))
    }

    fn insert_integrity(
        &self,
        attempt: i64,
        (kind, files): MetricKind,
        metric: Metric,
    ) -> Result<(), StoreError> {
        self.execute(
            "INSERT OR REPLACE INTO integrity (wf_id, job_instance_id, type, file_type, count, duration)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            (self.wf, attempt, kind, files, metric.count, metric.seconds),
        )
        .map(drop)
    }

    fn insert_integrity_errors(&self, attempt: i64, count: i64) -> Result<(), StoreError> {
        self.execute(
            "INSERT OR REPLACE INTO tag (wf_id, job_instance_id, name, count) VALUES (?1, ?2, 'int.error', ?3)",
            (self.wf, attempt, count),
        )
        .map(drop)
    }

    fn end_attempt(&self, attempt: i64, end: AttemptEnd, host: Option<i64>) -> Result<(), StoreError> {
        self.buffer(|buffer| buffer.end_attempt(attempt, end, host))
    }

    /// SQLite does not limit texts.
    fn take_truncated(&self) -> u64 {
        0
    }
}
