//! What is known of the checkpoints of an attempt that runs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use pmc_checkpoint::nodes::{GivenFile, SavedFile};
use pmc_checkpoint::{
    AllSeries, FileRecord, Interval, Notice, Prefix, Sidecar, Store, StoreError, TaskStore, Use, is_due,
};
use pmc_wire::checkpoint::Figures;

use super::mail::{self, Letter};
use super::place::Nodes;
use super::{lock, now, statistics};
use crate::host;
use crate::protocol::SubmitId;

/// Why a series is passed over that an attempt has read.
const SPOILED: &str = "an attempt that went on from it failed before it had saved a newer one";

/// Maximum files that the processes of an attempt have open on a host: each takes a descriptor of its worker.
const MAX_OPEN: usize = 1 << 10;

/// Why something cannot be done, as a sentence for users.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    #[error("the attempt has ended")]
    Ended,
    #[error("a file with the prefix {0} is open already")]
    IsOpen(Prefix),
    #[error("{MAX_OPEN} files of the task are open already on this host")]
    TooMany,
    #[error("no file with the prefix {0} is open")]
    NotOpen(Prefix),
    #[error("there is no checkpoint to go on from")]
    NothingGiven,
    #[error("the file has {found} bytes, but {written} were written")]
    Length { found: u64, written: u64 },
    #[error("the file cannot be written to the disk: {0}")]
    Sync(String),
    #[error("an error has occurred before: the file does not count")]
    HasErrors,
    #[error("the message is kept, but cannot be sent: {0}")]
    Mail(String),
    #[error("the checkpoint file {0} cannot be had from any node now")]
    Gone(Prefix),
    #[error("{0}")]
    Nodes(String),
    #[error(transparent)]
    Address(#[from] mail::InvalidAddress),
    #[error(transparent)]
    Name(#[from] pmc_checkpoint::InvalidName),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The process of a task, under MPI one of several.
#[derive(Clone, Copy, Debug)]
pub(super) struct Process {
    pub(super) rank: u32,
    pub(super) ranks: u32,
}

/// A file that a process writes.
#[derive(Debug)]
pub(super) struct OpenFile {
    pub(super) series: u64,
    pub(super) file: File,
}

/// An attempt.
#[derive(Debug)]
pub(super) struct Attempt {
    submit: SubmitId,
    task: Vec<u8>,
    dag: PathBuf,
    begin: (Instant, f64),
    /// Set if its files lie on nodes, not beside the DAG file.
    nodes: Option<Arc<dyn Nodes>>,
    /// Held by the process for which the series of the task are read. Others wait; the end of the attempt
    /// does not.
    loading: Mutex<()>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    has_ended: bool,
    /// `None` until a process of the task connects.
    saved: Option<Saved>,
}

/// The series of the task.
#[derive(Debug)]
struct Saved {
    task: TaskStore,
    all: AllSeries,
    given: Option<u64>,
    /// On nodes: the files of that series.
    files: BTreeMap<(u32, Prefix), GivenFile>,
    /// The last number before this attempt.
    base: u64,
    /// Number of files that were created, by rank and prefix.
    counts: BTreeMap<(u32, Prefix), u64>,
    open: BTreeSet<(u32, Prefix)>,
    /// A process has got a file of the series that is given.
    has_read: bool,
    /// Seconds for which the files of this attempt have blocked each rank, by series.
    blocked: BTreeMap<(u64, u32), f64>,
    /// The last complete series of this attempt: seconds for which it has blocked the task, and when it was
    /// complete.
    last: Option<(f64, f64)>,
}

impl Attempt {
    pub(super) fn new(submit: SubmitId, task: &[u8], dag: &Path, nodes: Option<Arc<dyn Nodes>>) -> Self {
        Self {
            nodes,
            loading: Mutex::new(()),
            submit,
            task: task.to_owned(),
            dag: dag.to_owned(),
            begin: (Instant::now(), now()),
            state: Mutex::default(),
        }
    }

    fn name(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.task)
    }

    /// Calls something with the series of the task. The first call reads the store.
    fn with<R>(&self, act: impl FnOnce(&mut Saved) -> Result<R, Refusal>) -> Result<R, Refusal> {
        self.prepare()?;
        let mut state = lock(&self.state);
        match &mut state.saved {
            Some(saved) => act(saved),
            None => Err(Refusal::Ended),
        }
    }

    /// Reads the store, if nobody has.
    fn prepare(&self) -> Result<(), Refusal> {
        let is_ready = || {
            let state = lock(&self.state);
            match state.has_ended {
                true => Err(Refusal::Ended),
                false => Ok(state.saved.is_some()),
            }
        };
        if is_ready()? {
            return Ok(());
        }
        let _loading = lock(&self.loading);
        if is_ready()? {
            return Ok(());
        }
        let saved = match &self.nodes {
            Some(nodes) => self.load_from(nodes.as_ref())?,
            None => self.load()?,
        };
        let mut state = lock(&self.state);
        match state.has_ended {
            true => Err(Refusal::Ended),
            false => {
                state.saved = Some(saved);
                Ok(())
            }
        }
    }

    /// Asks the master what earlier attempts have saved, and which series is given.
    fn load_from(&self, nodes: &dyn Nodes) -> Result<Saved, Refusal> {
        let given = nodes.want(self.submit, &self.dag, &self.task);
        let given = given.map_err(Refusal::Nodes)?;
        let task = nodes.store(&given.run)?.task(&self.task)?;
        let mut saved = Saved::new(task, AllSeries::default(), given.last);
        if let Some((series, files)) = given.series {
            saved.given = Some(series);
            let name = |given: &GivenFile| (given.file.rank, given.file.prefix.clone());
            saved.files = files.into_iter().map(|given| (name(&given), given)).collect();
        }
        Ok(saved)
    }

    /// Reads what earlier attempts have saved, and chooses the series to go on from.
    fn load(&self) -> Result<Saved, StoreError> {
        let task = Store::make(&self.dag)?.task(&self.task)?;
        let (mut all, problems) = task.scan()?;
        let name = self.name();
        for problem in problems {
            tracing::warn!("Task {name}: a checkpoint file does not count: {problem}");
        }
        let chosen = task.choose(&mut all);
        for (series, problem) in chosen.problems {
            tracing::warn!("Task {name}: checkpoint {series} is not used: {problem}");
        }
        match chosen.given {
            Some(series) => tracing::info!("Task {name} can go on from checkpoint {series}"),
            None if all.last() > 0 => tracing::warn!("Task {name} has no checkpoint that it can go on from"),
            None => {}
        }
        let last = all.last();
        Ok(Saved {
            given: chosen.given,
            ..Saved::new(task, all, last)
        })
    }

    /// Returns the series from which the attempt goes on.
    pub(super) fn given(&self) -> Result<Option<u64>, Refusal> {
        self.with(|saved| Ok(saved.given))
    }

    /// Creates a file of the next series.
    pub(super) fn create(&self, process: Process, prefix: &Prefix) -> Result<OpenFile, Refusal> {
        self.with(|saved| {
            let key = (process.rank, prefix.clone());
            if saved.open.contains(&key) {
                return Err(Refusal::IsOpen(prefix.clone()));
            }
            if saved.open.len() >= MAX_OPEN {
                return Err(Refusal::TooMany);
            }
            // Also if there is no room: the other ranks count on.
            let count = saved.counts.entry(key.clone()).or_default();
            *count += 1;
            let series = saved.base + *count;
            let file = saved.task.create(series, prefix, process.rank)?;
            saved.all.open(series, prefix.clone(), process.rank);
            saved.open.insert(key);
            Ok(OpenFile { series, file })
        })
    }

    /// Gives up a file that a process had open.
    pub(super) fn discard(&self, process: Process, prefix: &Prefix, file: &OpenFile) {
        // After the end of the attempt, it stays for the next one as it would after a crash.
        let _ = self.with(|saved| {
            saved.task.discard(file.series, prefix, process.rank);
            saved.all.discard(file.series, prefix, process.rank);
            saved.open.remove(&(process.rank, prefix.clone()));
            Ok(())
        });
    }

    /// Lets a file count that a process has written.
    pub(super) fn close(
        &self,
        process: Process,
        prefix: &Prefix,
        file: &OpenFile,
        crc32: Vec<u32>,
        mut figures: Figures,
    ) -> Result<(), Refusal> {
        let begin = Instant::now();
        let result = self.publish(process, prefix, file, crc32, figures);
        figures.close += begin.elapsed().as_secs_f64();
        if result.is_err() {
            self.discard(process, prefix, file);
            figures.errors |= pmc_wire::checkpoint::errors::CLOSE;
        }
        let complete = self.with(|saved| {
            let blocked = saved.blocked.entry((file.series, process.rank)).or_default();
            *blocked += figures.open + figures.write + figures.close;
            let complete = result.is_ok() && saved.all.complete().last() == Some(&file.series);
            if complete {
                // On nodes, the master says which ones are not needed any more.
                saved.note_complete(file.series, self.nodes.is_none());
            }
            Ok(complete)
        });
        let record = self.record((process, prefix, file.series), Use::Written, figures);
        self.append(FileRecord {
            complete: complete.unwrap_or(false),
            ..record
        });
        result
    }

    fn publish(
        &self,
        process: Process,
        prefix: &Prefix,
        file: &OpenFile,
        crc32: Vec<u32>,
        figures: Figures,
    ) -> Result<(), Refusal> {
        if figures.errors != 0 {
            return Err(Refusal::HasErrors);
        }
        let system = |error: std::io::Error| Refusal::Sync(pmc_dag::reason(&error).to_string());
        let (found, written) = (file.file.metadata().map_err(system)?.len(), figures.bytes);
        if found != written {
            return Err(Refusal::Length { found, written });
        }
        if self.nodes.is_none() {
            file.file.sync_all().map_err(system)?;
        }
        self.with(|saved| {
            let key = (process.rank, prefix.clone());
            if !saved.open.contains(&key) {
                return Err(Refusal::NotOpen(prefix.clone()));
            }
            let mut sidecar = saved.task.sidecar(prefix.clone());
            sidecar.submit = self.submit.0;
            sidecar.rank = process.rank;
            sidecar.ranks = process.ranks;
            sidecar.series = file.series;
            sidecar.bytes = written;
            sidecar.crc32 = crc32;
            sidecar.closed = now();
            sidecar.host = host::name();
            match &self.nodes {
                None => saved.task.publish(&sidecar)?,
                Some(nodes) => {
                    saved.task.publish_on_node(&sidecar)?;
                    nodes.has(&saved.task, SavedFile::of(&sidecar));
                }
            }
            saved.all.close(&sidecar);
            saved.open.remove(&key);
            Ok(())
        })
    }

    /// Opens a file of the series that the attempt is given.
    pub(super) fn open(&self, process: Process, prefix: &Prefix) -> Result<(File, Sidecar), Refusal> {
        let (task, series, given) = self.with(|saved| {
            let series = saved.given.ok_or(Refusal::NothingGiven)?;
            // Also if it fails: it would fail again and again.
            saved.has_read = true;
            let given = saved.files.get(&(process.rank, prefix.clone()));
            Ok((saved.task.clone(), series, given.cloned()))
        })?;
        if let Some(nodes) = &self.nodes {
            let given = given.ok_or_else(|| Refusal::Gone(prefix.clone()))?;
            bring(nodes.as_ref(), &self.dag, &task, &given)?;
        }
        Ok(task.open(series, prefix, process.rank)?)
    }

    /// Notes what a process has read.
    pub(super) fn note_read(&self, process: Process, prefix: &Prefix, series: u64, figures: Figures) {
        self.append(self.record((process, prefix, series), Use::Read, figures));
    }

    /// Adds a line to the statistics.
    fn append(&self, record: FileRecord) {
        match &self.nodes {
            Some(nodes) => nodes.record(&self.dag, record),
            None if statistics::are_wanted() => statistics::append(&self.dag, &record),
            None => {}
        }
    }

    /// Waits until the newest series is safe, but not for long. Beside the DAG file, it is.
    pub(super) fn finish(&self) {
        let Some(nodes) = &self.nodes else { return };
        let newest = self.with(|saved| {
            let newest = saved.all.complete().pop();
            Ok(newest.map(|series| (saved.task.clone(), series)))
        });
        if let Ok(Some((task, series))) = newest {
            nodes.wait_safe((task.run(), task.directory()), series);
        }
    }

    /// Notes that a file of the series that the attempt was given is damaged.
    pub(super) fn note_damage(&self, process: Process, prefix: &Prefix) -> Result<(), Refusal> {
        self.with(|saved| {
            let series = saved.given.ok_or(Refusal::NothingGiven)?;
            let damage = format!("its file {prefix}.{} is damaged", process.rank);
            tracing::error!(
                "Task {}: checkpoint {series} is not used again: {damage}",
                self.name()
            );
            match &self.nodes {
                Some(nodes) => nodes.withhold((saved.task.run(), saved.task.directory()), series, &damage),
                None => saved.task.withhold(series, &damage)?,
            }
            saved.all.withhold(series, damage);
            Ok(())
        })
    }

    /// Returns whether the task is to save its state now.
    pub(super) fn is_due(&self, notice: Notice) -> Result<bool, Refusal> {
        let now = now();
        self.with(|saved| {
            let interval = Interval {
                cost: saved.last.map(|(cost, _)| cost),
                node_hours: self.begin.0.elapsed().as_secs_f64() / 3600.0,
                losses: 0,
                nodes: 1,
            };
            let since = now - saved.last.map_or(self.begin.1, |(_, at)| at);
            let until_end = notice.ends.map(|ends| ends - now);
            Ok(is_due(
                &interval,
                since,
                until_end,
                notice.drained.map(|at| now - at),
            ))
        })
    }

    /// Keeps the last message of the task, and sends it if it says to whom.
    pub(super) fn set_message(&self, text: &str) -> Result<(), Refusal> {
        let (text, address) = mail::split(text)?;
        match &self.nodes {
            Some(nodes) => nodes.message(&self.dag, &self.task, text.clone()),
            None => self.with(|saved| Ok(saved.task.set_message(&text)?))?,
        }
        let Some(address) = address else {
            return Ok(());
        };
        let letter = Letter::new(address, text, &self.name(), &self.dag.to_string_lossy());
        mail::post(letter).map_err(|error| Refusal::Mail(pmc_dag::reason(&error).to_string()))
    }

    /// Notes the end of the attempt. Nothing is added to its series from now on.
    pub(super) fn end(&self, failed: bool) {
        let mut state = lock(&self.state);
        state.has_ended = true;
        let Some(saved) = state.saved.take() else {
            return;
        };
        if let Some(given) = saved
            .given
            .filter(|_| failed && saved.has_read && saved.last.is_none())
        {
            tracing::warn!(
                "Task {}: checkpoint {given} is not used again: {SPOILED}",
                self.name()
            );
            let withheld = match &self.nodes {
                Some(nodes) => {
                    nodes.withhold((saved.task.run(), saved.task.directory()), given, SPOILED);
                    Ok(())
                }
                None => saved.task.withhold(given, SPOILED),
            };
            if let Err(error) = withheld {
                tracing::error!("Task {}: {error}", self.name());
            }
        }
    }

    fn record(
        &self,
        (process, prefix, series): (Process, &Prefix, u64),
        usage: Use,
        figures: Figures,
    ) -> FileRecord {
        FileRecord {
            // It was a name when the file was opened.
            task: pmc_checkpoint::task_directory(&self.task).unwrap_or_default(),
            submit: self.submit.0,
            rank: process.rank,
            prefix: prefix.clone(),
            series,
            usage,
            bytes: figures.bytes,
            open: figures.open,
            read: figures.read,
            write: figures.write,
            close: figures.close,
            errors: figures.errors,
            closed: now(),
            elapsed: self.begin.0.elapsed().as_secs_f64(),
            host: host::name(),
            complete: false,
        }
    }
}

/// Sees to it that this node has a file, as it was saved.
fn bring(nodes: &dyn Nodes, dag: &Path, task: &TaskStore, given: &GivenFile) -> Result<(), Refusal> {
    let file = &given.file;
    if given.is_here {
        // Who reads it verifies it; a damaged one is replaced if that can be done.
        let is_whole = || {
            task.is_whole(file.series, &file.prefix, file.rank)
                .unwrap_or(false)
        };
        if given.sources.is_empty() || is_whole() {
            return Ok(());
        }
        tracing::warn!(
            "The checkpoint file {} on this node is damaged: another node gives it",
            file.prefix
        );
        nodes.has_not(file.clone());
    }
    match nodes.fetch(dag, task, file, &given.sources) {
        true => Ok(()),
        false => Err(Refusal::Gone(file.prefix.clone())),
    }
}

impl Saved {
    fn new(task: TaskStore, all: AllSeries, base: u64) -> Self {
        Self {
            task,
            all,
            given: None,
            files: BTreeMap::new(),
            base,
            counts: BTreeMap::new(),
            open: BTreeSet::new(),
            has_read: false,
            blocked: BTreeMap::new(),
            last: None,
        }
    }

    /// Notes that a series is complete, and `removes` those that are not needed any more.
    fn note_complete(&mut self, series: u64, removes: bool) {
        let of_series = self.blocked.range((series, 0)..=(series, u32::MAX));
        let cost = of_series.map(|(_, seconds)| *seconds).fold(0.0, f64::max);
        self.last = Some((cost, now()));
        self.blocked.retain(|(number, _), _| *number >= series);
        if !removes {
            return;
        }
        for old in self.all.superfluous() {
            // What cannot be removed now is tried again with the next series.
            match self.task.remove_series(old) {
                Ok(()) => self.all.remove(old),
                Err(error) => tracing::debug!("{error}"),
            }
        }
    }
}
