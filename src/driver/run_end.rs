//! The file that says how a run ended. It is written while the run has the lock of
//! its DAG, so that it never is that of another run.

use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

use monitord_compat::run_end::{DrainedBy, EndOfRun, RunEnd};
use pmc_files::Destination;

use super::{Aborted, RunError, RunSummary};
use crate::options::Options;

/// File of each submit directory.
const BRAINDUMP: &str = "braindump.yml";

/// Removes the file of an earlier run.
pub(super) fn forget(dag: &Path) {
    // Most runs have none.
    let _ = fs::remove_file(RunEnd::path(dag));
}

/// What is known of a run at its end.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    /// Who asked it to drain.
    pub(super) drained_by: Option<DrainedBy>,
    /// Tasks that are done.
    pub(super) done: usize,
    /// Tasks that are not.
    pub(super) left: usize,
    /// Attempts that have saved themselves.
    pub(super) saved: u64,
    /// Hosts that were there and are not any more.
    pub(super) lost_nodes: Vec<String>,
    /// How long it took.
    pub(super) seconds: u64,
}

/// Writes how a run ended. Outside of a submit directory, a run has the files of the original and no other.
pub(super) fn note(options: &Options, facts: Facts, result: Result<&RunSummary, &RunError>) {
    let dag = &options.dag;
    if !dag.with_file_name(BRAINDUMP).exists() {
        return;
    }
    let end = match result {
        Err(error) if error.is_stranded() => RunEnd::stranded(&error.to_string()),
        Err(error) => RunEnd::error(&error.to_string()),
        Ok(summary) => match (summary.aborted, summary.drained) {
            (Some(Aborted::WallTime), _) => RunEnd::WallTime,
            (Some(Aborted::HeldBack), _) => RunEnd::HeldBack,
            (Some(Aborted::Signal(signal)), _) => RunEnd::Signal { signal },
            (Some(Aborted::Task { .. }), _) => RunEnd::TaskAbort,
            (None, Some(_)) => RunEnd::Drained {
                by: facts.drained_by.unwrap_or(DrainedBy::Time),
            },
            (None, None) if summary.success() => RunEnd::Success,
            (None, None) => RunEnd::Failed,
        },
    };
    let end = EndOfRun {
        end,
        done: facts.done,
        left: facts.left,
        saved: facts.saved,
        lost_nodes: facts.lost_nodes,
        seconds: facts.seconds,
    };
    // Without it, the run looks as if it had been killed.
    if let Err(error) = write(dag, &end) {
        let path = RunEnd::path(dag);
        tracing::warn!("Unable to write {}: {}", path.display(), pmc_dag::reason(&error));
    }
}

/// Writes the file as a whole.
fn write(dag: &Path, end: &EndOfRun) -> io::Result<()> {
    let destination = Destination::named(&RunEnd::path(dag))?;
    let replacement = destination.replacement(".end-", 0o644)?;
    replacement.file().write_all(end.line().as_bytes())?;
    replacement.publish()
}
