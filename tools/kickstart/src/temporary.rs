//! Temporary files. Files that capture a stream have no name where the file system allows it, so none is left
//! behind however the process ends. Files that the job opens have a name until they are dropped; [`sweep`]
//! removes those of processes that were killed.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

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

/// End of the names of mailboxes. The original kickstart never uses it, so its files are never swept.
const MAILBOX_SUFFIX: &str = ".pmc";

/// Returns a name that is unique to this boot and this namespace of process ids: directories may be shared
/// with other machines and containers, where the same ids belong to other processes.
fn machine() -> Option<&'static str> {
    static MACHINE: OnceLock<Option<String>> = OnceLock::new();
    let read = || {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let space = fs::metadata("/proc/self/ns/pid").ok()?.ino();
        Some(format!("{}-{space}", boot.split('-').next()?))
    };
    MACHINE.get_or_init(read).as_deref()
}

/// Removes the mailboxes of killed processes from a directory. Their names say which process they belong to.
pub fn sweep(directory: &Path) {
    let Some(machine) = machine() else { return };
    let owner = |name: &OsStr| {
        let name = name.to_str()?.strip_prefix("ks.")?.strip_suffix(MAILBOX_SUFFIX)?;
        let (_, rest) = name.split_once(&format!(".{machine}-"))?;
        rest.split_once('.')?.0.parse().ok()
    };
    for entry in directory.read_dir().into_iter().flatten().flatten() {
        if let Some(pid) = owner(&entry.file_name())
            && has_ended(pid)
        {
            // Another process may sweep, too. Those of other users stay.
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Returns whether a process has ended, perhaps without its parent having noticed.
fn has_ended(pid: u32) -> bool {
    match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => stat
            .rsplit_once(") ")
            .is_some_and(|(_, rest)| rest.starts_with(['Z', 'X'])),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

fn in_memory(stream: &str) -> io::Result<File> {
    Ok(memfd_create(format!("ks.{stream}"), MemfdFlags::CLOEXEC)?.into())
}

/// Where a file to which the job appends by name can be if no directory for temporary files will do.
const MEMORY_DIRECTORY: &str = "/dev/shm";

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
    /// No file can be made, not even in memory; or jobs may not open one there, because a task server is
    /// closed to them.
    pub fn new(directories: &[PathBuf], purpose: &str) -> io::Result<Self> {
        Self::in_one_of(
            directories
                .iter()
                .map(PathBuf::as_path)
                .chain([Path::new(MEMORY_DIRECTORY)]),
            purpose,
        )
    }

    fn in_one_of<'d>(directories: impl Iterator<Item = &'d Path>, purpose: &str) -> io::Result<Self> {
        for directory in directories {
            let made = match machine() {
                Some(machine) => Builder::new()
                    .prefix(&format!("ks.{purpose}.{machine}-{}.", std::process::id()))
                    .suffix(MAILBOX_SUFFIX)
                    .append(true)
                    .tempfile_in(directory),
                None => named(directory, purpose),
            };
            if let Ok(file) = made {
                return Ok(Self::Named(file));
            }
        }
        // The job opens it through this process, which must not be opened to its tasks for that.
        if !nix::sys::prctl::get_dumpable()? {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                "no directory for temporary files can be written: set TMPDIR",
            ));
        }
        let file = in_memory(purpose)?;
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
    fn mailboxes_of_killed_processes_are_swept() {
        let folder = tempfile::tempdir().unwrap();
        let live = Mailbox::new(&[folder.path().into()], "meta").unwrap();
        let machine = machine().unwrap();
        // No process has such a large id.
        let killed = format!("ks.meta.{machine}-{}.AbCdEf.pmc", i32::MAX);
        let others = [
            "ks.meta.original".to_owned(),
            format!("ks.meta.0-1-{}.AbCdEf.pmc", i32::MAX),
        ];
        for name in others.iter().chain([&killed]) {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        sweep(folder.path());
        assert!(live.path().exists() && !folder.path().join(killed).exists());
        assert!(others.iter().all(|name| folder.path().join(name).exists()));
    }

    #[test]
    fn without_a_directory_files_are_in_memory() {
        let nowhere = ["/nonexistent".into()];
        assert!(capture(&nowhere, "out").is_ok());
        let mailbox = || Mailbox::in_one_of(nowhere.iter().map(PathBuf::as_path), "meta");
        for mailbox in [Mailbox::new(&nowhere, "meta").unwrap(), mailbox().unwrap()] {
            std::fs::write(mailbox.path(), "k=v").unwrap();
            assert_eq!(mailbox.file().metadata().unwrap().len(), 3);
        }
        // A process that is closed to its jobs stays so.
        nix::sys::prctl::set_dumpable(false).unwrap();
        let (closed, still) = (mailbox(), nix::sys::prctl::get_dumpable().unwrap());
        nix::sys::prctl::set_dumpable(true).unwrap();
        assert!(closed.is_err() && !still);
    }
}
