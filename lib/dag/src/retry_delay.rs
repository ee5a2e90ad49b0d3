//! `--retry-delay SECONDS[,FACTOR[,MAX]]`, of a run and of a task.

use std::time::Duration;

use crate::number::factor;

/// The pause before the next attempt of a task that has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RetryDelay {
    /// After the first attempt.
    pub first: Duration,
    /// Each further pause is this percentage of the one before.
    pub percent: u32,
    /// The longest pause.
    pub max: Duration,
}

impl RetryDelay {
    /// The longest pause that can be asked for: more than a year.
    pub const LONGEST: Duration = Duration::from_secs(1 << 25);

    /// Parses `SECONDS[,FACTOR[,MAX]]`; the factor is a number from 1 to 1000. `None` if it is invalid.
    #[must_use]
    pub fn parse(value: &[u8]) -> Option<Self> {
        let seconds = |text: &[u8]| {
            let number: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
            let time = (number >= 0.0).then(|| Duration::try_from_secs_f64(number))?;
            Some(time.unwrap_or(Self::LONGEST).min(Self::LONGEST))
        };
        let mut parts = value.split(|byte| *byte == b',');
        let first = seconds(parts.next()?)?;
        let percent = parts.next().map_or(Some(100), factor)?;
        let max = parts.next().map_or(Some(Self::LONGEST), seconds)?;
        let is_whole = parts.next().is_none();
        is_whole.then_some(Self { first, percent, max })
    }

    /// Returns the pause after this number of failed attempts.
    #[must_use]
    pub fn after(&self, failures: u32) -> Duration {
        let exponent = i32::try_from(failures.saturating_sub(1)).unwrap_or(i32::MAX);
        let seconds = self.first.as_secs_f64() * (f64::from(self.percent) / 100.0).powi(exponent);
        Duration::try_from_secs_f64(seconds).map_or(self.max, |pause| pause.min(self.max))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_parsed() {
        let parsed = |text: &str| RetryDelay::parse(text.as_bytes());
        let delay = parsed("2,3,20").unwrap();
        let pauses = [1, 2, 3, 4, 99].map(|failures| delay.after(failures).as_secs());
        assert_eq!(pauses, [2, 6, 18, 20, 20]);
        assert_eq!(parsed("0.5").unwrap().after(9), Duration::from_millis(500));
        assert_eq!(parsed("0").unwrap().after(3), Duration::ZERO);
        assert_eq!(parsed("1e300").unwrap().after(1), RetryDelay::LONGEST);
        assert_eq!(parsed("1,1000").unwrap().after(u32::MAX), RetryDelay::LONGEST);
        for wrong in [
            "", ",", "1,", "-1", "x", "nan", "1,0.5", "1,1001", "1,2,x", "1,2,3,4", "1,2,3,",
        ] {
            assert_eq!(parsed(wrong), None, "{wrong}");
        }
    }
}
