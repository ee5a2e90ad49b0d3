//! Targets of forwarded data. Only the master writes them, so that data of different tasks is never
//! interleaved. The most recently used files stay open.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

use pmc_dag::reason;
use pmc_files::OFlags;
use pmc_system::disk;
use rustc_hash::FxHashMap;

use crate::payload::Payload;

/// A cache of open files.
#[derive(Debug)]
pub struct SharedFiles {
    max_open: usize,
    open: FxHashMap<Vec<u8>, Entry>,
    uses: u64,
    hits: u64,
}

#[derive(Debug)]
struct Entry {
    file: File,
    path: Arc<Path>,
    /// Number of the latest use of this file.
    used: u64,
}

/// State of a target before data is appended to it.
#[derive(Clone, Debug)]
pub struct Place {
    /// Device and inode numbers, the same for all names of a file. `None` for pipes and devices.
    pub identity: Option<(u64, u64)>,
    /// Length in bytes.
    pub len: u64,
    /// Absolute path without symbolic links.
    pub path: Arc<Path>,
}

/// The requested number of open files exceeds the system's limit.
#[derive(Debug, thiserror::Error)]
#[error("Setting for max cached files is greater than system limit: {requested} > {limit}")]
pub struct TooManyFiles {
    requested: u32,
    limit: u64,
}

/// Returns the maximum number of open files: as requested, or what the system's limit allows beside those of
/// `others`.
///
/// # Errors
/// The requested number exceeds the limit.
pub fn max_open(requested: Option<u32>, limit: u64, others: u64) -> Result<usize, TooManyFiles> {
    const DEFAULT: u64 = 256;
    /// Descriptors that the rest of the program needs.
    const RESERVED: u64 = 64;
    match requested {
        Some(requested) if u64::from(requested) > limit => Err(TooManyFiles { requested, limit }),
        Some(requested) => Ok(requested as usize),
        None if limit.saturating_sub(others) > DEFAULT => Ok(DEFAULT as usize),
        None => Ok(limit.saturating_sub(others).saturating_sub(RESERVED).max(1) as usize),
    }
}

impl SharedFiles {
    /// Creates an empty cache.
    #[must_use]
    pub fn new(max_open: usize) -> Self {
        Self {
            max_open,
            open: FxHashMap::default(),
            uses: 0,
            hits: 0,
        }
    }

    /// Share of uses whose file was already open; 1 if there were no uses.
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        if self.uses == 0 {
            1.0
        } else {
            self.hits as f64 / self.uses as f64
        }
    }

    /// Opens a file, which is created with its directories if it is missing, and returns its state. Logs an
    /// error and returns `None` if that fails.
    pub fn inspect(&mut self, target: &[u8]) -> Option<Place> {
        self.uses += 1;
        if self.open.contains_key(target) {
            self.hits += 1;
        }
        let failed = |error| {
            let path = as_path(target);
            tracing::error!("fstat failed on file {}: {}", path.display(), reason(&error));
        };
        let entry = self.open(target)?;
        let data = entry.file.metadata().map_err(failed).ok()?;
        Some(Place {
            identity: data.is_file().then(|| (data.dev(), data.ino())),
            len: data.len(),
            path: Arc::clone(&entry.path),
        })
    }

    /// Appends data to a file.
    ///
    /// # Errors
    /// Not all bytes were written; the error is the number of those that were. The reason has been logged.
    pub fn append(&mut self, target: &[u8], data: &Payload) -> Result<(), u64> {
        let entry = self.open(target).ok_or(0_u64)?;
        let mut written = 0;
        let appended = data.for_each_chunk(|chunk| write(&entry.file, chunk, &mut written));
        appended.map_err(|error| {
            let path = as_path(target);
            tracing::error!("fflush failed on file {}: {}", path.display(), reason(&error));
            written
        })
    }

    /// Removes the data that was appended last, unless another program has appended to the file since. Logs
    /// an error if that fails.
    pub fn truncate(&mut self, target: &[u8], from: u64, len: u64) {
        let Some(entry) = self.open(target) else { return };
        let data = entry.file.metadata();
        if data.is_ok_and(|data| data.is_file() && data.len() == from + len)
            && let Err(error) = disk::set_len(&entry.file, from)
        {
            let path = as_path(target);
            tracing::error!("Unable to shorten file {}: {}", path.display(), reason(&error));
        }
    }

    fn open(&mut self, target: &[u8]) -> Option<&Entry> {
        if !self.open.contains_key(target) {
            self.make_room();
            let path = as_path(target);
            let file = open_file(path).map_err(|error| {
                let (number, reason) = (error.raw_os_error().unwrap_or(0), reason(&error));
                tracing::error!("Error opening file {}: errno {number}: {reason}", path.display());
                tracing::error!(
                    "Number of open files: {}, max: {}",
                    self.open.len(),
                    self.max_open
                );
            });
            let path = path.canonicalize().or_else(|_| std::path::absolute(path));
            let entry = Entry {
                file: file.ok()?,
                path: path.map_or_else(|_| as_path(target).into(), Into::into),
                used: 0,
            };
            self.open.insert(target.to_vec(), entry);
        }
        let entry = self.open.get_mut(target)?;
        entry.used = self.uses;
        Some(entry)
    }

    fn make_room(&mut self) {
        while self.open.len() >= self.max_open {
            let oldest = self.open.iter().min_by_key(|(_, entry)| entry.used);
            let Some(oldest) = oldest.map(|(name, _)| name.clone()) else {
                return;
            };
            self.open.remove(&oldest);
        }
    }
}

/// Writes all of a chunk, and adds the bytes that were written.
fn write(file: &File, mut chunk: &[u8], written: &mut u64) -> io::Result<()> {
    while !chunk.is_empty() {
        match disk::write(file, chunk) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => {
                *written += count as u64;
                chunk = &chunk[count..];
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn open_file(path: &Path) -> io::Result<File> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        create_directory(folder).inspect_err(|error| {
            tracing::error!(
                "Unable to create directory {}: {}",
                folder.display(),
                reason(error)
            );
        })?;
    }
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE;
    pmc_files::open_output(path, flags, 0o666)
}

fn create_directory(directory: &Path) -> io::Result<()> {
    match fs::create_dir_all(directory) {
        // The path exists, but is not a directory.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(nix::errno::Errno::ENOTDIR.into()),
        other => other,
    }
}

fn as_path(target: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(target))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_open_files_depends_on_the_limit() {
        assert_eq!(max_open(None, 1024, 0).unwrap(), 256);
        assert_eq!(max_open(None, 256, 0).unwrap(), 192);
        assert_eq!(max_open(None, 1024, 900).unwrap(), 60);
        assert_eq!(max_open(None, 10, 0).unwrap(), 1);
        assert_eq!(max_open(Some(1000), 1024, 0).unwrap(), 1000);
        assert_eq!(
            max_open(Some(2000), 1024, 0).unwrap_err().to_string(),
            "Setting for max cached files is greater than system limit: 2000 > 1024"
        );
    }

    #[test]
    fn the_least_recently_used_file_is_closed() {
        let folder = tempfile::tempdir().unwrap();
        let name = |n: &str| {
            folder
                .path()
                .join("new/sub")
                .join(n)
                .into_os_string()
                .into_encoded_bytes()
        };
        for (max_open, hits) in [(2, 0.3), (1, 0.3), (3, 0.7)] {
            let mut files = SharedFiles::new(max_open);
            for n in ["a", "a", "b", "b", "c", "a", "b", "c", "c", "a"] {
                files.inspect(&name(n)).unwrap();
                files.append(&name(n), &n.as_bytes().to_vec().into()).unwrap();
                assert!(files.open.len() <= max_open);
            }
            assert!((files.hit_rate() - hits).abs() < 1e-9, "{max_open}");
        }
        assert_eq!(fs::read(folder.path().join("new/sub/b")).unwrap(), b"bbbbbbbbb");
    }

    #[test]
    fn files_that_cannot_be_opened_or_written_fail() {
        let folder = tempfile::tempdir().unwrap();
        let mut files = SharedFiles::new(4);
        assert!(files.inspect(folder.path().as_os_str().as_bytes()).is_none());
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(files.inspect(file.join("x").as_os_str().as_bytes()).is_none());
        assert!(files.inspect(b"").is_none());
        assert_eq!(files.inspect(b"/dev/full").unwrap().identity, None);
        assert_eq!(files.append(b"/dev/full", &b"x".to_vec().into()), Err(0));
    }

    #[test]
    fn only_own_data_is_truncated() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        let name = file.as_os_str().as_bytes();
        let mut files = SharedFiles::new(4);
        files.append(name, &b"abcdef".to_vec().into()).unwrap();
        files.truncate(name, 2, 3);
        assert_eq!(fs::read(&file).unwrap(), b"abcdef");
        files.truncate(name, 2, 4);
        assert_eq!(fs::read(&file).unwrap(), b"ab");
        assert_eq!(files.inspect(name).unwrap().len, 2);
    }
}
