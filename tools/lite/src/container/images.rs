//! Images on a node: each is fetched once, and loaded once by engines that keep images themselves.
//!
//! The images of a user lie in a directory beside those of jobs. Jobs hold the lock of the image that they
//! use. What nobody holds and nobody has used for an hour is removed by the next job with a container.

use std::collections::hash_map::DefaultHasher;
use std::fs::{self, File, OpenOptions};
use std::hash::{Hash, Hasher};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use nix::unistd::getuid;
use pegasus_kickstart::interrupts::{Interrupt, Interrupts};
use pegasus_kickstart::wait::poll_interrupts;
use rustix::fs::{FlockOperation, flock};

use super::ContainerError;
use crate::data::{DataError, Direction, Mover};
use crate::description::Container;
use crate::directory::{make_private, remove_tree};
use crate::messages::{heading, log};

/// How long an image stays that nobody uses.
const KEPT: Duration = Duration::from_secs(3600);

/// Time between two looks at a lock.
const PAUSE: Duration = Duration::from_millis(50);

/// Suffix of lock files.
const LOCK: &str = ".lock";

/// Suffix of files with the names of loaded images.
const LOADED: &str = ".loaded";

/// The images of this user in a directory for jobs.
#[derive(Debug)]
pub(super) struct Images {
    directory: PathBuf,
}

/// An image in use.
#[derive(Debug)]
pub(super) struct Image {
    /// The file.
    pub(super) file: PathBuf,
    /// What distinguishes it from all others of the node.
    key: String,
    /// Holds the lock, if it is a file of the node's own.
    _lock: Option<File>,
}

impl Images {
    /// Opens the directory of images beside those of jobs, and removes what nobody uses.
    ///
    /// # Errors
    /// The directory cannot be made.
    pub(super) fn open(base: &Path) -> io::Result<Self> {
        let directory = base.join(format!(".pegasus-lite-{}-images", getuid()));
        make_private(&directory)?;
        let this = Self { directory };
        this.sweep();
        Ok(this)
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
            Some((_, sha256)) => sha256.to_ascii_lowercase(),
            None => {
                let sources: Vec<_> = container.fetch.iter().map(|entry| &entry["src_urls"]).collect();
                hashed(&(serde_json::to_string(&sources).unwrap_or_default(), run))
            }
        };
        let entry = self.directory.join(&key);
        let file = entry.join("image");
        loop {
            let lock = self.lock_file(&format!("{key}{LOCK}"))?;
            if flock(&lock, FlockOperation::NonBlockingLockShared).is_ok() && is_linked(&lock) {
                if file.exists() {
                    lock.set_modified(SystemTime::now())?;
                    return Ok(Image {
                        file,
                        key,
                        _lock: Some(lock),
                    });
                }
                // The system gives up the first lock for the second one, so others may be faster.
                if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() && is_linked(&lock) {
                    if !file.exists() {
                        fetch(container, &entry, &file, mover, interrupts)?;
                    }
                    continue;
                }
            }
            drop(lock);
            pause(interrupts)?;
        }
    }

    /// Returns an image in a directory that all nodes see.
    ///
    /// # Errors
    /// It is not there.
    pub(super) fn shared(&self, file: &Path) -> Result<Image, ContainerError> {
        let status = fs::metadata(file).map_err(|source| ContainerError::NoImage {
            file: file.to_owned(),
            source,
        })?;
        Ok(Image {
            key: hashed(&(file, status.len(), status.mtime(), status.mtime_nsec())),
            file: file.to_owned(),
            _lock: None,
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
        let mut note = self.lock_file(&format!("{}.{engine}{LOADED}", image.key))?;
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
        heading("[Pegasus Lite] Loading the container image");
        let name = load(&image.file, interrupts)?;
        note.set_len(0)?;
        note.seek(SeekFrom::Start(0))?;
        note.write_all(name.as_bytes())?;
        Ok(name)
    }

    fn lock_file(&self, name: &str) -> io::Result<File> {
        OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(nix::libc::O_NOFOLLOW)
            .open(self.directory.join(name))
    }

    /// Removes what nobody uses. What cannot be removed stays for the next sweep.
    fn sweep(&self) {
        for entry in fs::read_dir(&self.directory).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_old = entry
                .metadata()
                .and_then(|status| status.modified())
                .is_ok_and(|at| at.elapsed().is_ok_and(|age| age > KEPT));
            if !is_old || !(name.ends_with(LOCK) || name.ends_with(LOADED)) {
                continue;
            }
            let Ok(lock) = self.lock_file(&name) else { continue };
            if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
                continue;
            }
            let removed = match name.strip_suffix(LOCK) {
                Some(key) => match remove_tree(&self.directory.join(key)) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                    _ => Ok(()),
                },
                None => Ok(()),
            };
            let removed = removed.and_then(|()| fs::remove_file(entry.path()));
            if let Err(error) = removed {
                log(format_args!("the image {name} cannot be removed: {error}"));
            }
        }
    }
}

/// Fetches and verifies an image. Nothing is left of a failure.
fn fetch(
    container: &Container,
    entry: &Path,
    file: &Path,
    mover: &mut Mover,
    interrupts: &mut dyn Interrupts,
) -> Result<(), ContainerError> {
    heading("[Pegasus Lite] Staging in container");
    match remove_tree(entry) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => fs::create_dir(entry)?,
    }
    let fetched = mover.within(entry, |mover| {
        mover.transfer(&container.fetch, Direction::In, interrupts)?;
        if !container.verify.is_empty() {
            heading("[Pegasus Lite] Checking file integrity for transferred container files");
        }
        mover.verify(&container.verify)
    });
    let fetched = fetched
        .map_err(ContainerError::from)
        .and_then(|()| Ok(fs::rename(entry.join(&container.image), file)?));
    if fetched.is_err() {
        // The next job tries again in any case.
        let _ = remove_tree(entry);
    }
    fetched
}

/// Returns whether a sweep has left a lock file.
fn is_linked(lock: &File) -> bool {
    lock.metadata().is_ok_and(|status| status.nlink() > 0)
}

fn read(note: &mut File) -> io::Result<String> {
    let mut text = String::new();
    note.seek(SeekFrom::Start(0))?;
    note.read_to_string(&mut text)?;
    Ok(text.trim().to_owned())
}

/// Waits a moment.
///
/// # Errors
/// A signal arrived.
fn pause(interrupts: &mut dyn Interrupts) -> Result<(), DataError> {
    poll_interrupts(Some(PAUSE), None, interrupts)?;
    while let Some(interrupt) = interrupts.take() {
        if let Interrupt::Forward(signal) = interrupt {
            return Err(DataError::Signal(signal));
        }
    }
    Ok(())
}

fn hashed(of: &impl Hash) -> String {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_that_nobody_uses_are_removed() {
        let base = tempfile::tempdir().unwrap();
        let images = Images::open(base.path()).unwrap();
        let path = |name: &str| images.directory.join(name);
        let mut held = Vec::new();
        for key in ["old", "held", "new"] {
            fs::create_dir(path(key)).unwrap();
            fs::write(path(key).join("image"), "x").unwrap();
            let lock = images.lock_file(&format!("{key}{LOCK}")).unwrap();
            if key != "new" {
                lock.set_modified(SystemTime::now() - 2 * KEPT).unwrap();
            }
            if key == "held" {
                flock(&lock, FlockOperation::LockShared).unwrap();
                held.push(lock);
            }
        }
        Images::open(base.path()).unwrap();
        assert_eq!(
            ["old", "old.lock", "held", "new", "new.lock"].map(|name| path(name).exists()),
            [false, false, true, true, true]
        );
    }
}
