//! The current time.

use std::time::{SystemTime, UNIX_EPOCH};

use pmc_monitor::events::Micros;

/// Returns the current time in microseconds since the epoch.
pub fn now() -> Micros {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Micros::try_from(since.as_micros()).unwrap_or(Micros::MAX)
}
