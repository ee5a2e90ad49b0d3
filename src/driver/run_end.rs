//! The file that says why a run ended before its work was done. It is written while the run has the lock of
//! its DAG, so that it never is that of another run.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::Path;

use monitord_compat::run_end::RunEnd;
use signal_hook::consts::SIGTERM;

use super::{Aborted, RunError, RunSummary};
use crate::options::Options;

/// File of each submit directory.
const BRAINDUMP: &str = "braindump.yml";

/// Removes the file of an earlier run.
pub(super) fn forget(dag: &Path) {
    // Most runs have none.
    let _ = fs::remove_file(RunEnd::path(dag));
}

/// Writes why a run ended, unless it did all it could. Outside of a submit directory, a run has the files of
/// the original and no other.
pub(super) fn note(options: &Options, result: Result<&RunSummary, &RunError>) {
    let dag = &options.dag;
    if !dag.with_file_name(BRAINDUMP).exists() {
        return;
    }
    let end = match result {
        Err(error) => RunEnd::Error(error.to_string()),
        Ok(summary) => match (summary.aborted, summary.drained) {
            (Some(Aborted::WallTime), _) => RunEnd::WallTime,
            (Some(Aborted::Signal(signal)), _) => RunEnd::Signal(signal),
            (Some(Aborted::Task { .. }), _) | (None, None) => return,
            (None, Some(SIGTERM)) => RunEnd::Terminated,
            (None, Some(_)) => RunEnd::Drained,
        },
    };
    // Only views read it: a run ends the same way without it. What another user has put there is not opened.
    forget(dag);
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(RunEnd::path(dag));
    let _ = file.and_then(|mut file| file.write_all(end.line().as_bytes()));
}
