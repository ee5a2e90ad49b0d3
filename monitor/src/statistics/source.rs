//! Source of the statistics: the database of the run if it is up to date, else a temporary one.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use monitord_compat::run_lock::{LOADER_LOCK, is_locked};
use pmc_sqlite::open_untrusted;
use pmc_stampede::error::{LoadError, Notice};
use pmc_stampede::session::{Destination, Options, replay};

use super::conversion::convert;
use crate::dir::RunDir;

/// Database to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Path of the database.
    pub path: PathBuf,
    /// True for a temporary database.
    pub loaded: bool,
}

/// Finds the database of a run, or loads one into the directory `scratch`, with the output of jobs if
/// `with_output`: that takes longer.
///
/// # Errors
/// The log of the run is missing or cannot be read.
pub fn find(
    dir: &RunDir,
    scratch: &Path,
    with_output: bool,
    notice: &mut dyn FnMut(Notice),
) -> Result<Source, LoadError> {
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
    let converted = converted(dir, scratch)?;
    let options = Options {
        log: dir.dagman_out(),
        // The sub-workflows of such a run have no logs that the loader reads, either.
        flat: converted.is_some(),
        converted,
        // The directory of the run may belong to another user: write nothing into it.
        lock: Some(scratch.join(LOADER_LOCK)),
        output_dir: Some(scratch.to_owned()),
        destination: Destination::File(path.clone()),
        skip_output: !with_output,
        ..Options::default()
    };
    replay(&options, notice)?;
    Ok(Source { path, loaded: true })
}

/// Returns the log that the loader reads if there is only `jobstate.log`, made in the directory `scratch`.
fn converted(dir: &RunDir, scratch: &Path) -> Result<Option<PathBuf>, LoadError> {
    if !matches!(dir.dagman_out().try_exists(), Ok(false)) {
        return Ok(None);
    }
    let path = scratch.join("converted.dag.dagman.out");
    match convert(dir, &path) {
        Ok(is_there) => Ok(is_there.then_some(path)),
        Err(source) => Err(LoadError::Read {
            path: dir.jobstate_log(),
            source,
        }),
    }
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
    match number("SELECT log_bytes FROM pmc_loader JOIN workflow USING (wf_id) WHERE parent_wf_id IS NULL") {
        Ok(bytes) => {
            u64::try_from(bytes).is_ok_and(|bytes| bytes >= log.len())
                && has_nested(database).unwrap_or(false)
        }
        Err(_) => {
            let time = |time: std::io::Result<SystemTime>| time.unwrap_or(SystemTime::UNIX_EPOCH);
            time(there.modified()) >= time(log.modified())
        }
    }
}

/// Returns whether the database has the nested sub-workflows, and all lines of their logs.
fn has_nested(database: &Path) -> rusqlite::Result<bool> {
    let connection = open_untrusted(database)?;
    // Attempts of sub-workflows without their rows, as earlier loaders left them. One whose
    // planner failed has no id.
    let missing = "SELECT EXISTS (SELECT 1 FROM job JOIN job_instance USING (job_id)
         WHERE type_desc = 'dax' AND sched_id IS NOT NULL AND subwf_id IS NULL)";
    if connection.query_row(missing, (), |row| row.get(0))? {
        return Ok(false);
    }
    let mut statement = connection.prepare(
        "SELECT dag_file_name, log_bytes FROM pmc_loader JOIN workflow USING (wf_id)
         WHERE parent_wf_id IS NOT NULL",
    )?;
    let mut rows = statement.query(())?;
    while let Some(row) = rows.next()? {
        let dag: String = row.get::<_, Option<String>>(0)?.unwrap_or_default();
        let log = Path::new(&format!("{dag}.dagman.out")).metadata();
        let bytes = u64::try_from(row.get::<_, i64>(1)?).unwrap_or(0);
        if log.is_ok_and(|log| log.len() > bytes) {
            return Ok(false);
        }
    }
    Ok(true)
}
