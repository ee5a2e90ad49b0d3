//! Remarks on a run that ended before its work was done, and says why.

use monitord_compat::run_end::{DrainedBy, RunEnd};

use super::{Diagnosis, count};

/// Returns a remark on why the run ended, and what it has left for the next one.
pub(super) fn remark(end: &RunEnd, diagnosis: &Diagnosis) -> String {
    let left = format!("Left for the next run: {}.", count(diagnosis.left));
    match end {
        RunEnd::Drained { by: DrainedBy::Term } => format!(
            "The run was ended by SIGTERM, as when its batch job is cancelled, preempted or queued again. {left}"
        ),
        RunEnd::Drained { .. } => {
            format!("The run was asked to start no more tasks, and those that ran have ended. {left}")
        }
        RunEnd::WallTime => {
            format!("The run has reached its wall time (--max-wall-time) and ended its tasks. {left}")
        }
        RunEnd::HeldBack => format!(
            "The run ended before its wall time: what is left was expected to take longer than the time that was \
             left (profile `runtime`, or what such tasks took). {left}"
        ),
        RunEnd::Signal { signal } => {
            format!("The run was stopped by signal {signal} and ended its tasks. {left}")
        }
        RunEnd::Error { message } | RunEnd::Stranded { message } => {
            format!("The run ended with an error: {message}")
        }
        // These ends are no early ones.
        RunEnd::Success | RunEnd::Failed | RunEnd::TaskAbort => left,
    }
}
