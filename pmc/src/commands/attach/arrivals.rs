//! Attempts that the log of a run shows.

use std::collections::{HashMap, HashSet};

use pmc_monitor::history::{Attempt, History, NEVER, State};
use pmc_monitor::plan::TaskNumber;

use super::select::Selection;

/// Finds the attempts of a selection.
#[derive(Default)]
pub struct Arrivals {
    /// Attempts of the log that were looked at.
    looked_at: usize,
    /// Attempts whose host was not known, with their numbers.
    without_host: Vec<(usize, u32)>,
    /// Number of attempts of each task.
    counts: HashMap<TaskNumber, u32>,
    /// Named tasks whose last attempt had failed at the last look. It may run again.
    failed: HashSet<TaskNumber>,
}

impl Arrivals {
    /// Returns the attempts that the log has since the last call, also those that have ended if `with_ended`:
    /// their indices, and their numbers among the attempts of their tasks, from 0.
    pub fn next(&mut self, selection: &Selection, history: &History, with_ended: bool) -> Vec<(usize, u32)> {
        let mut candidates = std::mem::take(&mut self.without_host);
        for index in self.looked_at..history.attempts.len() {
            let task = history.attempts[index].task;
            if selection.may_have(task, history) {
                let count = self.counts.entry(task).or_default();
                candidates.push((index, *count));
                *count += 1;
            }
        }
        self.looked_at = history.attempts.len();
        candidates.retain(|(index, number)| {
            let is_ended = has_ended(&history.attempts[*index]);
            if is_ended && !with_ended {
                return false;
            }
            let is_shown = selection.has(*index, history);
            if is_shown.is_none() && !is_ended {
                self.without_host.push((*index, *number));
            }
            is_shown == Some(true)
        });
        candidates
    }

    /// Returns the attempts that were looked at and run, as [`Self::next`] does.
    #[cfg(feature = "pmix")]
    pub fn running(&self, selection: &Selection, history: &History) -> Vec<(usize, u32)> {
        let mut counts: HashMap<TaskNumber, u32> = HashMap::new();
        let numbered = (0..self.looked_at).map(|index| {
            let count = counts.entry(history.attempts[index].task).or_default();
            *count += 1;
            (index, *count - 1)
        });
        let is_chosen = |index: usize| selection.has(index, history) == Some(true);
        numbered
            .filter(|(index, _)| !has_ended(&history.attempts[*index]) && is_chosen(*index))
            .collect()
    }

    /// Returns the number of attempts of a task so far.
    pub fn count(&self, task: TaskNumber) -> u32 {
        self.counts.get(&task).copied().unwrap_or(0)
    }

    /// Returns whether all tasks that the user has named have ended, and do not run again.
    pub fn have_named_ended(&mut self, selection: &Selection, history: &History) -> bool {
        let Selection::Named(tasks) = selection else {
            return false;
        };
        let state = |task: &TaskNumber| history.state(*task);
        let failed = tasks.iter().filter(|task| state(task) == State::Failed);
        let failed: HashSet<TaskNumber> = failed.copied().collect();
        let mut left = tasks.iter().filter(|task| state(task) != State::Done);
        let have_ended = left.all(|task| failed.contains(task) && self.failed.contains(task));
        self.failed = failed;
        have_ended
    }
}

/// Returns whether an attempt runs no more.
pub fn has_ended(attempt: &Attempt) -> bool {
    attempt.end != NEVER || attempt.lost
}
