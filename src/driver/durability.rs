//! Keeps the files of a run consistent, so that it can be killed at any moment.

use std::path::Path;

use pmc_dag::Dag;
use pmc_dag::rescue::{self, DoneSet};

use super::{Driver, RunError};
use crate::durability::forward_journal::{self, JournalError, Recovered};
use crate::durability::forwarding::{Forwarding, NotForwarded};
use crate::durability::shared_files::SharedFiles;
use crate::durability::sync::Syncer;
use crate::logs::Logs;
use crate::options::{Options, is_device};
use crate::protocol::{EXECUTOR_FAILURE, Rank, TaskResult};
use crate::transport::MasterTransport;

/// Reads which tasks are done, and completes forwarding that a killed run has left.
pub(super) fn read_done(options: &Options, dag: &Dag) -> Result<(DoneSet, Option<Recovered>), RunError> {
    let path = &options.rescue;
    if is_device(path) {
        return Ok((DoneSet::new(), None));
    }
    let read = |path: &Path| rescue::read(path, dag).map_err(|error| RunError::rescue(path, error));
    // An invalid rescue file must leave all files unchanged.
    let mut done = if options.skip_rescue {
        rescue::skip(path, dag)
    } else {
        read(path)?
    };
    let recovered = match forward_journal::recover(path, dag) {
        // The journal belongs to a live run. A run without a journal ignores it.
        Err(JournalError::InUse { .. }) if !options.forward_journal => None,
        recovered => recovered?,
    };
    if let Some(recovered) = &recovered {
        if options.skip_rescue {
            done = rescue::skip(path, dag);
        } else {
            done = read(path)?;
            for task in &recovered.done {
                done.insert_unrecorded(*task);
            }
        }
    }
    if let Some(unknown) = done.unknown() {
        tracing::warn!("{unknown}");
    }
    if options.lock {
        compact_rescue(path, dag, &mut done);
    }
    Ok((done, recovered))
}

/// Removes repetitions from the rescue file. Requires the run lock. A file that cannot be replaced is
/// appended to as it is.
fn compact_rescue(path: &Path, dag: &Dag, done: &mut DoneSet) {
    if let Err(error) = rescue::compact(path, dag, done) {
        tracing::debug!(
            "The rescue file {} keeps its repetitions: {}",
            path.display(),
            pmc_dag::reason(&error)
        );
    }
}

/// Removes the journal of a killed run, after the rescue file names all tasks that are done.
pub(super) fn end_recovery(recovered: Option<Recovered>, logs: &mut Logs) -> Result<(), RunError> {
    if let Some(recovered) = recovered {
        logs.sync_rescue()?;
        recovered.remove_journal()?;
    }
    Ok(())
}

pub(super) fn forwarding(options: &Options, max_open: usize) -> Forwarding {
    let keep = options.forward_journal && !is_device(&options.rescue);
    let rescue = keep.then(|| options.rescue.clone());
    Forwarding::new(SharedFiles::new(max_open), rescue)
}

pub(super) fn start_syncer(options: &Options, logs: &Logs) -> Result<Option<Syncer>, RunError> {
    let Some(interval) = options.sync_interval else {
        return Ok(None);
    };
    let start = || Syncer::start(interval, logs.rescue_file()?, options.rescue.clone());
    let started = start().map_err(|error| RunError::system("Unable to prepare synchronisation", error));
    started.map(Some)
}

impl<T: MasterTransport> Driver<'_, T> {
    /// Writes the forwarded data of a task. If that fails, the attempt fails.
    pub(super) fn forward(&mut self, from: Rank, mut result: TaskResult) -> Result<TaskResult, RunError> {
        let data = std::mem::take(&mut result.forwards);
        let Some((task, submit)) = self.master.running_on(from) else {
            return Ok(result);
        };
        if !result.outcome.succeeded() || submit != result.submit {
            return Ok(result);
        }
        if data.is_empty() {
            let task = self.out.dag.task(task);
            if task.pipe_forwards.is_empty() && task.file_forwards.is_empty() {
                return Ok(result);
            }
        }
        if self.forwarding.wants_journal() {
            let rescue_len = self.out.logs.sync_rescue()?;
            self.forwarding.begin_journal(rescue_len)?;
        }
        let name = self.out.dag.name(task);
        if let Err(why) = self.forwarding.append(name, &data)? {
            let name = String::from_utf8_lossy(name);
            match why {
                NotForwarded::Piece(index) => tracing::error!(
                    "Error writing {} bytes to {} for task {name}",
                    data[index].data.len(),
                    String::from_utf8_lossy(&data[index].target),
                ),
                NotForwarded::Journal => tracing::error!("Nothing was forwarded for task {name}"),
            }
            result.outcome.status = EXECUTOR_FAILURE;
            result.outcome.not_forwarded = true;
        }
        Ok(result)
    }

    /// Has recent writes synced to the disk in the background.
    pub(super) fn note_written(&mut self) -> Result<(), RunError> {
        let rescue_len = self.out.logs.rescue_len();
        let targets = self.forwarding.take_fresh();
        if rescue_len == self.synced_rescue_len && targets.is_empty() {
            return Ok(());
        }
        if let Some(syncer) = &self.syncer {
            let rescue = rescue_len != self.synced_rescue_len;
            syncer.note(self.forwarding.journal_file(), targets, rescue)?;
        }
        self.synced_rescue_len = rescue_len;
        if self.forwarding.wants_checkpoint() {
            self.checkpoint()?;
        }
        Ok(())
    }

    fn checkpoint(&mut self) -> Result<(), RunError> {
        tracing::debug!("Checkpoint of the forward journal");
        self.sync_to_disk()?;
        Ok(self.forwarding.begin_journal(self.out.logs.rescue_len())?)
    }

    fn sync_to_disk(&mut self) -> Result<(), RunError> {
        if self.options.sync_interval.is_some() {
            self.forwarding.sync_targets()?;
            self.out.logs.sync_rescue()?;
        }
        Ok(())
    }

    /// Syncs everything and ends the journal. To be called when all files are written.
    pub(super) fn settle(&mut self) -> Result<(), RunError> {
        self.syncer = None;
        self.sync_to_disk()?;
        Ok(self.forwarding.end_journal()?)
    }
}
