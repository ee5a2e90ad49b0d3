//! Lock of a catalog file that several processes change.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

use super::CatalogError;

/// A lock on a catalog file, held on a separate file beside it. A lock on the catalog itself would be lost
/// when the catalog is replaced by renaming.
pub(super) struct Locked {
    path: PathBuf,
    _lock: File,
}

impl Locked {
    /// Waits for the lock.
    pub(super) fn wait(path: &Path) -> Result<Self, CatalogError> {
        // Resolve links, so that all names of a catalog share the lock and the link is kept.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let mut name = path.as_os_str().to_owned();
        name.push(".lock");
        let lock = fs::OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&name);
        let lock = lock.map_err(CatalogError::io("open its lock file", &path))?;
        rustix::fs::flock(&lock, FlockOperation::LockExclusive)
            .map_err(|errno| CatalogError::io("lock it", &path)(errno.into()))?;
        Ok(Self { path, _lock: lock })
    }

    /// Replaces the content in one step, and keeps the permissions.
    pub(super) fn replace(&self, content: &str) -> Result<(), CatalogError> {
        let write = || -> io::Result<()> {
            let directory = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
            let mut file = tempfile::Builder::new()
                .prefix(".pegasus-rc-client-")
                .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666))
                .tempfile_in(directory.unwrap_or(Path::new(".")))?;
            if let Ok(meta) = fs::metadata(&self.path) {
                file.as_file().set_permissions(meta.permissions())?;
            }
            file.write_all(content.as_bytes())?;
            file.as_file().sync_all()?;
            file.persist(&self.path)?;
            Ok(())
        };
        write().map_err(CatalogError::io("write", &self.path))
    }
}

/// Reads a file. A missing file is empty.
pub(super) fn read(path: &Path) -> Result<String, CatalogError> {
    match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        result => result.map_err(CatalogError::io("read", path)),
    }
}
