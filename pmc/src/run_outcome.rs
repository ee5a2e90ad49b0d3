//! Collects the facts for the summary of a run.

use std::collections::BTreeMap;
use std::path::Path;

use monitord_compat::reason::Reason;
pub use pmc_monitor::failure::LastAttempt;
use pmc_monitor::failure::{FailedTask, explain};
use pmc_packed::TaskOutput;

use crate::kinds::{Job, Kind};
use crate::summary::Tally;

/// Results of tasks, collected from events.
#[derive(Debug, Default)]
pub struct Observed {
    /// Done tasks, earlier runs included.
    pub done: Vec<String>,
    /// Tasks that failed for good, in the order of their failures.
    pub failed: Vec<LastAttempt>,
    /// Why tasks failed, by name, if more is known than their status.
    pub reasons: BTreeMap<String, Reason>,
    /// Number of attempts by task name.
    pub attempts: BTreeMap<String, u32>,
}

/// Counts tasks by kind.
pub fn tallies<'a>(
    names: impl Iterator<Item = &'a str>,
    jobs: &BTreeMap<String, Job>,
    observed: &Observed,
) -> Vec<(Kind, Tally)> {
    let kind = |name: &str| jobs.get(name).map_or(Kind::Other, |job| job.kind);
    let mut tallies: BTreeMap<Kind, Tally> = BTreeMap::new();
    for name in names {
        tallies.entry(kind(name)).or_default().total += 1;
    }
    for name in &observed.done {
        tallies.entry(kind(name)).or_default().done += 1;
    }
    for last in &observed.failed {
        tallies.entry(kind(&last.task)).or_default().failed += 1;
    }
    tallies.into_iter().collect()
}

/// Explains the failed tasks.
pub fn failures(submit: &Path, observed: &Observed) -> Vec<FailedTask> {
    let mut output = TaskOutput::new(submit);
    observed
        .failed
        .iter()
        .map(|last| {
            let attempts = observed.attempts.get(&last.task).copied().unwrap_or(1);
            let mut failure = explain(&mut output, last, attempts);
            failure.reason = observed.reasons.get(&last.task).copied();
            failure
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn last(task: &str, status: i32) -> LastAttempt {
        LastAttempt {
            task: task.into(),
            status,
            runtime: None,
            is_running: false,
        }
    }

    #[test]
    fn tasks_are_counted_by_kind() {
        let job = |kind| Job {
            kind,
            directory: PathBuf::new(),
        };
        let jobs = BTreeMap::from([
            ("a".to_owned(), job(Kind::Compute)),
            ("b".to_owned(), job(Kind::StageIn)),
        ]);
        let observed = Observed {
            done: vec!["b".into()],
            failed: vec![last("a", 256)],
            ..Observed::default()
        };
        let tallies = tallies(["a", "b", "c"].into_iter(), &jobs, &observed);
        assert_eq!(
            tallies,
            [
                (
                    Kind::Compute,
                    Tally {
                        total: 1,
                        done: 0,
                        failed: 1
                    }
                ),
                (
                    Kind::StageIn,
                    Tally {
                        total: 1,
                        done: 1,
                        failed: 0
                    }
                ),
                (
                    Kind::Other,
                    Tally {
                        total: 1,
                        done: 0,
                        failed: 0
                    }
                ),
            ]
        );
    }
}
