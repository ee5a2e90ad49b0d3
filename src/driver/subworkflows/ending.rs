//! The end of DAGs that have joined.

use std::path::Path;

use pmc_dag::TaskId;

use super::loader::{Loaded, Order};
use super::{Joined, Refusal, real_path};
use crate::driver::dag_run::DagRun;
use crate::driver::{Driver, Position, RunError};
use crate::options::folder;
use crate::protocol::{EXECUTOR_FAILURE, SubmitId};
use crate::scheduler::{Event, SegmentId, Summary};
use crate::transport::MasterTransport;

impl<T: MasterTransport> Driver<'_, T> {
    /// Closes the files of a DAG of which nothing is left to run, and ends the task that it is.
    pub(super) fn end_joined(&mut self, segment: SegmentId) -> Result<(), RunError> {
        let summary = self.master.segment_summary(segment);
        let is_stopped = self.was_stopped(segment, &summary);
        let Some(joined) = self.out.joined[segment.index()].take() else {
            return Ok(());
        };
        let Joined {
            run,
            parent,
            guest,
            dag,
            depth,
            since,
            ..
        } = *joined;
        let text = describe_end(&run, &summary, &dag, (guest.is_some(), is_stopped));
        if summary.success || is_stopped {
            tracing::info!("{text}");
        } else {
            tracing::error!("{text}");
        }
        self.close_run(run, summary.success)?;
        self.master.close_segment(segment);
        self.subworkflows.forget(&real_path(&dag), depth);
        if let Some(guest) = guest {
            guest.leave(&dag);
        }
        let Some((parent, submit)) = parent else {
            return Ok(());
        };
        if is_stopped {
            self.log_stopped(parent, submit);
            return Ok(self.master.handle(Event::SubdagStopped(parent), &mut self.out)?);
        }
        let status = if summary.success { 0 } else { EXECUTOR_FAILURE };
        if !summary.success {
            self.tell_task(parent, &text);
        }
        self.end_nested(parent, status, since.elapsed())
    }

    /// Logs that the attempt of a sub-workflow ends before its DAG is done, to go on in the next run.
    fn log_stopped(&mut self, parent: TaskId, submit: SubmitId) {
        let (segment, local) = self.out.locate(parent);
        self.out.touch(segment);
        if let Some(run) = self.out.dag_run(segment) {
            run.logs.nested_evicted(local, submit);
        }
    }

    /// Writes the last lines of a DAG that has joined, and closes its files.
    pub(super) fn close_run(&self, mut run: DagRun, success: bool) -> Result<(), RunError> {
        run.logs.finish(success);
        run.logs.flush()?;
        // Without forwarded data, the thread that syncs has noted what there is.
        let has_journal = run.forwarding.journal_file().is_some();
        run.settle(has_journal && self.options.sync_interval.is_some())
    }

    pub(super) fn close_loaded(&self, loaded: Loaded) -> Result<(), Refusal> {
        self.close_run(loaded.run, false).map_err(Refusal::Open)
    }

    /// Ends the logs of all sub-workflows at the end of the run, the innermost ones first. Their tasks are
    /// not done, and go on in the next run.
    pub(in crate::driver) fn close_subworkflows(&mut self) -> Result<(), RunError> {
        let mut result = Ok(());
        if let Some(loader) = self.subworkflows.loader.take() {
            for (order, loaded) in loader.finish() {
                order.refuse_tool();
                if let Ok(loaded) = loaded {
                    result = result.and(self.close_run(loaded.run, false));
                }
            }
        }
        self.subworkflows.waiting.iter().for_each(Order::refuse_tool);
        for at in (0..self.out.joined.len()).rev() {
            let Some(joined) = self.out.joined[at].take() else {
                continue;
            };
            let Joined {
                run,
                parent,
                guest,
                dag,
                ..
            } = *joined;
            result = result.and(self.close_run(run, false));
            if let Some(guest) = guest {
                guest.leave(&dag);
            }
            if let Some((parent, submit)) = parent {
                self.log_stopped(parent, submit);
            }
        }
        self.out.dirty.clear();
        result
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
