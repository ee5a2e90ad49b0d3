//! Translates the times of a log to seconds since the epoch.

use chrono::{Local, LocalResult, NaiveDateTime, TimeZone as _};

use crate::dagman_out_reader::Time;

/// Translates the times of one log, in the order of its lines.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogClock {
    adjust: i64,
    /// The last local time and its translation; most lines repeat it.
    last: Option<(NaiveDateTime, i64)>,
}

impl LogClock {
    /// Makes a clock that adds `adjust` seconds to each time.
    #[must_use]
    pub fn new(adjust: i64) -> Self {
        Self { adjust, last: None }
    }

    /// Returns seconds since the epoch. A local time that occurs twice, as the clock was set back, is the one
    /// that continues from the previous time.
    pub fn epoch(&mut self, time: Time) -> i64 {
        let local = match time {
            Time::Epoch(epoch) => return epoch + self.adjust,
            Time::Local(local) => local,
        };
        if let Some((last, epoch)) = self.last
            && last == local
        {
            return epoch + self.adjust;
        }
        let previous = self.last.map(|(_, epoch)| epoch);
        let epoch = match Local.from_local_datetime(&local) {
            LocalResult::Single(time) => time.timestamp(),
            LocalResult::Ambiguous(first, second) => match previous {
                Some(previous) if first.timestamp() < previous => second.timestamp(),
                _ => first.timestamp(),
            },
            // A time that the clock skips: the log is from another time zone.
            LocalResult::None => local.and_utc().timestamp(),
        };
        self.last = Some((local, epoch));
        epoch + self.adjust
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epoch_times_are_only_adjusted() {
        assert_eq!(LogClock::new(-5).epoch(Time::Epoch(100)), 95);
    }

    #[test]
    fn local_times_increase() {
        let start = chrono::NaiveDate::from_ymd_opt(2026, 3, 1).and_then(|day| day.and_hms_opt(0, 0, 0));
        let mut clock = LogClock::new(0);
        let mut last = i64::MIN;
        for hour in 0..24 {
            let local = start.unwrap() + chrono::TimeDelta::hours(hour);
            let epoch = clock.epoch(Time::Local(local));
            assert!(epoch > last);
            assert_eq!(clock.epoch(Time::Local(local)), epoch);
            last = epoch;
        }
    }
}
