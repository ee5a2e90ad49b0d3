//! What a killed run has left to do although all its tasks are done: the last lines of the logs, forwarded
//! data in a journal, rows of the database.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use monitord_compat::dagman_out;

use pmc_files::with_suffix;

/// Bytes at the end of the log that are searched for its last line.
const MAX_LINE: u64 = 1 << 16;

/// Returns whether a run without tasks would complete something. `database` says whether the user wants the
/// STAMPEDE database.
pub fn exists(dag: &Path, database: bool) -> bool {
    let log = with_suffix(dag, ".dagman.out");
    let journal = with_suffix(dag, ".rescue.journal");
    journal.exists() || ends_early(&log) || (database && is_behind(dag, &log))
}

/// Returns whether a log lacks its last line. Without a log nothing is known to be missing.
fn ends_early(log: &Path) -> bool {
    let tail = || {
        let file = pmc_files::open(log).ok()?;
        let data = file.metadata().ok()?;
        let length = data.len().min(MAX_LINE);
        let mut tail = vec![0; usize::try_from(length).ok()?];
        file.read_exact_at(&mut tail, data.len() - length).ok()?;
        Some(tail)
    };
    let tail = tail().unwrap_or_default();
    let mut lines = tail.rsplit(|byte| *byte == b'\n');
    let last = lines.find(|line| dagman_out::Stamp::of(line).is_some());
    last.is_some_and(|line| !dagman_out::is_finish(line))
}

/// Returns whether the database lacks lines of the log: no loader has ended since the log was written.
fn is_behind(dag: &Path, log: &Path) -> bool {
    let changed = |path: &Path| fs::metadata(path).and_then(|data| data.modified()).ok();
    match (changed(log), changed(&dag.with_file_name("monitord.done"))) {
        (None, _) => false,
        (Some(_), None) => true,
        (Some(log), Some(loaded)) => loaded < log,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_ended_has_nothing_left() {
        let folder = tempfile::tempdir().unwrap();
        let dag = folder.path().join("x.dag");
        let log = folder.path().join("x.dag.dagman.out");
        assert!(!exists(&dag, true), "no run");
        let stamp = dagman_out::Stamp::new(chrono::NaiveDateTime::default());
        let mut lines = Vec::new();
        dagman_out::start(&mut lines, &stamp, 7, b"x.dag");
        fs::write(&log, &lines).unwrap();
        assert!(exists(&dag, false), "it was killed");
        dagman_out::finish(&mut lines, &stamp, 7, true);
        fs::write(&log, &lines).unwrap();
        assert!(!exists(&dag, false));
        assert!(exists(&dag, true), "no database");
        fs::write(folder.path().join("monitord.done"), "").unwrap();
        assert!(!exists(&dag, true));
        fs::write(folder.path().join("x.dag.rescue.journal"), "").unwrap();
        assert!(exists(&dag, false), "forwarded data");
    }
}
