//! Opens the database of a run for reading. It may be the work of another user.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, Error, OpenFlags, ffi};

/// Time to wait for a writer.
const BUSY_TIMEOUT: Duration = Duration::from_secs(60);
/// Steps of SQLite's virtual machine between two checks of the limit.
const STEPS_PER_CHECK: u32 = 1_000_000;
/// Steps that any database may take: some seconds.
const BASE_STEPS: u64 = 200_000_000;
/// More steps for each byte of the file. The statistics of a large run take about one step for a byte.
const STEPS_PER_BYTE: u64 = 100;

/// Opens a database read-only. Views, triggers and functions in its schema are not trusted. A query that
/// takes far longer than the size of the file explains is interrupted.
///
/// # Errors
/// The file is not a regular file, or SQLite cannot open it.
pub fn open_untrusted(path: &Path) -> rusqlite::Result<Connection> {
    // SQLite would wait for a FIFO.
    let size = pmc_files::open(path)
        .and_then(|file| file.metadata())
        .map_err(|error| {
            let code = ffi::Error::new(ffi::SQLITE_CANTOPEN);
            Error::SqliteFailure(code, Some(format!("{}: {error}", path.display())))
        })?
        .len();
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_VIEW, false)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false)?;
    limit_steps(
        &mut connection,
        BASE_STEPS.saturating_add(size.saturating_mul(STEPS_PER_BYTE)),
    )?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    // Each table is scanned once, so a large cache gains nothing.
    connection
        .execute_batch("PRAGMA cache_size = -4096; PRAGMA query_only = ON; PRAGMA cell_size_check = ON;")?;
    Ok(connection)
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
        let endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM n) SELECT count(*) FROM n";
        assert_eq!(count(endless).unwrap_err().to_string(), "interrupted");
    }

    #[test]
    fn a_fifo_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.stampede.db");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let error = open_untrusted(&path).unwrap_err();
        assert!(error.to_string().contains("is a FIFO"), "{error}");
    }
}
