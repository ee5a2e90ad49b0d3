//! Keeps the numbers of output files in step with the monitoring log when a run is resumed.
//!
//! monitord expects that the k-th submission of a task in `.dagman.out`, counted from 0, has output files
//! with number k. A worker uses the first number without a file. A killed run leaves submissions of tasks
//! that never reached a worker and so have no file. Then the next output would get the number of the lost
//! submission, and monitord would look for it under a number that does not exist.

use std::io::{self, BufRead as _, BufReader};
use std::path::Path;

use monitord_compat::dagman_out;
use pmc_dag::rescue::DoneSet;
use pmc_dag::{Dag, TaskId};
use rustc_hash::FxHashMap;

use crate::worker::fill_numbers;

/// Creates an empty output file for each submission in the log without one, of tasks that are not done.
pub(super) fn fill(log: &Path, dag_file: &Path, dag: &Dag, done: &DoneSet) -> io::Result<()> {
    for (task, number) in submissions(log, dag)? {
        if !done.contains(task) {
            fill_numbers(dag_file, dag.name(task), number)?;
        }
    }
    Ok(())
}

/// Returns the number of submissions of each task in a log. A log that is missing or not a regular file has
/// none.
pub(crate) fn submissions(log: &Path, dag: &Dag) -> io::Result<FxHashMap<TaskId, u32>> {
    count(log, dag, dagman_out::submitted)
}

/// Returns how often each task was started, as [`submissions`].
pub(crate) fn executions(log: &Path, dag: &Dag) -> io::Result<FxHashMap<TaskId, u32>> {
    count(log, dag, dagman_out::executed)
}

/// Counts the lines of tasks in a log.
fn count(
    log: &Path,
    dag: &Dag,
    task_of: impl Fn(&[u8]) -> Option<&[u8]>,
) -> io::Result<FxHashMap<TaskId, u32>> {
    if !log.metadata().is_ok_and(|data| data.is_file()) {
        return Ok(FxHashMap::default());
    }
    let mut reader = BufReader::with_capacity(1 << 16, pmc_files::open(log)?);
    let mut counts = FxHashMap::default();
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line)? > 0 {
        if let Some(task) = task_of(&line).and_then(|name| dag.find(name)) {
            *counts.entry(task).or_insert(0) += 1;
        }
        line.clear();
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn submissions_of_a_killed_run_get_output_files() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let dag = Dag::parse(b"TASK a /bin/true\nTASK b /bin/true\nTASK c /bin/true\n".to_vec()).unwrap();
        let mut done = DoneSet::new();
        done.insert(dag.find(b"c").unwrap());
        let mut log = Vec::new();
        let stamp = dagman_out::Stamp::new(chrono::NaiveDateTime::default());
        for (number, task) in [b"a", b"b", b"b", b"c"].into_iter().enumerate() {
            dagman_out::queued(&mut log, &stamp, task, number as u64 + 1);
        }
        fs::write(path("x.dag.dagman.out"), log).unwrap();
        fs::write(path("b.out.000"), "first attempt").unwrap();
        fill(&path("x.dag.dagman.out"), &path("x.dag"), &dag, &done).unwrap();
        assert_eq!(fs::read(path("a.out.000")).unwrap(), b"");
        assert!(!path("a.out.001").exists());
        assert_eq!(fs::read(path("b.out.000")).unwrap(), b"first attempt");
        assert_eq!(fs::read(path("b.out.001")).unwrap(), b"");
        assert!(!path("c.out.000").exists(), "done tasks need no file");
    }

    #[test]
    fn without_a_log_there_are_no_submissions() {
        let folder = tempfile::tempdir().unwrap();
        let dag = Dag::parse(b"TASK a /bin/true\n".to_vec()).unwrap();
        for log in [
            folder.path().join("none"),
            folder.path().to_owned(),
            "/dev/null".into(),
        ] {
            fill(&log, &folder.path().join("x.dag"), &dag, &DoneSet::new()).unwrap();
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
