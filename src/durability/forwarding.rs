//! What the master does with forwarded data: all files of a task or none, entered into the journal
//! before.

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pmc_dag::reason;
use rustc_hash::FxHashMap;

use crate::durability::forward_journal::{Journal, JournalError, Piece};
use crate::durability::shared_files::{Place, SharedFiles};
use crate::protocol::ForwardedData;

/// Device and inode numbers of a file.
type Identity = (u64, u64);

/// Shared files and the journal about them.
#[derive(Debug)]
pub struct Forwarding {
    files: SharedFiles,
    journal: Option<Journal>,
    /// The rescue file, if a journal is to be kept beside it.
    rescue: Option<PathBuf>,
    known: FxHashMap<Identity, Known>,
    /// Files that were written since the journal was begun.
    written: BTreeSet<Arc<Path>>,
    /// The same since they were last asked for.
    fresh: BTreeSet<Arc<Path>>,
}

/// A file that this run has written.
#[derive(Clone, Copy, Debug)]
struct Known {
    end: u64,
    /// Somebody else writes to it, too.
    foreign: bool,
}

/// Why the data of a task was not forwarded. There is nothing of it in any file.
#[derive(Debug)]
pub enum NotForwarded {
    /// A file could not be written; the index of the data. The reason has been logged.
    Piece(usize),
    /// The journal could not be written. The reason has been logged.
    Journal,
}

/// What is to be done with a piece of data.
struct Planned {
    place: Place,
    at: u64,
    foreign: bool,
}

impl Forwarding {
    /// Nothing is written yet. With the path of the rescue file, a journal is kept.
    #[must_use]
    pub fn new(files: SharedFiles, rescue: Option<PathBuf>) -> Self {
        Self {
            files,
            journal: None,
            rescue,
            known: FxHashMap::default(),
            written: BTreeSet::new(),
            fresh: BTreeSet::new(),
        }
    }

    /// See [`SharedFiles::hit_rate`].
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        self.files.hit_rate()
    }

    /// A journal must be begun before something is forwarded.
    #[must_use]
    pub fn wants_journal(&self) -> bool {
        self.rescue.is_some() && self.journal.is_none()
    }

    /// The journal is large: time for a checkpoint, which is [`Forwarding::sync_targets`],
    /// synchronising the rescue file, and [`Forwarding::begin_journal`].
    #[must_use]
    pub fn wants_checkpoint(&self) -> bool {
        self.journal.as_ref().is_some_and(Journal::is_large)
    }

    /// Begins a new journal; `rescue_len` is the length of the rescue file, all of it on the disk.
    ///
    /// # Errors
    /// It cannot be written; an old one is still there.
    pub fn begin_journal(&mut self, rescue_len: u64) -> Result<(), JournalError> {
        let Some(rescue) = &self.rescue else {
            return Ok(());
        };
        let begun = match &self.journal {
            Some(journal) => journal.begin_again(rescue, rescue_len),
            None => Journal::begin(rescue, rescue_len),
        };
        match begun {
            Ok(journal) => self.journal = Some(journal),
            // Both were told not to heed the other.
            Err(JournalError::InUse { path }) => {
                tracing::warn!(
                    "The forward journal {} belongs to another run: this one keeps none",
                    path.display()
                );
                self.rescue = None;
            }
            Err(error) => return Err(error),
        }
        self.written.clear();
        Ok(())
    }

    /// Waits until everything in the targets that the journal tells of is on the disk.
    ///
    /// # Errors
    /// A disk reports an error.
    pub fn sync_targets(&self) -> Result<(), JournalError> {
        for path in &self.written {
            crate::durability::sync::file_and_folder(path).map_err(|source| JournalError::Complete {
                path: path.to_path_buf(),
                source,
            })?;
        }
        Ok(())
    }

    /// The journal's file.
    #[must_use]
    pub fn journal_file(&self) -> Option<&Arc<std::fs::File>> {
        self.journal.as_ref().map(Journal::file)
    }

    /// Files that were written since the last call.
    pub fn take_fresh(&mut self) -> BTreeSet<Arc<Path>> {
        std::mem::take(&mut self.fresh)
    }

    /// Ends the journal, when the rescue file names all tasks whose data was forwarded.
    ///
    /// # Errors
    /// It is still there.
    pub fn end_journal(&mut self) -> Result<(), JournalError> {
        self.journal.take().map_or(Ok(()), Journal::remove)
    }

    /// Appends the data of a task. If something cannot be written, nothing is left of it. To be
    /// called for each task that can forward, also if it has no data.
    ///
    /// # Errors
    /// The outer one ends the run; the inner one fails the task.
    pub fn append(
        &mut self,
        task: &[u8],
        data: &[ForwardedData],
    ) -> Result<Result<(), NotForwarded>, JournalError> {
        let planned = match self.plan(data) {
            Ok(planned) => planned,
            Err(index) => return Ok(Err(NotForwarded::Piece(index))),
        };
        let is_file = |index: &usize| planned[*index].place.identity.is_some();
        // What cannot be taken back goes first.
        for index in (0..data.len()).filter(|index| !is_file(index)) {
            let ForwardedData { target, data } = &data[index];
            if self.files.append(target, data).is_err() {
                return Ok(Err(NotForwarded::Piece(index)));
            }
        }
        if let Some(journal) = &mut self.journal {
            let pieces: Vec<Piece<'_>> = planned
                .iter()
                .zip(data)
                .filter(|(planned, _)| planned.place.identity.is_some())
                .map(|(planned, data)| Piece {
                    target: planned.place.path.as_os_str().as_bytes(),
                    at: (!planned.foreign).then_some(planned.at),
                    data: &data.data,
                })
                .collect();
            if let Err(error) = journal.enter(task, &pieces)? {
                tracing::error!("Unable to write the forward journal: {}", reason(&error));
                return Ok(Err(NotForwarded::Journal));
            }
        }
        for index in (0..data.len()).filter(is_file) {
            let piece = &data[index];
            if let Err(written) = self.files.append(&piece.target, &piece.data) {
                self.files.cut(&piece.target, planned[index].at, written);
                for index in (0..index).rev().filter(is_file) {
                    let piece = &data[index];
                    self.files
                        .cut(&piece.target, planned[index].at, piece.data.len() as u64);
                }
                if let Some(journal) = &mut self.journal {
                    journal.take_back()?;
                }
                return Ok(Err(NotForwarded::Piece(index)));
            }
        }
        for (planned, data) in planned.iter().zip(data) {
            let Some(identity) = planned.place.identity else {
                continue;
            };
            if let Some(known) = self.known.get_mut(&identity) {
                known.end = planned.at + data.data.len() as u64;
            }
            for set in [&mut self.written, &mut self.fresh] {
                if !set.contains(&planned.place.path) {
                    set.insert(Arc::clone(&planned.place.path));
                }
            }
        }
        Ok(Ok(()))
    }

    /// Opens all files and finds out where the data will go. The error is the index of data whose
    /// file cannot be opened.
    fn plan(&mut self, data: &[ForwardedData]) -> Result<Vec<Planned>, usize> {
        let mut planned: Vec<Planned> = Vec::with_capacity(data.len());
        for (index, piece) in data.iter().enumerate() {
            let place = self.files.look(&piece.target).ok_or(index)?;
            let mut foreign = false;
            let mut at = place.len;
            if let Some(identity) = place.identity {
                let before = planned.iter().zip(data).rev();
                let before = before
                    .clone()
                    .find(|(planned, _)| planned.place.identity == place.identity);
                if let Some((planned, data)) = before {
                    at = planned.at + data.data.len() as u64;
                    foreign = planned.foreign;
                } else {
                    foreign = self.is_foreign(identity, &place);
                }
            }
            planned.push(Planned { place, at, foreign });
        }
        Ok(planned)
    }

    /// Whether others write to a file, too. Warns once.
    fn is_foreign(&mut self, identity: Identity, place: &Place) -> bool {
        let known = self.known.entry(identity).or_insert(Known {
            end: place.len,
            foreign: false,
        });
        if !known.foreign && known.end != place.len {
            known.foreign = true;
            tracing::warn!(
                "Others write to {}, too: if this run is killed, data forwarded to it may be there twice or \
                 in part",
                place.path.display()
            );
        }
        known.foreign
    }
}
