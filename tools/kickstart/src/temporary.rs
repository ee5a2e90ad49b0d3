//! Temporary files. Files that capture a stream have no name where the file system allows it, so none is left
//! behind however the process ends. Files that the job opens have a name until they are dropped.

use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use rustix::fs::{MemfdFlags, memfd_create};
use tempfile::{Builder, NamedTempFile};

use crate::environment::Environment;

/// Variables that name a directory for temporary files, best first.
const VARIABLES: [&str; 5] = ["KICKSTART_TMP", "GRIDSTART_TMP", "TMP", "TEMP", "TMPDIR"];

/// Returns the candidate directories for temporary files, best first. Relative ones are in `directory`.
#[must_use]
pub fn directories(environment: &Environment, directory: &Path) -> Vec<PathBuf> {
    VARIABLES
        .iter()
        .filter_map(|name| environment.path(name.as_bytes()))
        .chain(["/tmp".into(), "/var/tmp".into()])
        .map(|path| directory.join(path))
        .collect()
}

/// A file that captures a stream.
#[derive(Debug)]
pub struct Capture {
    /// The open file, appended to.
    pub file: File,
    /// A name for the record.
    pub name: PathBuf,
}

/// Makes a file that captures the stream called `stream`, in the first directory that allows it, or in
/// memory.
///
/// # Errors
/// No file can be made, not even in memory.
pub fn capture(directories: &[PathBuf], stream: &str) -> io::Result<Capture> {
    for directory in directories {
        if let Ok(file) = unnamed(directory) {
            return Ok(Capture {
                file,
                name: directory.join(format!("ks.{stream}")),
            });
        }
        if let Ok(named) = named(directory, stream) {
            let (file, path) = named.into_parts();
            let name = path.to_path_buf();
            path.close()?;
            return Ok(Capture { file, name });
        }
    }
    capture_in_memory(stream)
}

/// Makes a file in memory that captures the stream called `stream`.
///
/// # Errors
/// The system has no memory files.
pub fn capture_in_memory(stream: &str) -> io::Result<Capture> {
    let file = in_memory(stream)?;
    // The same permissions as in a directory.
    file.set_permissions(Permissions::from_mode(0o600))?;
    fcntl(&file, FcntlArg::F_SETFL(OFlag::O_APPEND))?;
    Ok(Capture {
        file,
        name: format!("memfd:ks.{stream}").into(),
    })
}

fn unnamed(directory: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .mode(0o600)
        .custom_flags(libc::O_TMPFILE | libc::O_APPEND)
        .open(directory)
}

fn named(directory: &Path, stream: &str) -> io::Result<NamedTempFile> {
    Builder::new()
        .prefix(&format!("ks.{stream}."))
        .append(true)
        .tempfile_in(directory)
}

fn in_memory(stream: &str) -> io::Result<File> {
    Ok(memfd_create(format!("ks.{stream}"), MemfdFlags::CLOEXEC)?.into())
}

/// A file to which the job appends by name.
#[derive(Debug)]
pub enum Mailbox {
    /// A named file, removed when dropped.
    Named(NamedTempFile),
    /// A file in memory, named through the process file system.
    Memory(File, PathBuf),
}

impl Mailbox {
    /// Makes a mailbox in the first directory that allows it, or in memory.
    ///
    /// # Errors
    /// No file can be made, not even in memory.
    pub fn new(directories: &[PathBuf], purpose: &str) -> io::Result<Self> {
        for directory in directories {
            if let Ok(file) = named(directory, purpose) {
                return Ok(Self::Named(file));
            }
        }
        let file = in_memory(purpose)?;
        // A task server is closed to its jobs; this job needs the file.
        nix::sys::prctl::set_dumpable(true)?;
        let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()).into();
        Ok(Self::Memory(file, path))
    }

    /// Returns the open file.
    #[must_use]
    pub fn file(&self) -> &File {
        match self {
            Self::Named(file) => file.as_file(),
            Self::Memory(file, _) => file,
        }
    }

    /// Returns the name by which the job opens it.
    #[must_use]
    pub fn path(&self) -> &Path {
        match self {
            Self::Named(file) => file.path(),
            Self::Memory(_, path) => path,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn captures_leave_no_files() {
        let folder = tempfile::tempdir().unwrap();
        let capture = capture(&["/nonexistent".into(), folder.path().into()], "out").unwrap();
        writeln!(&capture.file, "x").unwrap();
        assert_eq!(capture.file.metadata().unwrap().len(), 2);
        assert_eq!(folder.path().read_dir().unwrap().count(), 0);
    }

    #[test]
    fn mailboxes_have_a_name_until_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let mailbox = Mailbox::new(&[folder.path().into()], "meta").unwrap();
        std::fs::write(mailbox.path(), "k=v").unwrap();
        assert_eq!(mailbox.file().metadata().unwrap().len(), 3);
        drop(mailbox);
        assert_eq!(folder.path().read_dir().unwrap().count(), 0);
    }

    #[test]
    fn without_a_directory_files_are_in_memory() {
        let nowhere = ["/nonexistent".into()];
        assert!(capture(&nowhere, "out").is_ok());
        let mailbox = Mailbox::new(&nowhere, "meta").unwrap();
        std::fs::write(mailbox.path(), "k=v").unwrap();
        assert_eq!(mailbox.file().metadata().unwrap().len(), 3);
    }
}
