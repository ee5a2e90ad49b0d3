//! The rescue file: names of the tasks that have finished.
//!
//! A record is a line feed, `DONE `, and the name. So the file begins with an empty line and does
//! not end with a line feed. It is only ever appended to, also when an old one is not used. At
//! the start of a run all finished tasks are written once more, in byte order of their names.
//!
//! # After a crash
//!
//! The format has one weakness: without a line feed at the end, `DONE t1` may be the record of
//! `t1`, or what a crash or a full disk left of `DONE t10`. The bytes must stay those of the
//! original, so the doubt is resolved when reading, for the last line only, if it has no line
//! feed:
//!
//! * It is the beginning of a record of some task, but not a whole one (`DON`, or `DONE t` where
//!   there is no task `t`): it was torn, and counts as nothing instead of an error.
//! * It is a whole record of a task whose name is the beginning of another task's name: it counts
//!   as torn if the file's length is a multiple of 512. A record of a few bytes goes to the kernel
//!   in one call; the kernel and the disk divide it at the boundaries of pages or sectors only,
//!   which are multiples of 512. Where a record really ends there (one file in 512 with such
//!   names), a finished task runs once more, which is what the user would have to do with a torn
//!   one, too. Without this restriction every orderly end with such a task would repeat it.
//! * [`Writer`] cuts a record off again that it could not write in full, and cuts off what the
//!   reader took for torn before it appends, so that the next record does not complete it.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::error::reason;
use crate::text::{cut, lossy, trim};
use crate::{Dag, TaskId};

/// Smallest unit in which disks and kernels divide a write.
const SECTOR: usize = 512;

/// Which tasks of a DAG have finished.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DoneSet {
    bits: Vec<u64>,
    len: usize,
    /// Where a torn record at the end of the rescue file begins.
    torn_at: Option<u64>,
}

impl DoneSet {
    /// No task has finished.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The task has finished.
    #[must_use]
    pub fn contains(&self, task: TaskId) -> bool {
        self.bits
            .get(task.index() / 64)
            .is_some_and(|bits| bits >> (task.index() % 64) & 1 == 1)
    }

    /// Adds a task; false if it was there already.
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

    /// Number of tasks that have finished.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// No task has finished.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The tasks in the order of the DAG file.
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

    /// The last record of the file was not written in full: the run before was interrupted there.
    #[must_use]
    pub fn is_torn(&self) -> bool {
        self.torn_at.is_some()
    }
}

/// Why a rescue file was refused. `Display` gives the text of the original.
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

/// Reads a rescue file. One that does not exist is as good as an empty one.
///
/// # Errors
/// The file cannot be read, a line is no record, or a task is not in the DAG.
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
/// A line is no record, or a task is not in the DAG.
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
        // As with the DAG, the keyword is only a prefix and the name is the whole rest.
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

/// For a run that does not use the rescue file although it will append to it: no task is done, but
/// a torn record is still cut off, so that the run after this one does not stumble over it. A file
/// that cannot be read has nothing to cut off.
#[must_use]
pub fn skip(path: &Path, dag: &Dag) -> DoneSet {
    let text = std::fs::read(path).unwrap_or_default();
    DoneSet {
        torn_at: torn_at(&text, dag).map(|at| at as u64),
        ..DoneSet::new()
    }
}

/// Where a torn record at the end of the file begins, with the line feed before it.
fn torn_at(text: &[u8], dag: &Dag) -> Option<usize> {
    let last = memchr::memrchr(b'\n', text).map_or(0, |at| at + 1);
    is_torn(&text[last..], text.len(), dag).then(|| last.saturating_sub(1))
}

/// Whether the last line, which has no line feed, is what a crash left of a longer record.
fn is_torn(line: &[u8], file_len: usize, dag: &Dag) -> bool {
    const KEYWORD: &[u8] = b"DONE ";
    if line.is_empty() {
        return false;
    }
    let Some(name) = line.strip_prefix(KEYWORD) else {
        return KEYWORD.starts_with(line) && !dag.is_empty();
    };
    let whole = dag.find(name).is_some();
    if whole && !file_len.is_multiple_of(SECTOR) {
        return false;
    }
    dag.ids()
        .any(|task| dag.name(task).len() > name.len() && dag.name(task).starts_with(name))
}

/// Appends records to a rescue file.
#[derive(Debug)]
pub struct Writer {
    file: File,
    /// Length of the file up to the last whole record.
    len: u64,
    pending: Vec<u8>,
}

impl Writer {
    /// Opens the file for appending; creates it if it is not there. A torn record that was found
    /// when `done` was read is cut off.
    ///
    /// # Errors
    /// The file cannot be opened or cut.
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

    /// Writes the records of all tasks that are done already, in byte order of their names.
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

    /// Writes the record of a task that has just finished; it has reached the kernel when this
    /// returns, and survives the end of the process.
    ///
    /// # Errors
    /// As [`Writer::flush`].
    pub fn done(&mut self, name: &[u8]) -> io::Result<()> {
        self.push(name);
        self.flush()
    }

    /// Notes a record for the next [`Writer::flush`].
    pub fn push(&mut self, name: &[u8]) {
        self.pending.extend_from_slice(b"\nDONE ");
        self.pending.extend_from_slice(name);
    }

    /// Hands the noted records to the kernel.
    ///
    /// # Errors
    /// They could not be written, because the disk is full, say. The file is as it was before,
    /// and the records are still noted.
    pub fn flush(&mut self) -> io::Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        if let Err(error) = self.file.write_all(&self.pending) {
            // If even cutting fails, the reader will recognise the torn end.
            let _ = self.file.set_len(self.len);
            return Err(error);
        }
        self.len += self.pending.len() as u64;
        self.pending.clear();
        Ok(())
    }

    /// Length of the file up to the last record that was handed to the kernel.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "this is no collection")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// The file.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Waits until everything handed to the kernel is on the disk (`fdatasync`).
    ///
    /// # Errors
    /// The disk reports an error; records since the last success may be lost.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}
