//! Which database the figures come from: that of the run if it is up to date, else one loaded for the purpose.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

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
    if is_up_to_date(&own, &dir.dagman_out()) {
        return Ok(Source {
            path: own,
            loaded: false,
        });
    }
    let path = scratch.join("stampede.db");
    let options = Options {
        log: dir.dagman_out(),
        // Nothing of the run's own is touched.
        output_dir: Some(scratch.to_owned()),
        state_log: Some(scratch.join("jobstate.log")),
        destination: Destination::File(path.clone()),
        skip_output: true,
        ..Options::default()
    };
    match replay(&options, notice) {
        Ok(_) => Ok(Source { path, loaded: true }),
        // Whoever holds it keeps the database current.
        Err(LoadError::Held { .. }) if own.exists() => Ok(Source {
            path: own,
            loaded: false,
        }),
        Err(error) => Err(error),
    }
}

/// Whether all lines of the log are in the database. Our loader notes how far it came; of others, the times of
/// the files tell.
fn is_up_to_date(database: &Path, log: &Path) -> bool {
    let (Ok(there), Ok(log)) = (database.metadata(), log.metadata()) else {
        return false;
    };
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let position = Connection::open_with_flags(database, flags).and_then(|connection| {
        connection.query_row("SELECT max(log_bytes) FROM pmc_loader", (), |row| {
            row.get::<_, i64>(0)
        })
    });
    match position {
        Ok(bytes) => u64::try_from(bytes).is_ok_and(|bytes| bytes >= log.len()),
        Err(_) => {
            let time = |time: std::io::Result<SystemTime>| time.unwrap_or(SystemTime::UNIX_EPOCH);
            time(there.modified()) >= time(log.modified())
        }
    }
}
