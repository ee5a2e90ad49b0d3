//! Opens SQLite databases that may be the work of another user.
//!
//! A file of SQLite is more than rows: views and triggers in it run with the queries of each user who opens
//! it, and a damaged one can have rows without end. SQLite opens a path, and would follow links and wait for
//! FIFOs.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pmc_files::{Destination, Owner};
use rusqlite::config::DbConfig;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::limits::Limit;
use rusqlite::{Connection, Error, OpenFlags, ffi};

/// Time to wait for a writer.
const BUSY_TIMEOUT: Duration = Duration::from_secs(60);
/// Steps of SQLite's virtual machine between two checks of the limit.
const STEPS_PER_CHECK: u32 = 1_000_000;
/// Steps that any database may take: some seconds.
const BASE_STEPS: u64 = 200_000_000;
/// More steps for each byte of the file. The statistics of a large run take about one step for a byte.
const STEPS_PER_BYTE: u64 = 100;
/// Maximum bytes of a value.
const MAX_VALUE: i32 = 64 << 20;

/// Opens a database read-only. Its views, triggers and functions are not used, and nothing but reading is
/// possible. A query that takes far longer than the size of the file explains is interrupted.
///
/// # Errors
/// The file is not a regular file, or SQLite cannot open it.
pub fn open_untrusted(path: &Path) -> rusqlite::Result<Connection> {
    // SQLite would wait for a FIFO.
    let size = pmc_files::open(path)
        .and_then(|file| file.metadata())
        .map_err(|error| cannot_open(path, &error))?
        .len();
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags)?;
    distrust(&connection)?;
    limit_steps(&mut connection, steps(size))?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    // Each table is scanned once, so a large cache gains nothing.
    connection
        .execute_batch("PRAGMA cache_size = -4096; PRAGMA query_only = ON; PRAGMA cell_size_check = ON;")?;
    connection.authorizer(Some(only_reading))?;
    Ok(connection)
}

/// A database that several users may write.
#[derive(Debug)]
pub struct Shared {
    path: PathBuf,
    size: u64,
    is_of_other: bool,
}

impl Shared {
    /// Finds the database. Follows links of the user and of root. It need not exist.
    ///
    /// # Errors
    /// The path leads through a link of another user, or something that is not a regular file has this name.
    pub fn find(path: &Path) -> rusqlite::Result<Self> {
        let failed = |error| cannot_open(path, &error);
        let destination = Destination::new(path).map_err(failed)?;
        Ok(Self {
            path: destination.path().map_err(failed)?,
            size: destination.size(),
            is_of_other: destination.owner().map_err(failed)? == Owner::Other,
        })
    }

    /// Returns whether another user has made it, or could have.
    #[must_use]
    pub fn is_of_other(&self) -> bool {
        self.is_of_other
    }

    /// Opens it for reading and writing, and creates it if it does not exist. If it is of another user, its
    /// views, triggers and functions are not used: see also [`limit`](Self::limit).
    ///
    /// # Errors
    /// SQLite cannot open it.
    pub fn open(&self) -> rusqlite::Result<Connection> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_CREATE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX
            | OpenFlags::SQLITE_OPEN_NOFOLLOW;
        let connection = Connection::open_with_flags(&self.path, flags)?;
        if self.is_of_other {
            distrust(&connection)?;
        }
        Ok(connection)
    }

    /// Limits the steps of the next changes together, if the database is of another user.
    ///
    /// # Errors
    /// SQLite refuses.
    pub fn limit(&self, connection: &mut Connection) -> rusqlite::Result<()> {
        match self.is_of_other {
            true => limit_steps(connection, steps(self.size)),
            false => Ok(()),
        }
    }
}

fn cannot_open(path: &Path, error: &std::io::Error) -> Error {
    let code = ffi::Error::new(ffi::SQLITE_CANTOPEN);
    Error::SqliteFailure(code, Some(format!("{}: {error}", path.display())))
}

/// Uses nothing of a schema but its tables and indexes.
fn distrust(connection: &Connection) -> rusqlite::Result<()> {
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_VIEW, false)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false)?;
    connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, MAX_VALUE)?;
    Ok(())
}

/// Lets statements read, and nothing else.
fn only_reading(context: AuthContext<'_>) -> Authorization {
    match context.action {
        AuthAction::Select | AuthAction::Read { .. } | AuthAction::Recursive => Authorization::Allow,
        AuthAction::Function { function_name } if function_name != "load_extension" => Authorization::Allow,
        _ => Authorization::Deny,
    }
}

/// Steps that a file of this size may take.
fn steps(size: u64) -> u64 {
    BASE_STEPS.saturating_add(size.saturating_mul(STEPS_PER_BYTE))
}

/// Interrupts the queries of a connection after `max` steps together.
fn limit_steps(connection: &mut Connection, max: u64) -> rusqlite::Result<()> {
    let steps = AtomicU64::new(0);
    let is_over = move || {
        let before = steps.fetch_add(STEPS_PER_CHECK.into(), Ordering::Relaxed);
        before >= max
    };
    connection.progress_handler(STEPS_PER_CHECK.cast_signed(), Some(is_over))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENDLESS: &str =
        "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM n) SELECT count(*) FROM n";

    #[test]
    fn hostile_databases_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.stampede.db");
        Connection::open(&path)
            .and_then(|connection| connection.execute_batch("CREATE VIEW workflow AS SELECT 1 AS wf_id"))
            .unwrap();
        let mut connection = open_untrusted(&path).unwrap();
        limit_steps(&mut connection, 2_000_000).unwrap();
        let count = |sql: &str| connection.query_row(sql, (), |row| row.get::<_, i64>(0));
        let error = count("SELECT count(*) FROM workflow").unwrap_err();
        assert!(error.to_string().contains("access to view"), "{error}");
        assert_eq!(count(ENDLESS).unwrap_err().to_string(), "interrupted");
    }

    #[test]
    fn nothing_but_reading_is_possible() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.db");
        let made = Connection::open(&path).unwrap();
        made.execute_batch("CREATE TABLE t(x); INSERT INTO t VALUES (1)")
            .unwrap();
        let connection = open_untrusted(&path).unwrap();
        let found = connection.query_row("SELECT upper(x) FROM t", (), |row| row.get::<_, String>(0));
        assert_eq!(found.unwrap(), "1");
        for statement in [
            "ATTACH 'other.db' AS other",
            "PRAGMA query_only = OFF",
            "DELETE FROM t",
            "CREATE TEMP TABLE u(x)",
            "SELECT load_extension('x')",
        ] {
            let error = connection.execute_batch(statement).unwrap_err().to_string();
            assert!(error.contains("not authorized"), "{statement}: {error}");
        }
    }

    #[test]
    fn a_fifo_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.stampede.db");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        for error in [
            open_untrusted(&path).unwrap_err(),
            Shared::find(&path).unwrap_err(),
        ] {
            assert!(error.to_string().contains("is a FIFO"), "{error}");
        }
    }

    #[test]
    fn triggers_and_views_of_another_user_do_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.db");
        let own = Shared::find(&path).unwrap();
        assert!(!own.is_of_other());
        own.open()
            .unwrap()
            .execute_batch(&format!(
                "CREATE TABLE a(x PRIMARY KEY); CREATE TABLE b(y REFERENCES a ON DELETE CASCADE);
                 CREATE TRIGGER t AFTER INSERT ON a BEGIN INSERT INTO b {ENDLESS}; END;
                 CREATE VIEW v AS {ENDLESS}"
            ))
            .unwrap();
        let other = Shared {
            is_of_other: true,
            ..own
        };
        let mut connection = other.open().unwrap();
        other.limit(&mut connection).unwrap();
        limit_steps(&mut connection, 2_000_000).unwrap();
        let count = |sql: &str| connection.query_row(sql, (), |row| row.get::<_, i64>(0));
        let change = |sql: &str| connection.execute_batch(sql).unwrap();
        change("PRAGMA foreign_keys = ON; INSERT INTO a VALUES (1); INSERT INTO b VALUES (1)");
        assert_eq!(count("SELECT count(*) FROM b"), Ok(1));
        assert!(count("SELECT * FROM v").is_err());
        // Rules of the tables hold nevertheless.
        change("DELETE FROM a");
        assert_eq!(count("SELECT count(*) FROM b"), Ok(0));
        assert_eq!(count(ENDLESS).unwrap_err().to_string(), "interrupted");
    }

    #[test]
    fn links_of_the_user_are_followed() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("x.db", dir.path().join("link.db")).unwrap();
        let connection = Shared::find(&dir.path().join("link.db")).unwrap().open().unwrap();
        connection.execute_batch("CREATE TABLE t(x)").unwrap();
        assert!(dir.path().join("x.db").is_file());
    }
}
