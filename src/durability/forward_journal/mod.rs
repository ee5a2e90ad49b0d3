//! The forward journal: forwarded data is in its targets exactly once, whenever a run is killed.
//!
//! The file `<rescue file>.journal` is a redo log. It exists while a run forwards data and after a run was
//! killed; an orderly end removes it. For each task that forwards data the master
//!
//! 1. appends a *record* to the journal: the task, and for each target the offset and the data;
//! 2. appends the data to the targets;
//! 3. writes `DONE` to the rescue file, then the logs.
//!
//! If step 1 or 2 fails, the master removes the data from the targets, then the record from the journal, and
//! the attempt has failed. The next run first completes the journal (`recover`): it writes the data of all
//! records to the targets, and the tasks of all records are done.
//!
//! # Why this is correct
//!
//! *The record is the commit.* It counts only if its checksum is right, so it exists completely or not at
//! all. Before it is written, no target and no rescue file contains anything of the task: the task runs
//! again. After it is written, the task is done, and recovery writes its data at the recorded offset: bytes
//! that are already there are overwritten with the same bytes, never repeated. Records of one target are
//! contiguous and in the order of the journal, because only the master writes, one task after the other. So a
//! task that is not done never lies before one that is, and nothing has to be removed from the middle.
//! Recovery changes neither the journal nor its own result when it is repeated. The journal is removed after
//! the rescue file names the tasks.
//!
//! *A failed step 2* is undone in the order data, record. If the run is killed in between, the record exists:
//! the task, which has succeeded, is done with all its data. No log contradicts this, because logs are
//! written later.
//!
//! *If the machine fails,* data since the last sync may be missing in part. The journal is read up to the
//! first incomplete record. Missing bytes of targets (a shorter file, or blocks of zeros) are written again.
//! A `DONE` that reached the disk without its record is detected: the header of the journal holds a length of
//! the rescue file up to which everything was on the disk, and each task with forwards has a record, even
//! without data. So a task with forwards that the rescue file names after that length, and the journal does
//! not, is not done, and its line is removed. (Not if the machine has not been rebooted since, because then
//! nothing was lost, nor if the rescue file was edited before that position.)
//!
//! One case is not detected: data in a target whose record did not reach the disk. The journal is synced
//! within the user's interval, by default a second, while systems keep new data in memory for longer (Linux:
//! 5 to 30 seconds). So this takes a machine that runs out of memory, writes the target early and fails
//! within the second. A sync before every write would close the gap, but delay every task. If the target has
//! other records, its length is found to be wrong and the user is warned. A *checkpoint* begins a new journal
//! when the old one is large, after a sync of targets and rescue file.
//!
//! *Targets that other programs write, too,* are skipped with a warning. If a target does not have the length
//! of the last write, its further pieces are recorded without an offset. Recovery touches no target whose
//! length or bytes this run cannot have left. After a crash, such a file may contain data twice or in part,
//! as with the original. Targets that are not regular files (pipes, devices) are never recorded.

mod format;
mod recover;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use format::{Begin, Content, Piece, Record, UnknownFormat, decode, encode, header, tail_checksum};
use pmc_dag::reason;
use pmc_files::{Destination, OFlags};
use pmc_system::disk;
pub use recover::{Recovered, recover};

use crate::durability::lock::lock_if_possible;
use crate::host::running_system;
use crate::options::{folder, with_suffix};
use crate::payload::Payload;

/// Length of a journal that makes a checkpoint due.
pub const CHECKPOINT_BYTES: u64 = 64 << 20;

/// Maximum data of a record that is put together in memory. Larger records are written in chunks.
const MAX_BUFFERED: u64 = 4 << 20;

/// The journal or one of its targets could not be read or written.
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

/// Data of one task for one file, to be recorded.
#[derive(Clone, Copy, Debug)]
pub struct NewPiece<'a> {
    /// As [`Piece::target`].
    pub target: &'a [u8],
    /// As [`Piece::at`].
    pub at: Option<u64>,
    /// As [`Piece::data`].
    pub data: &'a Payload,
}

impl NewPiece<'_> {
    /// Bytes of the data in the record.
    fn recorded_len(&self) -> u64 {
        self.at.map_or(0, |_| self.data.len())
    }
}

/// Returns the path of the journal of a rescue file.
#[must_use]
pub fn path_for(rescue: &Path) -> PathBuf {
    with_suffix(rescue, ".journal")
}

/// The journal of a live run.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: Arc<File>,
    /// End of the last complete record.
    len: u64,
    /// Start of the last record.
    last: u64,
    buffer: Vec<u8>,
}

/// Returns the checksum of the rescue file before a position.
fn rescue_tail(rescue: &Path, end: u64) -> io::Result<u32> {
    let begin = end.saturating_sub(format::TAIL_LEN as u64);
    let mut tail = vec![0; (end - begin) as usize];
    pmc_files::open(rescue)?.read_exact_at(&mut tail, begin)?;
    Ok(tail_checksum(&tail))
}

impl Journal {
    /// Begins an empty journal, which replaces an old one. The first `rescue_len` bytes of the rescue file
    /// and all forwarded data must be on the disk.
    ///
    /// # Errors
    /// The journal cannot be written, or belongs to another live run.
    pub fn begin(rescue: &Path, rescue_len: u64) -> Result<Self, JournalError> {
        let path = path_for(rescue);
        if let Ok(other) = pmc_files::open_for_writing(&path, OFlags::WRONLY, 0)
            && !lock_if_possible(&other)
        {
            return Err(JournalError::InUse { path });
        }
        Self::replace(path, rescue, rescue_len)
    }

    /// Replaces this journal by an empty one, under the conditions of [`Journal::begin`].
    ///
    /// # Errors
    /// The journal cannot be written.
    pub fn begin_again(&self, rescue: &Path, rescue_len: u64) -> Result<Self, JournalError> {
        Self::replace(self.path.clone(), rescue, rescue_len)
    }

    fn replace(path: PathBuf, rescue: &Path, rescue_len: u64) -> Result<Self, JournalError> {
        let create = || {
            let new = with_suffix(&path, ".new");
            // Forwarded data may be secret, and the modes of the targets are not known here.
            let file = Destination::named(&new)?.create_anew(0o600)?;
            // Marks the run as live. No other process knows the file yet.
            lock_if_possible(&file);
            let begin = Begin {
                rescue_len,
                rescue_tail: rescue_tail(rescue, rescue_len)?,
                system: running_system(),
            };
            disk::write_all_at(&file, &format::header(&begin), 0)?;
            disk::sync_data(&file)?;
            disk::rename(&new, &path)?;
            disk::sync_folder(folder(&path))?;
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

    /// Appends the record of a task.
    ///
    /// # Errors
    /// The outer error means that the journal is unusable and the run must end. The inner error means that
    /// the record was not written.
    pub fn append(&mut self, task: &[u8], pieces: &[NewPiece<'_>]) -> Result<io::Result<()>, JournalError> {
        let data: u64 = pieces.iter().map(NewPiece::recorded_len).sum();
        let written = if data <= MAX_BUFFERED {
            self.write_at_once(task, pieces)
        } else {
            self.write_in_chunks(task, pieces)
        };
        match written {
            Ok(len) => {
                self.last = self.len;
                self.len += len;
                Ok(Ok(()))
            }
            Err(error) => {
                self.truncate(self.len)?;
                Ok(Err(error))
            }
        }
    }

    /// Writes a record by one call. Returns its length.
    fn write_at_once(&mut self, task: &[u8], pieces: &[NewPiece<'_>]) -> io::Result<u64> {
        self.buffer.clear();
        let mut record = format::Encoder::begin(&mut self.buffer, task, pieces.len());
        for piece in pieces {
            record.piece(piece.target, piece.at, piece.recorded_len());
            if piece.at.is_some() {
                piece.data.for_each_chunk(|chunk| {
                    record.data(chunk);
                    Ok(())
                })?;
            }
        }
        record.end();
        disk::write_all_at(&self.file, &self.buffer, self.len)?;
        Ok(self.buffer.len() as u64)
    }

    /// Writes a record piece by piece. Its frame, which has the checksum, comes last: without it, there is no
    /// record. Returns its length.
    fn write_in_chunks(&self, task: &[u8], pieces: &[NewPiece<'_>]) -> io::Result<u64> {
        let heads = pieces
            .iter()
            .map(|piece| piece.target.len() as u64 + format::PIECE_HEAD_LEN);
        let data: u64 = pieces.iter().map(NewPiece::recorded_len).sum();
        let mut frame =
            format::Frame::new(format::body_head(task, 0).len() as u64 + heads.sum::<u64>() + data);
        let begin = self.len + format::FRAME_LEN as u64;
        let mut end = begin;
        let mut put = |bytes: &[u8]| {
            frame.update(bytes);
            disk::write_all_at(&self.file, bytes, end)?;
            end += bytes.len() as u64;
            Ok(())
        };
        put(&format::body_head(task, pieces.len()))?;
        for piece in pieces {
            put(&format::piece_head(piece.target, piece.at, piece.recorded_len()))?;
            if piece.at.is_some() {
                piece.data.for_each_chunk(&mut put)?;
            }
        }
        disk::write_all_at(&self.file, &frame.finish(), self.len)?;
        Ok(end - self.len)
    }

    /// Removes the last record.
    ///
    /// # Errors
    /// The record is still there. The run must end, because the next one will treat the task as done.
    pub fn remove_last(&mut self) -> Result<(), JournalError> {
        self.len = self.last;
        self.truncate(self.len)
    }

    fn truncate(&self, len: u64) -> Result<(), JournalError> {
        disk::set_len(&self.file, len).map_err(|source| JournalError::Write {
            path: self.path.clone(),
            source,
        })
    }

    /// Returns the file, to be synced.
    #[must_use]
    pub fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// True if a checkpoint is due.
    #[must_use]
    pub fn is_large(&self) -> bool {
        self.len >= CHECKPOINT_BYTES
    }

    /// Removes the journal. The rescue file must name all its tasks.
    ///
    /// # Errors
    /// The journal cannot be removed.
    pub fn remove(self) -> Result<(), JournalError> {
        disk::remove_file(&self.path).map_err(|source| JournalError::Write {
            path: self.path,
            source,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_the_same_whether_it_is_written_at_once_or_in_chunks() {
        let folder = tempfile::tempdir().unwrap();
        let rescue = folder.path().join("x.rescue");
        std::fs::write(&rescue, "").unwrap();
        let mut journal = Journal::begin(&rescue, 0).unwrap();
        let (large, small) = (Payload::from(vec![7; 300_000]), Payload::from(b"abc".to_vec()));
        let piece = |target, at, data| NewPiece { target, at, data };
        let pieces = [
            piece(b"/a", Some(5), &large),
            piece(b"/b", None, &large),
            piece(b"/a", Some(300_005), &small),
        ];
        let len = journal.write_in_chunks(b"task", &pieces).unwrap();
        let chunks = std::fs::read(&journal.path).unwrap();
        assert_eq!(journal.write_at_once(b"task", &pieces).unwrap(), len);
        assert_eq!(chunks[format::HEADER_LEN..], journal.buffer);
        assert_eq!(decode(&chunks).unwrap().records.len(), 1);
    }

    #[test]
    fn large_records_are_not_put_together_in_memory() {
        let folder = tempfile::tempdir().unwrap();
        let rescue = folder.path().join("x.rescue");
        std::fs::write(&rescue, "").unwrap();
        let mut journal = Journal::begin(&rescue, 0).unwrap();
        assert!(!journal.is_large());
        let data = |len: u64| Payload::from(vec![7; usize::try_from(len).unwrap()]);
        let (largest, larger) = (data(MAX_BUFFERED), data(MAX_BUFFERED + 1));
        let mut append = |data: &Payload, at| {
            journal.buffer.clear();
            let piece = NewPiece {
                target: b"/a",
                at,
                data,
            };
            journal.append(b"t", &[piece]).unwrap().unwrap();
            journal.buffer.len() as u64
        };
        assert!(append(&largest, Some(0)) > MAX_BUFFERED);
        assert_eq!(append(&larger, Some(MAX_BUFFERED)), 0);
        assert!(append(&larger, None) > 0, "it is not in the record");
        let bytes = std::fs::read(&journal.path).unwrap();
        assert_eq!(decode(&bytes).unwrap().records.len(), 3);
        assert_eq!(bytes.len() as u64, journal.len);
        journal.remove_last().unwrap();
        let bytes = std::fs::read(&journal.path).unwrap();
        assert_eq!(decode(&bytes).unwrap().records.len(), 2);
        journal.len = 64 << 20;
        assert!(journal.is_large());
    }
}
