//! The time.

use std::time::{Duration, Instant, SystemTime};

/// [`Instant::now`].
#[must_use]
#[inline]
pub fn now() -> Instant {
    #[cfg(feature = "simulated")]
    if let Some(now) = crate::simulated::now() {
        crate::simulated::look();
        return crate::simulated::instant(now);
    }
    Instant::now()
}

/// [`Instant::elapsed`].
#[must_use]
#[inline]
pub fn elapsed(since: Instant) -> Duration {
    now().saturating_duration_since(since)
}

/// [`SystemTime::now`].
#[must_use]
#[inline]
pub fn system_time() -> SystemTime {
    #[cfg(feature = "simulated")]
    if let Some(now) = crate::simulated::now() {
        return crate::simulated::system_time(now);
    }
    SystemTime::now()
}
