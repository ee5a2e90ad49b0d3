//! Limits the rate of progress output.

use std::time::Duration;

/// Rate limit. Times count from the start of the run.
#[derive(Debug)]
pub struct Pace {
    next: Duration,
    interval: Duration,
}

impl Pace {
    /// Allows nothing before `delay`, then one output per `interval`.
    pub fn new(delay: Duration, interval: Duration) -> Self {
        Pace {
            next: delay,
            interval,
        }
    }

    /// Returns whether output is due. If so, starts the next interval.
    pub fn due(&mut self, now: Duration) -> bool {
        if now < self.next {
            return false;
        }
        self.next = now + self.interval;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounded_rate_after_a_delay() {
        let ms = Duration::from_millis;
        let mut pace = Pace::new(ms(250), ms(100));
        let shown: Vec<u64> = (0..600).filter(|&now| pace.due(ms(now))).collect();
        assert_eq!(shown, [250, 350, 450, 550]);
    }

    #[test]
    fn a_late_call_does_not_cause_a_burst() {
        let mut pace = Pace::new(Duration::ZERO, Duration::from_secs(10));
        assert!(pace.due(Duration::from_secs(95)));
        assert!(!pace.due(Duration::from_secs(100)));
        assert!(pace.due(Duration::from_secs(105)));
    }
}
