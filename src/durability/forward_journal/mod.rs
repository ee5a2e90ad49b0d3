//! The forward journal: forwarded data is in its files exactly once, whenever a run is killed.
//!
//! The file `<rescue file>.journal` is a redo log. It is there while a run forwards data, and after a
//! run that was killed; an orderly end removes it. For each task that forwards data the master
//!
//! 1. appends a *record* to the journal: the task, and for each target the offset and the data;
//! 2. appends the data to the targets;
//! 3. writes `DONE` to the rescue file, then the logs.
//!
//! If 1 or 2 fails, the data is cut off the targets again, then the record off the journal, and the
//! try has failed. The next run first completes what the journal says ([`recover`]): for each
//! target, the bytes from the first offset on become those of the records, and the tasks of all
//! records are done.
//!
//! # Why this is right
//!
//! *The record is the commit.* It counts if its checksum is right, so it is there wholly or not at
//! all. Before it is written, nothing of the task is in a target or in the rescue file: the task runs
//! again and finds no trace. From then on the task is done, and recovery writes its data at the
//! offset that the record names: what is there already, in full or in part, is overwritten with the
//! same bytes, never repeated. Records of one target follow each other without gaps, in the order of
//! the journal, because the master alone writes and writes one task after the other. So a task that
//! is not done never lies before one that is, and nothing has to be cut out of the middle.
//! Recovery changes neither the journal nor its own result when it is repeated; the journal is
//! removed after the rescue file names the tasks.
//!
//! *A failed step 2* is undone in the order data, record. Killed in between, the record is there:
//! the task, which has succeeded, is done after all, with all its data. Nobody has been told
//! otherwise, since logs come after.
//!
//! *When the machine dies,* what was written since the last synchronisation may be missing in part.
//! The journal is read up to the first record that is not whole. Missing bytes of targets (a shorter
//! file, or blocks of zeros) are written again. A `DONE` that reached the disk while its record did
//! not is recognised: the journal's header holds the length of the rescue file at a moment when
//! everything before was on the disk, and each task that may forward has a record, even without data;
//! so a task with forwards that the rescue file names behind that length and the journal does not is
//! not done, and its line is removed. (Not if the running system is the one that the journal names, since
//! then nothing was lost, nor if somebody has edited the rescue file before that position.) Only data in a target whose record did not reach the disk is
//! not recognised as such. The journal is synchronised within the interval that the user chooses, a
//! second; systems keep back new data for longer (Linux: 5 to 30 seconds), so this takes a machine
//! that, short of memory, writes the target early and then dies within the second. To wait for
//! the disk before every write would close that gap, and hold up every task. If the target is in the
//! journal otherwise, its length is found to be wrong and the user is warned. A *checkpoint* begins
//! a new journal once the old one is large: after targets and rescue file are on the disk.
//!
//! *Files that others write, too,* are left alone, with a warning: when a target is not as long as it
//! was after the last write, its further pieces are entered without an offset; and recovery touches
//! no target whose length or bytes are not those that this run can have left. Such a file may get
//! data twice or in part after a crash, as with the original. Targets that are no regular files
//! (pipes, devices) are never entered.

mod format;
mod recover;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use format::{Begin, Content, Piece, Record, UnknownFormat, decode, encode, header, tail_checksum};
use pmc_dag::reason;
pub use recover::{Recovered, recover};

use crate::durability::lock::lock_if_possible;
use crate::options::{folder, with_suffix};

/// A journal of this length is replaced by a new one at the next opportunity.
pub const CHECKPOINT_BYTES: u64 = 64 << 20;

/// One task may forward much; the memory for that is not kept for the others.
const KEPT_BUFFER: usize = 4 << 20;

/// The journal or a file that it tells of could not be read or written.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message says it")]
pub enum JournalError {
    #[error(
        "Unable to read the forward journal {}: {}. Without it (remove it) data that was forwarded \
         when the last run was killed may be there twice or in part", path.display(), reason(source)
    )]
    Read { path: PathBuf, source: io::Error },
    #[error("Unable to write the forward journal {}: {}", path.display(), reason(source))]
    Write { path: PathBuf, source: io::Error },
    #[error(
        "The forward journal {} belongs to a run that is not over. Wait for its end, give this run a rescue \
         file of its own (-r), or let it do without a journal (--no-forward-journal)", path.display()
    )]
    InUse { path: PathBuf },
    #[error("Unable to complete the forwarded data in {}: {}", path.display(), reason(source))]
    Complete { path: PathBuf, source: io::Error },
    #[error("Unable to correct the rescue file {}: {}", path.display(), reason(source))]
    Rescue { path: PathBuf, source: io::Error },
}

/// Path of the journal that belongs to a rescue file.
#[must_use]
pub fn path_for(rescue: &Path) -> PathBuf {
    with_suffix(rescue, ".journal")
}

/// A journal that is written.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: Arc<File>,
    /// End of the last whole record.
    len: u64,
    /// Begin of the last record.
    last: u64,
    buffer: Vec<u8>,
}

/// Checksum of the bytes of the rescue file before a position.
fn rescue_tail(rescue: &Path, end: u64) -> io::Result<u32> {
    let begin = end.saturating_sub(format::TAIL_LEN as u64);
    let mut tail = vec![0; (end - begin) as usize];
    File::open(rescue)?.read_exact_at(&mut tail, begin)?;
    Ok(tail_checksum(&tail))
}

/// Checksum of what names the running system: as long as it is the same, nothing that was written has
/// been lost. 0 if there is nothing that names it.
fn running_system() -> u32 {
    let name = std::fs::read("/proc/sys/kernel/random/boot_id");
    name.map_or(0, |name| crc32fast::hash(&name))
}

impl Journal {
    /// Begins an empty journal, which replaces an old one. Everything that the rescue file says up to
    /// `rescue_len` and all data forwarded until now must be on the disk.
    ///
    /// # Errors
    /// It cannot be written, or is that of another run, which goes on.
    pub fn begin(rescue: &Path, rescue_len: u64) -> Result<Self, JournalError> {
        let path = path_for(rescue);
        if let Ok(other) = OpenOptions::new().write(true).open(&path)
            && !lock_if_possible(&other)
        {
            return Err(JournalError::InUse { path });
        }
        Self::replace(path, rescue, rescue_len)
    }

    /// Begins a new journal in place of this one, as [`Journal::begin`] does.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn begin_again(&self, rescue: &Path, rescue_len: u64) -> Result<Self, JournalError> {
        Self::replace(self.path.clone(), rescue, rescue_len)
    }

    fn replace(path: PathBuf, rescue: &Path, rescue_len: u64) -> Result<Self, JournalError> {
        let create = || {
            let new = with_suffix(&path, ".new");
            let mut options = OpenOptions::new();
            // Forwarded data may be secret; the targets' own modes are not known here.
            options.write(true).create(true).truncate(true).mode(0o600);
            let file = options.open(&new)?;
            // Tells other runs that this one is there. Nobody else knows the file yet.
            lock_if_possible(&file);
            let begin = Begin {
                rescue_len,
                rescue_tail: rescue_tail(rescue, rescue_len)?,
                system: running_system(),
            };
            file.write_all_at(&format::header(&begin), 0)?;
            file.sync_data()?;
            std::fs::rename(&new, &path)?;
            File::open(folder(&path))?.sync_all()?;
            Ok(file)
        };
        match create() {
            Ok(file) => Ok(Self {
                path,
                file: Arc::new(file),
                len: format::HEADER_LEN as u64,
                last: format::HEADER_LEN as u64,
                buffer: Vec::new(),
            }),
            Err(source) => Err(JournalError::Write { path, source }),
        }
    }

    /// Enters what a task forwards. The outer error means that the journal cannot be used any more
    /// and the run must end; the inner one that this task cannot be entered.
    ///
    /// # Errors
    /// See above.
    pub fn enter(&mut self, task: &[u8], pieces: &[Piece<'_>]) -> Result<io::Result<()>, JournalError> {
        self.buffer.clear();
        format::encode(&mut self.buffer, task, pieces);
        if let Err(error) = self.file.write_all_at(&self.buffer, self.len) {
            self.cut(self.len)?;
            return Ok(Err(error));
        }
        self.last = self.len;
        self.len += self.buffer.len() as u64;
        if self.buffer.capacity() > KEPT_BUFFER {
            self.buffer = Vec::new();
        }
        Ok(Ok(()))
    }

    /// Takes the last record back.
    ///
    /// # Errors
    /// It is still there. The run must end: the next one will take the task for done.
    pub fn take_back(&mut self) -> Result<(), JournalError> {
        self.len = self.last;
        self.cut(self.len)
    }

    fn cut(&self, len: u64) -> Result<(), JournalError> {
        self.file.set_len(len).map_err(|source| JournalError::Write {
            path: self.path.clone(),
            source,
        })
    }

    /// The file, to be synchronised.
    #[must_use]
    pub fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// It is large enough for a checkpoint.
    #[must_use]
    pub fn is_large(&self) -> bool {
        self.len >= CHECKPOINT_BYTES
    }

    /// Removes the journal at an orderly end: the rescue file names all its tasks.
    ///
    /// # Errors
    /// It is still there.
    pub fn remove(self) -> Result<(), JournalError> {
        std::fs::remove_file(&self.path).map_err(|source| JournalError::Write {
            path: self.path,
            source,
        })
    }
}
