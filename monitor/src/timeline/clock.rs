//! Converts times to seconds of run time, without pauses between runs.

use crate::events::Micros;
use crate::history::{History, NEVER, Phase, seconds};

/// Converts times to seconds of run time.
pub(super) struct Clock {
    /// Start and end of each run, and the seconds of the runs before it.
    pub(super) runs: Vec<(Micros, Micros, f64)>,
    pub(super) total: f64,
}

impl Clock {
    pub(super) fn new(history: &History, now: Micros) -> Self {
        let mut clock = Self {
            runs: Vec::new(),
            total: 0.0,
        };
        let running = history.phase() == Phase::Running;
        let count = history.runs.len();
        for (number, run) in history.runs.iter().enumerate() {
            let end = match run.end {
                Some((end, _)) => end,
                None if running && number + 1 == count => now,
                None => run.last,
            };
            // Times of a log may be whole seconds: include the last one.
            let end = end.max(run.start) + crate::events::SECOND;
            clock.runs.push((run.start, end, clock.total));
            clock.total += seconds(end - run.start);
        }
        if clock.runs.is_empty() {
            let times = history
                .attempts
                .iter()
                .flat_map(|attempt| [attempt.start, attempt.end]);
            let times = times.filter(|time| *time != NEVER);
            let (first, last) = times.fold((now, NEVER), |(first, last), time| {
                (first.min(time), last.max(time))
            });
            let last = last.max(first);
            clock.runs.push((first, last, 0.0));
            clock.total = seconds(last - first);
        }
        // The chart ends with the last task.
        if let Some((start, end, before)) = clock.runs.last_mut() {
            let attempts = history.attempts.iter().filter(|attempt| attempt.start >= *start);
            let last = attempts
                .map(|attempt| if attempt.end == NEVER { now } else { attempt.end })
                .max();
            *end = last.unwrap_or(*end).clamp(*start, *end);
            clock.total = *before + seconds(*end - *start);
        }
        clock
    }

    pub(super) fn at(&self, time: Micros) -> f64 {
        let after = self.runs.partition_point(|(start, ..)| *start <= time);
        let Some((start, end, before)) = self.runs.get(after.saturating_sub(1)) else {
            return 0.0;
        };
        before + seconds(time.clamp(*start, *end) - start)
    }
}
