//! Tasks that have failed and are tried again.

use rustc_hash::FxHashMap;

use super::{History, State};
use crate::plan::TaskNumber;

/// A task whose last attempt failed and that is tried again, or waits for that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retried {
    /// Index of its last failed attempt.
    pub attempt: usize,
    /// Number of its failed attempts.
    pub failures: usize,
}

impl History {
    /// Returns the tasks that have failed and are tried again, the latest failure first. Linear in the number
    /// of attempts.
    #[must_use]
    pub fn retried(&self) -> Vec<Retried> {
        let mut found: FxHashMap<TaskNumber, Retried> = FxHashMap::default();
        for (index, attempt) in self.attempts.iter().enumerate() {
            let is_over = matches!(self.state(attempt.task), State::Done | State::Failed);
            if !is_over && attempt.failed() {
                let retried = found.entry(attempt.task).or_insert(Retried {
                    attempt: index,
                    failures: 0,
                });
                retried.attempt = index;
                retried.failures += 1;
            }
        }
        let mut all: Vec<Retried> = found.into_values().collect();
        all.sort_by_key(|retried| {
            (
                std::cmp::Reverse(self.attempts[retried.attempt].end),
                retried.attempt,
            )
        });
        all
    }
}
