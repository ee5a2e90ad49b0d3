//! Source of the statistics: the database of the run if it is up to date, else a temporary one.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use monitord_compat::run_lock::{LOADER_LOCK, is_locked};
use pmc_stampede::error::{LoadError, Notice};
use pmc_stampede::session::{Destination, Options, replay};
use pmc_stampede::store::open_untrusted;

use crate::dir::RunDir;

/// Database to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Path of the database.
    pub path: PathBuf,
    /// True for a temporary database.
    pub loaded: bool,
}

/// Finds the database of a run, or loads one into the directory `scratch`.
///
/// # Errors
/// The log of the run is missing or cannot be read.
pub fn find(dir: &RunDir, scratch: &Path, notice: &mut dyn FnMut(Notice)) -> Result<Source, LoadError> {
    let own = dir.database();
    // A loader that follows the run keeps the database up to date.
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
        // The directory of the run may belong to another user: write nothing into it.
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

/// Returns whether the database has all lines of the log. Our loader stores its position; for other loaders
/// the times of the files decide.
fn is_up_to_date(database: &Path, log: &Path) -> bool {
    let (Ok(there), Ok(log)) = (database.metadata(), log.metadata()) else {
        return false;
    };
    let number = |sql: &str| {
        let connection = open_untrusted(database)?;
        connection.query_row(sql, (), |row| row.get::<_, i64>(0))
    };
    // A half-written database needs a writable directory.
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
