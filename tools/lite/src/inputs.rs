//! Inputs of a job: through the cache of the node, or by the job itself.

use monitord_compat::lite_log::Step;
use pegasus_kickstart::interrupts::Interrupts;
use pmc_job_files::{Description, Entry, Verified};
use pmc_node_files::key_of;
use pmc_node_files::store::Limit;

use crate::cache::{Cache, CacheRequest};
use crate::data::{DataError, Direction, Mover};
use crate::directory::JobDirectory;
use crate::kept::Kept;

/// Fetches and verifies the inputs. `own` is the directory that this process has made on the node; `kept` has
/// the checkpoint files, if the run keeps them.
///
/// # Errors
/// An input cannot be fetched, differs from its checksum, or a signal arrived.
pub(crate) fn fetch(
    description: &Description,
    own: Option<&JobDirectory>,
    kept: Option<&Kept>,
    interrupts: &mut dyn Interrupts,
    mover: &mut Mover,
) -> Result<(), DataError> {
    if !description.stage_in.is_empty() || description.work_directory.is_none() {
        mover.log.heading(Step::StageIn);
    }
    let shared = match own {
        Some(own) => Shared::fetch(description, own, interrupts, mover)?,
        None => Shared::default(),
    };
    if shared.copies.is_empty() && shared.verified.is_empty() {
        mover.transfer(&description.stage_in, Direction::In, interrupts)?;
    } else {
        let is_missing = |entry: &&Entry| !shared.has(entry);
        let missing = description.stage_in.iter().filter(is_missing);
        mover.transfer(&missing.cloned().collect::<Vec<_>>(), Direction::In, interrupts)?;
    }
    // What the run has kept is never older than what is at the staging site.
    if !kept.is_some_and(Kept::restore) {
        checkpoints(&description.checkpoint_in, Direction::In, interrupts, mover)?;
    }
    mover.make_executable(&description.executables)?;
    let is_open = |file: &&Verified| !shared.verified.contains(&file.lfn);
    let open = description.verify.iter().filter(is_open);
    if open.clone().next().is_some() {
        mover.log.heading(Step::CheckInputs);
        if let Err(error) = mover.verify(open) {
            if matches!(error, DataError::Integrity(_)) {
                shared.discard(interrupts)?;
            }
            return Err(error);
        }
    }
    Ok(())
}

/// Inputs that came through the cache.
#[derive(Debug, Default)]
struct Shared {
    cache: Option<Cache>,
    /// Names and keys of those that were there.
    copies: Vec<(String, String)>,
    /// Names of those that this job has fetched and verified.
    verified: Vec<String>,
}

impl Shared {
    /// Brings the inputs that jobs share into the directory of the job: it gets copies, which it may change.
    fn fetch(
        description: &Description,
        own: &JobDirectory,
        interrupts: &mut dyn Interrupts,
        mover: &mut Mover,
    ) -> Result<Self, DataError> {
        let mut this = Self::default();
        let is_shared = |file: &&Verified| description.shared.contains(&file.lfn);
        let mut shared = description.verify.iter().filter(is_shared).peekable();
        if shared.peek().is_some() {
            this.cache = Cache::open(own.path().parent().unwrap_or(own.path()), &mover.log);
        }
        let Some(cache) = &this.cache else {
            return Ok(this);
        };
        for file in shared {
            let expected = mover.expected(std::slice::from_ref(file))?;
            let key = expected.first().and_then(|(_, sha256)| key_of(sha256));
            let is_it = |entry: &&Entry| entry.is_of(&file.lfn);
            let entry = description.stage_in.iter().find(is_it);
            let (Some(key), Some(entry)) = (key, entry) else {
                continue;
            };
            let request = CacheRequest {
                key: &key,
                fetch: std::slice::from_ref(entry),
                verify: std::slice::from_ref(file),
                name: &file.lfn,
                steps: None,
                limit: description.cache_limit.map_or(Limit::Part, Limit::Bytes),
                is_read_only: false,
            };
            let Some(entry) = cache.entry(&request, mover, interrupts)? else {
                continue;
            };
            let bytes = mover.copy(&entry.file, &file.lfn, interrupts)?;
            if entry.is_new {
                this.verified.push(file.lfn.clone());
            } else {
                mover.log.say(format_args!(
                    "{} ({bytes} bytes) is from the cache of the node",
                    file.lfn
                ));
                this.copies.push((file.lfn.clone(), key));
            }
            entry.release();
        }
        Ok(this)
    }

    fn has(&self, entry: &Entry) -> bool {
        let mut names = self.copies.iter().map(|(name, _)| name).chain(&self.verified);
        names.any(|name| entry.is_of(name))
    }

    /// Removes the inputs from the cache: one of them is wrong, and the next attempt shall not get it again.
    fn discard(&self, interrupts: &mut dyn Interrupts) -> Result<(), DataError> {
        if let Some(cache) = &self.cache {
            for (_, key) in &self.copies {
                cache.discard(key, interrupts)?;
            }
        }
        Ok(())
    }
}

/// Moves checkpoint files. The first attempt has none, so a failure is no failure of the job.
///
/// # Errors
/// A signal arrived.
pub(crate) fn checkpoints(
    list: &[Entry],
    direction: Direction,
    interrupts: &mut dyn Interrupts,
    mover: &mut Mover,
) -> Result<(), DataError> {
    if list.is_empty() {
        return Ok(());
    }
    mover.log.heading(match direction {
        Direction::In => Step::CheckpointIn,
        Direction::Out => Step::CheckpointOut,
    });
    match mover.transfer(list, direction, interrupts) {
        Err(error @ DataError::Transfers { .. }) => {
            mover
                .log
                .say(format_args!("No matter for checkpoint files: {error}"));
            Ok(())
        }
        moved => moved,
    }
}
