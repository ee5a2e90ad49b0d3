//! Gathers the summary of a run from what was observed and what the tasks have left.

use std::collections::BTreeMap;
use std::path::Path;

pub use pmc_monitor::failure::LastTry;
use pmc_monitor::failure::{FailedTask, explain};

use crate::kinds::{Job, Kind};
use crate::summary::Tally;

/// What was observed of the tasks of a run.
#[derive(Debug, Default)]
pub struct Observed {
    /// Tasks that are done, those of earlier runs included.
    pub done: Vec<String>,
    /// Tasks that failed for good, in the order of failing.
    pub failed: Vec<LastTry>,
    /// Number of tries by name, of tasks that were tried.
    pub tries: BTreeMap<String, u32>,
}

/// Tasks by kind, in the order in which a workflow goes.
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

/// What is known of the failed tasks.
pub fn failures(submit: &Path, observed: &Observed) -> Vec<FailedTask> {
    observed
        .failed
        .iter()
        .map(|last| explain(submit, last, observed.tries.get(&last.task).copied().unwrap_or(1)))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn last(task: &str, status: i32) -> LastTry {
        LastTry {
            task: task.into(),
            status,
            runtime: None,
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
