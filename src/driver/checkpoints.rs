//! The checkpoint stores of a run: what the run says to tasks that save their state, and the end of what they
//! have saved.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pmc_checkpoint::{Notice, Store, StoreError};
use pmc_dag::TaskId;
use pmc_system::clock;

use super::Run;
use super::checkpoints_on_nodes::OnNodes;
use super::dag_run::DagRun;
use crate::node;
use crate::transport::MasterTransport;

/// Minimum time between two looks whether the run has a store.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// How long before the end of the time tasks must know it, if no event has come before.
const LEAD: Duration = Duration::from_secs(600);

/// The checkpoint stores of a run.
#[derive(Debug, Default)]
pub(super) struct Checkpoints {
    pub(super) notice: Notice,
    /// The run has a store: a task has saved its state.
    pub(super) are_some: bool,
    next_look: Option<Instant>,
    /// There was no store when the end of the time became known: tasks are told later.
    tells_end: bool,
    /// Tasks whose end is not in the rescue file yet: the DAG file, and the name of the task.
    done: Vec<(PathBuf, Vec<u8>)>,
    pub(super) on_nodes: OnNodes,
}

impl Checkpoints {
    /// Looks whether there is a store.
    fn look(&mut self, dag: &Path) {
        self.are_some = self.are_some || Store::path_for(dag).exists();
        if self.are_some {
            self.tells_end = false;
            node::set_notice(dag, self.notice);
        }
    }

    /// As [`look`](Self::look), but not again and again.
    fn look_now_and_then(&mut self, dag: &Path) {
        let now = clock::now();
        if !self.are_some && self.next_look.is_none_or(|at| at <= now) {
            self.next_look = now.checked_add(LOOK_INTERVAL);
            self.look(dag);
        }
    }

    /// Returns when tasks are told the end of the time, if it is at `stop_at`.
    pub(super) fn next(&self, stop_at: Option<Instant>) -> Option<Instant> {
        let stop_at = stop_at.filter(|_| self.tells_end)?;
        Some(stop_at.checked_sub(LEAD).unwrap_or(stop_at))
    }
}

impl<T: MasterTransport> Run<'_, T> {
    /// Tells tasks that the run drains.
    pub(super) fn tell_drain(&mut self) {
        self.checkpoints.notice.drained.get_or_insert_with(node::now);
        self.tell_checkpoints();
        self.begin_flush();
    }

    /// Tells tasks when the time is over. At the begin of a run, what an earlier one has said ends.
    pub(super) fn tell_end_of_time(&mut self) {
        let left = self
            .time
            .stop_at()
            .map(|at| at.saturating_duration_since(clock::now()));
        self.checkpoints.notice.ends = left.map(|left| node::now() + left.as_secs_f64());
        self.checkpoints.tells_end = left.is_some();
        self.tell_checkpoints();
    }

    fn tell_checkpoints(&mut self) {
        let dag = &self.options.dag;
        node::set_notice(dag, self.checkpoints.notice);
        self.checkpoints.look(dag);
        self.tell_notice_to_nodes();
    }

    /// Tells tasks the end of the time that have saved their state meanwhile.
    pub(super) fn tell_end_if_near(&mut self, now: Instant) {
        let at = self.checkpoints.next(self.time.stop_at());
        if at.is_some_and(|at| at <= now) {
            self.checkpoints.look(&self.options.dag);
            self.checkpoints.tells_end = false;
        }
    }

    /// Notes that a task is done: it needs its checkpoints no more.
    pub(super) fn note_done(&mut self, task: TaskId) {
        self.checkpoints.look_now_and_then(&self.options.dag);
        if !self.checkpoints.are_some {
            return;
        }
        let (segment, local) = self.out.dags.locate(task);
        if let Some(run) = self.out.dags.get(segment) {
            let name = run.dag.name(local).to_vec();
            let own = run.dag_file().map(Path::to_owned);
            let dag = own.unwrap_or_else(|| self.options.dag.clone());
            self.checkpoints.done.push((dag, name));
        }
    }

    /// Removes the checkpoints of tasks that are done, when the rescue file says so.
    pub(super) fn remove_done(&mut self) {
        for (dag, name) in std::mem::take(&mut self.checkpoints.done) {
            self.remove_from_nodes(&dag, &name);
            let remove = |store: Option<Store>| match store {
                Some(store) => store.task(&name)?.remove(),
                None => Ok(()),
            };
            note(Store::open(&dag).and_then(remove));
        }
    }

    /// Removes the checkpoints that no run needs: all after the end of a run that is done, else those of
    /// tasks that are done.
    pub(super) fn remove_checkpoints(&mut self, success: bool) {
        self.remove_done();
        let dag = &self.options.dag;
        let Ok(Some(store)) = Store::open(dag) else {
            return;
        };
        if success {
            return note(store.remove());
        }
        let root = &self.out.dags.root;
        let left = store.tasks().unwrap_or_default().into_iter().filter(|task| {
            let name = pmc_checkpoint::task_name(task.directory());
            let id = name.and_then(|name| root.dag.find(&name));
            id.is_some_and(|id| self.master.is_done(id))
        });
        left.for_each(|task| note(task.remove()));
    }
}

/// Removes the store of a DAG that has joined the run and is done.
pub(super) fn remove_store(run: &DagRun) {
    if let Some(dag) = run.dag_file()
        && let Ok(Some(store)) = Store::open(dag)
    {
        note(store.remove());
    }
}

fn note(removed: Result<(), StoreError>) {
    if let Err(error) = removed {
        tracing::warn!("Checkpoints that are not needed any more stay: {error}");
    }
}
