//! Files that tasks forward data to. The master alone writes them, so that data of different
//! tasks is never mixed; the most recently used ones are kept open.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

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
    /// Number of the use that was the last one of this file.
    used: u64,
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
pub fn most_open(wanted: Option<u32>, limit: u64) -> Result<usize, TooManyFiles> {
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

    /// Appends data to a file, which is made if it is not there, with its folders. If not
    /// everything can be written, what was written is cut off again. What went wrong has been
    /// logged when this returns false.
    pub fn append(&mut self, target: &[u8], data: &[u8]) -> bool {
        let path = Path::new(OsStr::from_bytes(target));
        self.uses += 1;
        if let Some(entry) = self.open.get_mut(target) {
            self.hits += 1;
            entry.used = self.uses;
        } else {
            self.make_room();
            match open(path) {
                Ok(file) => {
                    self.open.insert(
                        target.to_vec(),
                        Entry {
                            file,
                            used: self.uses,
                        },
                    );
                }
                Err(error) => {
                    let (number, reason) = (error.raw_os_error().unwrap_or(0), reason(&error));
                    tracing::error!("Error opening file {}: errno {number}: {reason}", path.display());
                    tracing::error!("Number of open files: {}, max: {}", self.open.len(), self.most);
                    return false;
                }
            }
        }
        let Some(entry) = self.open.get_mut(target) else {
            return false;
        };
        if let Err(error) = append(&entry.file, data) {
            tracing::error!("fflush failed on file {}: {}", path.display(), reason(&error));
            return false;
        }
        true
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

fn append(mut file: &File, data: &[u8]) -> io::Result<()> {
    let before = file.metadata()?;
    file.write_all(data).inspect_err(|_| {
        if before.is_file() {
            // A torn record would be worse than none; if this fails, too, nothing can be done.
            let _ = file.set_len(before.len());
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_many_are_kept_open() {
        assert_eq!(most_open(None, 1024).unwrap(), 256);
        assert_eq!(most_open(None, 256).unwrap(), 192);
        assert_eq!(most_open(None, 10).unwrap(), 1);
        assert_eq!(most_open(Some(1000), 1024).unwrap(), 1000);
        assert_eq!(
            most_open(Some(2000), 1024).unwrap_err().to_string(),
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
                assert!(files.append(&name(n), n.as_bytes()));
                assert!(files.open.len() <= most);
            }
            assert!((files.hit_rate() - hits).abs() < 1e-9, "{most}");
        }
        assert_eq!(fs::read(folder.path().join("new/sub/b")).unwrap(), b"bbbbbbbbb");
    }

    #[test]
    fn failures_leave_no_pieces() {
        let folder = tempfile::tempdir().unwrap();
        let mut files = SharedFiles::new(4);
        assert!(!files.append(folder.path().as_os_str().as_bytes(), b"x"));
        fs::write(folder.path().join("file"), "").unwrap();
        assert!(!files.append(folder.path().join("file/x").as_os_str().as_bytes(), b"x"));
        assert!(!files.append(b"/dev/full", b"x"));
        assert!(!files.append(b"", b"x"));
    }
}
