//! Time stamps of log lines.

use std::time::{Duration, UNIX_EPOCH};

use chrono::{DateTime, Local};
use monitord_compat::dagman_out::Stamp;
use pmc_system::clock;

/// The system's time, which never goes back here, with its text, formatted once a second.
#[derive(Debug)]
pub(super) struct Clock {
    last: Duration,
    stamp: Stamp,
    stamp_of: u64,
}

impl Clock {
    pub(super) fn new() -> Self {
        let last = since_epoch();
        Self {
            last,
            stamp: stamp(last),
            stamp_of: last.as_secs(),
        }
    }

    /// Returns the time since the epoch. Readers of logs do not expect it to go back when the clock is set.
    pub(super) fn now(&mut self) -> Duration {
        self.last = self.last.max(since_epoch());
        self.last
    }

    /// Time from the latest [`Clock::now`] to the next full second.
    pub(super) fn rest_of_second(&self) -> Duration {
        Duration::from_secs(self.last.as_secs() + 1).saturating_sub(self.last)
    }

    /// Text of the latest [`Clock::now`].
    pub(super) fn stamp(&mut self) -> &Stamp {
        if self.stamp_of != self.last.as_secs() {
            self.stamp_of = self.last.as_secs();
            self.stamp = stamp(self.last);
        }
        &self.stamp
    }
}

fn since_epoch() -> Duration {
    clock::system_time()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

fn stamp(at: Duration) -> Stamp {
    Stamp::new(DateTime::<Local>::from(UNIX_EPOCH + at).naive_local())
}
