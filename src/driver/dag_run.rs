//! What each DAG of a run has for itself: files, figures, lock. The first one is that of the run; others are
//! sub-workflows and guests that have joined it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;

use pmc_dag::{Dag, Request, TaskId};

use super::numbers::AttemptNumbers;
use super::report::Failure;
use super::restarts::Restarts;
use super::{MemoryExcess, RunError};
use crate::durability::forwarding::Forwarding;
use crate::durability::lock::DagLock;
use crate::logs::Logs;
use crate::protocol::Place;

/// A DAG of a run.
pub(super) struct DagRun {
    pub(super) dag: Arc<Dag>,
    /// Where its tasks run and their output goes, if it is not the run's own.
    pub(super) place: Option<Place>,
    pub(super) logs: Logs,
    pub(super) forwarding: Forwarding,
    /// Length of the rescue file that is known to be noted for a sync.
    pub(super) synced_rescue_len: u64,
    /// Set if the output of attempts goes into packs, or workers may be lost.
    pub(super) numbers: Option<AttemptNumbers>,
    /// How often its tasks were started before.
    pub(super) restarts: Restarts,
    /// Tasks whose latest attempt failed.
    pub(super) failed: BTreeMap<TaskId, Failure>,
    pub(super) memory_excess: MemoryExcess,
    /// Memory of tasks that request more than in the DAG, in MB.
    pub(super) changed: BTreeMap<TaskId, Request>,
    /// Names of the guest and the sub-workflows around its tasks, each with a slash; for messages.
    pub(super) label: String,
    pub(super) lock: Option<DagLock>,
}

impl DagRun {
    /// Returns the name of a task for messages.
    pub(super) fn name(&self, task: TaskId) -> Cow<'_, str> {
        name_of(&self.label, &self.dag, task)
    }

    /// Returns the DAG file, if it is not the run's own.
    pub(super) fn dag_file(&self) -> Option<&Path> {
        let place = self.place.as_ref()?;
        Some(Path::new(OsStr::from_bytes(&place.dag)))
    }

    /// Returns the name of a DAG that has joined, for messages.
    pub(super) fn shown(&self) -> &str {
        self.label.trim_end_matches('/')
    }

    /// Writes what is pending, and ends the journal. `syncs`: to the disk, not only to the system.
    pub(super) fn settle(&mut self, syncs: bool) -> Result<(), RunError> {
        if syncs {
            self.forwarding.sync_targets()?;
            self.logs.sync_rescue()?;
        }
        Ok(self.forwarding.end_journal()?)
    }
}

/// Returns the name of a task with the label of its DAG.
pub(super) fn name_of<'d>(label: &str, dag: &'d Dag, task: TaskId) -> Cow<'d, str> {
    let name = String::from_utf8_lossy(dag.name(task));
    if label.is_empty() {
        name
    } else {
        Cow::Owned(format!("{label}{name}"))
    }
}
