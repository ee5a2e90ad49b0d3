//! The rescue file: names of the tasks that are done.
//!
//! A record is a line feed, `DONE `, and the name. So the file begins with an empty line and does not end
//! with a line feed. The file is only appended to, even by a run that ignores its content. At the start of a
//! run, all done tasks are written once more, in byte order of their names.
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
//! * [`Writer`] removes a record that it could not write completely, and removes a torn record before it
//!   appends, so that the next record does not complete it.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::error::reason;
use crate::text::{cut, lossy, trim};
use crate::{Dag, TaskId};

/// Smallest unit in which kernels and disks divide a write.
const SECTOR: usize = 512;

/// A set of tasks that are done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DoneSet {
    bits: Vec<u64>,
    len: usize,
    /// Position of a torn record at the end of the rescue file.
    torn_at: Option<u64>,
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

/// Why a rescue file was refused. `Display` is the text of the original.
#[derive(Debug, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each message says it")]
pub enum RescueError {
    #[error("Unable to read rescue file: {}: {}", path.display(), reason(source))]
    Open { path: PathBuf, source: io::Error },
    #[error("Error reading rescue file: {}", reason(.0))]
    Read(io::Error),
    #[error("Unknown task {name} in rescue file")]
    UnknownTask { name: String, line: u64 },
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
            Self::UnknownTask { line, .. } | Self::Record { line, .. } | Self::DoneRecord { line, .. } => {
                Some(*line)
            }
        }
    }
}

/// Reads a rescue file. A missing file counts as empty.
///
/// # Errors
/// The file cannot be read, a line is not a record, or a task is not in the DAG.
pub fn read(path: &Path, dag: &Dag) -> Result<DoneSet, RescueError> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(DoneSet::new()),
        Err(source) => {
            let path = path.to_owned();
            return Err(RescueError::Open { path, source });
        }
    };
    let mut text = Vec::new();
    file.read_to_end(&mut text).map_err(RescueError::Read)?;
    parse(&text, dag)
}

/// Reads the content of a rescue file.
///
/// # Errors
/// A line is not a record, or a task is not in the DAG.
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
        let Some(task) = dag.find(name) else {
            return Err(RescueError::UnknownTask {
                name: lossy(name),
                line: number,
            });
        };
        done.insert(task);
    }
    Ok(done)
}

/// Returns the empty set for a run that ignores the rescue file but appends to it. A torn record is still
/// found, so that [`Writer`] removes it. A file that cannot be read has none.
#[must_use]
pub fn skip(path: &Path, dag: &Dag) -> DoneSet {
    let text = std::fs::read(path).unwrap_or_default();
    DoneSet {
        torn_at: torn_at(&text, dag).map(|at| at as u64),
        ..DoneSet::new()
    }
}

/// Returns the position of a torn record at the end of the file, including the line feed before it.
fn torn_at(text: &[u8], dag: &Dag) -> Option<usize> {
    let last = memchr::memrchr(b'\n', text).map_or(0, |at| at + 1);
    is_torn(&text[last..], text.len(), dag).then(|| last.saturating_sub(1))
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
        let file = OpenOptions::new().append(true).create(true).open(path)?;
        let mut len = file.metadata()?.len();
        if let Some(torn_at) = done.torn_at.filter(|at| *at < len) {
            file.set_len(torn_at)?;
            len = torn_at;
        }
        Ok(Self {
            file,
            len,
            pending: Vec::new(),
        })
    }

    /// Writes the records of all tasks that are already done, in byte order of their names.
    ///
    /// # Errors
    /// As [`Writer::flush`].
    pub fn repeat(&mut self, dag: &Dag, done: &DoneSet) -> io::Result<()> {
        let mut tasks: Vec<TaskId> = done.ids().collect();
        dag.sort_by_name(&mut tasks);
        for task in tasks {
            self.push(dag.name(task));
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
        self.pending.extend_from_slice(b"\nDONE ");
        self.pending.extend_from_slice(name);
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
        if let Err(error) = self.file.write_all(&self.pending) {
            // If truncating fails, too, the reader recognizes the torn record.
            let _ = self.file.set_len(self.len);
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
        self.file.sync_data()
    }
}
