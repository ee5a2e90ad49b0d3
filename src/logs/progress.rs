//! Tables of progress in `.dagman.out`.

use std::time::Duration;

use monitord_compat::dagman_out::{self, Counts, Stamp};
use pmc_dag::TaskId;
use rustc_hash::FxHashSet;

use crate::scheduler::Record;

/// Minimum time between two tables. Readers look every few seconds.
const WRITE_INTERVAL: Duration = Duration::from_secs(2);

/// Counts the tasks by state.
#[derive(Debug)]
pub(super) struct Progress {
    counts: Counts,
    /// Tasks whose last attempt failed. One that is queued again has not failed.
    failed: FxHashSet<TaskId>,
    /// Time of the latest table, since the epoch.
    written: Duration,
}

impl Progress {
    pub(super) fn new(total: usize, done: usize) -> Self {
        let counts = Counts {
            total,
            done,
            ..Counts::default()
        };
        Self {
            counts,
            failed: FxHashSet::default(),
            written: Duration::ZERO,
        }
    }

    /// The DAG has got more tasks.
    pub(super) fn set_total(&mut self, total: usize) {
        self.counts.total = total;
    }

    pub(super) fn note(&mut self, record: &Record<'_>) {
        let counts = &mut self.counts;
        match record {
            Record::Queued(task, _) | Record::Adopted(task, _) => {
                counts.ready += 1;
                if self.failed.remove(task) {
                    counts.failed -= 1;
                }
            }
            Record::Started(..) | Record::Nested(..) => {
                counts.ready = counts.ready.saturating_sub(1);
                counts.running += 1;
            }
            // Between its command and its DAG, a sub-workflow is ready for a moment.
            Record::Prepared { task, outcome, .. } => {
                counts.running = counts.running.saturating_sub(1);
                if outcome.succeeded() {
                    counts.ready += 1;
                } else if self.failed.insert(*task) {
                    counts.failed += 1;
                }
            }
            Record::Ended { task, outcome, .. } => {
                counts.running = counts.running.saturating_sub(1);
                if outcome.succeeded() {
                    counts.done += 1;
                } else if self.failed.insert(*task) {
                    counts.failed += 1;
                }
            }
            Record::Evicted { .. } => counts.running = counts.running.saturating_sub(1),
            Record::Resources { .. }
            | Record::Beside { .. }
            | Record::Capacity { .. }
            | Record::Fragmented(..)
            | Record::HeldBack(..)
            | Record::NewRequest { .. }
            | Record::ExpressionSkipped { .. }
            | Record::RequestCapped { .. } => {}
        }
    }

    pub(super) fn is_due(&self, now: Duration) -> bool {
        now.saturating_sub(self.written) >= WRITE_INTERVAL
    }

    pub(super) fn write(&mut self, lines: &mut Vec<u8>, stamp: &Stamp, now: Duration) {
        self.written = now;
        dagman_out::progress(lines, stamp, &self.counts);
    }
}
