//! Memory that the processes of one host share, and locks that end with their processes.

use std::any::Any;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use memmap2::{MmapOptions, MmapRaw};
use mpi::collective::SystemOperation;
use mpi::topology::{Communicator as _, SimpleCommunicator};
use mpi::traits::{CommunicatorCollectives as _, Root as _};
use nix::fcntl::{FcntlArg, fcntl};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

/// A folder in memory.
const FOLDER: &str = "/dev/shm";

/// Maximum bytes of the path of the shared file.
const MAX_PATH: usize = 256;

/// Maps the same memory in all processes of a host, or in none. All of them must call this; the first one
/// creates the file. Each process locks the byte at its `offset`.
pub(super) fn share(
    host: &SimpleCommunicator,
    len: usize,
    offset: usize,
    create: fn(usize) -> io::Result<SharedFile>,
) -> io::Result<(MmapRaw, File)> {
    let created = (host.rank() == 0).then(|| create(len).ok()).flatten();
    let mut identity = [0; 2];
    let mut path = [0_u8; MAX_PATH];
    if let Some(shared) = &created {
        identity = shared.identity;
        let name = shared.path.as_os_str().as_bytes();
        if name.len() < MAX_PATH {
            path[..name.len()].copy_from_slice(name);
        }
    }
    let first = host.process_at_rank(0);
    first.broadcast_into(&mut identity[..]);
    first.broadcast_into(&mut path[..]);
    let name = path.split(|byte| *byte == 0).next().unwrap_or_default();
    let page = open(Path::new(OsStr::from_bytes(name)), identity, len, offset);
    let mut all_succeeded = 0;
    host.all_reduce_into(
        &i32::from(page.is_ok()),
        &mut all_succeeded,
        SystemOperation::min(),
    );
    // All processes have opened the file, so its name is not needed any more.
    drop(created);
    if all_succeeded == 0 {
        let other = || io::Error::other("another process of this host cannot open the shared memory");
        return Err(page.err().unwrap_or_else(other));
    }
    page
}

/// Returns whether no process locks the byte at `offset`. False if that cannot be known.
pub(super) fn is_unlocked(file: &File, offset: usize) -> bool {
    let mut lock = write_lock(offset);
    let result = fcntl(file, FcntlArg::F_OFD_GETLK(&mut lock));
    result.is_ok() && i32::from(lock.l_type) == libc::F_UNLCK
}

/// A file in memory. Processes of this user can open it while this value exists.
pub(super) struct SharedFile {
    path: PathBuf,
    /// Device and inode.
    identity: [u64; 2],
    /// Dropping it closes the file, and removes its name if it has one.
    _file: Box<dyn Any>,
}

impl SharedFile {
    /// A file without a name. Other processes open it through the descriptors of this process.
    pub(super) fn unnamed(len: usize) -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(memfd_create("pmc", flags)?);
        file.set_len(len as u64)?;
        // A process that shortened the file would end all others that use its memory.
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok(Self {
            path: format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()).into(),
            identity: identity(&file)?,
            _file: Box::new(file),
        })
    }

    /// A named file. The name stays if this process is killed before all others have opened the file.
    pub(super) fn named(len: usize) -> io::Result<Self> {
        let file = tempfile::Builder::new().prefix("pmc-").tempfile_in(FOLDER)?;
        file.as_file().set_len(len as u64)?;
        Ok(Self {
            path: file.path().to_owned(),
            identity: identity(file.as_file())?,
            _file: Box::new(file),
        })
    }

    #[cfg(test)]
    pub(super) fn open(&self, len: usize, offset: usize) -> io::Result<(MmapRaw, File)> {
        open(&self.path, self.identity, len, offset)
    }
}

fn identity(file: &File) -> io::Result<[u64; 2]> {
    let metadata = file.metadata()?;
    Ok([metadata.dev(), metadata.ino()])
}

/// Maps a shared file and locks the byte at `offset`.
fn open(path: &Path, expected: [u64; 2], len: usize, offset: usize) -> io::Result<(MmapRaw, File)> {
    let file: File = OpenOptions::new().read(true).write(true).open(path)?;
    // In another container, the path may be that of something else.
    if identity(&file)? != expected || file.metadata()?.len() != len as u64 {
        return Err(io::Error::other("the shared file is another one"));
    }
    fcntl(&file, FcntlArg::F_OFD_SETLK(&write_lock(offset)))?;
    Ok((MmapOptions::new().len(len).map_raw(&file)?, file))
}

fn write_lock(offset: usize) -> libc::flock {
    libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: offset as libc::off_t,
        l_len: 1,
        l_pid: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_cannot_be_shortened() {
        let shared = SharedFile::unnamed(64).unwrap();
        let (_, file) = shared.open(64, 0).unwrap();
        assert!(file.set_len(0).is_err() && file.set_len(65).is_err());
    }

    #[test]
    fn other_file_of_the_same_path_is_refused() {
        let shared = SharedFile::unnamed(64).unwrap();
        assert!(open(&shared.path, [0, 0], 64, 0).is_err());
        assert!(open(&shared.path, shared.identity, 65, 0).is_err());
        assert!(open(&shared.path, shared.identity, 64, 0).is_ok());
    }
}
