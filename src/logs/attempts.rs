//! Keeps the numbers of output files and the monitoring log in step when a run is continued.
//!
//! monitord counts: the output files of a task's k-th submission in `.dagman.out` have the number
//! k, from 0. A worker takes the first number for which there is no file. A run that is cut off
//! leaves submissions of tasks that never got to a worker and so have no file; without one, the
//! next run's output would have a number that monitord gives to the lost submission, and
//! monitord would look for the output of the next run in a file that does not exist.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader};
use std::path::Path;

use monitord_compat::dagman_out;
use pmc_dag::rescue::DoneSet;
use pmc_dag::{Dag, TaskId};
use rustc_hash::FxHashMap;

use crate::worker::fill_numbers;

/// Makes an empty output file for each submission in the log that has none, of tasks that are not
/// done. A log that is not there, or is no file, tells of none.
pub(super) fn fill(log: &Path, dag_file: &Path, dag: &Dag, done: &DoneSet) -> io::Result<()> {
    if !log.metadata().is_ok_and(|data| data.is_file()) {
        return Ok(());
    }
    for (task, number) in submissions(log, dag)? {
        if !done.contains(task) {
            fill_numbers(dag_file, dag.name(task), number)?;
        }
    }
    Ok(())
}

/// How often each task was submitted.
fn submissions(log: &Path, dag: &Dag) -> io::Result<FxHashMap<TaskId, u32>> {
    let mut reader = BufReader::with_capacity(1 << 16, File::open(log)?);
    let mut counts = FxHashMap::default();
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line)? > 0 {
        if let Some(task) = dagman_out::submitted(&line).and_then(|name| dag.find(name)) {
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
    fn queued_tasks_of_a_run_that_was_cut_off_get_their_files() {
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
        fs::write(path("b.out.000"), "first try").unwrap();
        fill(&path("x.dag.dagman.out"), &path("x.dag"), &dag, &done).unwrap();
        assert_eq!(fs::read(path("a.out.000")).unwrap(), b"");
        assert!(!path("a.out.001").exists());
        assert_eq!(fs::read(path("b.out.000")).unwrap(), b"first try");
        assert_eq!(fs::read(path("b.out.001")).unwrap(), b"");
        assert!(!path("c.out.000").exists(), "what is done needs no number");
    }

    #[test]
    fn no_log_is_no_submission() {
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
