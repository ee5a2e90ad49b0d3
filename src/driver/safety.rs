//! What lets a run be killed at any moment: the forward journal and the way to the disk.

use std::path::Path;

use pmc_dag::Dag;
use pmc_dag::rescue::{self, DoneSet};

use super::{Driver, NOT_FORWARDED, RunError, is_device};
use crate::durability::forward_journal::{self, JournalError, Recovered};
use crate::durability::shared_files::SharedFiles;
use crate::durability::sync::Syncer;
use crate::forwarding::{Forwarding, NotForwarded};
use crate::logs::Logs;
use crate::options::Options;
use crate::protocol::{Rank, TaskResult};
use crate::transport::MasterTransport;

/// Reads which tasks are done, after completing what a killed run has left.
pub(super) fn read_done(options: &Options, dag: &Dag) -> Result<(DoneSet, Option<Recovered>), RunError> {
    let path = &options.rescue;
    if is_device(path) {
        return Ok((DoneSet::new(), None));
    }
    let read = |path: &Path| rescue::read(path, dag).map_err(|error| RunError::rescue(path, error));
    // A rescue file that is refused must leave everything as it is.
    let mut done = if options.skip_rescue {
        rescue::skip(path, dag)
    } else {
        read(path)?
    };
    let recovered = match forward_journal::recover(path, dag) {
        // It belongs to a run that goes on; whoever wants no journal wants not to know.
        Err(JournalError::InUse { .. }) if !options.forward_journal => None,
        recovered => recovered?,
    };
    if let Some(recovered) = &recovered {
        if options.skip_rescue {
            done = rescue::skip(path, dag);
        } else {
            done = read(path)?;
            for task in &recovered.done {
                done.insert(*task);
            }
        }
    }
    Ok((done, recovered))
}

/// Ends the recovery: the rescue file names all tasks that are done.
pub(super) fn forget(recovered: Option<Recovered>, logs: &mut Logs) -> Result<(), RunError> {
    if let Some(recovered) = recovered {
        logs.sync_rescue()?;
        recovered.forget()?;
    }
    Ok(())
}

pub(super) fn forwarding(options: &Options, most_open: usize) -> Forwarding {
    let keep = options.forward_journal && !is_device(&options.rescue);
    let rescue = keep.then(|| options.rescue.clone());
    Forwarding::new(SharedFiles::new(most_open), rescue)
}

pub(super) fn syncer(options: &Options, logs: &Logs) -> Result<Option<Syncer>, RunError> {
    let Some(interval) = options.sync_interval else {
        return Ok(None);
    };
    let start = || Syncer::start(interval, logs.rescue_file()?, options.rescue.clone());
    let started = start().map_err(|error| RunError::system("Unable to prepare synchronisation", error));
    started.map(Some)
}

impl<T: MasterTransport> Driver<'_, T> {
    /// Writes the data that a task wants to be forwarded; if that fails, so does the task.
    pub(super) fn forward(&mut self, from: Rank, mut result: TaskResult) -> Result<TaskResult, RunError> {
        let data = std::mem::take(&mut result.forwards);
        let Some((task, submit)) = self.master.running_on(from) else {
            return Ok(result);
        };
        if result.status != 0 || submit != result.submit {
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
            self.out.not_forwarded = Some(result.submit);
            result.status = NOT_FORWARDED;
        }
        Ok(result)
    }

    /// Lets what was written reach the disk, some time later.
    pub(super) fn note_written(&mut self) -> Result<(), RunError> {
        let rescue_len = self.out.logs.rescue_len();
        let targets = self.forwarding.take_fresh();
        if rescue_len == self.noted && targets.is_empty() {
            return Ok(());
        }
        if let Some(syncer) = &self.syncer {
            let rescue = rescue_len != self.noted;
            syncer.note(self.forwarding.journal_file(), targets, rescue)?;
        }
        self.noted = rescue_len;
        if self.forwarding.wants_checkpoint() {
            self.checkpoint()?;
        }
        Ok(())
    }

    fn checkpoint(&mut self) -> Result<(), RunError> {
        tracing::debug!("Checkpoint of the forward journal");
        self.bring_to_disk()?;
        Ok(self.forwarding.begin_journal(self.out.logs.rescue_len())?)
    }

    fn bring_to_disk(&mut self) -> Result<(), RunError> {
        if self.options.sync_interval.is_some() {
            self.forwarding.synchronise()?;
            self.out.logs.sync_rescue()?;
        }
        Ok(())
    }

    /// The end, in good order or not, after everything was written.
    pub(super) fn settle(&mut self) -> Result<(), RunError> {
        self.syncer = None;
        self.bring_to_disk()?;
        Ok(self.forwarding.end_journal()?)
    }
}
