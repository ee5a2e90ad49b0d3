//! Is this a restart: of the task, or of the workflow in this job?

use std::collections::BTreeMap;

use monitord_compat::batch_jobs::{Entry, Event};

/// Variable with the number of the attempt of a task in this run; the first one does not have it.
const ATTEMPT: &str = "PMC_ATTEMPT";

/// Variable with the name of a task.
const TASK: &str = "PMC_TASK";

/// Returns whether the task of this process was started before. `has_saved`: it goes on from what an attempt
/// in an earlier job has saved. `None` outside of tasks.
pub fn is_restarted_task(
    environment: &BTreeMap<String, String>,
    has_saved: impl FnOnce() -> bool,
) -> Option<bool> {
    environment.get(TASK)?;
    let attempt = environment.get(ATTEMPT).and_then(|text| text.parse().ok());
    Some(attempt.unwrap_or(1_u32) > 1 || has_saved())
}

/// Returns whether a workflow has begun in another job before the one with this name, or this id.
pub fn is_restarted_job(ledger: &[Entry], job: &str) -> bool {
    let mut begun = ledger
        .iter()
        .filter(|entry| matches!(entry.event, Event::Begin { .. }));
    let is_it = |name: &str| name == job || name.rsplit(' ').next() == Some(job);
    begun.next().is_some_and(|first| !is_it(&first.job))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begin(job: &str) -> Entry {
        Entry {
            at: 1.0,
            job: job.to_owned(),
            event: Event::Begin {
                nodes: Vec::new(),
                slots: None,
                limit: None,
                chain: 0,
                resubmit: 0,
                command: Vec::new(),
                successor: false,
            },
        }
    }

    #[test]
    fn the_first_job_is_no_restart() {
        let ledger = [begin("slurm 1"), begin("slurm 1"), begin("slurm 2")];
        assert!(!is_restarted_job(&[], "slurm 1") && !is_restarted_job(&ledger, "slurm 1"));
        assert!(is_restarted_job(&ledger, "slurm 2") && is_restarted_job(&ledger, "2"));
        assert!(!is_restarted_job(&ledger, "1"));
        // One that has not begun.
        assert!(is_restarted_job(&ledger, "slurm 3"));
    }

    #[test]
    fn a_task_knows_its_own_starts() {
        for (pairs, has_saved, expected) in [
            (&[][..], true, None),
            (&[("PMC_TASK", "a")], false, Some(false)),
            (&[("PMC_TASK", "a")], true, Some(true)),
            (&[("PMC_TASK", "a"), ("PMC_ATTEMPT", "2")], false, Some(true)),
            (&[("PMC_TASK", "a"), ("PMC_ATTEMPT", "many")], false, Some(false)),
        ] {
            let text = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
            let environment = pairs.iter().map(text).collect();
            let found = is_restarted_task(&environment, || has_saved);
            assert_eq!(found, expected, "{pairs:?}");
        }
    }
}
