//! What a worker polls while it waits for a task's process.

use std::time::Duration;

use crate::bell::Bell;

/// Something to poll at intervals.
pub(super) trait Watch {
    /// Interval between polls; `None` if no poll is needed.
    fn interval(&self) -> Option<Duration>;
    /// Polls.
    fn poll(&mut self);
    /// What rings if a poll is needed at once.
    fn bell(&self) -> Option<&Bell> {
        None
    }
}

/// Polls nothing.
pub(super) struct NoWatch;

impl Watch for NoWatch {
    fn interval(&self) -> Option<Duration> {
        None
    }

    fn poll(&mut self) {}
}
