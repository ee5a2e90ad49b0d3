//! Standard output, and the current time.

use std::io::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use pmc_monitor::events::Micros;

/// Writes to standard output. A closed output is no error.
pub fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Returns the current time in microseconds since the epoch.
pub fn now() -> Micros {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Micros::try_from(since.as_micros()).unwrap_or(Micros::MAX)
}
