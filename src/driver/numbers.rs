//! Numbers of attempts: what the names of their files have, or would have, over all runs of a DAG.
//!
//! Monitoring counts the submissions of a task from 0. Workers cannot: an earlier attempt may lie in the
//! pack of another worker, or nowhere, because it never began. So the master tells them the numbers of packed
//! attempts. For an attempt with its own files, a worker takes the first number without a file. The master
//! keeps that in step with the submissions when a worker is lost before it has made the files, and when an
//! attempt of an earlier master is submitted again.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use pmc_dag::{Dag, TaskId, reason};
use pmc_packed::{PacksError, TaskOutput, has_packs};

use crate::logs::submissions;
use crate::options::{Options, Stdio, folder};
use crate::worker::{begin_files, fill_numbers, share_files};

/// How often each task was submitted.
#[derive(Debug)]
pub(super) struct AttemptNumbers {
    /// By task.
    counts: Vec<u32>,
    dag_file: PathBuf,
    is_packed: bool,
}

impl AttemptNumbers {
    /// Counts what earlier runs have submitted. `None` if nobody needs the numbers: the output of this run
    /// is not packed, and no worker can be lost (`may_lose`), or there is no log that counts. To be called
    /// before this run submits a task.
    pub(super) fn new(options: &Options, dag: &Dag, may_lose: bool) -> Result<Option<Self>, PacksError> {
        let is_packed = is_packed(options);
        let has_files = options.stdio == Stdio::PerTask && options.dagman_log.is_some();
        if !(is_packed || (has_files && may_lose)) {
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
        let dag_file = options.dag.clone();
        let mut this = Self {
            counts,
            dag_file,
            is_packed,
        };
        if !is_packed {
            return Ok(Some(this));
        }
        // Without the log, the packs tell.
        let mut output = TaskOutput::new(folder(&options.dag));
        output.refresh()?;
        for attempt in output.packed() {
            if let Some(task) = dag.find(&attempt.task) {
                let count = &mut this.counts[task.index()];
                *count = (*count).max(attempt.number.saturating_add(1));
            }
        }
        Ok(Some(this))
    }

    /// True if the output of attempts goes into packs.
    pub(super) fn is_packed(&self) -> bool {
        self.is_packed
    }

    /// The DAG has got more tasks: this number.
    pub(super) fn extend(&mut self, tasks: usize) {
        self.counts.resize(tasks, 0);
    }

    /// A task is submitted.
    pub(super) fn submitted(&mut self, task: TaskId) {
        let count = &mut self.counts[task.index()];
        *count = count.saturating_add(1);
    }

    /// An attempt of an earlier master is submitted again and goes on. Its files get the new number, too.
    pub(super) fn adopted(&mut self, dag: &Dag, task: TaskId) {
        let number = self.counts[task.index()];
        self.submitted(task);
        if let Some(earlier) = number.checked_sub(1).filter(|_| !self.is_packed) {
            let name = dag.name(task);
            log_error(name, share_files(&self.dag_file, name, earlier, number));
        }
    }

    /// The latest attempt of a task has begun on a host that does not see the directory of the DAG file. Its
    /// files are those that a worker makes which sees it.
    pub(super) fn begun(&self, dag: &Dag, task: TaskId) {
        if !self.is_packed {
            let name = dag.name(task);
            log_error(name, begin_files(&self.dag_file, name, self.of(task)));
        }
    }

    /// The worker of the latest attempt of a task was lost, perhaps before it had made its files.
    pub(super) fn lost(&self, dag: &Dag, task: TaskId) {
        if !self.is_packed {
            let name = dag.name(task);
            let number = self.of(task).saturating_add(1);
            log_error(name, fill_numbers(&self.dag_file, name, number));
        }
    }

    /// Returns the number of the latest submission of a task.
    pub(super) fn of(&self, task: TaskId) -> u32 {
        self.counts[task.index()].saturating_sub(1)
    }
}

/// Says that monitoring may not find the output of a task. The run goes on.
fn log_error(task: &[u8], result: io::Result<()>) {
    if let Err(error) = result {
        tracing::error!(
            "Task {}: the numbers of its output files differ from those in the log: {}",
            String::from_utf8_lossy(task),
            reason(&error)
        );
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

    use crate::worker::store_output;
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
        let new = |options: &Options| AttemptNumbers::new(options, &dag, true).unwrap();
        assert!(new(&options).is_none());
        options.stdio = Stdio::PerTask;
        assert!(new(&options).is_none());
        options.stdio = Stdio::Packed;
        let mut numbers = new(&options).unwrap();
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
        let mut numbers = new(&options).unwrap();
        assert!(numbers.is_packed());
        for (name, expected) in [("a", 1), ("b", 2), ("c", 5)] {
            numbers.submitted(task(name));
            assert_eq!(numbers.of(task(name)), expected, "{name}");
        }
    }

    #[test]
    fn files_of_attempts_keep_step_with_their_submissions() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let dag = Dag::parse(b"TASK a x\nTASK b x\n".to_vec()).unwrap();
        let [a, b] = ["a", "b"].map(|name| dag.find(name.as_bytes()).unwrap());
        let mut options = Options::new(&path("x.dag"), "pmc".as_ref());
        options.stdio = Stdio::PerTask;
        options.dagman_log = Some(path("x.dag.dagman.out"));
        assert!(AttemptNumbers::new(&options, &dag, false).unwrap().is_none());
        let mut numbers = AttemptNumbers::new(&options, &dag, true).unwrap().unwrap();
        assert!(!numbers.is_packed());
        // The first attempt never begins, the second one does.
        numbers.submitted(a);
        numbers.lost(&dag, a);
        assert_eq!(fs::read(path("a.out.000")).unwrap(), b"");
        numbers.submitted(a);
        fs::write(path("a.out.001"), "begun").unwrap();
        numbers.lost(&dag, a);
        assert_eq!(fs::read(path("a.out.001")).unwrap(), b"begun");
        assert!(!path("a.out.002").exists());

        // The next master submits a running attempt again.
        let mut log = Vec::new();
        let stamp = dagman_out::Stamp::new(chrono::NaiveDateTime::default());
        for name in [b"a", b"b"] {
            dagman_out::queued(&mut log, &stamp, name, 1);
        }
        fs::write(options.dagman_log.as_ref().unwrap(), log).unwrap();
        fs::write(path("b.out.000"), "runs").unwrap();
        fs::write(path("b.err.000"), "complains").unwrap();
        let mut numbers = AttemptNumbers::new(&options, &dag, true).unwrap().unwrap();
        numbers.adopted(&dag, b);
        assert_eq!(numbers.of(b), 1);
        assert_eq!(fs::read(path("b.out.001")).unwrap(), b"runs");
        assert_eq!(fs::read(path("b.err.001")).unwrap(), b"complains");
        // A host that does not see the directory has begun an attempt.
        numbers.begun(&dag, a);
        assert_eq!(fs::read(path("a.out.001")).unwrap(), b"begun");
        numbers.submitted(b);
        numbers.begun(&dag, b);
        assert_eq!(fs::read(path("b.out.002")).unwrap(), b"");
        numbers.adopted(&dag, b);
        let number = store_output(
            &path("x.dag"),
            b"b",
            Some(3),
            [&b"o".to_vec().into(), &b"e".to_vec().into()],
        );
        assert_eq!(number.unwrap(), 3);
        for file in ["b.out.002", "b.out.003"] {
            assert_eq!(fs::read(path(file)).unwrap(), b"o", "{file}");
        }
        assert_eq!(fs::read(path("b.err.002")).unwrap(), b"e");
        // It has the new number already: it began after the number before was filled.
        fs::write(path("a.out.000"), "").unwrap();
        numbers.adopted(&dag, a);
        assert_eq!(fs::read(path("a.out.001")).unwrap(), b"begun");
    }
}
