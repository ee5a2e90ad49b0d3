//! Run times of tasks.

use super::{BARS, RunTimes};
use crate::history::{History, seconds};

/// Returns the range of the histograms, and the run times by class.
pub(super) fn run_times(history: &History, class_of: &[usize], classes: usize) -> (f64, f64, Vec<RunTimes>) {
    let mut times: Vec<Vec<f32>> = vec![Vec::new(); classes];
    for attempt in history.attempts.iter().filter(|attempt| attempt.succeeded()) {
        let class = class_of
            .get(history.plan.class_index(attempt.task))
            .copied()
            .unwrap_or(0);
        let time = seconds(attempt.duration().unwrap_or(0)).max(1e-3);
        times[class].push(time as f32);
    }
    let all = times.iter().flatten().copied();
    let (shortest, longest) = all.fold((f32::MAX, 0.0_f32), |(least, most), time| {
        (least.min(time), most.max(time))
    });
    if longest <= 0.0 {
        return (0.0, 0.0, Vec::new());
    }
    // Show at least half a decade.
    let (low, high) = (f64::from(shortest).log10(), f64::from(longest).log10());
    let middle = f64::midpoint(low, high);
    let (low, high) = (low.min(middle - 0.25), high.max(middle + 0.25) + 1e-6);
    let mut found = Vec::new();
    for (class, mut times) in times.into_iter().enumerate() {
        if times.is_empty() {
            continue;
        }
        times.sort_by(f32::total_cmp);
        let mut bars = vec![0; BARS];
        for time in &times {
            let at = (f64::from(*time).log10() - low) / (high - low) * BARS as f64;
            bars[(at.max(0.0) as usize).min(BARS - 1)] += 1;
        }
        let quantile = |part: f64| f64::from(times[((times.len() - 1) as f64 * part).round() as usize]);
        found.push(RunTimes {
            class,
            count: times.len(),
            median: quantile(0.5),
            p95: quantile(0.95),
            max: quantile(1.0),
            bars,
        });
    }
    (10_f64.powf(low), 10_f64.powf(high), found)
}
