//! Creates the tables of the STAMPEDE database.
//!
//! They are those of Pegasus ([`monitord_compat::database`]) and two more, `pmc_loader` and `pmc_queued`,
//! from which this loader continues after an interruption. Readers ignore these.

pub use monitord_compat::database::VERSION;
use monitord_compat::database::{INDEXES, INSERT_VERSION, TABLES};
use rusqlite::Connection;

const LOADER: &str = "
CREATE TABLE pmc_loader (
    wf_id INTEGER NOT NULL PRIMARY KEY REFERENCES workflow (wf_id) ON DELETE CASCADE,
    log_bytes INTEGER NOT NULL, log_lines INTEGER NOT NULL, log_head INTEGER NOT NULL, log_tail INTEGER NOT NULL,
    jobstate_bytes INTEGER NOT NULL);
";

const QUEUE: &str = "
CREATE TABLE IF NOT EXISTS pmc_queued (
    wf_id INTEGER NOT NULL REFERENCES workflow (wf_id) ON DELETE CASCADE, tries TEXT NOT NULL);
";

/// Creates the tables without the indexes for readers, and stores the version. `now` is in seconds since the
/// epoch.
///
/// # Errors
/// The database cannot be written.
pub fn create_tables(connection: &Connection, now: i64) -> rusqlite::Result<()> {
    connection.execute_batch(TABLES)?;
    connection.execute(INSERT_VERSION, (VERSION, VERSION.to_string(), now))?;
    Ok(())
}

/// Creates the table with the position of the loader.
///
/// # Errors
/// The database cannot be written.
pub fn create_position(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch(LOADER)
}

/// Creates the table of attempts that have not begun, unless it exists.
///
/// # Errors
/// The database cannot be written.
pub fn create_queue(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch(QUEUE)
}

/// Creates the indexes for readers, unless they exist.
///
/// # Errors
/// The database cannot be written.
pub fn create_indexes(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch(INDEXES)
}
