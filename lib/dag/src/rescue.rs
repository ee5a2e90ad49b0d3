//! The rescue file: names of the tasks that are done.
//!
//! A record is a line feed, `DONE `, and the name. So the file begins with an empty line and does not end
//! with a line feed. Runs append to the file, even those that ignore its content. The original writes all
//! done tasks once more at the start of each run. [`compact`] removes such repetitions.
//!
//! A record may name a task that the DAG does not have: it was removed or renamed after it was done. The
//! record stays in the file.
//!
//! # After a crash
//!
//! The format has a weakness: without a line feed at the end, `DONE t1` may be the record of `t1`, or what a
//! crash or a full disk left of `DONE t10`. The bytes must be those of the original, so the reader resolves
//! the ambiguity. It affects only the last line, if it has no line feed:
//!
//! * If it is an incomplete record of some task (`DON`, or `DONE t` without a task `t`), it is torn and is
//!   ignored.
//! * If it is a complete record of a task whose name is a prefix of another name, it counts as torn if the
//!   length of the file is a multiple of 512. A short record goes to the kernel in one call; kernel and disk
//!   divide it only at the boundaries of pages or sectors. If a record really ends there (one file in 512
//!   with such names), a done task runs once more. Without this restriction, every orderly end with such a
//!   task would repeat it.
//! * After a power failure, the file may end with zero bytes: its length reached the disk, its data did not.
//!   They are torn, and the record before them may be.
//! * [`Writer`] removes a record that it could not write completely, and removes what is torn before it
//!   appends, so that the next record does not complete it.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use pmc_files::OFlags;
use pmc_system::disk;
use thiserror::Error;

use crate::error::reason;
use crate::text::{cut, lossy, trim};
use crate::{Dag, TaskId};

/// Smallest unit in which kernels and disks divide a write.
const SECTOR: usize = 512;

/// Maximum number of names in [`UnknownTasks`].
const MAX_NAMES: usize = 3;

/// A set of tasks that are done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DoneSet {
    bits: Vec<u64>,
    len: usize,
    /// Position of a torn record at the end of the rescue file.
    torn_at: Option<u64>,
    /// The file names a task twice.
    has_repetitions: bool,
    /// Tasks that the file does not name.
    unrecorded: Vec<TaskId>,
    unknown: UnknownTasks,
}

/// Tasks in the rescue file that are not in the DAG.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnknownTasks {
    /// Number of their records.
    pub count: usize,
    /// The names of the first ones.
    pub names: Vec<String>,
    /// Line of the first record, counted from 1.
    pub line: u64,
}

impl DoneSet {
    /// Creates an empty set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// True if the task is done.
    #[must_use]
    pub fn contains(&self, task: TaskId) -> bool {
        self.bits
            .get(task.index() / 64)
            .is_some_and(|bits| bits >> (task.index() % 64) & 1 == 1)
    }

    /// Adds a task. Returns false if it is already in the set.
    pub fn insert(&mut self, task: TaskId) -> bool {
        let (word, bit) = (task.index() / 64, 1 << (task.index() % 64));
        if word >= self.bits.len() {
            self.bits.resize(word + 1, 0);
        }
        let new = self.bits[word] & bit == 0;
        self.bits[word] |= bit;
        self.len += usize::from(new);
        new
    }

    /// Adds a task that the rescue file does not name. [`Writer::record_missing`] adds its record.
    pub fn insert_unrecorded(&mut self, task: TaskId) {
        if self.insert(task) {
            self.unrecorded.push(task);
        }
    }

    /// Returns the tasks in the rescue file that are not in the DAG, if there are any.
    #[must_use]
    pub fn unknown(&self) -> Option<&UnknownTasks> {
        (self.unknown.count > 0).then_some(&self.unknown)
    }

    /// Number of tasks in the set.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Tasks in the order of the DAG file.
    pub fn ids(&self) -> impl Iterator<Item = TaskId> + '_ {
        self.bits.iter().enumerate().flat_map(|(word, bits)| {
            let mut left = *bits;
            std::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros())?;
                left &= left - 1;
                Some(TaskId(word as u32 * 64 + bit))
            })
        })
    }

    /// True if the last record of the file is torn.
    #[must_use]
    pub fn is_torn(&self) -> bool {
        self.torn_at.is_some()
    }
}

impl UnknownTasks {
    fn add(&mut self, name: &[u8], line: u64) {
        if self.count == 0 {
            self.line = line;
        }
        self.count += 1;
        if self.names.len() < MAX_NAMES {
            self.names.push(lossy(name));
        }
    }
}

impl std::fmt::Display for UnknownTasks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (tasks, are) = if self.count == 1 {
            ("task", "is")
        } else {
            ("tasks", "are")
        };
        let more = if self.count > self.names.len() {
            ", ..."
        } else {
            ""
        };
        write!(
            f,
            "The rescue file names {} {tasks} that {are} not in the DAG: {}{more} (from line {}). Tasks that were \
             renamed run again",
            self.count,
            self.names.join(", "),
            self.line,
        )
    }
}

/// Why a rescue file was refused. `Display` is the text of the original.
#[derive(Debug, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each message says it")]
pub enum RescueError {
    #[error("Unable to read rescue file: {}: {}", path.display(), reason(source))]
    Open { path: PathBuf, source: io::Error },
    #[error("Error reading rescue file: {}", reason(.0))]
    Read(io::Error),
    #[error("Invalid rescue record: {text}")]
    Record { text: String, line: u64 },
    #[error("Invalid DONE record: {text}\n")]
    DoneRecord { text: String, line: u64 },
}

impl RescueError {
    /// Line of the rescue file, counted from 1.
    #[must_use]
    pub fn line(&self) -> Option<u64> {
        match self {
            Self::Open { .. } | Self::Read(_) => None,
            Self::Record { line, .. } | Self::DoneRecord { line, .. } => Some(*line),
        }
    }
}

/// Reads a rescue file. A missing file counts as empty.
///
/// # Errors
/// The file cannot be read, or a line is not a record.
pub fn read(path: &Path, dag: &Dag) -> Result<DoneSet, RescueError> {
    let file = match pmc_files::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(DoneSet::new()),
        // The original opens a directory, and fails to read it.
        Err(error) if error.kind() == io::ErrorKind::IsADirectory => return Err(RescueError::Read(error)),
        Err(source) => {
            let path = path.to_owned();
            return Err(RescueError::Open { path, source });
        }
    };
    let text = pmc_files::read_rest(&file, max_len(dag)).map_err(RescueError::Read)?;
    parse(&text, dag)
}

/// Returns the content of a rescue file.
///
/// # Errors
/// The file cannot be read, or is too large for this DAG.
pub fn text(path: &Path, dag: &Dag) -> io::Result<Vec<u8>> {
    pmc_files::read(path, max_len(dag))
}

/// Returns the largest rescue file of a DAG, in bytes. A record is shorter than the line of its task, and
/// runs remove repetitions.
fn max_len(dag: &Dag) -> u64 {
    (dag.text.len() as u64).saturating_mul(16).max(64 << 20)
}

/// Reads the content of a rescue file.
///
/// # Errors
/// A line is not a record.
pub fn parse(text: &[u8], dag: &Dag) -> Result<DoneSet, RescueError> {
    let mut done = DoneSet::new();
    let torn_at = torn_at(text, dag);
    done.torn_at = torn_at.map(|at| at as u64);
    let complete = &text[..torn_at.unwrap_or(text.len())];
    for (number, line) in (1..).zip(complete.split(|b| *b == b'\n')) {
        let line = trim(line);
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        // As in the DAG, the keyword is only a prefix, and the name is the rest of the line.
        if !line.starts_with(b"DONE") {
            return Err(RescueError::Record {
                text: lossy(line),
                line: number,
            });
        }
        let name = cut(line).1;
        if name.is_empty() {
            return Err(RescueError::DoneRecord {
                text: lossy(line),
                line: number,
            });
        }
        match dag.find(name) {
            Some(task) => done.has_repetitions |= !done.insert(task),
            None => done.unknown.add(name, number),
        }
    }
    Ok(done)
}

/// Returns the empty set for a run that ignores the rescue file but appends to it. A torn record is still
/// found, so that [`Writer`] removes it. A file that cannot be read has none.
#[must_use]
pub fn skip(path: &Path, dag: &Dag) -> DoneSet {
    let text = text(path, dag).unwrap_or_default();
    DoneSet {
        torn_at: torn_at(&text, dag).map(|at| at as u64),
        ..DoneSet::new()
    }
}

/// Removes repeated records from the file. Comments stay. The new file replaces the old one as a whole. A
/// file without repetitions, with tasks that are not in the DAG, or with several names stays as it is. No
/// other process may write to the file meanwhile.
///
/// # Errors
/// The new file cannot be written. The old one is unchanged.
pub fn compact(path: &Path, dag: &Dag, done: &mut DoneSet) -> io::Result<()> {
    if !done.has_repetitions || done.unknown.count > 0 {
        return Ok(());
    }
    // A symbolic link stays one.
    let path = pmc_files::real_path(path)?;
    let old = fs::metadata(&path)?;
    if !old.is_file() || old.nlink() != 1 {
        return Ok(());
    }
    let mut text = text(&path, dag)?;
    if let Some(torn_at) = done.torn_at {
        text.truncate(usize::try_from(torn_at).unwrap_or(usize::MAX));
    }
    let mut beside = path.clone().into_os_string();
    beside.push(".new");
    let beside = PathBuf::from(beside);
    let replaced = replace(&path, &beside, &old, &compacted(&text, dag, done));
    if replaced.is_err() {
        // What is left would be replaced by the next run.
        let _ = fs::remove_file(&beside);
    }
    replaced?;
    (done.torn_at, done.has_repetitions) = (None, false);
    done.unrecorded.clear();
    Ok(())
}

/// Returns the content of a file with the comments of `text` and one record for each task.
fn compacted(text: &[u8], dag: &Dag, done: &DoneSet) -> Vec<u8> {
    let mut new = Vec::with_capacity(text.len());
    for line in text.split(|byte| *byte == b'\n') {
        if trim(line).starts_with(b"#") {
            new.extend_from_slice(line);
            new.push(b'\n');
        }
    }
    let mut tasks: Vec<TaskId> = done.ids().collect();
    dag.sort_by_name(&mut tasks);
    for task in tasks {
        push_record(&mut new, dag.name(task));
    }
    if new.len().is_multiple_of(SECTOR) {
        // Otherwise the last record might count as torn.
        new.push(b'\n');
    }
    new
}

/// Writes a file beside another one and renames it, with the owner and mode of the old one.
fn replace(path: &Path, beside: &Path, old: &fs::Metadata, content: &[u8]) -> io::Result<()> {
    if let Err(error) = fs::remove_file(beside)
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(error);
    }
    let file = OpenOptions::new().write(true).create_new(true).open(beside)?;
    let new = file.metadata()?;
    if (new.uid(), new.gid()) != (old.uid(), old.gid()) {
        return Err(io::Error::other("the file belongs to another user or group"));
    }
    file.set_permissions(old.permissions())?;
    disk::write_all(&file, content)?;
    disk::sync_all(&file)?;
    disk::rename(beside, path)?;
    disk::sync_folder(path.parent().unwrap_or(Path::new("/")))
}

/// Returns the position of what is torn at the end of the file: a record including the line feed before it,
/// or zero bytes.
fn torn_at(text: &[u8], dag: &Dag) -> Option<usize> {
    let end = text.iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1);
    let last = memchr::memrchr(b'\n', &text[..end]).map_or(0, |at| at + 1);
    if is_torn(&text[last..end], end, dag) {
        return Some(last.saturating_sub(1));
    }
    (end < text.len()).then_some(end)
}

/// True if the last line, which has no line feed, is torn.
fn is_torn(line: &[u8], file_len: usize, dag: &Dag) -> bool {
    const KEYWORD: &[u8] = b"DONE ";
    if line.is_empty() {
        return false;
    }
    let Some(name) = line.strip_prefix(KEYWORD) else {
        return KEYWORD.starts_with(line) && !dag.is_empty();
    };
    let is_complete = dag.find(name).is_some();
    if is_complete && !file_len.is_multiple_of(SECTOR) {
        return false;
    }
    dag.ids()
        .any(|task| dag.name(task).len() > name.len() && dag.name(task).starts_with(name))
}

fn push_record(text: &mut Vec<u8>, name: &[u8]) {
    text.extend_from_slice(b"\nDONE ");
    text.extend_from_slice(name);
}

/// Appends records to a rescue file.
#[derive(Debug)]
pub struct Writer {
    file: File,
    /// Length of the file up to the last complete record.
    len: u64,
    pending: Vec<u8>,
}

impl Writer {
    /// Opens the file for appending, and creates it if it is missing. Removes a torn record that was found
    /// when `done` was read.
    ///
    /// # Errors
    /// The file cannot be opened or truncated.
    pub fn open_append(path: &Path, done: &DoneSet) -> io::Result<Self> {
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE;
        let file = pmc_files::open_output(path, flags, 0o666)?;
        let mut len = file.metadata()?.len();
        if let Some(torn_at) = done.torn_at {
            len = len.min(torn_at);
            disk::set_len(&file, len)?;
        }
        Ok(Self {
            file,
            len,
            pending: Vec::new(),
        })
    }

    /// Writes the records of tasks that are done and that the file does not name.
    ///
    /// # Errors
    /// As [`Writer::flush`].
    pub fn record_missing(&mut self, dag: &Dag, done: &DoneSet) -> io::Result<()> {
        for task in &done.unrecorded {
            self.push(dag.name(*task));
        }
        self.flush()
    }

    /// Writes the record of a task. When this returns, the record is in the kernel and survives the end of
    /// the process.
    ///
    /// # Errors
    /// As [`Writer::flush`].
    pub fn done(&mut self, name: &[u8]) -> io::Result<()> {
        self.push(name);
        self.flush()
    }

    /// Adds a record for the next [`Writer::flush`].
    pub fn push(&mut self, name: &[u8]) {
        push_record(&mut self.pending, name);
    }

    /// Writes the added records to the kernel.
    ///
    /// # Errors
    /// The records could not be written, for example because the disk is full. The file is unchanged, and the
    /// records are still pending.
    pub fn flush(&mut self) -> io::Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        if let Err(error) = disk::write_all(&self.file, &self.pending) {
            // If truncating fails, too, the reader recognizes the torn record.
            let _ = disk::set_len(&self.file, self.len);
            return Err(error);
        }
        self.len += self.pending.len() as u64;
        self.pending.clear();
        Ok(())
    }

    /// Length of the file up to the last flushed record.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "not a collection")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// The file.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Syncs flushed records to the disk (`fdatasync`).
    ///
    /// # Errors
    /// The disk reports an error. Records since the last success may be lost.
    pub fn sync(&self) -> io::Result<()> {
        disk::sync_data(&self.file)
    }
}
