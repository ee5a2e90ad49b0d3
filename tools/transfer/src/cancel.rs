//! Cancellation of a running transfer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A flag that copies check between two blocks. Clones share the flag.
#[derive(Debug, Clone, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Creates a flag that is not set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the flag itself, for a signal handler.
    #[must_use]
    pub fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0)
    }

    /// Sets the flag.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Returns whether the flag is set.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Sleeps until `time` has passed or the flag is set. Returns false if it was set.
    #[must_use]
    pub fn sleep(&self, time: Duration) -> bool {
        const STEP: Duration = Duration::from_millis(50);
        let end = Instant::now() + time;
        while !self.is_cancelled() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            std::thread::sleep(left.min(STEP));
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleep_ends_early_when_cancelled() {
        let cancel = Cancel::new();
        assert!(cancel.sleep(Duration::from_millis(1)));
        cancel.cancel();
        let start = Instant::now();
        assert!(!cancel.sleep(Duration::from_secs(60)));
        assert!(start.elapsed() < Duration::from_secs(5));
    }
}
