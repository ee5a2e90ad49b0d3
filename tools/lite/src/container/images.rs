//! Images on a node: each is fetched once into the cache of the node, and loaded once by engines that keep
//! images themselves.

use std::collections::hash_map::DefaultHasher;
use std::fs::{self, File};
use std::hash::{Hash, Hasher};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime};

use monitord_compat::lite_log::Step;
use pegasus_kickstart::interrupts::Interrupts;
use pmc_job_files::Container;
use pmc_node_files::key_of;
use pmc_node_files::store::{Held, Limit, read_text};
use rustix::fs::{FlockOperation, flock};

use super::ContainerError;
use crate::cache::{Cache, CacheRequest, pause};
use crate::data::{DataError, Mover};
use crate::messages::Log;

/// End of the name of the file that an engine's jobs lock while they load an image.
const LOADING: &str = ".loading";

/// The images of this user on a node.
#[derive(Debug)]
pub(super) struct Images {
    /// Without it, each job fetches and loads its image itself.
    cache: Option<Cache>,
    log: Log,
}

/// An image in use.
#[derive(Debug)]
pub(super) struct Image {
    /// The file.
    pub(super) file: PathBuf,
    /// What distinguishes it from all others of the node.
    key: String,
    /// Keeps it in the cache, if it is there.
    _entry: Option<Held>,
}

/// A program that keeps images. It identifies each by what is in it.
pub(super) trait Keeper {
    /// Returns whether the image with an identifier is there.
    ///
    /// # Errors
    /// The program cannot be started, or a signal arrived.
    fn has(&self, identifier: &str, interrupts: &mut dyn Interrupts) -> Result<bool, ContainerError>;

    /// Loads an image. Returns its identifier. Meanwhile, no other image may be loaded: it could have the
    /// same name.
    ///
    /// # Errors
    /// It cannot be loaded, or a signal arrived.
    fn load(&self, file: &Path, interrupts: &mut dyn Interrupts) -> Result<String, ContainerError>;
}

impl Images {
    /// Opens the cache beside the directories of jobs, if it can be used.
    pub(super) fn open(base: &Path, log: &Log) -> Self {
        Self {
            cache: Cache::open(base, log),
            log: log.clone(),
        }
    }

    /// Returns the image of a job that fetches it, and fetches it unless it is there: into the cache, or
    /// without one into the directory `here` of the job. `run` distinguishes images without a known checksum.
    ///
    /// # Errors
    /// It cannot be fetched, differs from its checksum, or a signal arrived.
    pub(super) fn fetched(
        &self,
        container: &Container,
        (run, here): (&Path, &Path),
        mover: &mut Mover,
        interrupts: &mut dyn Interrupts,
    ) -> Result<Image, ContainerError> {
        let checksum = mover.expected(&container.verify)?;
        let key = match checksum.first() {
            Some((_, sha256)) => key_of(sha256).unwrap_or_else(|| hashed(sha256)),
            None => {
                let sources: Vec<_> = container.fetch.iter().map(|entry| &entry.src_urls).collect();
                hashed(&(sources, run))
            }
        };
        let request = CacheRequest {
            key: &key,
            fetch: &container.fetch,
            verify: &container.verify,
            name: &container.image,
            steps: Some([Step::FetchImage, Step::CheckImage]),
            limit: Limit::None,
            is_read_only: true,
        };
        let clock = Instant::now();
        let entry = self.entry(&request, here, mover, interrupts);
        mover.data.stage_in += clock.elapsed().as_secs_f64();
        let entry = entry?;
        let file = entry.as_ref().map(|entry| entry.file.clone());
        Ok(Image {
            file: file.unwrap_or_else(|| here.join(&container.image)),
            key,
            _entry: entry,
        })
    }

    /// Returns the entry of an image in the cache. `None` if the image is in the directory `here` instead.
    fn entry(
        &self,
        request: &CacheRequest<'_>,
        here: &Path,
        mover: &mut Mover,
        interrupts: &mut dyn Interrupts,
    ) -> Result<Option<Held>, DataError> {
        if let Some(cache) = &self.cache
            && let Some(entry) = cache.entry(request, mover, interrupts)?
        {
            return Ok(Some(entry));
        }
        mover
            .within(here, |mover| request.fetch_here(mover, interrupts))
            .map(|()| None)
    }

    /// Returns an image in a directory that other jobs see.
    ///
    /// # Errors
    /// It is not there, or its checksum cannot be read.
    pub(super) fn shared(
        &self,
        file: &Path,
        container: &Container,
        mover: &Mover,
    ) -> Result<Image, ContainerError> {
        let status = fs::metadata(file).map_err(|source| ContainerError::NoImage {
            file: file.to_owned(),
            source,
        })?;
        // Each cluster of jobs has its own copy.
        let known = mover.expected(&container.verify)?;
        let key = known.first().and_then(|(_, sha256)| key_of(sha256));
        Ok(Image {
            key: key.unwrap_or_else(|| hashed(&(file, status.len(), status.mtime(), status.mtime_nsec()))),
            file: file.to_owned(),
            _entry: None,
        })
    }

    /// Returns the identifier of an image in an engine that keeps images, and loads it unless it is there.
    ///
    /// # Errors
    /// It cannot be loaded, or a signal arrived.
    pub(super) fn loaded(
        &self,
        image: &Image,
        engine: &str,
        keeper: &dyn Keeper,
        interrupts: &mut dyn Interrupts,
    ) -> Result<String, ContainerError> {
        let Some(cache) = &self.cache else {
            self.log.heading(Step::LoadImage);
            return keeper.load(&image.file, interrupts);
        };
        let mut note = cache.store().note(&format!("{}.{engine}", image.key))?;
        let known = read_text(&mut note)?;
        if !known.is_empty() && keeper.has(&known, interrupts)? {
            note.set_modified(SystemTime::now())?;
            return Ok(known);
        }
        lock(&note, interrupts)?;
        // Another job may have loaded it meanwhile.
        let latest = read_text(&mut note)?;
        if latest != known && !latest.is_empty() {
            return Ok(latest);
        }
        let turn = cache.store().open_file(&format!("{engine}{LOADING}"))?;
        lock(&turn, interrupts)?;
        self.log.heading(Step::LoadImage);
        let identifier = keeper.load(&image.file, interrupts)?;
        note.set_len(0)?;
        note.seek(SeekFrom::Start(0))?;
        note.write_all(identifier.as_bytes())?;
        Ok(identifier)
    }
}

/// Locks a file alone. Waits for other jobs.
fn lock(file: &File, interrupts: &mut dyn Interrupts) -> Result<(), DataError> {
    while flock(file, FlockOperation::NonBlockingLockExclusive).is_err() {
        pause(interrupts)?;
    }
    Ok(())
}

fn hashed(of: &impl Hash) -> String {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}
