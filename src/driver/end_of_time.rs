//! When a run has to end. Pure: others know the clock.

use std::time::{Duration, Instant};

/// The longest reserve for what is written after the last task of a batch job.
const MAX_RESERVE: Duration = Duration::from_secs(30);

/// Part of the time of a batch job that is its reserve, if that is less.
const RESERVE_PART: u32 = 10;

/// The end of the time of a run: of its own limit, or of its batch job.
#[derive(Clone, Copy, Debug)]
pub(super) struct EndOfTime {
    /// When all tasks must have ended.
    end: Option<Instant>,
    /// Time that tasks have from SIGTERM to SIGKILL before that.
    stop_grace: Duration,
}

impl EndOfTime {
    /// The end of a run that began at `begin` and has a limit of its own, or none.
    pub(super) fn new(begin: Instant, limit: Option<Duration>, stop_grace: Duration) -> Self {
        Self {
            end: limit.and_then(|limit| begin.checked_add(limit)),
            stop_grace,
        }
    }

    /// Takes the time that the batch job had left at `asked`. Returns whether the end has moved by more than
    /// what rounding does.
    pub(super) fn set_time_left(&mut self, asked: Instant, left: Duration) -> bool {
        let reserve = MAX_RESERVE.min(left / RESERVE_PART);
        let Some(end) = asked.checked_add(left.saturating_sub(reserve)) else {
            return false;
        };
        let moved = self.end.is_none_or(|old| {
            let by = end
                .saturating_duration_since(old)
                .max(old.saturating_duration_since(end));
            by > Duration::from_secs(2)
        });
        if moved {
            self.end = Some(end);
        }
        moved
    }

    /// When running tasks are asked to end, and no others start.
    pub(super) fn stop_at(&self) -> Option<Instant> {
        // An end that is nearer than the grace has passed.
        self.end
            .map(|end| end.checked_sub(self.stop_grace).unwrap_or(end))
    }

    /// When running tasks are killed.
    pub(super) fn kill_at(&self) -> Option<Instant> {
        self.end
    }

    /// True if tasks are asked to end before they are killed.
    pub(super) fn has_grace(&self) -> bool {
        !self.stop_grace.is_zero()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn tasks_are_stopped_before_the_end() {
        let begin = Instant::now();
        let own = EndOfTime::new(begin, Some(seconds(60)), Duration::ZERO);
        assert_eq!(
            (own.stop_at(), own.kill_at()),
            (Some(begin + seconds(60)), Some(begin + seconds(60)))
        );
        let graceful = EndOfTime::new(begin, Some(seconds(60)), seconds(10));
        assert_eq!(graceful.stop_at(), Some(begin + seconds(50)));
        assert_eq!(EndOfTime::new(begin, None, seconds(10)).stop_at(), None);
    }

    #[test]
    fn the_batch_job_says_when_it_ends() {
        let begin = Instant::now();
        let mut end = EndOfTime::new(begin, Some(seconds(3600)), seconds(10));
        assert!(end.set_time_left(begin + seconds(10), seconds(600)));
        assert_eq!(end.kill_at(), Some(begin + seconds(580)));
        assert_eq!(end.stop_at(), Some(begin + seconds(570)));
        // The same, but for what rounding does.
        assert!(!end.set_time_left(begin + seconds(20), seconds(591)));
        // The limit was raised.
        assert!(end.set_time_left(begin + seconds(20), seconds(1200)));
        assert_eq!(end.kill_at(), Some(begin + seconds(1190)));
        // A short job keeps a tenth.
        assert!(end.set_time_left(begin, seconds(60)));
        assert_eq!(end.kill_at(), Some(begin + seconds(54)));
    }
}
