//! What scripts ask of the ledger: has this job a predecessor; note that it has begun.

use std::collections::BTreeMap;

use monitord_compat::batch_jobs::{Entry, Event};

/// Variable with the number of earlier starts of a task; the first start does not have it.
const RESTARTS: &str = "PMC_RESTART";

/// Variable with the name of a task.
const TASK: &str = "PMC_TASK";

/// Returns whether this process belongs to a restart: in a task, of the task; else of the workflow, in the
/// job with this name.
pub fn is_restart(environment: &BTreeMap<String, String>, ledger: &[Entry], job: &str) -> bool {
    if environment.contains_key(TASK) {
        let restarts = environment.get(RESTARTS).and_then(|text| text.parse().ok());
        return restarts.unwrap_or(0_u32) > 0;
    }
    let begun = |entry: &&Entry| matches!(entry.event, Event::Begin { .. });
    let others = ledger.iter().filter(begun).take_while(|entry| entry.job != job);
    others.count() > 0
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
                chain: 0,
                resubmit: 0,
                command: Vec::new(),
                successor: false,
            },
        }
    }

    fn environment(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        let pairs = pairs.iter();
        pairs.map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    #[test]
    fn the_first_job_is_no_restart() {
        let ledger = [begin("slurm 1"), begin("slurm 1"), begin("slurm 2")];
        let asked = |ledger: &[Entry], job: &str| is_restart(&environment(&[]), ledger, job);
        assert!(!asked(&[], "slurm 1") && !asked(&ledger, "slurm 1"));
        assert!(asked(&ledger, "slurm 2"));
        // One that has not begun.
        assert!(asked(&ledger, "slurm 3"));
    }

    #[test]
    fn a_task_knows_its_own_starts() {
        let ledger = [begin("slurm 1")];
        for (pairs, expected) in [
            (&[("PMC_TASK", "a")][..], false),
            (&[("PMC_TASK", "a"), ("PMC_RESTART", "2")], true),
            (&[("PMC_TASK", "a"), ("PMC_RESTART", "many")], false),
        ] {
            assert_eq!(is_restart(&environment(pairs), &ledger, "slurm 2"), expected);
        }
    }
}
