//! Waking a process of the same host that waits for a message.
//!
//! MPI has no way to wait that leaves the core to others. Processes of one host share a page in
//! memory with a bell for each: whoever sends a message rings the receiver's bell, and the receiver
//! sleeps until it rings. The bell says that a look is worth while, and nothing more: messages still
//! come by MPI, and who hears nothing looks now and then.
//!
//! Each process holds a lock on the place of its bell in the file behind the page. The system takes it away
//! when the process ends, however it does, so the others can tell who is gone.

use std::any::Any;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use memmap2::{MmapOptions, MmapRaw};
use mpi::collective::SystemOperation;
use mpi::topology::{Communicator as _, SimpleCommunicator};
use mpi::traits::{CommunicatorCollectives as _, Root as _};
use nix::fcntl::{FcntlArg, fcntl};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::thread::futex;

use crate::protocol::Rank;

/// Bytes of a bell: a cache line, so that bells do not disturb each other.
const BELL: usize = 64;

/// A folder in memory.
const FOLDER: &str = "/dev/shm";

/// Longest path of the shared file.
const LONGEST_PATH: usize = 256;

/// Each bell has three numbers.
#[derive(Clone, Copy)]
enum Part {
    /// How often it was rung.
    Rings = 0,
    /// Whether its owner sleeps.
    Sleeping = 1,
    /// Whether its owner hears it.
    Present = 2,
}

/// The bells of this host.
pub(super) struct Doorbells {
    page: MmapRaw,
    /// The file behind it, for the locks.
    file: File,
    /// Ranks by bell.
    ranks: Vec<i32>,
    own: usize,
    /// Every process of the program is on this host and has a bell.
    complete: bool,
}

impl Doorbells {
    /// Joins the other processes of this host, all of which call this, as do those of other hosts.
    /// None where memory cannot be shared.
    pub(super) fn join(world: &SimpleCommunicator) -> Option<Self> {
        let host = world.split_shared(world.rank());
        let (size, own) = (host.size() as usize, host.rank() as usize);
        let mut ranks = vec![0; size];
        host.all_gather_into(&world.rank(), &mut ranks[..]);
        let len = size * BELL;
        // Memory without a name leaves nothing behind, however the run ends; but not everywhere can
        // processes of one host look at each other's descriptors.
        let page = share(&host, len, Shared::nameless).or_else(|_| share(&host, len, Shared::named));
        let bells = page
            .map_err(|error| tracing::debug!("No doorbells: {error}"))
            .ok();
        let mut bells = bells.map(|(page, file)| Self {
            page,
            file,
            ranks,
            own,
            complete: false,
        });
        if let Some(bells) = &bells {
            bells.part(own, Part::Present).store(1, Ordering::SeqCst);
        }
        host.barrier();
        if let Some(bells) = &mut bells {
            let present = |bell| bells.part(bell, Part::Present).load(Ordering::SeqCst) == 1;
            bells.complete = size == world.size() as usize && (0..size).all(present);
        }
        bells
    }

    /// Whether every sender there is rings.
    pub(super) fn are_complete(&self) -> bool {
        self.complete
    }

    /// Rings the bell of a process, if it is on this host.
    pub(super) fn ring(&self, rank: Rank) {
        let Ok(rank) = i32::try_from(rank.0) else { return };
        // Sorted, since the order on the host is that in the world.
        let Ok(bell) = self.ranks.binary_search(&rank) else {
            return;
        };
        self.part(bell, Part::Rings).fetch_add(1, Ordering::SeqCst);
        if self.part(bell, Part::Sleeping).load(Ordering::SeqCst) == 1 {
            // A process that is not woken looks by itself a little later.
            let _ = futex::wake(self.part(bell, Part::Rings), futex::Flags::empty(), 1);
        }
    }

    /// Whether a process of this host has ended, in whatever way. False if that cannot be known.
    pub(super) fn is_gone(&self, rank: Rank) -> bool {
        let Some(bell) = i32::try_from(rank.0)
            .ok()
            .and_then(|rank| self.ranks.binary_search(&rank).ok())
        else {
            return false;
        };
        if self.part(bell, Part::Present).load(Ordering::SeqCst) == 0 {
            return false;
        }
        let mut lock = lock_of(bell);
        let known = fcntl(&self.file, FcntlArg::F_OFD_GETLK(&mut lock));
        known.is_ok() && i32::from(lock.l_type) == libc::F_UNLCK
    }

    /// How often the bell of this process was rung.
    pub(super) fn rings(&self) -> u32 {
        self.part(self.own, Part::Rings).load(Ordering::SeqCst)
    }

    /// Sleeps until the bell of this process is rung, unless it was since there were `heard` rings, or
    /// until `timeout` is over.
    pub(super) fn sleep(&self, heard: u32, timeout: Duration) {
        let Ok(timeout) = timeout.try_into() else { return };
        let sleeping = self.part(self.own, Part::Sleeping);
        sleeping.store(1, Ordering::SeqCst);
        // Whatever ended it, the caller looks.
        let rings = self.part(self.own, Part::Rings);
        let _ = futex::wait(rings, futex::Flags::empty(), heard, Some(&timeout));
        sleeping.store(0, Ordering::SeqCst);
    }

    #[expect(unsafe_code, reason = "memory that is shared with other processes")]
    fn part(&self, bell: usize, part: Part) -> &AtomicU32 {
        debug_assert!(bell < self.ranks.len());
        // SAFETY: the page has a bell for each rank, is aligned, lives as long as `self`, and is only
        // ever used through atomics.
        unsafe {
            AtomicU32::from_ptr(
                self.page
                    .as_mut_ptr()
                    .add(bell * BELL)
                    .cast::<u32>()
                    .add(part as usize),
            )
        }
    }
}

/// Maps the same memory in all processes of a host, or in none: all of them call this. The first makes it.
fn share(
    host: &SimpleCommunicator,
    len: usize,
    make: fn(usize) -> io::Result<Shared>,
) -> io::Result<(MmapRaw, File)> {
    let made = (host.rank() == 0).then(|| make(len).ok()).flatten();
    let mut identity = [0; 2];
    let mut path = [0_u8; LONGEST_PATH];
    if let Some(shared) = &made {
        identity = shared.identity;
        let name = shared.path.as_os_str().as_bytes();
        if name.len() < LONGEST_PATH {
            path[..name.len()].copy_from_slice(name);
        }
    }
    let first = host.process_at_rank(0);
    first.broadcast_into(&mut identity[..]);
    first.broadcast_into(&mut path[..]);
    let name = path.split(|byte| *byte == 0).next().unwrap_or_default();
    let page = map(
        Path::new(OsStr::from_bytes(name)),
        identity,
        len,
        host.rank() as usize,
    );
    let mut everywhere = 0;
    host.all_reduce_into(&i32::from(page.is_ok()), &mut everywhere, SystemOperation::min());
    // Everybody has it open.
    drop(made);
    if everywhere == 0 {
        let other = || io::Error::other("another process of this host cannot open the shared memory");
        return Err(page.err().unwrap_or_else(other));
    }
    page
}

/// Memory that others of this user may open as long as this is there.
struct Shared {
    path: PathBuf,
    /// Device and number of the file.
    identity: [u64; 2],
    /// Closes the file, and takes away its name if it has one.
    _file: Box<dyn Any>,
}

impl Shared {
    /// Without a name, seen through the descriptors of this process.
    fn nameless(len: usize) -> io::Result<Self> {
        let file = File::from(memfd_create("pmc", MemfdFlags::CLOEXEC)?);
        file.set_len(len as u64)?;
        Ok(Self {
            path: format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()).into(),
            identity: identity(&file)?,
            _file: Box::new(file),
        })
    }

    /// A file in memory. Its name stays if this process is killed before everybody has opened it.
    fn named(len: usize) -> io::Result<Self> {
        let file = tempfile::Builder::new().prefix("pmc-").tempfile_in(FOLDER)?;
        file.as_file().set_len(len as u64)?;
        Ok(Self {
            path: file.path().to_owned(),
            identity: identity(file.as_file())?,
            _file: Box::new(file),
        })
    }
}

fn identity(file: &File) -> io::Result<[u64; 2]> {
    let metadata = file.metadata()?;
    Ok([metadata.dev(), metadata.ino()])
}

fn map(path: &Path, wanted: [u64; 2], len: usize, own: usize) -> io::Result<(MmapRaw, File)> {
    let file: File = OpenOptions::new().read(true).write(true).open(path)?;
    // In another container, the path may be that of something else.
    if identity(&file)? != wanted || file.metadata()?.len() != len as u64 {
        return Err(io::Error::other("the shared file is another one"));
    }
    fcntl(&file, FcntlArg::F_OFD_SETLK(&lock_of(own)))?;
    Ok((MmapOptions::new().len(len).map_raw(&file)?, file))
}

/// The lock that the owner of a bell holds.
fn lock_of(bell: usize) -> libc::flock {
    libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: (bell * BELL) as libc::off_t,
        l_len: 1,
        l_pid: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_goes_with_its_owner() {
        for make in [Shared::nameless, Shared::named] {
            locks_of(&make(3 * BELL).unwrap());
        }
    }

    fn locks_of(shared: &Shared) {
        assert!(map(&shared.path, [0, 0], 3 * BELL, 0).is_err(), "another file");
        let open = |own| map(&shared.path, shared.identity, 3 * BELL, own).unwrap();
        let ((page, theirs), (_, other)) = (open(0), open(2));
        let present = |bell: usize| {
            let bells = Doorbells {
                page: MmapOptions::new().len(3 * BELL).map_raw(&theirs).unwrap(),
                file: theirs.try_clone().unwrap(),
                ranks: vec![0, 4, 7],
                own: 0,
                complete: true,
            };
            bells.part(bell, Part::Present).store(1, Ordering::SeqCst);
            bells
        };
        drop(page);
        assert!(!present(2).is_gone(Rank(7)));
        assert!(!present(2).is_gone(Rank(4)), "never was there");
        assert!(!present(2).is_gone(Rank(5)), "of another host");
        drop(other);
        assert!(present(2).is_gone(Rank(7)));
    }
}
