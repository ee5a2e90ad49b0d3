//! What a node can give to others.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;

use rustix::fs::{FlockOperation, flock};

use crate::{NodeFile, identity};

/// Maximum bytes of the text of a lock file.
const MAX_IDENTITY: u64 = 1 << 10;

/// Maximum files that a node remembers.
const MAX_FILES: usize = 1 << 12;

/// The files of a node that it can give.
#[derive(Debug, Default)]
pub struct Known {
    by_key: BTreeMap<String, NodeFile>,
    /// Keys, the oldest in front.
    order: VecDeque<String>,
}

impl Known {
    /// Adds a file, perhaps in place of the oldest one. Returns false if it was known.
    pub fn add(&mut self, file: NodeFile) -> bool {
        let key = file.key.clone();
        if let Some(before) = self.by_key.insert(key.clone(), file) {
            return self.by_key.get(&key) != Some(&before);
        }
        self.order.push_back(key);
        if self.order.len() > MAX_FILES
            && let Some(oldest) = self.order.pop_front()
        {
            self.by_key.remove(&oldest);
        }
        true
    }

    /// Returns the file with a key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&NodeFile> {
        self.by_key.get(key)
    }

    /// Returns all of them.
    pub fn files(&self) -> impl Iterator<Item = &NodeFile> {
        self.by_key.values()
    }
}

/// Opens a file and its lock, which keeps it. Its removal or replacement takes the exclusive lock. Never
/// waits: any task of this node can name files. A file that was changed in its store is not given.
///
/// # Errors
/// It cannot be opened, is being replaced, or was changed.
pub fn open(entry: &NodeFile) -> io::Result<(File, File)> {
    let mut lock: File = pmc_files::open(&entry.lock)?;
    flock(&lock, FlockOperation::NonBlockingLockShared)?;
    if lock.metadata()?.nlink() == 0 {
        return Err(io::ErrorKind::NotFound.into());
    }
    let mut known = String::new();
    io::Read::by_ref(&mut lock)
        .take(MAX_IDENTITY)
        .read_to_string(&mut known)?;
    let file = pmc_files::open(&entry.file)?;
    if known != identity(&file.metadata()?) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok((file, lock))
}

#[cfg(test)]
mod tests {
    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    /// The thread that gives files to other nodes must not wait for a task.
    #[test]
    fn only_regular_files_are_given() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::write(path("file"), "data").unwrap();
        let text = identity(&std::fs::metadata(path("file")).unwrap());
        std::fs::write(path("lock"), text).unwrap();
        mkfifo(&path("fifo"), Mode::S_IRWXU).unwrap();
        let open = |lock: &str, file: &str| {
            open(&NodeFile {
                key: "a".to_owned(),
                lock: path(lock),
                file: path(file),
                name: "f".to_owned(),
                bytes: 4,
            })
        };
        assert!(open("lock", "file").is_ok());
        assert!(open("lock", "fifo").is_err() && open("fifo", "file").is_err());
        assert!(open("lock", "missing").is_err() && open("file", "file").is_err());
        // A task of this node has changed the file, and its time back.
        let file = File::options().write(true).open(path("file")).unwrap();
        let time = file.metadata().unwrap().modified().unwrap();
        std::fs::write(path("file"), "DATA").unwrap();
        file.set_modified(time).unwrap();
        assert!(open("lock", "file").is_err());
    }
}
