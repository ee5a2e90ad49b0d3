//! Tasks of DAGs that have not joined the run: attempts of an earlier master that end meanwhile.
//!
//! Agents keep the results of a master that died. Those of its own DAG count. A sub-workflow or guest of it
//! may join this run later, or be run by itself: what its tasks have done is noted in its rescue file. A
//! master that was killed between the record of a task and its lines in the logs leaves it like this.

use std::path::Path;

use pmc_dag::Dag;
use pmc_dag::rescue::{self, DoneSet, Writer};

use crate::driver::{RunError, setup};
use crate::durability::forward_journal;
use crate::durability::lock::DagLock;
use crate::options::{Options, is_device};

/// The rescue file of a DAG that has not joined.
pub(super) struct EarlierRescue {
    dag: Dag,
    done: DoneSet,
    writer: Writer,
    _lock: Option<DagLock>,
}

impl EarlierRescue {
    /// Opens the rescue file. `None` if no run has begun there, or if its forwarded data must be completed
    /// first.
    ///
    /// # Errors
    /// The DAG is locked, or a file cannot be read.
    pub(super) fn open(options: &Options) -> Result<Option<Self>, RunError> {
        let path: &Path = &options.rescue;
        if is_device(path) || !path.exists() || forward_journal::path_for(path).exists() {
            return Ok(None);
        }
        let lock = setup::lock(options)?;
        let dag = setup::read_dag(options, setup::MAX_JOINING_DAG, false)?;
        let failed = |error| RunError::rescue(path, error);
        let done = rescue::read(path, &dag).map_err(failed)?;
        let writer = Writer::open_append(path, &done)
            .map_err(|error| RunError::system("Unable to open the rescue file of a workflow", error))?;
        Ok(Some(Self {
            dag,
            done,
            writer,
            _lock: lock,
        }))
    }

    /// Notes that a task is done. Returns whether that was not known.
    ///
    /// # Errors
    /// The rescue file cannot be written.
    pub(super) fn note(&mut self, name: &[u8]) -> Result<bool, RunError> {
        let Some(task) = self.dag.find(name) else {
            return Ok(false);
        };
        // The command of a sub-workflow only makes its DAG.
        if self.dag.subdag(task).is_some() || !self.done.insert(task) {
            return Ok(false);
        }
        let written = self.writer.done(self.dag.name(task));
        written.map_err(|error| RunError::system("Unable to write the rescue file of a workflow", error))?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;
    use crate::driver::subworkflows::options_for;

    #[test]
    fn tasks_are_noted_once_where_a_run_has_begun() {
        let folder = tempfile::tempdir().unwrap();
        let dag = folder.path().join("y.dag");
        let text = "TASK a x\nTASK b x\nTASK c x\nSUBDAG EXTERNAL s s.dag\nSCRIPT PRE s x\n";
        std::fs::write(&dag, text).unwrap();
        let options = options_for(&Options::new(&dag, OsStr::new("pmc")), &dag, false);
        assert!(EarlierRescue::open(&options).unwrap().is_none());
        // The last record is torn.
        std::fs::write(&options.rescue, "\nDONE a\nDO").unwrap();
        let mut rescue = EarlierRescue::open(&options).unwrap().unwrap();
        let noted: Vec<_> = [&b"a"[..], b"b", b"b", b"none", b"s"]
            .into_iter()
            .map(|name| rescue.note(name).unwrap())
            .collect();
        assert_eq!(noted, [false, true, false, false, false]);
        drop(rescue);
        assert_eq!(
            std::fs::read_to_string(&options.rescue).unwrap(),
            "\nDONE a\nDONE b"
        );
        std::fs::write(forward_journal::path_for(&options.rescue), "").unwrap();
        assert!(EarlierRescue::open(&options).unwrap().is_none());
    }
}
