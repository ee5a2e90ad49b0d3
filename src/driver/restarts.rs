//! How often tasks were started before, over all runs of a DAG: what they find in `PMC_RESTART`.

use std::io;
use std::path::Path;

use pmc_dag::{Dag, TaskId};
use rustc_hash::FxHashMap;

use crate::logs::executions;
use crate::options::Options;
use crate::scheduler::Record;

/// The starts of tasks that are not done.
#[derive(Debug, Default)]
pub(super) struct Restarts(FxHashMap<TaskId, u32>);

impl Restarts {
    /// Counts the starts in earlier runs, as far as a log knows them. To be called before this run starts a
    /// task.
    pub(super) fn of_earlier_runs(options: &Options, dag: &Dag) -> Self {
        let Some(log) = &options.dagman_log else {
            return Self::default();
        };
        Self(executions(log, dag).unwrap_or_else(|error| {
            Self::warn(log, &error);
            FxHashMap::default()
        }))
    }

    fn warn(log: &Path, error: &io::Error) {
        let reason = pmc_dag::reason(error);
        tracing::warn!(
            "{}: tasks do not know their earlier starts: {reason}",
            log.display()
        );
    }

    /// Counts an attempt that has ended, if its task may run again. The task is one of this DAG.
    pub(super) fn note(&mut self, record: &Record<'_>) {
        let (Record::Evicted { task, .. } | Record::Ended { task, .. } | Record::Prepared { task, .. }) =
            record
        else {
            return;
        };
        if let Record::Ended { outcome, .. } | Record::Prepared { outcome, .. } = record
            && outcome.succeeded()
        {
            return;
        }
        let count = self.0.entry(*task).or_default();
        *count = count.saturating_add(1);
    }

    /// Returns how often a task was started before.
    pub(super) fn of(&self, task: TaskId) -> u32 {
        self.0.get(&task).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use monitord_compat::dagman_out;

    use super::*;
    use crate::protocol::{Outcome, Rank, SubmitId};
    use crate::scheduler::Eviction;

    #[test]
    fn starts_are_counted_over_all_runs() {
        let dir = tempfile::tempdir().unwrap();
        let dag = Dag::parse(b"TASK a x\nTASK b x\nTASK c x\n".to_vec()).unwrap();
        let [a, b, c] = [b"a", b"b", b"c"].map(|name| dag.find(name).unwrap());
        let mut options = Options::new(&dir.path().join("x.dag"), "pmc".as_ref());
        assert_eq!(Restarts::of_earlier_runs(&options, &dag).of(a), 0);
        let mut log = Vec::new();
        let stamp = dagman_out::Stamp::new(chrono::NaiveDateTime::default());
        for (number, name) in (1..).zip([b"a", b"a", b"b"]) {
            dagman_out::queued(&mut log, &stamp, name, number);
            dagman_out::started(&mut log, &stamp, name, number);
        }
        // One that was only submitted.
        dagman_out::queued(&mut log, &stamp, b"c", 4);
        let path = dir.path().join("x.dag.dagman.out");
        std::fs::write(&path, log).unwrap();
        options.dagman_log = Some(path);
        let mut restarts = Restarts::of_earlier_runs(&options, &dag);
        assert_eq!([a, b, c].map(|task| restarts.of(task)), [2, 1, 0]);
        let ended = |task, status| Record::Ended {
            task,
            submit: SubmitId(5),
            rank: Rank(1),
            outcome: Outcome::new(status, Duration::ZERO),
        };
        restarts.note(&ended(b, 256));
        restarts.note(&ended(a, 0));
        restarts.note(&Record::Evicted {
            task: c,
            submit: SubmitId(6),
            rank: Rank(1),
            why: Eviction::Saved,
        });
        assert_eq!([a, b, c].map(|task| restarts.of(task)), [2, 2, 1]);
    }
}
