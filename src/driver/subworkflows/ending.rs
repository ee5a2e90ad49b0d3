//! The end of DAGs that have joined.

use std::path::Path;

use pmc_dag::TaskId;
use pmc_system::clock;
use pmc_system::planted::{Planted, is_planted};

use super::loader::{Loaded, Order};
use super::{Joined, Refusal, Subworkflows, real_path};
use crate::driver::checkpoints::remove_store;
use crate::driver::dag_run::DagRun;
use crate::driver::{Position, Run, RunError};
use crate::options::folder;
use crate::protocol::{EXECUTOR_FAILURE, SubmitId};
use crate::scheduler::{Event, SegmentId, Summary};
use crate::transport::MasterTransport;

impl Subworkflows {
    /// Closes the files of a DAG of which nothing is left to run, and ends the task that it is.
    pub(super) fn end_joined<T: MasterTransport>(
        &mut self,
        run: &mut Run<'_, T>,
        segment: SegmentId,
    ) -> Result<(), RunError> {
        let summary = run.master.segment_summary(segment);
        let is_stopped = run.was_stopped(segment, &summary);
        let Some(joined) = run.out.dags.joined[segment.index()].take() else {
            return Ok(());
        };
        let dag = joined.dag().to_owned();
        let Joined {
            run: dag_run,
            parent,
            guest,
            depth,
            since,
            ..
        } = *joined;
        let text = describe_end(&dag_run, &summary, &dag, (guest.is_some(), is_stopped));
        if summary.success || is_stopped {
            tracing::info!("{text}");
        } else {
            tracing::error!("{text}");
        }
        if !is_planted(Planted::OpenSubworkflow) {
            run.close_run(dag_run, summary.success)?;
        }
        run.master.close_segment(segment);
        self.forget(&real_path(&dag), depth);
        if let Some(guest) = guest {
            guest.leave(&dag);
        }
        let Some((parent, submit)) = parent else {
            return Ok(());
        };
        if is_stopped {
            run.log_stopped(parent, submit);
            return run.handle(Event::SubdagStopped(parent));
        }
        let status = if summary.success { 0 } else { EXECUTOR_FAILURE };
        if !summary.success {
            run.tell_task(parent, &text);
        }
        run.end_nested(parent, status, clock::elapsed(since))
    }

    /// Ends the logs of all sub-workflows at the end of the run, the innermost ones first. Their tasks are
    /// not done, and go on in the next run.
    pub(in crate::driver) fn close<T: MasterTransport>(
        &mut self,
        run: &mut Run<'_, T>,
    ) -> Result<(), RunError> {
        let mut result = Ok(());
        if let Some(loader) = self.loader.take() {
            for (order, loaded) in loader.finish() {
                order.refuse_tool();
                if let Ok(loaded) = loaded {
                    result = result.and(run.close_run(loaded.run, false));
                }
            }
        }
        self.waiting.iter().for_each(Order::refuse_tool);
        for at in (0..run.out.dags.joined.len()).rev() {
            let Some(joined) = run.out.dags.joined[at].take() else {
                continue;
            };
            let dag = joined.dag().to_owned();
            let Joined {
                run: dag_run,
                parent,
                guest,
                ..
            } = *joined;
            result = result.and(run.close_run(dag_run, false));
            if let Some(guest) = guest {
                guest.leave(&dag);
            }
            if let Some((parent, submit)) = parent {
                run.log_stopped(parent, submit);
            }
        }
        run.out.dags.dirty.clear();
        result
    }
}

impl<T: MasterTransport> Run<'_, T> {
    /// Logs that the attempt of a sub-workflow ends before its DAG is done, to go on in the next run.
    fn log_stopped(&mut self, parent: TaskId, submit: SubmitId) {
        let (segment, local) = self.out.dags.locate(parent);
        self.out.dags.touch(segment);
        if let Some(run) = self.out.dags.get(segment) {
            run.logs.nested_evicted(local, submit);
        }
    }

    /// Writes the last lines of a DAG that has joined, and closes its files.
    pub(super) fn close_run(&self, mut run: DagRun, success: bool) -> Result<(), RunError> {
        run.logs.finish(success);
        run.logs.flush()?;
        // Without forwarded data, the thread that syncs has noted what there is.
        let has_journal = run.forwarding.journal_file().is_some();
        run.settle(has_journal && self.options.sync_interval.is_some())?;
        if success {
            remove_store(&run);
        }
        Ok(())
    }

    pub(super) fn close_loaded(&self, loaded: Loaded) -> Result<(), Refusal> {
        self.close_run(loaded.run, false).map_err(Refusal::Open)
    }
}

/// Describes the end of a sub-workflow or guest, and whether it was stopped.
fn describe_end(run: &DagRun, summary: &Summary, dag: &Path, (is_guest, is_stopped): (bool, bool)) -> String {
    let name = run.shown();
    let kind = if is_guest { "Workflow" } else { "Sub-workflow" };
    if summary.success {
        return format!("{kind} {name} succeeded");
    }
    if is_stopped {
        let (done, all) = (summary.done, summary.tasks);
        return format!("{kind} {name} is drained: {done} of {all} tasks are done");
    }
    let left = summary.tasks - summary.done - summary.failed_tasks;
    let mut text = format!(
        "{kind} {name} failed: {} of {} tasks failed, {left} did not run; see {}",
        summary.failed_tasks,
        summary.tasks,
        folder(dag).display()
    );
    if summary.failed_tasks == 0
        && let Some(cycle) = pmc_dag::cycle::find(&run.dag)
    {
        let position = Position::of_cycle(dag, &run.dag, &cycle);
        text = format!("{text} {position}");
    }
    text
}
