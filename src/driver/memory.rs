//! Attempts that used more memory than their tasks request.

use std::fmt;

use pmc_status::memory;

use crate::protocol::MemoryUse;

/// Number of attempts that have a message of their own.
const MAX_MESSAGES: u64 = 5;

/// Attempts that used more memory than their tasks request, and did not fail because of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryExcess {
    /// Number of attempts.
    pub attempts: u64,
    /// Name of the task with the largest excess.
    pub task: String,
    /// Its peak of resident memory in MiB.
    pub peak_mib: u64,
    /// Its request in MiB.
    pub requested_mib: u64,
}

impl MemoryExcess {
    /// Adds an attempt, and logs the first ones.
    pub(super) fn add(&mut self, task: &str, used: MemoryUse) {
        self.attempts += 1;
        let (peak_mib, requested_mib) = (used.peak_mib, used.requested_mib);
        if self.attempts <= MAX_MESSAGES {
            tracing::warn!(
                "Task {task} used {} of memory and had requested {}",
                memory(peak_mib),
                memory(requested_mib)
            );
        }
        let excess = peak_mib.saturating_sub(requested_mib);
        if excess > self.peak_mib.saturating_sub(self.requested_mib) {
            task.clone_into(&mut self.task);
            (self.peak_mib, self.requested_mib) = (peak_mib, requested_mib);
        }
    }

    /// Logs the sum, if there were more attempts than messages.
    pub(super) fn log_sum(&self) {
        if self.attempts > MAX_MESSAGES {
            tracing::warn!("{self}");
        }
    }
}

impl fmt::Display for MemoryExcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let attempts = if self.attempts == 1 { "attempt" } else { "attempts" };
        write!(
            f,
            "{} {attempts} used more memory than requested; most of all {}: {} instead of {}",
            self.attempts,
            self.task,
            memory(self.peak_mib),
            memory(self.requested_mib)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_excess_is_kept() {
        let mut excess = MemoryExcess::default();
        for (task, peak_mib, requested_mib) in [("a", 30, 20), ("b", 110, 90), ("c", 200, 190)] {
            let used = MemoryUse {
                peak_mib,
                requested_mib,
                out_of_memory: false,
            };
            excess.add(task, used);
        }
        assert_eq!(
            excess.to_string(),
            "3 attempts used more memory than requested; most of all b: 110 MiB instead of 90 MiB"
        );
    }
}
