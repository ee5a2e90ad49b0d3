//! Makes the tables of the STAMPEDE database.
//!
//! They are those of Pegasus ([`monitord_compat::database`]). What this loader needs to go on after an
//! interruption is in two more, `pmc_loader` and `pmc_queued`, that no reader looks at.

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

/// Makes the tables, without the indexes that only readers use, and notes the version. `now` is the
/// time in seconds since the epoch.
///
/// # Errors
/// The database cannot be written.
pub fn create_tables(connection: &Connection, now: i64) -> rusqlite::Result<()> {
    connection.execute_batch(TABLES)?;
    connection.execute(INSERT_VERSION, (VERSION, VERSION.to_string(), now))?;
    Ok(())
}

/// Makes the table that holds the loader's position.
///
/// # Errors
/// The database cannot be written.
pub fn create_position(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch(LOADER)
}

/// Makes the table of tries that are not written yet, unless it is there.
///
/// # Errors
/// The database cannot be written.
pub fn create_queue(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch(QUEUE)
}

/// Makes the indexes that only readers use, unless they are there.
///
/// # Errors
/// The database cannot be written.
pub fn create_indexes(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch(INDEXES)
}
