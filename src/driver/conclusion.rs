//! The end of a run: last results, figures, merged output, last lines of the logs.

use std::time::Duration;

use pmc_system::clock;

use super::{
    Aborted, CLOSE_TIMEOUT, Driver, FailedTask, HURRIED_CLOSE_TIMEOUT, Position, RunError, RunSummary,
    report, run_end, send_to_all,
};
use crate::logging::FATAL;
use crate::merge::Merge;
use crate::options::Stdio;
use crate::protocol::{Rank, ToMaster, ToWorker};
use crate::transport::MasterTransport;

/// Why the loop ended.
pub(super) enum End {
    Finished,
    Aborted(Aborted),
}

impl<T: MasterTransport> Driver<'_, T> {
    /// Ends a run that has begun.
    pub(super) fn conclude(mut self, end: End) -> Result<RunSummary, RunError> {
        let lost_nodes = self.lost_nodes();
        let aborted = self.log_end(end);
        if aborted.is_some() {
            self.end_redirects();
        }
        self.flush_at_end(aborted.as_ref());
        let (message, timeout) = match aborted {
            None => (ToWorker::Shutdown, CLOSE_TIMEOUT),
            Some(Aborted::WallTime | Aborted::HeldBack | Aborted::Task { .. }) => {
                (ToWorker::Abort, CLOSE_TIMEOUT)
            }
            Some(Aborted::Signal(_)) => (ToWorker::Abort, HURRIED_CLOSE_TIMEOUT),
        };
        self.run.out.send_held();
        send_to_all(self.run.out.transport, &message);
        // Local workers that only have to stop their task servers can do so while the rest is written: their
        // files are complete, and this machine sees all of them. Other workers must close their files before
        // these are read.
        let close_later =
            aborted.is_none() && !self.run.options.host_script && !self.run.out.transport.supports_prefill();
        let unresponsive_workers = if close_later {
            Vec::new()
        } else {
            self.run.out.transport.close(timeout)
        };
        let result = self.handle_last_results();
        if let Some(Aborted::Signal(_)) = aborted {
            self.evict_cut_off();
        }
        let closed = self.subworkflows.close(&mut self.run);
        let result = result.and(closed);
        if self.run.master.summary().max_failures_reached {
            tracing::error!("Max failures reached: DAG prematurely aborted");
        }
        let mut summary = self.summarize(aborted, unresponsive_workers);
        if let Some(excess) = &summary.memory_excess {
            excess.log_sum();
        }
        report::log(
            &summary,
            self.run.out.transport.traffic(),
            self.run.out.dags.root.forwarding.hit_rate(),
        );
        let result = self.write_output(&summary, result);
        if result.is_ok() {
            tracing::info!("Sending workers shutdown messages...");
        }
        self.run
            .out
            .dags
            .root
            .logs
            .finish(result.is_ok() && summary.success());
        let flushed = self.run.out.dags.root.logs.flush().map_err(RunError::from);
        let flushed = flushed.and_then(|()| self.settle_additions());
        let flushed = flushed.and_then(|()| self.run.settle());
        if close_later {
            summary.unresponsive_workers = self.run.out.transport.close(timeout);
        }
        if let Err(mut error) = result.and(flushed) {
            error.unresponsive_workers = summary.unresponsive_workers;
            error.set_closed();
            run_end::note(self.run.options, self.facts(lost_nodes), Err(&error));
            return Err(error);
        }
        self.run.remove_checkpoints(summary.success());
        run_end::note(self.run.options, self.facts(lost_nodes), Ok(&summary));
        Ok(summary)
    }

    /// Logs why the run ends.
    fn log_end(&self, end: End) -> Option<Aborted> {
        let aborted = match end {
            End::Finished => {
                tracing::info!("Workflow finished");
                return None;
            }
            End::Aborted(aborted) => aborted,
        };
        // The signal of a drain was logged when it arrived.
        let is_logged = self.run.drain.is_some() && self.run.interrupt.signal().is_none();
        match aborted {
            Aborted::Signal(_) if is_logged => {}
            Aborted::Signal(signal) => tracing::error!(target: FATAL, "Caught signal {signal}"),
            Aborted::WallTime => tracing::error!(target: FATAL, "Workflow wall time exceeded!"),
            Aborted::HeldBack => {
                tracing::info!("What is left would not end before the time is over: it is for the next run");
                return Some(aborted);
            }
            // The end of the task was logged.
            Aborted::Task { .. } => {}
        }
        tracing::error!("Aborting workflow");
        Some(aborted)
    }

    /// Logs the attempts that a signal has ended with the run, and whose results have not come: they are
    /// evicted, and their tasks are for the next run. At the wall time, the original logs nothing.
    fn evict_cut_off(&mut self) {
        let left: Vec<_> = self.run.master.assignments().collect();
        for (rank, task, submit) in left {
            self.run.out.log_cut_off(task, submit, rank);
        }
    }

    /// Handles results that workers sent before they exited: these tasks need not run again.
    pub(super) fn handle_last_results(&mut self) -> Result<(), RunError> {
        let mut inbox = std::mem::take(&mut self.inbox);
        while let Some((from, message)) = inbox
            .pop_front()
            .or_else(|| self.run.out.transport.receive(Duration::ZERO).ok().flatten())
        {
            if let ToMaster::Finished(_) = message {
                self.handle(from, message)?;
            }
        }
        Ok(self.run.out.dags.root.logs.flush()?)
    }

    /// Prints the summary record and merges the output of the tasks, if the run has a console. Output is
    /// merged even after an error.
    fn write_output(&self, summary: &RunSummary, before: Result<(), RunError>) -> Result<(), RunError> {
        if !self.run.options.console {
            return before;
        }
        let result =
            before.and_then(|()| report::print_record(summary, self.begin.time, &self.run.options.app));
        let Stdio::Merged { stdout, stderr } = &self.run.options.stdio else {
            return result;
        };
        tracing::info!("Merging task stdio from workers...");
        let merge = Merge {
            worker_files: &self.run.options.worker_files,
            workers: summary.workers,
            dynamic: self.run.out.transport.is_dynamic(),
            stdout,
            stderr,
            append: summary.figures.done_before > 0,
        };
        result.and(merge.run().map_err(RunError::from))
    }

    fn summarize(&mut self, aborted: Option<Aborted>, unresponsive_workers: Vec<Rank>) -> RunSummary {
        let failed = std::mem::take(&mut self.run.out.dags.root.failed);
        let failures = failed.into_iter().map(|(task, failure)| FailedTask {
            name: self.run.out.dags.root.dag.name(task).to_vec(),
            status: failure.status,
            attempts: failure.attempts,
        });
        let figures = self.run.master.summary();
        let drain = self
            .run
            .drain
            .as_ref()
            .filter(|_| aborted.is_none() && self.run.master.is_cut_short());
        let drained = drain.map(|drain| drain.signal);
        // The search is linear in the size of the DAG, so it runs only if a cycle may be the reason.
        let is_stuck =
            aborted.is_none() && drained.is_none() && !figures.success && !figures.max_failures_reached;
        let cycle = is_stuck
            .then(|| pmc_dag::cycle::find(&self.run.out.dags.root.dag))
            .flatten();
        let dag = &self.run.options.dag;
        RunSummary {
            cycle: cycle.map(|cycle| Position::of_cycle(dag, &self.run.out.dags.root.dag, &cycle)),
            figures,
            aborted,
            drained,
            failures: failures.collect(),
            // Those that came instead of lost ones have other ranks.
            workers: match self.run.master.most_workers() {
                0 => self.run.out.transport.workers(),
                most => most,
            },
            cpus: match self.run.master.is_dynamic() {
                true => self.run.master.node_statuses().iter().map(|node| node.cpus).sum(),
                false => 0,
            },
            wall_time: clock::elapsed(self.begin.at),
            makespan: self.makespan,
            unresponsive_workers,
            memory_excess: Some(std::mem::take(&mut self.run.out.dags.root.memory_excess))
                .filter(|excess| excess.attempts > 0),
            database: None,
        }
    }
}
