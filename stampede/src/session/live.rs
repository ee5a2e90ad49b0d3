//! Connects the writer of a log and a loader that is a thread of the same program.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Maximum time of one wait without a limit.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// State that the writer of a log and its loader share.
#[derive(Debug, Default)]
pub struct Live {
    state: Mutex<State>,
    changed: Condvar,
    stop: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    /// The log is complete.
    complete: bool,
    /// The loader has ended.
    ended: bool,
}

impl Live {
    /// Makes the state of a log that is being written.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The log is complete. The loader reads the rest at once and ends.
    pub fn complete(&self) {
        self.lock().complete = true;
        self.changed.notify_all();
    }

    /// Waits until the loader has ended. Returns false after `limit`, and asks the loader to leave the rest
    /// to the next one.
    #[must_use]
    pub fn wait(&self, limit: Duration) -> bool {
        let deadline = Instant::now().checked_add(limit);
        let mut state = self.lock();
        while !state.ended {
            let left = deadline.map_or(MAX_WAIT, |deadline| {
                deadline.saturating_duration_since(Instant::now())
            });
            if left.is_zero() {
                self.stop.store(true, Ordering::Relaxed);
                return false;
            }
            (state, _) = self
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner);
        }
        true
    }

    /// The loader has ended.
    pub fn ended(&self) {
        self.lock().ended = true;
        self.changed.notify_all();
    }

    /// True when the loader must stop.
    pub(super) fn stop(&self) -> &AtomicBool {
        &self.stop
    }

    pub(super) fn is_complete(&self) -> bool {
        self.lock().complete
    }

    /// Waits for this time, or until the log is complete.
    pub(super) fn pause(&self, time: Duration) {
        let state = self.lock();
        if !state.complete {
            drop(self.changed.wait_timeout(state, time));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic cannot leave two flags half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loader_is_stopped_after_the_limit() {
        let live = Live::new();
        live.complete();
        assert!(live.is_complete() && !live.stop().load(Ordering::Relaxed));
        assert!(!live.wait(Duration::from_millis(1)));
        assert!(live.stop().load(Ordering::Relaxed));
        live.ended();
        assert!(live.wait(Duration::MAX));
    }
}
