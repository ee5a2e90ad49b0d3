//! When to show progress: nothing at first, then not too often.

use std::time::Duration;

/// Decides whether it is time to show something. Times count from the start of the run.
#[derive(Debug)]
pub struct Pace {
    next: Duration,
    interval: Duration,
}

impl Pace {
    /// Nothing before `delay`, then at most once in `interval`.
    pub fn new(delay: Duration, interval: Duration) -> Self {
        Pace {
            next: delay,
            interval,
        }
    }

    /// Whether to show something at this time. Saying yes starts the next interval.
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
    fn a_late_question_does_not_lead_to_a_burst() {
        let mut pace = Pace::new(Duration::ZERO, Duration::from_secs(10));
        assert!(pace.due(Duration::from_secs(95)));
        assert!(!pace.due(Duration::from_secs(100)));
        assert!(pace.due(Duration::from_secs(105)));
    }
}
