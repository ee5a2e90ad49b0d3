//! Files that tasks forward data to. The master alone writes them, so that data of different
//! tasks is never mixed; the most recently used ones are kept open.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

use pmc_dag::reason;
use rustc_hash::FxHashMap;

/// Open shared files, at most a given number.
#[derive(Debug)]
pub struct SharedFiles {
    most: usize,
    open: FxHashMap<Vec<u8>, Entry>,
    uses: u64,
    hits: u64,
}

#[derive(Debug)]
struct Entry {
    file: File,
    path: Arc<Path>,
    /// Number of the use that was the last one of this file.
    used: u64,
}

/// What is known of a shared file before something is appended to it.
#[derive(Clone, Debug)]
pub struct Place {
    /// Device and inode numbers: the same for all names of a file. Nothing for pipes and devices.
    pub identity: Option<(u64, u64)>,
    /// Length in bytes.
    pub len: u64,
    /// Absolute path without links.
    pub path: Arc<Path>,
}

/// The number of files to keep open is above what the system allows.
#[derive(Debug, thiserror::Error)]
#[error("Setting for max cached files is greater than system limit: {wanted} > {limit}")]
pub struct TooManyFiles {
    wanted: u32,
    limit: u64,
}

/// Number of files that may be kept open: as asked for, or what the system's limit leaves.
///
/// # Errors
/// More were asked for than the limit allows.
pub fn max_open(wanted: Option<u32>, limit: u64) -> Result<usize, TooManyFiles> {
    const DEFAULT: u64 = 256;
    /// Descriptors that the rest of the program needs.
    const RESERVED: u64 = 64;
    match wanted {
        Some(wanted) if u64::from(wanted) > limit => Err(TooManyFiles { wanted, limit }),
        Some(wanted) => Ok(wanted as usize),
        None if limit > DEFAULT => Ok(DEFAULT as usize),
        None => Ok(limit.saturating_sub(RESERVED).max(1) as usize),
    }
}

impl SharedFiles {
    /// No file is open yet.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self {
            most,
            open: FxHashMap::default(),
            uses: 0,
            hits: 0,
        }
    }

    /// Part of the uses for which the file was open already; 1 if there were none.
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        if self.uses == 0 {
            1.0
        } else {
            self.hits as f64 / self.uses as f64
        }
    }

    /// Opens a file, which is made if it is not there, with its folders. What went wrong has been
    /// logged when this gives nothing.
    pub fn look(&mut self, target: &[u8]) -> Option<Place> {
        self.uses += 1;
        if self.open.contains_key(target) {
            self.hits += 1;
        }
        let failed = |error| {
            let path = shown(target);
            tracing::error!("fstat failed on file {}: {}", path.display(), reason(&error));
        };
        let entry = self.opened(target)?;
        let data = entry.file.metadata().map_err(failed).ok()?;
        Some(Place {
            identity: data.is_file().then(|| (data.dev(), data.ino())),
            len: data.len(),
            path: Arc::clone(&entry.path),
        })
    }

    /// Appends data to a file. What went wrong has been logged when this fails; the error is the
    /// number of bytes that were written nevertheless.
    ///
    /// # Errors
    /// Not everything was written.
    pub fn append(&mut self, target: &[u8], data: &[u8]) -> Result<(), u64> {
        let entry = self.opened(target).ok_or(0_u64)?;
        let mut written = 0;
        while written < data.len() {
            let error = match (&entry.file).write(&data[written..]) {
                Ok(0) => io::ErrorKind::WriteZero.into(),
                Ok(n) => {
                    written += n;
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => error,
            };
            let path = shown(target);
            tracing::error!("fflush failed on file {}: {}", path.display(), reason(&error));
            return Err(written as u64);
        }
        Ok(())
    }

    /// Cuts off what was appended last, unless somebody else has appended to the file since. A torn
    /// piece would be worse than none; if this fails, too, nothing can be done.
    pub fn cut(&mut self, target: &[u8], from: u64, len: u64) {
        let Some(entry) = self.opened(target) else { return };
        let data = entry.file.metadata();
        if data.is_ok_and(|data| data.is_file() && data.len() == from + len)
            && let Err(error) = entry.file.set_len(from)
        {
            let path = shown(target);
            tracing::error!("Unable to shorten file {}: {}", path.display(), reason(&error));
        }
    }

    fn opened(&mut self, target: &[u8]) -> Option<&Entry> {
        if !self.open.contains_key(target) {
            self.make_room();
            let path = shown(target);
            let file = open(path).map_err(|error| {
                let (number, reason) = (error.raw_os_error().unwrap_or(0), reason(&error));
                tracing::error!("Error opening file {}: errno {number}: {reason}", path.display());
                tracing::error!("Number of open files: {}, max: {}", self.open.len(), self.most);
            });
            let path = path.canonicalize().or_else(|_| std::path::absolute(path));
            let entry = Entry {
                file: file.ok()?,
                path: path.map_or_else(|_| shown(target).into(), Into::into),
                used: 0,
            };
            self.open.insert(target.to_vec(), entry);
        }
        let entry = self.open.get_mut(target)?;
        entry.used = self.uses;
        Some(entry)
    }

    fn make_room(&mut self) {
        while self.open.len() >= self.most {
            let oldest = self.open.iter().min_by_key(|(_, entry)| entry.used);
            let Some(oldest) = oldest.map(|(name, _)| name.clone()) else {
                return;
            };
            self.open.remove(&oldest);
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        make_folder(folder).inspect_err(|error| {
            tracing::error!(
                "Unable to create directory {}: {}",
                folder.display(),
                reason(error)
            );
        })?;
    }
    OpenOptions::new().append(true).create(true).open(path)
}

fn make_folder(folder: &Path) -> io::Result<()> {
    match fs::create_dir_all(folder) {
        // Something is there, but no folder.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(nix::errno::Errno::ENOTDIR.into()),
        other => other,
    }
}

fn shown(target: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(target))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_many_are_kept_open() {
        assert_eq!(max_open(None, 1024).unwrap(), 256);
        assert_eq!(max_open(None, 256).unwrap(), 192);
        assert_eq!(max_open(None, 10).unwrap(), 1);
        assert_eq!(max_open(Some(1000), 1024).unwrap(), 1000);
        assert_eq!(
            max_open(Some(2000), 1024).unwrap_err().to_string(),
            "Setting for max cached files is greater than system limit: 2000 > 1024"
        );
    }

    #[test]
    fn the_one_not_used_for_longest_is_closed() {
        let folder = tempfile::tempdir().unwrap();
        let name = |n: &str| {
            folder
                .path()
                .join("new/sub")
                .join(n)
                .into_os_string()
                .into_encoded_bytes()
        };
        for (most, hits) in [(2, 0.3), (1, 0.3), (3, 0.7)] {
            let mut files = SharedFiles::new(most);
            for n in ["a", "a", "b", "b", "c", "a", "b", "c", "c", "a"] {
                files.look(&name(n)).unwrap();
                files.append(&name(n), n.as_bytes()).unwrap();
                assert!(files.open.len() <= most);
            }
            assert!((files.hit_rate() - hits).abs() < 1e-9, "{most}");
        }
        assert_eq!(fs::read(folder.path().join("new/sub/b")).unwrap(), b"bbbbbbbbb");
    }

    #[test]
    fn what_cannot_be_opened_or_written() {
        let folder = tempfile::tempdir().unwrap();
        let mut files = SharedFiles::new(4);
        assert!(files.look(folder.path().as_os_str().as_bytes()).is_none());
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(files.look(file.join("x").as_os_str().as_bytes()).is_none());
        assert!(files.look(b"").is_none());
        assert_eq!(files.look(b"/dev/full").unwrap().identity, None);
        assert_eq!(files.append(b"/dev/full", b"x"), Err(0));
    }

    #[test]
    fn only_own_data_is_cut_off() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        let name = file.as_os_str().as_bytes();
        let mut files = SharedFiles::new(4);
        files.append(name, b"abcdef").unwrap();
        files.cut(name, 2, 3);
        assert_eq!(fs::read(&file).unwrap(), b"abcdef");
        files.cut(name, 2, 4);
        assert_eq!(fs::read(&file).unwrap(), b"ab");
        assert_eq!(files.look(name).unwrap().len, 2);
    }
}
