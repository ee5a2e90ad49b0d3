//! A loader that is a thread of the program that writes the log.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::outcome_hints::OutcomeHints;

/// How long to wait at a time when there is no limit.
const LONG: Duration = Duration::from_secs(1);

/// What the writer of a log and its loader tell each other.
#[derive(Debug, Default)]
pub struct Live {
    state: Mutex<State>,
    changed: Condvar,
    abandoned: AtomicBool,
    hints: Arc<OutcomeHints>,
}

#[derive(Debug, Default)]
struct State {
    complete: bool,
    ended: bool,
}

impl Live {
    /// A log that is being written.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Outcomes of attempts that the writer of the log knows.
    #[must_use]
    pub fn hints(&self) -> &Arc<OutcomeHints> {
        &self.hints
    }

    /// Nothing more will be written; the loader is to read the rest at once and end.
    pub fn complete(&self) {
        self.lock().complete = true;
        self.changed.notify_all();
    }

    /// Waits until the loader has ended, at most as long as this. False if it has not; it is then told
    /// to leave the rest to the next one.
    #[must_use]
    pub fn wait(&self, patience: Duration) -> bool {
        let until = Instant::now().checked_add(patience);
        let mut state = self.lock();
        while !state.ended {
            let left = until.map_or(LONG, |until| until.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                self.abandoned.store(true, Ordering::Relaxed);
                return false;
            }
            let (again, _) = self
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner);
            state = again;
        }
        true
    }

    /// The loader has ended.
    pub fn ended(&self) {
        self.lock().ended = true;
        self.changed.notify_all();
    }

    /// Where the loader is told to stop.
    pub(super) fn stop(&self) -> &AtomicBool {
        &self.abandoned
    }

    pub(super) fn is_complete(&self) -> bool {
        self.lock().complete
    }

    /// Waits this long, or until the log is complete.
    pub(super) fn pause(&self, time: Duration) {
        let state = self.lock();
        if !state.complete {
            drop(self.changed.wait_timeout(state, time));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Two flags are whole whatever happened to who held them.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_ends() {
        let live = Live::new();
        live.complete();
        assert!(live.is_complete() && !live.stop().load(Ordering::Relaxed));
        assert!(!live.wait(Duration::from_millis(1)));
        assert!(live.stop().load(Ordering::Relaxed));
        live.ended();
        assert!(live.wait(Duration::MAX));
    }
}
