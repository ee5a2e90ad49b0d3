//! Times of the log in seconds since the epoch.

use chrono::{Local, LocalResult, NaiveDateTime, TimeZone as _};
use monitord_compat::dagman_out_reader::Time;

/// Translates the times of a log, one after another.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogClock {
    adjust: i64,
    /// The time translated last, which most lines repeat.
    last: Option<(NaiveDateTime, i64)>,
}

impl LogClock {
    /// Adds `adjust` seconds to each time.
    #[must_use]
    pub fn new(adjust: i64) -> Self {
        Self { adjust, last: None }
    }

    /// Seconds since the epoch. Of the two times that a clock set back shows, the one that goes on with
    /// the time before is taken.
    pub fn epoch(&mut self, time: Time) -> i64 {
        let local = match time {
            Time::Epoch(epoch) => return epoch + self.adjust,
            Time::Local(local) => local,
        };
        if let Some((known, epoch)) = self.last
            && known == local
        {
            return epoch + self.adjust;
        }
        let before = self.last.map(|(_, epoch)| epoch);
        let epoch = match Local.from_local_datetime(&local) {
            LocalResult::Single(time) => time.timestamp(),
            LocalResult::Ambiguous(first, second) => match before {
                Some(before) if first.timestamp() < before => second.timestamp(),
                _ => first.timestamp(),
            },
            // A time that the clock jumps over; it cannot come from this zone.
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
    fn times_with_a_zone_are_taken_as_they_are() {
        assert_eq!(LogClock::new(-5).epoch(Time::Epoch(100)), 95);
    }

    #[test]
    fn local_times_follow_each_other() {
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
