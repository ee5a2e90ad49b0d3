//! The DAGs of a run: its own one, and those that have joined it. Tasks have numbers over all of them.

use pmc_dag::TaskId;
use pmc_system::planted::{Planted, is_planted};

use super::dag_run::DagRun;
use super::subworkflows::Joined;
use crate::logs::LogError;

/// The DAGs of a run. That of a segment is named by its number, the run's own one by `None`.
pub(super) struct Dags {
    /// The run's own DAG.
    pub(super) root: DagRun,
    /// DAGs that have joined, by segment; `None` after their end.
    pub(super) joined: Vec<Option<Box<Joined>>>,
    /// The number of the first task of each.
    pub(super) bases: Vec<u32>,
    /// DAGs that have joined and have lines that are not written.
    pub(super) dirty: Vec<usize>,
}

impl Dags {
    pub(super) fn new(root: DagRun) -> Self {
        Self {
            root,
            joined: Vec::new(),
            bases: Vec::new(),
            dirty: Vec::new(),
        }
    }

    /// Returns the segment of a task, `None` for the run's own DAG, and its number there.
    pub(super) fn locate(&self, task: TaskId) -> (Option<usize>, TaskId) {
        if task.index() < self.root.dag.len() {
            return (None, task);
        }
        // A segment without tasks has the base of the next one, which comes after it.
        let at = self
            .bases
            .partition_point(|base| *base <= task.0)
            .saturating_sub(1);
        let base = self.bases.get(at).copied().unwrap_or(0);
        (Some(at), TaskId(task.0 - base))
    }

    /// Returns a DAG of the run, if it has not ended.
    pub(super) fn get(&mut self, segment: Option<usize>) -> Option<&mut DagRun> {
        match segment {
            None => Some(&mut self.root),
            Some(at) => self.joined.get_mut(at)?.as_mut().map(|joined| &mut joined.run),
        }
    }

    /// All DAGs that have not ended.
    pub(super) fn all(&mut self) -> impl Iterator<Item = &mut DagRun> {
        let joined = self.joined.iter_mut().flatten();
        std::iter::once(&mut self.root).chain(joined.map(|joined| &mut joined.run))
    }

    /// Returns the number of sub-workflows around the tasks of a DAG.
    pub(super) fn depth(&self, segment: Option<usize>) -> u32 {
        let joined = segment.and_then(|at| self.joined[at].as_ref());
        joined.map_or(0, |joined| joined.depth)
    }

    /// Returns the name of a task for messages.
    pub(super) fn name(&mut self, task: TaskId) -> String {
        let (segment, task) = self.locate(task);
        self.get(segment)
            .map_or_else(String::new, |run| run.name(task).into_owned())
    }

    /// Notes that a DAG that has joined has lines to write.
    pub(super) fn touch(&mut self, segment: Option<usize>) {
        let joined = segment.and_then(|at| self.joined.get_mut(at)?.as_mut());
        if let (Some(at), Some(joined)) = (segment, joined)
            && !joined.is_dirty
        {
            joined.is_dirty = true;
            self.dirty.push(at);
        }
    }

    /// Writes pending records of all rescue files.
    pub(super) fn flush_rescue(&mut self) -> Result<(), LogError> {
        self.root.logs.flush_rescue()?;
        if is_planted(Planted::OwnRescueOnly) {
            return Ok(());
        }
        for at in &self.dirty {
            if let Some(joined) = &mut self.joined[*at] {
                joined.run.logs.flush_rescue()?;
            }
        }
        Ok(())
    }
}
