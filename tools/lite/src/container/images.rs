//! Images on a node: each is fetched once into the cache of the node, and loaded once by engines that keep
//! images themselves.

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime};

use pegasus_kickstart::interrupts::Interrupts;
use rustix::fs::{FlockOperation, flock};

use super::ContainerError;
use crate::cache::{Cache, Entry, LOADED, Wanted, key_of, pause, read};
use crate::data::{DataError, Mover};
use crate::description::Container;
use crate::messages::Log;

/// The images of this user on a node.
#[derive(Debug)]
pub(super) struct Images {
    cache: Cache,
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
    _entry: Option<Entry>,
}

impl Images {
    /// Opens the cache beside the directories of jobs.
    ///
    /// # Errors
    /// It cannot be made.
    pub(super) fn open(base: &Path, log: &Log) -> std::io::Result<Self> {
        Ok(Self {
            cache: Cache::open(base, log)?,
            log: log.clone(),
        })
    }

    /// Returns the image of a job that fetches it, and fetches it unless it is there. `run` distinguishes
    /// images without a known checksum.
    ///
    /// # Errors
    /// It cannot be fetched, differs from its checksum, or a signal arrived.
    pub(super) fn fetched(
        &self,
        container: &Container,
        run: &Path,
        mover: &mut Mover,
        interrupts: &mut dyn Interrupts,
    ) -> Result<Image, ContainerError> {
        let checksum = mover.expected(&container.verify)?;
        let key = match checksum.first() {
            Some((_, sha256)) => key_of(sha256).unwrap_or_else(|| hashed(sha256)),
            None => {
                let sources: Vec<_> = container.fetch.iter().map(|entry| &entry["src_urls"]).collect();
                hashed(&(serde_json::to_string(&sources).unwrap_or_default(), run))
            }
        };
        let wanted = Wanted {
            key: &key,
            fetch: &container.fetch,
            verify: &container.verify,
            name: &container.image,
            headings: Some([
                "[Pegasus Lite] Staging in container",
                "[Pegasus Lite] Checking file integrity for transferred container files",
            ]),
            limit: None,
        };
        let clock = Instant::now();
        let entry = self.cache.entry(&wanted, mover, interrupts);
        mover.data.stage_in += clock.elapsed().as_secs_f64();
        let entry = entry?;
        // Images have no limit, so none is too large.
        let entry = entry.ok_or(DataError::NoResult)?;
        Ok(Image {
            file: entry.file.clone(),
            key,
            _entry: Some(entry),
        })
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

    /// Returns the name of an image in an engine that keeps images, and loads it unless it is there.
    /// `is_there` asks the engine for a name, `load` makes it read a file and returns the name.
    ///
    /// # Errors
    /// It cannot be loaded, or a signal arrived.
    pub(super) fn loaded(
        &self,
        image: &Image,
        engine: &str,
        interrupts: &mut dyn Interrupts,
        is_there: &mut dyn FnMut(&str, &mut dyn Interrupts) -> Result<bool, ContainerError>,
        load: &mut dyn FnMut(&Path, &mut dyn Interrupts) -> Result<String, ContainerError>,
    ) -> Result<String, ContainerError> {
        let mut note = self.cache.open_file(&format!("{}.{engine}{LOADED}", image.key))?;
        let known = read(&mut note)?;
        if !known.is_empty() && is_there(&known, interrupts)? {
            note.set_modified(SystemTime::now())?;
            return Ok(known);
        }
        while flock(&note, FlockOperation::NonBlockingLockExclusive).is_err() {
            pause(interrupts)?;
        }
        // Another job may have loaded it meanwhile.
        let latest = read(&mut note)?;
        if latest != known && !latest.is_empty() {
            return Ok(latest);
        }
        self.log.heading("[Pegasus Lite] Loading the container image");
        let name = load(&image.file, interrupts)?;
        note.set_len(0)?;
        note.seek(SeekFrom::Start(0))?;
        note.write_all(name.as_bytes())?;
        Ok(name)
    }
}

fn hashed(of: &impl Hash) -> String {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}
