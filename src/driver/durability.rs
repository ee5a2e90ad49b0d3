//! Keeps the files of a run consistent, so that it can be killed at any moment.

use std::path::Path;

use pmc_dag::rescue::{self, DoneSet};
use pmc_dag::{Dag, Task};

use super::{Run, RunError};
use crate::durability::forward_journal::{self, JournalError, Recovered};
use crate::durability::forwarding::{Forwarding, NotForwarded};
use crate::durability::shared_files::SharedFiles;
use crate::durability::sync::Syncer;
use crate::logs::Logs;
use crate::options::{Options, is_device};
use crate::protocol::{EXECUTOR_FAILURE, ForwardedData, Place, Rank, TaskResult};
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

/// Returns data that is not for a file to which a task forwards, in the order of its options. A worker sends
/// none, but one on a host that is not to be trusted could.
fn unnamed<'d>(
    data: &'d [ForwardedData],
    line: &Task<'_>,
    place: Option<&Place>,
) -> Option<&'d ForwardedData> {
    let mut targets = line.pipe_forwards.iter().chain(line.file_forwards);
    data.iter().find(|piece| {
        let is_target = |target: &[u8]| match place {
            None => piece.target == target,
            Some(place) => piece.target == place.target(target),
        };
        !targets.any(|(_, target)| is_target(target))
    })
}

impl<T: MasterTransport> Run<'_, T> {
    /// Writes the forwarded data of a task. If that fails, the attempt fails.
    pub(super) fn forward(&mut self, from: Rank, mut result: TaskResult) -> Result<TaskResult, RunError> {
        let data = std::mem::take(&mut result.forwards);
        let Some((task, submit)) = self.master.running_on(from) else {
            return Ok(result);
        };
        if !result.outcome.succeeded() || submit != result.submit {
            return Ok(result);
        }
        let (segment, task) = self.out.dags.locate(task);
        self.out.dags.touch(segment);
        let Some(run) = self.out.dags.get(segment) else {
            return Ok(result);
        };
        let line = run.dag.task(task);
        if data.is_empty() && line.pipe_forwards.is_empty() && line.file_forwards.is_empty() {
            return Ok(result);
        }
        if let Some(other) = unnamed(&data, &line, run.place.as_ref()) {
            tracing::error!(
                "Worker {} has sent data for {}, to which task {} forwards none: nothing is written",
                from.0,
                String::from_utf8_lossy(&other.target),
                run.name(task),
            );
            result.outcome.status = EXECUTOR_FAILURE;
            result.outcome.not_forwarded = true;
            return Ok(result);
        }
        if run.forwarding.wants_journal() {
            let rescue_len = run.logs.sync_rescue()?;
            run.forwarding.begin_journal(rescue_len)?;
        }
        let name = run.dag.name(task);
        if let Err(why) = run.forwarding.append(name, &data)? {
            let name = run.name(task);
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

    /// Writes all pending lines, and has recent writes synced to the disk in the background.
    pub(super) fn write_logs(&mut self) -> Result<(), RunError> {
        self.out.dags.root.logs.flush()?;
        self.note_written(None)?;
        for at in std::mem::take(&mut self.out.dags.dirty) {
            if let Some(joined) = &mut self.out.dags.joined[at] {
                joined.is_dirty = false;
                joined.run.logs.flush()?;
                self.note_written(Some(at))?;
            }
        }
        Ok(())
    }

    fn note_written(&mut self, segment: Option<usize>) -> Result<(), RunError> {
        let syncs = self.options.sync_interval.is_some();
        let (run, files) = match segment {
            None => (&mut self.out.dags.root, None),
            Some(at) => match &mut self.out.dags.joined[at] {
                Some(joined) => (&mut joined.run, Some(&joined.rescue)),
                None => return Ok(()),
            },
        };
        let rescue_len = run.logs.rescue_len();
        let targets = run.forwarding.take_fresh();
        if rescue_len == run.synced_rescue_len && targets.is_empty() {
            return Ok(());
        }
        if let Some(syncer) = &self.syncer {
            let journal = run.forwarding.journal_file();
            match files {
                None => syncer.note(journal, targets, rescue_len != run.synced_rescue_len)?,
                Some((path, file)) => syncer.note_other(path, file, journal, targets)?,
            }
        }
        run.synced_rescue_len = rescue_len;
        if run.forwarding.wants_checkpoint() {
            tracing::debug!("Checkpoint of the forward journal");
            if syncs {
                run.forwarding.sync_targets()?;
                run.logs.sync_rescue()?;
            }
            run.forwarding.begin_journal(run.logs.rescue_len())?;
        }
        Ok(())
    }

    /// Syncs everything and ends the journal. To be called when all files are written.
    pub(super) fn settle(&mut self) -> Result<(), RunError> {
        self.syncer = None;
        self.out.dags.root.settle(self.options.sync_interval.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_comes_for_the_files_to_which_the_task_forwards() {
        let text = "TASK t -f A=a.txt -f B=/b.txt -F c=c.txt /bin/true\nTASK none /bin/true\n";
        let dag = Dag::parse(text.into()).unwrap();
        let sent = |targets: &[&str]| -> Vec<ForwardedData> {
            let piece = |target: &&str| ForwardedData {
                target: target.as_bytes().to_vec(),
                data: b"data".to_vec().into(),
            };
            targets.iter().map(piece).collect()
        };
        let place = Place {
            dag: b"sub/y.dag".to_vec(),
            directory: b"sub".to_vec(),
        };
        for (targets, place, other) in [
            (&["a.txt", "/b.txt", "c.txt"][..], None, None),
            (&["c.txt"], None, None),
            (&["sub/a.txt", "/b.txt", "sub/c.txt"], Some(&place), None),
            (&["a.txt", "x.dag.rescue"], None, Some("x.dag.rescue")),
            (&["c.txt", "c.txt"], None, Some("c.txt")),
            (&["a.txt"], Some(&place), Some("a.txt")),
        ] {
            let data = sent(targets);
            let found = unnamed(&data, &dag.task(dag.find(b"t").unwrap()), place);
            let found = found.map(|piece| String::from_utf8_lossy(&piece.target));
            assert_eq!(found.as_deref(), other, "{targets:?}");
        }
        let none = dag.task(dag.find(b"none").unwrap());
        assert!(unnamed(&sent(&["a.txt"]), &none, None).is_some());
    }
}
