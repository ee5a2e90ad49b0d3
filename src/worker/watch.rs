//! What a worker polls while it waits for a task's process.

use std::time::Duration;

/// Something to poll at intervals.
pub(super) trait Watch {
    /// Interval between polls; `None` if no poll is needed.
    fn interval(&self) -> Option<Duration>;
    /// Polls.
    fn poll(&mut self);
}

/// Polls nothing.
pub(super) struct NoWatch;

impl Watch for NoWatch {
    fn interval(&self) -> Option<Duration> {
        None
    }

    fn poll(&mut self) {}
}
