//! Causes of failed attempts whose tasks are tried again.

use pmc_packed::TaskOutput;

use super::reasons::likely_reasons;
use super::{Cause, Groups, examine};
use crate::history::History;

/// Maximum tasks to read. More are of no use while the run goes on.
const MAX_READ: usize = 100;

/// Returns the causes, the latest first.
pub(super) fn causes(history: &History, output: &mut TaskOutput) -> Vec<Cause> {
    let mut groups = Groups::default();
    for retried in history.retried().into_iter().take(MAX_READ) {
        let attempt = history.attempts[retried.attempt];
        let failures = u32::try_from(retried.failures).unwrap_or(u32::MAX);
        let found = examine(history, output, retried.attempt, failures);
        groups.add(history, attempt.task, &attempt, found);
    }
    let mut causes = groups.causes;
    for cause in &mut causes {
        cause.reasons = likely_reasons(history, cause);
    }
    causes
}
