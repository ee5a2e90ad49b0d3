//! Appends forwarded data to its targets, all data of a task or none. The journal is written first.

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pmc_dag::reason;
use pmc_system::planted::{Planted, is_planted};
use rustc_hash::FxHashMap;

use crate::durability::forward_journal::{Journal, JournalError, NewPiece};
use crate::durability::shared_files::{Place, SharedFiles};
use crate::protocol::ForwardedData;

/// Device and inode numbers of a file.
type Identity = (u64, u64);

/// Targets of forwarded data and their journal.
#[derive(Debug)]
pub struct Forwarding {
    files: SharedFiles,
    journal: Option<Journal>,
    /// The rescue file, if there must be a journal beside it.
    rescue: Option<PathBuf>,
    known: FxHashMap<Identity, Known>,
    /// Files written since the journal was begun.
    written: BTreeSet<Arc<Path>>,
    /// Files written since the last [`Forwarding::take_fresh`].
    fresh: BTreeSet<Arc<Path>>,
}

/// A file that this run has written.
#[derive(Clone, Copy, Debug)]
struct Known {
    end: u64,
    /// Other programs write to it, too.
    foreign: bool,
}

/// Why the data of a task was not forwarded. No file contains any of it.
#[derive(Debug)]
pub enum NotForwarded {
    /// A target could not be written. The value is the index of the data; the reason has been logged.
    Piece(usize),
    /// The journal could not be written. The reason has been logged.
    Journal,
}

/// Where a piece of data goes.
struct Planned {
    place: Place,
    at: u64,
    foreign: bool,
}

impl Forwarding {
    /// Creates the state before the first data. With the path of the rescue file, there is a journal.
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

    /// True if a journal must be begun before data is forwarded.
    #[must_use]
    pub fn wants_journal(&self) -> bool {
        self.rescue.is_some() && self.journal.is_none()
    }

    /// True if the journal is large enough for a checkpoint: [`Forwarding::sync_targets`], a sync of the
    /// rescue file, and [`Forwarding::begin_journal`].
    #[must_use]
    pub fn wants_checkpoint(&self) -> bool {
        self.journal.as_ref().is_some_and(Journal::is_large)
    }

    /// Begins a new journal. The first `rescue_len` bytes of the rescue file must be on the disk.
    ///
    /// # Errors
    /// The journal cannot be written; the old one, if any, is unchanged.
    pub fn begin_journal(&mut self, rescue_len: u64) -> Result<(), JournalError> {
        let Some(rescue) = &self.rescue else {
            return Ok(());
        };
        let journal = match &self.journal {
            Some(journal) => journal.begin_again(rescue, rescue_len),
            None => Journal::begin(rescue, rescue_len),
        };
        match journal {
            Ok(journal) => self.journal = Some(journal),
            // Both runs use the option that ignores the other's journal.
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

    /// Syncs all targets in the journal to the disk.
    ///
    /// # Errors
    /// The disk reports an error.
    pub fn sync_targets(&self) -> Result<(), JournalError> {
        for path in &self.written {
            crate::durability::sync::file_and_folder(path).map_err(|source| JournalError::Complete {
                path: path.to_path_buf(),
                source,
            })?;
        }
        Ok(())
    }

    /// Returns the file of the journal.
    #[must_use]
    pub fn journal_file(&self) -> Option<&Arc<std::fs::File>> {
        self.journal.as_ref().map(Journal::file)
    }

    /// Returns the files written since the last call.
    pub fn take_fresh(&mut self) -> BTreeSet<Arc<Path>> {
        std::mem::take(&mut self.fresh)
    }

    /// Removes the journal. The rescue file must name all tasks whose data was forwarded.
    ///
    /// # Errors
    /// The journal cannot be removed.
    pub fn end_journal(&mut self) -> Result<(), JournalError> {
        self.journal.take().map_or(Ok(()), Journal::remove)
    }

    /// Appends the data of a task, all or nothing. To be called for each task with forwards, even without
    /// data.
    ///
    /// # Errors
    /// The outer error ends the run; the inner error fails the attempt.
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
        // Pipes and devices first, because writes to them cannot be undone.
        for index in (0..data.len()).filter(|index| !is_file(index)) {
            let ForwardedData { target, data } = &data[index];
            if self.files.append(target, data).is_err() {
                return Ok(Err(NotForwarded::Piece(index)));
            }
        }
        if let Some(journal) = self.journal.as_mut().filter(|_| !is_planted(Planted::NoJournal)) {
            let pieces: Vec<NewPiece<'_>> = planned
                .iter()
                .zip(data)
                .filter(|(planned, _)| planned.place.identity.is_some())
                .map(|(planned, data)| NewPiece {
                    target: planned.place.path.as_os_str().as_bytes(),
                    at: (!planned.foreign).then_some(planned.at),
                    data: &data.data,
                })
                .collect();
            if let Err(error) = journal.append(task, &pieces)? {
                tracing::error!("Unable to write the forward journal: {}", reason(&error));
                return Ok(Err(NotForwarded::Journal));
            }
        }
        for index in (0..data.len()).filter(is_file) {
            let piece = &data[index];
            if let Err(written) = self.files.append(&piece.target, &piece.data) {
                self.files.truncate(&piece.target, planned[index].at, written);
                for index in (0..index).rev().filter(is_file) {
                    let piece = &data[index];
                    self.files
                        .truncate(&piece.target, planned[index].at, piece.data.len());
                }
                if let Some(journal) = &mut self.journal {
                    journal.remove_last()?;
                }
                return Ok(Err(NotForwarded::Piece(index)));
            }
        }
        for (planned, data) in planned.iter().zip(data) {
            let Some(identity) = planned.place.identity else {
                continue;
            };
            if let Some(known) = self.known.get_mut(&identity) {
                known.end = planned.at + data.data.len();
            }
            for set in [&mut self.written, &mut self.fresh] {
                if !set.contains(&planned.place.path) {
                    set.insert(Arc::clone(&planned.place.path));
                }
            }
        }
        Ok(Ok(()))
    }

    /// Opens all files and determines where the data goes. The error is the index of the data whose file
    /// cannot be opened.
    fn plan(&mut self, data: &[ForwardedData]) -> Result<Vec<Planned>, usize> {
        let mut planned: Vec<Planned> = Vec::with_capacity(data.len());
        for (index, piece) in data.iter().enumerate() {
            let place = self.files.inspect(&piece.target).ok_or(index)?;
            let mut foreign = false;
            let mut at = place.len;
            if let Some(identity) = place.identity {
                let before = planned.iter().zip(data).rev();
                let before = before
                    .clone()
                    .find(|(planned, _)| planned.place.identity == place.identity);
                if let Some((planned, data)) = before {
                    at = planned.at + data.data.len();
                    foreign = planned.foreign;
                } else {
                    foreign = self.is_foreign(identity, &place);
                }
            }
            planned.push(Planned { place, at, foreign });
        }
        Ok(planned)
    }

    /// True if other programs write to a file, too. Warns once.
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
