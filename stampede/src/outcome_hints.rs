//! Outcomes that the writer of a log hands to its loader, so that the loader need not read the files of those
//! attempts.

use std::hash::Hasher as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustc_hash::{FxHashMap, FxHasher};

/// Maximum number of hints in memory. The files of other attempts are read.
const MAX_HINTS: usize = 1 << 16;

/// The outcome of an attempt that printed nothing: its files hold the executor's record and nothing else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutcomeHint {
    /// [`fingerprint`] of the name of the job.
    pub job: u64,
    /// Number of the attempt's files.
    pub file: u32,
    /// Start in milliseconds since the epoch.
    pub start_ms: i64,
    /// Duration in milliseconds.
    pub duration_ms: u64,
    /// Program as the DAG names it.
    pub program: Arc<str>,
    /// Host of the worker.
    pub host: Arc<str>,
}

/// Returns the hash of a job's name.
#[must_use]
pub fn fingerprint(name: &[u8]) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write(name);
    hasher.finish()
}

impl OutcomeHint {
    /// Start in seconds since the epoch.
    #[must_use]
    pub fn start(&self) -> f64 {
        seconds(self.start_ms)
    }

    /// Duration in seconds.
    #[must_use]
    pub fn duration(&self) -> f64 {
        seconds(i64::try_from(self.duration_ms).unwrap_or(i64::MAX))
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "milliseconds since the epoch are exact in an f64"
)]
fn seconds(milliseconds: i64) -> f64 {
    milliseconds as f64 / 1000.0
}

/// Hints that the loader has not used yet, by submit number.
#[derive(Debug, Default)]
pub struct OutcomeHints(Mutex<FxHashMap<u64, OutcomeHint>>);

impl OutcomeHints {
    /// Adds the hint for a submit number. Call it before the end of the attempt is in the log.
    /// A hint is optional: without one, the loader reads the files.
    pub fn insert(&self, submit: u64, hint: OutcomeHint) {
        let mut hints = self.lock();
        if hints.len() < MAX_HINTS {
            hints.insert(submit, hint);
        }
    }

    /// Removes and returns the hint for an attempt of this job whose files have this number.
    /// The log of an earlier run uses the same submit numbers for other attempts.
    pub(crate) fn take(&self, submit: u64, job: &str, file: u32) -> Option<OutcomeHint> {
        let mut hints = self.lock();
        let hint = hints.get(&submit)?;
        if hint.file != file || hint.job != fingerprint(job.as_bytes()) {
            return None;
        }
        hints.remove(&submit)
    }

    fn lock(&self) -> MutexGuard<'_, FxHashMap<u64, OutcomeHint>> {
        // No panic can leave the map in a half-changed state.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hint(job: &str, file: u32) -> OutcomeHint {
        OutcomeHint {
            job: fingerprint(job.as_bytes()),
            file,
            start_ms: 1_795_246_124_086,
            duration_ms: 47,
            program: "/bin/true".into(),
            host: "n1".into(),
        }
    }

    #[test]
    fn a_hint_is_returned_once_and_only_for_its_attempt() {
        let hints = OutcomeHints::default();
        hints.insert(3, hint("a", 1));
        assert_eq!(hints.take(2, "a", 1), None);
        assert_eq!(hints.take(3, "a", 0), None);
        assert_eq!(hints.take(3, "b", 1), None);
        assert_eq!(hints.take(3, "a", 1), Some(hint("a", 1)));
        assert_eq!(hints.take(3, "a", 1), None);
    }

    #[test]
    fn the_number_of_hints_is_limited() {
        let hints = OutcomeHints::default();
        let count = MAX_HINTS as u64 + 5;
        (0..count).for_each(|submit| hints.insert(submit, hint("a", 0)));
        let known = (0..count).filter(|submit| hints.take(*submit, "a", 0).is_some());
        assert_eq!(known.count(), MAX_HINTS);
    }
}
