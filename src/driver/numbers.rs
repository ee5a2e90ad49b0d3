//! Numbers of packed attempts: what the names of their files would have, over all runs of a DAG.
//!
//! Monitoring counts the submissions of a task from 0. Workers cannot: an earlier attempt may lie in the
//! pack of another worker, or nowhere, because it never began.

use std::ffi::OsStr;
use std::path::Path;

use pmc_dag::{Dag, TaskId};
use pmc_packed::{PacksError, TaskOutput, has_packs};

use crate::logs::submissions;
use crate::options::{Options, Stdio, folder};

/// How often each task was submitted.
#[derive(Debug)]
pub(super) struct AttemptNumbers(Vec<u32>);

impl AttemptNumbers {
    /// Counts what earlier runs have submitted. `None` if the output of this run is not packed. To be called
    /// before this run submits a task.
    pub(super) fn new(options: &Options, dag: &Dag) -> Result<Option<Self>, PacksError> {
        if !is_packed(options) {
            return Ok(None);
        }
        let mut counts = vec![0; dag.len()];
        if let Some(log) = &options.dagman_log {
            let submitted = submissions(log, dag).map_err(|source| PacksError {
                path: log.clone(),
                source,
            })?;
            for (task, count) in submitted {
                counts[task.index()] = count;
            }
        }
        // Without the log, the packs tell.
        let mut output = TaskOutput::new(folder(&options.dag));
        output.refresh()?;
        for attempt in output.packed() {
            if let Some(task) = dag.find(&attempt.task) {
                let count = &mut counts[task.index()];
                *count = (*count).max(attempt.number.saturating_add(1));
            }
        }
        Ok(Some(Self(counts)))
    }

    /// A task is submitted.
    pub(super) fn submitted(&mut self, task: TaskId) {
        let count = &mut self.0[task.index()];
        *count = count.saturating_add(1);
    }

    /// Returns the number of the latest submission of a task.
    pub(super) fn of(&self, task: TaskId) -> u32 {
        self.0[task.index()].saturating_sub(1)
    }
}

/// Returns whether the output of a run is packed. What has begun in packs goes on in packs, lest a number be
/// given twice.
fn is_packed(options: &Options) -> bool {
    match options.stdio {
        Stdio::Merged { .. } => false,
        Stdio::Packed => true,
        Stdio::PerTask => {
            let name = Path::file_name(&options.dag).unwrap_or(OsStr::new(""));
            has_packs(folder(&options.dag), name)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use monitord_compat::dagman_out;
    use pmc_packed::{Attempt, Pack};

    use super::*;

    #[test]
    fn numbers_go_on_from_log_and_packs() {
        let dir = tempfile::tempdir().unwrap();
        let dag_file = dir.path().join("x.dag");
        let dag = Dag::parse(b"TASK a x\nTASK b x\nTASK c x\n".to_vec()).unwrap();
        let task = |name: &str| dag.find(name.as_bytes()).unwrap();
        let mut options = Options::new(&dag_file, "pmc".as_ref());
        assert!(AttemptNumbers::new(&options, &dag).unwrap().is_none());
        options.stdio = Stdio::PerTask;
        assert!(AttemptNumbers::new(&options, &dag).unwrap().is_none());
        options.stdio = Stdio::Packed;
        let mut numbers = AttemptNumbers::new(&options, &dag).unwrap().unwrap();
        for expected in 0..2 {
            numbers.submitted(task("a"));
            assert_eq!((numbers.of(task("a")), numbers.of(task("b"))), (expected, 0));
        }
        // An attempt of `b` never began: the log knows it, and the packs do not.
        let mut log = Vec::new();
        let stamp = dagman_out::Stamp::new(chrono::NaiveDateTime::default());
        for (number, name) in [b"a", b"b", b"b"].into_iter().enumerate() {
            dagman_out::queued(&mut log, &stamp, name, number as u64 + 1);
        }
        options.dagman_log = Some(dir.path().join("x.dag.dagman.out"));
        fs::write(options.dagman_log.as_ref().unwrap(), log).unwrap();
        let mut pack = Pack::open(&dag_file, 1).unwrap();
        let empty = fs::File::open("/dev/null").unwrap();
        for (name, number) in [("a", 0), ("b", 0), ("c", 4)] {
            let attempt = Attempt {
                task: name.as_bytes(),
                number,
                submit: 1,
                start_ms: 0,
            };
            pack.append(attempt, &empty, b"", &empty).unwrap();
        }
        // The run goes on in packs.
        options.stdio = Stdio::PerTask;
        let mut numbers = AttemptNumbers::new(&options, &dag).unwrap().unwrap();
        for (name, expected) in [("a", 1), ("b", 2), ("c", 5)] {
            numbers.submitted(task(name));
            assert_eq!(numbers.of(task(name)), expected, "{name}");
        }
    }
}
