//! Waiting with a limit that does not run while this process is held up itself: batch systems suspend
//! jobs, and then those who are waited for are suspended, too.

use std::time::{Duration, Instant};

/// What a look at the clock counts for at most. Who waits looks more often.
const LONGEST_STEP: Duration = Duration::from_millis(200);

/// The rest of a time to wait.
pub(super) struct Patience {
    left: Duration,
    looked: Instant,
}

impl Patience {
    pub(super) fn new(time: Duration) -> Self {
        Self {
            left: time,
            looked: Instant::now(),
        }
    }

    /// Whether the time is over.
    pub(super) fn is_over(&mut self) -> bool {
        self.is_over_at(Instant::now())
    }

    fn is_over_at(&mut self, now: Instant) -> bool {
        let step = now.saturating_duration_since(self.looked).min(LONGEST_STEP);
        self.looked = now;
        self.left = self.left.saturating_sub(step);
        self.left.is_zero()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suspension_counts_for_one_step() {
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
