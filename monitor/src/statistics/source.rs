//! Which database the figures come from: that of the run if it is up to date, else one loaded for the purpose.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use monitord_compat::run_lock::{LOADER_LOCK, is_locked};
use pmc_stampede::error::{LoadError, Notice};
use pmc_stampede::session::{Destination, Options, replay};
use rusqlite::{Connection, OpenFlags};

use crate::dir::RunDir;

/// A database to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The file.
    pub path: PathBuf,
    /// It was loaded for this purpose, into the directory that the caller gave.
    pub loaded: bool,
}

/// Finds the database, or loads one into `scratch`, a directory of the caller's.
///
/// # Errors
/// There is nothing to load, or it cannot be read.
pub fn find(dir: &RunDir, scratch: &Path, notice: &mut dyn FnMut(Notice)) -> Result<Source, LoadError> {
    let own = dir.database();
    // Whoever follows the run keeps the database current.
    let followed = || own.exists() && is_locked(&dir.dir.join(LOADER_LOCK)) == Some(true);
    if is_up_to_date(&own, &dir.dagman_out()) || followed() {
        return Ok(Source {
            path: own,
            loaded: false,
        });
    }
    let path = scratch.join("stampede.db");
    let options = Options {
        log: dir.dagman_out(),
        // Nothing is written into the directory of the run, which may belong to somebody else.
        lock: Some(scratch.join(LOADER_LOCK)),
        output_dir: Some(scratch.to_owned()),
        state_log: Some(scratch.join("jobstate.log")),
        destination: Destination::File(path.clone()),
        skip_output: true,
        ..Options::default()
    };
    replay(&options, notice)?;
    Ok(Source { path, loaded: true })
}

/// Whether all lines of the log are in the database. Our loader notes how far it came; of others, the times of
/// the files tell.
fn is_up_to_date(database: &Path, log: &Path) -> bool {
    let (Ok(there), Ok(log)) = (database.metadata(), log.metadata()) else {
        return false;
    };
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let number = |sql: &str| {
        let connection = Connection::open_with_flags(database, flags)?;
        connection.query_row(sql, (), |row| row.get::<_, i64>(0))
    };
    // One that a loader left half written needs a directory that can be written.
    if number("SELECT count(*) FROM sqlite_master").is_err() {
        return false;
    }
    match number("SELECT max(log_bytes) FROM pmc_loader") {
        Ok(bytes) => u64::try_from(bytes).is_ok_and(|bytes| bytes >= log.len()),
        Err(_) => {
            let time = |time: std::io::Result<SystemTime>| time.unwrap_or(SystemTime::UNIX_EPOCH);
            time(there.modified()) >= time(log.modified())
        }
    }
}
