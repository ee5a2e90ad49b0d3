//! The rescue file and the logs of a run.
//!
//! Records are collected and written in batches by [`Logs::flush`], the rescue file first: no log names the
//! end of a task that the rescue file lacks.

mod attempts;
mod clock;
mod file;
mod free;
mod killed_run;
mod last_second;
mod own_resources;
mod progress;

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub(crate) use attempts::{executions, submissions};
use clock::Clock;
pub use file::LogError;
use file::LogFile;
pub use free::{Change, FreeOfHosts};
use killed_run::Done;
use monitord_compat::reason::Reason;
use monitord_compat::resource_log::Free;
use monitord_compat::{dagman_out, jobstate_log, resource_log};
use own_resources::OwnResources;
use pmc_control::NodeStatus;
use pmc_dag::rescue::{DoneSet, Writer};
use pmc_dag::{Dag, TaskId};
use pmc_system::planted::{Planted, is_planted};
use progress::Progress;

use crate::options::{Options, Stdio};
use crate::protocol::SubmitId;
use crate::scheduler::{Eviction, Record};

/// The rescue file and the logs of a run.
pub struct Logs {
    dag: Arc<Dag>,
    pid: u32,
    clock: Clock,
    rescue: Writer,
    rescue_path: PathBuf,
    dagman: Option<LogFile>,
    jobstate: Option<LogFile>,
    resource: Option<LogFile>,
    /// Set if other DAGs run in the same run.
    own_resources: Option<OwnResources>,
    /// What the next record changes of its host.
    change: Change,
    progress: Option<Progress>,
}

/// What happened to an attempt.
#[derive(Clone, Copy, Debug)]
enum What {
    /// The command that makes the DAG of a sub-workflow starts.
    Preparing,
    /// It has ended with this status.
    Prepared(i32),
    Queued,
    Started,
    /// Why it ends, or has ended.
    Because(Reason),
    /// Its worker was lost, and its task runs again.
    Evicted,
    /// Its worker was lost, and its task has failed with this status.
    Aborted(i32),
    /// It ended with this status.
    Ended(i32),
}

const WRITING_RESCUE: &str = "Error writing rescue file";

/// Opens a log, if there is a path. `write_error` is the message when it cannot be written.
fn open(write_error: &'static str, path: Option<&Path>) -> Result<Option<LogFile>, LogError> {
    path.map(|path| LogFile::open(write_error, path)).transpose()
}

impl Logs {
    /// Opens the rescue file and the resource log, and adds done tasks that the rescue file does not name.
    ///
    /// # Errors
    /// A file cannot be opened or written.
    pub fn open(options: &Options, dag: &Arc<Dag>, done: &DoneSet) -> Result<Self, LogError> {
        let rescue_path = options.rescue.clone();
        let rescue_error = |action| {
            let path = rescue_path.clone();
            move |source| LogError { action, path, source }
        };
        let mut rescue = Writer::open_append(&options.rescue, done)
            .map_err(rescue_error("Unable to open rescue file:"))?;
        let recorded = rescue.record_missing(dag, done);
        recorded.map_err(rescue_error(WRITING_RESCUE))?;
        tracing::debug!("Using new rescue file: {}", rescue_path.display());
        Ok(Self {
            dag: Arc::clone(dag),
            pid: pmc_system::process::id(),
            clock: Clock::new(),
            rescue,
            rescue_path,
            resource: open("Error writing resource log", options.resource_log.as_deref())?,
            own_resources: (dag.subdag_ids().len() > 0).then(OwnResources::default),
            change: Change::default(),
            jobstate: None,
            dagman: None,
            progress: options
                .dagman_progress
                .then(|| Progress::new(dag.len(), done.len())),
        })
    }

    /// Opens the logs for monitoring and writes their first lines. To be called when the run can no longer
    /// be refused. Waits less than a second if the previous run ended in the current one. `is_packed`: the
    /// output of attempts goes into packs.
    ///
    /// # Errors
    /// A file cannot be opened.
    pub fn start(&mut self, options: &Options, done: &DoneSet, is_packed: bool) -> Result<(), LogError> {
        if let (false, Stdio::PerTask, Some(log)) = (is_packed, &options.stdio, &options.dagman_log) {
            attempts::fill(log, &options.dag, &self.dag, done).map_err(|source| LogError {
                action: "Error continuing DAGMan log",
                path: log.clone(),
                source,
            })?;
        }
        self.jobstate = open("Error writing jobstate log", options.jobstate_log.as_deref())?;
        self.dagman = open("Error writing DAGMan log", options.dagman_log.as_deref())?;
        if options.lock {
            // Without the lock, another run may be writing.
            self.finish_killed_run(done);
        }
        if let Some(log) = &options.dagman_log {
            last_second::wait(log, &mut self.clock);
        }
        let now = self.clock.now();
        if let Some(log) = &mut self.dagman {
            let name = options.dag.file_name().unwrap_or(OsStr::new("")).as_bytes();
            dagman_out::start(&mut log.lines, self.clock.stamp(), self.pid, name);
            if let Some(progress) = &mut self.progress {
                progress.write(&mut log.lines, self.clock.stamp(), now);
            }
        }
        if let Some(log) = &mut self.jobstate {
            jobstate_log::start(&mut log.lines, now);
        }
        Ok(())
    }

    /// Adds the last lines of a previous run that was killed. Logs that cannot be read stay as they are.
    fn finish_killed_run(&mut self, done: &DoneSet) {
        type Finish = fn(&Path, Done<'_>, &mut Vec<u8>) -> io::Result<usize>;
        let dag = &*self.dag;
        let finished = |log: &mut Option<LogFile>, finish: Finish| {
            log.as_mut()
                .map_or(Ok(0), |log| finish(&log.path, Done { dag, done }, &mut log.lines))
        };
        let dagman = finished(&mut self.dagman, killed_run::finish_dagman);
        let jobstate = finished(&mut self.jobstate, killed_run::finish_jobstate);
        match dagman.and_then(|ends| Ok(ends.max(jobstate?))) {
            Ok(0) => {}
            Ok(ends) => tracing::info!(
                "The previous run was killed before it logged the end of {ends} tasks that are done: added to the logs"
            ),
            Err(error) => tracing::warn!(
                "Unable to read the log of the previous run, which may lack the ends of tasks: {}",
                pmc_dag::reason(&error)
            ),
        }
    }

    /// Gives the DAG back, so that it can get more tasks: [`Logs::extend`] follows.
    pub fn take_dag(&mut self) -> Arc<Dag> {
        std::mem::take(&mut self.dag)
    }

    /// Takes the DAG back, with more tasks.
    pub fn extend(&mut self, dag: Arc<Dag>) {
        if let Some(progress) = &mut self.progress {
            progress.set_total(dag.len());
        }
        self.dag = dag;
    }

    /// Length of the rescue file, without records that are not flushed.
    #[must_use]
    pub fn rescue_len(&self) -> u64 {
        self.rescue.len()
    }

    /// Returns another descriptor of the rescue file, to be synced by another thread.
    ///
    /// # Errors
    /// The system allows no more descriptors.
    pub fn rescue_file(&self) -> io::Result<File> {
        self.rescue.file().try_clone()
    }

    /// Writes and syncs the rescue file. Returns its length.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn sync_rescue(&mut self) -> Result<u64, LogError> {
        self.flush_rescue()?;
        let synced = crate::durability::sync::file(self.rescue.file());
        synced.map_err(|source| self.rescue_error(source))?;
        Ok(self.rescue.len())
    }

    /// Writes pending records of the rescue file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn flush_rescue(&mut self) -> Result<(), LogError> {
        if is_planted(Planted::LogsFirst) {
            return Ok(());
        }
        self.flush_records()
    }

    fn flush_records(&mut self) -> Result<(), LogError> {
        let flushed = self.rescue.flush();
        flushed.map_err(|source| self.rescue_error(source))
    }

    fn rescue_error(&self, source: io::Error) -> LogError {
        LogError {
            action: WRITING_RESCUE,
            path: self.rescue_path.clone(),
            source,
        }
    }

    /// Adds the lines of a record.
    #[expect(clippy::too_many_lines, reason = "an arm for each record")]
    pub fn record(&mut self, record: &Record<'_>) {
        let now = self.clock.now();
        if let (Some(progress), Some(log)) = (&mut self.progress, &mut self.dagman) {
            progress.note(record);
            if progress.is_due(now) {
                progress.write(&mut log.lines, self.clock.stamp(), now);
            }
        }
        if let (Some(own), Some(log)) = (&mut self.own_resources, &mut self.resource) {
            own.record(&mut log.lines, now, &self.dag, record, self.change);
        }
        match *record {
            Record::Resources { .. } | Record::Beside { .. } | Record::Capacity { .. }
                if self.own_resources.is_some() => {}
            Record::Resources {
                host,
                slots,
                cpus,
                memory_mb,
            }
            | Record::Beside {
                host,
                slots,
                cpus,
                memory_mb,
                ..
            }
            | Record::Capacity {
                host,
                slots,
                cpus,
                memory_mb,
                ..
            } => {
                if let Some(log) = &mut self.resource {
                    let amount = Free {
                        host,
                        slots,
                        cpus,
                        memory_mb,
                    };
                    match *record {
                        Record::Beside { .. } => resource_log::beside(&mut log.lines, now, amount),
                        Record::Capacity { gone, .. } => {
                            resource_log::capacity(&mut log.lines, now, gone, amount);
                        }
                        _ => resource_log::line(&mut log.lines, now, amount),
                    }
                }
            }
            // Of a sub-workflow, what is before its DAG is its preparation.
            Record::Queued(task, _) | Record::Adopted(task, _) | Record::Evicted { task, .. }
                if self.dag.subdag(task).is_some() => {}
            Record::Started(task, submit, _) if self.dag.subdag(task).is_some() => {
                self.write(now, task, submit, What::Preparing);
            }
            Record::Queued(task, submit) => self.write(now, task, submit, What::Queued),
            Record::Adopted(task, submit) => {
                self.write(now, task, submit, What::Because(Reason::TakenOver));
                self.write(now, task, submit, What::Queued);
            }
            Record::Started(task, submit, _) => self.write(now, task, submit, What::Started),
            Record::Evicted {
                task, submit, why, ..
            } => {
                if why == Eviction::Saved {
                    self.write(now, task, submit, What::Because(Reason::Saved));
                }
                self.write(now, task, submit, What::Evicted);
            }
            Record::Prepared {
                task,
                submit,
                outcome,
                ..
            } => self.write(now, task, submit, What::Prepared(outcome.status)),
            Record::Ended {
                task,
                submit,
                outcome,
                ..
            } => {
                if outcome.succeeded() {
                    self.rescue.push(self.dag.name(task));
                }
                if let Some(reason) = outcome.reason() {
                    self.write(now, task, submit, What::Because(reason));
                }
                let what = if outcome.evictions > 0 {
                    What::Aborted(outcome.status)
                } else {
                    What::Ended(outcome.status)
                };
                self.write(now, task, submit, what);
            }
            Record::Nested(..)
            | Record::Fragmented(..)
            | Record::HeldBack(..)
            | Record::NewRequest { .. }
            | Record::ExpressionSkipped { .. }
            | Record::RequestCapped { .. } => {}
        }
    }

    /// Adds the lines for a sub-workflow whose DAG begins.
    pub fn nested(&mut self, task: TaskId, submit: SubmitId) {
        let now = self.clock.now();
        self.write(now, task, submit, What::Queued);
        self.write(now, task, submit, What::Started);
        self.write_nested(now, true);
    }

    fn write_nested(&mut self, now: Duration, begins: bool) {
        if let (Some(own), Some(log)) = (&mut self.own_resources, &mut self.resource) {
            own.nested(&mut log.lines, now, begins);
        }
    }

    /// The next record is of free resources, and they have changed like this since the last one of that
    /// host, which may be in the log of another DAG.
    pub fn change(&mut self, change: Change) {
        self.change = change;
    }

    /// Other DAGs run in the same run: the resources in the log are those without them. To be called before
    /// the first record.
    pub fn share_resources(&mut self) {
        self.own_resources.get_or_insert_default();
    }

    /// Like [`Logs::share_resources`], while only tasks of this DAG run: `nodes` says what they leave.
    pub fn share_resources_of(&mut self, nodes: &[NodeStatus]) {
        self.own_resources.get_or_insert_with(|| OwnResources::of(nodes));
    }

    /// Adds the lines for a sub-workflow that is cut off with the run.
    pub fn nested_evicted(&mut self, task: TaskId, submit: SubmitId) {
        let now = self.clock.now();
        self.write(now, task, submit, What::Evicted);
        self.write_nested(now, false);
    }

    /// Adds the lines about an attempt.
    fn write(&mut self, now: Duration, task: TaskId, SubmitId(number): SubmitId, what: What) {
        let name = self.dag.name(task);
        if let Some(log) = &mut self.dagman {
            let (lines, stamp) = (&mut log.lines, self.clock.stamp());
            match what {
                What::Preparing => dagman_out::preparing(lines, stamp, name),
                What::Prepared(status) => dagman_out::prepared(lines, stamp, name, status),
                What::Queued => dagman_out::queued(lines, stamp, name, number),
                What::Started => dagman_out::started(lines, stamp, name, number),
                What::Because(reason) => dagman_out::reason(lines, stamp, name, number, reason),
                What::Evicted => dagman_out::evicted(lines, stamp, name, number),
                What::Aborted(_) => dagman_out::aborted(lines, stamp, name, number),
                What::Ended(status) => dagman_out::ended(lines, stamp, name, number, status),
            }
        }
        if let Some(log) = &mut self.jobstate {
            let lines = &mut log.lines;
            match what {
                What::Preparing => jobstate_log::preparing(lines, now, name, number),
                What::Prepared(status) => jobstate_log::prepared(lines, now, name, number, status),
                What::Queued => jobstate_log::queued(lines, now, name, number),
                What::Started => jobstate_log::started(lines, now, name, number),
                What::Because(reason) => jobstate_log::reason(lines, now, name, number, reason),
                What::Evicted => jobstate_log::evicted(lines, now, name, number),
                What::Aborted(status) => jobstate_log::aborted(lines, now, name, number, status),
                What::Ended(status) => jobstate_log::ended(lines, now, name, number, status),
            }
        }
    }

    /// Adds the last lines.
    pub fn finish(&mut self, success: bool) {
        let now = self.clock.now();
        if let Some(log) = &mut self.dagman {
            if let Some(progress) = &mut self.progress {
                progress.write(&mut log.lines, self.clock.stamp(), now);
            }
            dagman_out::finish(&mut log.lines, self.clock.stamp(), self.pid, success);
        }
        if let Some(log) = &mut self.jobstate {
            jobstate_log::finish(&mut log.lines, now, success);
        }
    }

    /// Writes all pending lines. If the rescue file cannot be written, no other file is.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn flush(&mut self) -> Result<(), LogError> {
        self.flush_rescue()?;
        self.flush_logs()?;
        if is_planted(Planted::LogsFirst) {
            self.flush_records()?;
        }
        Ok(())
    }

    fn flush_logs(&mut self) -> Result<(), LogError> {
        [&mut self.dagman, &mut self.jobstate, &mut self.resource]
            .into_iter()
            .flatten()
            .try_for_each(LogFile::flush)
    }
}
