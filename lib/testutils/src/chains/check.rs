//! What must be so when a chain of jobs has ended.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;

use monitord_compat::batch_jobs::Event;

use super::batch_system::End;
use super::{Place, TASKS};

/// Bytes of each file that [`details`] shows.
const SHOWN: usize = 6000;

/// Returns what is wrong with a chain. `cancelled`: this job was cancelled, if it had not ended by then.
pub(super) fn check(place: &Place, steps: usize, cancelled: Option<u32>) -> Vec<String> {
    let mut found = Vec::new();
    let begun = place.system.begun();
    let ends = place.ends();
    let is_done = ends.last().is_some_and(|end| end == "success stop");
    let is_cancelled = |number: u32| begun.contains(&(number, Some(End::Cancelled)));
    match cancelled.filter(|number| is_cancelled(*number)) {
        Some(number) => {
            let later = begun
                .iter()
                .filter(|(job, end)| *job > number && *end != Some(End::Cancelled));
            if later.count() > 0 {
                found.push(format!("a job has begun after the cancel of {number}: {begun:?}"));
            }
        }
        _ if !is_done => found.push(format!("the workflow is not done: {ends:?}")),
        _ => {
            for task in 0..TASKS {
                let done = place.numbers(&format!("steps.{task}"));
                if done != (1..=steps).collect::<Vec<_>>() {
                    found.push(format!("task {task} has done the steps {done:?} of {steps}"));
                }
            }
        }
    }
    let overlaps = place.numbers("overlaps");
    if !overlaps.is_empty() {
        found.push(format!("tasks ran twice at a time: {overlaps:?}"));
    }
    let log = fs::read_to_string(place.run().join("w.dag.dagman.out")).unwrap_or_default();
    if let Some(line) = log.lines().find(|line| line.contains(" failed with ")) {
        found.push(format!("what was ended counts as failed: {line}"));
    }
    found.extend(unknown(place).map(|job| format!("the ledger does not know the job {job}")));
    let left = place.system.processes();
    if !left.is_empty() {
        found.push(format!("processes are left: {left:?}"));
    }
    found
}

/// Returns the jobs that have begun without a word in the ledger.
fn unknown(place: &Place) -> impl Iterator<Item = u32> {
    let known: BTreeSet<String> = place
        .ledger()
        .into_iter()
        .filter(|entry| matches!(entry.event, Event::Begin { .. }))
        .map(|entry| entry.job)
        .collect();
    let begun = place.system.begun().into_iter();
    // One that was cancelled or lost at once has not come to it.
    let ended = begun.filter(|(_, end)| *end == Some(End::Completed));
    ended
        .map(|(job, _)| job)
        .filter(move |job| !known.contains(&format!("slurm {job}")))
}

/// Returns what helps to find out why.
pub(super) fn details(place: &Place) -> String {
    let mut text = format!("{:?}", place.system.begun());
    for name in ["run/w.dag.jobs", "batch/output", "run/w.dag.dagman.out"] {
        let all = fs::read_to_string(place.directory.path().join(name)).unwrap_or_default();
        let from = all.ceil_char_boundary(all.len().saturating_sub(SHOWN));
        let _ = write!(text, "\n--- {name}\n{}", all.get(from..).unwrap_or_default());
    }
    text
}
