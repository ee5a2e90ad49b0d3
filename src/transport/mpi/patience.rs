//! A timeout that pauses while this process is suspended. Batch systems suspend whole jobs, so the processes
//! that it waits for are then suspended, too.

use std::time::{Duration, Instant};

/// Maximum time that counts between two calls of [`Patience::is_over`]. Callers call it more often.
const MAX_STEP: Duration = Duration::from_millis(200);

/// The remaining time.
pub(super) struct Patience {
    left: Duration,
    last_check: Instant,
}

impl Patience {
    pub(super) fn new(time: Duration) -> Self {
        Self {
            left: time,
            last_check: Instant::now(),
        }
    }

    /// Returns whether the time is over.
    pub(super) fn is_over(&mut self) -> bool {
        self.is_over_at(Instant::now())
    }

    fn is_over_at(&mut self, now: Instant) -> bool {
        let step = now.saturating_duration_since(self.last_check).min(MAX_STEP);
        self.last_check = now;
        self.left = self.left.saturating_sub(step);
        self.left.is_zero()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suspension_counts_as_one_step() {
        let mut patience = Patience::new(Duration::from_secs(1));
        let mut now = Instant::now();
        now += Duration::from_secs(3600);
        assert!(!patience.is_over_at(now));
        for _ in 0..7 {
            now += Duration::from_millis(100);
            assert!(!patience.is_over_at(now));
        }
        now += Duration::from_millis(150);
        assert!(patience.is_over_at(now));
        assert!(patience.is_over_at(now));
    }
}
