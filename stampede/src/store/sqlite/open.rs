//! Opens databases in files and chooses their journals.

use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension as _, Row};

use super::Sqlite;
use crate::file_system::{self, Journal};
use crate::schema;
use crate::store::host_ids::HostIds;
use crate::store::{Position, Purpose, StoreError};

/// Maximum time to wait for a reader that holds the database.
const BUSY_TIMEOUT: Duration = Duration::from_secs(60);

/// Settings of a database that others read while it grows, with a rollback journal.
const ROLLBACK: &str = "PRAGMA journal_mode = TRUNCATE; PRAGMA synchronous = NORMAL";
/// The same with a write-ahead log.
const WRITE_AHEAD: &str = "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL";
/// Settings for a new file. It needs no journal, and a write-ahead log would write the whole plan twice.
const NEW_FILE: &str = "PRAGMA synchronous = NORMAL";
/// Settings of a database that is not read before it is complete.
const BULK: &str = "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA locking_mode = EXCLUSIVE";

/// Resolves the directory of a path, but not its last name. SQLite refuses links anywhere in a path, so those
/// of other users are left for it.
fn without_links(path: &Path) -> PathBuf {
    if path == Path::new(":memory:") {
        return path.to_owned();
    }
    let directory = path
        .parent()
        .filter(|directory| !directory.as_os_str().is_empty());
    let directory = pmc_files::real_path(directory.unwrap_or(Path::new(".")));
    match (directory, path.file_name()) {
        (Ok(directory), Some(name)) => directory.join(name),
        _ => path.to_owned(),
    }
}

/// Opens a database of this loader.
fn connect(path: &Path, more: OpenFlags) -> rusqlite::Result<Connection> {
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let connection = Connection::open_with_flags(without_links(path), flags | more)?;
    prepare(&connection)?;
    Ok(connection)
}

fn failed(path: &Path) -> impl FnOnce(rusqlite::Error) -> StoreError {
    |source| StoreError::Sqlite {
        path: path.to_owned(),
        source,
    }
}

impl Sqlite {
    /// Creates a database with its tables. The file must not exist. `now` is in seconds since the epoch.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn create(path: &Path, purpose: Purpose, now: i64) -> Result<Self, StoreError> {
        let next_journal = (purpose == Purpose::Live && journal(path) == WRITE_AHEAD).then_some(WRITE_AHEAD);
        let settings = match (purpose, next_journal) {
            (Purpose::Bulk, _) => BULK,
            (Purpose::Live, Some(_)) => NEW_FILE,
            (Purpose::Live, None) => ROLLBACK,
        };
        let create = || {
            let connection = connect(path, OpenFlags::SQLITE_OPEN_CREATE)?;
            connection.execute_batch(settings)?;
            connection.execute_batch("BEGIN IMMEDIATE")?;
            schema::create_tables(&connection, now)?;
            schema::create_position(&connection)?;
            schema::create_queue(&connection)?;
            if purpose == Purpose::Bulk {
                // Making them at the end would take as long, and memory for all rows.
                schema::create_indexes(&connection)?;
            }
            Ok(connection)
        };
        let connection = create().map_err(failed(path))?;
        let this = Self::new(connection, path, purpose, 0);
        this.next_journal.set(next_journal);
        Ok(this)
    }

    /// Opens a database that another store has made, for a nested sub-workflow that is not in it.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn join(path: &Path, purpose: Purpose) -> Result<Self, StoreError> {
        let open = || {
            let connection = connect(path, OpenFlags::empty())?;
            connection.execute_batch(match (purpose, journal(path)) {
                (Purpose::Bulk, _) => BULK,
                // The mode is that of the file.
                (Purpose::Live, WRITE_AHEAD) => NEW_FILE,
                (Purpose::Live, other) => other,
            })?;
            Ok(connection)
        };
        let connection = open().map_err(failed(path))?;
        let mut this = Self::new(connection, path, purpose, 0);
        this.is_joined = true;
        Ok(this)
    }

    /// Notes that another store has the database open as long as this one.
    #[must_use]
    pub fn joined(mut self) -> Self {
        self.is_joined = true;
        self
    }

    /// Opens the database with the workflow `uuid` to continue it. `None` if there is none, or another loader
    /// made it.
    ///
    /// # Errors
    /// It cannot be read or written.
    pub fn open(path: &Path, uuid: &str) -> Result<Option<(Self, Position)>, StoreError> {
        if !path.exists() {
            return Ok(None);
        }
        let open = || {
            let connection = connect(path, OpenFlags::empty())?;
            connection.execute_batch(journal(path))?;
            let tables = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'pmc_loader'";
            if connection.query_row(tables, (), |row| row.get::<_, i64>(0))? == 0 {
                return Ok(None);
            }
            let position = connection
                .query_row(
                    "SELECT wf_id, log_bytes, log_lines, log_head, log_tail, jobstate_bytes, root_wf_id
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
                        let wf: i64 = row.get(0)?;
                        Ok((wf, row.get::<_, Option<i64>>(6)?.unwrap_or(wf), position))
                    },
                )
                .optional()?;
            // Databases of earlier versions lack it.
            schema::create_queue(&connection)?;
            Ok(position.map(|ids| (connection, ids)))
        };
        let opened = open().map_err(failed(path))?;
        Ok(opened.map(|(connection, (wf, root, position))| {
            let mut this = Self::new(connection, path, Purpose::Live, wf);
            this.root = root;
            (this, position)
        }))
    }

    /// Returns whether a file is a database without tables. A loader that was killed before its first commit
    /// leaves such a file.
    #[must_use]
    pub fn is_empty(path: &Path) -> bool {
        let count = || {
            let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
                | OpenFlags::SQLITE_OPEN_NO_MUTEX
                | OpenFlags::SQLITE_OPEN_NOFOLLOW;
            let connection = Connection::open_with_flags(without_links(path), flags)?;
            // Undoes what was not committed.
            connection.query_row("SELECT count(*) FROM sqlite_master", (), |row| {
                row.get::<_, i64>(0)
            })
        };
        path.is_file() && count().is_ok_and(|tables| tables == 0)
    }

    /// Returns the UUID of the workflow in a database that this loader made.
    #[must_use]
    pub fn workflow_of(path: &Path) -> Option<String> {
        let connection = pmc_sqlite::open_untrusted(path).ok()?;
        let uuid = "SELECT wf_uuid FROM workflow JOIN pmc_loader USING (wf_id) WHERE parent_wf_id IS NULL";
        connection.query_row(uuid, (), |row| row.get(0)).ok()
    }

    fn new(connection: Connection, path: &Path, purpose: Purpose, wf: i64) -> Self {
        Self {
            connection,
            path: path.to_owned(),
            purpose,
            wf,
            root: wf,
            is_new: false,
            is_joined: false,
            next_attempt: Cell::new(None),
            hosts: HostIds::default(),
            buffer: RefCell::default(),
            next_journal: Cell::new(None),
        }
    }

    /// Changes the journal, which needs exclusive access. A reader postpones it to the next commit.
    pub(super) fn change_journal(&self, journal: &'static str) -> rusqlite::Result<()> {
        self.connection.busy_timeout(Duration::ZERO)?;
        let changed = self.connection.execute_batch(journal);
        self.connection.busy_timeout(BUSY_TIMEOUT)?;
        match changed {
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => {
                self.next_journal.set(Some(journal));
                Ok(())
            }
            changed => changed,
        }
    }
}

/// Reads an unsigned number; SQLite stores signed ones.
fn unsigned(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    row.get(column).map(i64::cast_unsigned)
}

/// Returns the settings that the file system of a database allows.
fn journal(path: &Path) -> &'static str {
    match file_system::journal(path.parent().unwrap_or(Path::new("."))) {
        Journal::WriteAhead => WRITE_AHEAD,
        Journal::Rollback => ROLLBACK,
    }
}

fn prepare(connection: &Connection) -> rusqlite::Result<()> {
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.set_prepared_statement_cache_capacity(64);
    // Keeps statements prepared when their values change.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    // The loader inserts consistent rows only. Checking each would cost a third of its time.
    connection.execute_batch(
        "PRAGMA foreign_keys = OFF; PRAGMA ignore_check_constraints = ON; PRAGMA cache_size = -65536;
         PRAGMA temp_store = MEMORY",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Store as _;

    #[test]
    fn a_database_without_a_commit_is_empty() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.db");
        assert!(!Sqlite::is_empty(&path));
        let store = Sqlite::create(&path, Purpose::Live, 1).unwrap();
        // All that a kill leaves behind is the file with what is on disk now.
        let killed = folder.path().join("killed.db");
        std::fs::copy(&path, &killed).unwrap();
        assert!(Sqlite::is_empty(&killed));
        store.commit(Position::default()).unwrap();
        drop(store);
        assert!(!Sqlite::is_empty(&path));
        std::fs::write(&killed, "no database").unwrap();
        assert!(!Sqlite::is_empty(&killed));
    }

    #[test]
    fn a_reader_only_postpones_the_journal() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.db");
        let store = Sqlite::create(&path, Purpose::Live, 1).unwrap();
        // The reader comes between the first commit and the change.
        store.next_journal.set(None);
        store.commit(Position::default()).unwrap();
        let reader = Connection::open(&path).unwrap();
        reader
            .execute_batch("BEGIN; SELECT count(*) FROM sqlite_master")
            .unwrap();
        let start = std::time::Instant::now();
        store.change_journal(WRITE_AHEAD).unwrap();
        assert!(start.elapsed() < BUSY_TIMEOUT / 2 && store.next_journal.get() == Some(WRITE_AHEAD));
        reader.execute_batch("COMMIT").unwrap();
        store.change_journal(WRITE_AHEAD).unwrap();
        let journal: String = store
            .connection
            .query_row("PRAGMA journal_mode", (), |row| row.get(0))
            .unwrap();
        assert_eq!(journal, "wal");
    }
}
