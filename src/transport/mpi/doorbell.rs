//! Doorbells: shared memory by which processes of one host wake each other.
//!
//! MPI has no way to wait that leaves the core to others. Processes of one host therefore share a page in
//! memory with a bell for each. The sender of a message rings the receiver's bell, and the receiver sleeps
//! until it rings. A ring only means that a poll is worthwhile: messages still come by MPI, and a process
//! that hears no ring polls now and then.
//!
//! Each process locks the byte at the offset of its bell in the file behind the page. The system releases the
//! lock when the process ends, for whatever reason, so the others notice.

use std::fs::File;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use memmap2::MmapRaw;
use mpi::topology::{Communicator as _, SimpleCommunicator};
use mpi::traits::CommunicatorCollectives as _;
use rustix::thread::futex;

use super::shared_memory::{self, SharedFile};
use crate::protocol::Rank;

/// Bytes of a bell: a cache line, so that bells do not slow each other down.
const BELL_BYTES: usize = 64;

/// The numbers of a bell.
#[derive(Clone, Copy)]
enum Field {
    /// Number of rings.
    Rings = 0,
    /// 1 while the owner sleeps.
    Sleeping = 1,
    /// 1 if the owner uses the bell.
    Present = 2,
}

/// The bells of this host.
pub(super) struct Doorbells {
    page: MmapRaw,
    /// The file behind the page, for the locks.
    file: File,
    /// Ranks by bell.
    ranks: Vec<i32>,
    own: usize,
    /// Every process of the program is on this host and has a bell.
    complete: bool,
}

impl Doorbells {
    /// Joins the other processes of this host. All processes of the program must call this. `None` if the
    /// host cannot share memory.
    pub(super) fn join(world: &SimpleCommunicator) -> Option<Self> {
        let host = world.split_shared(world.rank());
        let (size, own) = (host.size() as usize, host.rank() as usize);
        let mut ranks = vec![0; size];
        host.all_gather_into(&world.rank(), &mut ranks[..]);
        let len = size * BELL_BYTES;
        let share = |create| shared_memory::share(&host, len, own * BELL_BYTES, create);
        // A file without a name leaves nothing behind, but some systems hide the descriptors of other
        // processes.
        let page = share(SharedFile::unnamed).or_else(|_| share(SharedFile::named));
        let page = page
            .inspect_err(|error| tracing::debug!("No doorbells: {error}"))
            .ok();
        let mut bells = page.map(|(page, file)| Self {
            page,
            file,
            ranks,
            own,
            complete: false,
        });
        if let Some(bells) = &bells {
            bells.field(own, Field::Present).store(1, Ordering::SeqCst);
        }
        host.barrier();
        if let Some(bells) = &mut bells {
            let is_present = |bell| bells.field(bell, Field::Present).load(Ordering::SeqCst) == 1;
            bells.complete = size == world.size() as usize && (0..size).all(is_present);
        }
        bells
    }

    /// Returns whether every possible sender rings.
    pub(super) fn are_complete(&self) -> bool {
        self.complete
    }

    /// Rings the bell of a process if it is on this host.
    pub(super) fn ring(&self, rank: Rank) {
        let Some(bell) = self.find(rank) else { return };
        self.field(bell, Field::Rings).fetch_add(1, Ordering::SeqCst);
        if self.field(bell, Field::Sleeping).load(Ordering::SeqCst) == 1 {
            // If this fails, the process polls a little later by itself.
            let _ = futex::wake(self.field(bell, Field::Rings), futex::Flags::empty(), 1);
        }
    }

    /// Returns whether a process of this host has ended, for whatever reason. False if that cannot be known.
    pub(super) fn is_gone(&self, rank: Rank) -> bool {
        let bell = self.find(rank);
        bell.is_some_and(|bell| {
            self.field(bell, Field::Present).load(Ordering::SeqCst) == 1
                && shared_memory::is_unlocked(&self.file, bell * BELL_BYTES)
        })
    }

    /// Returns how often the bell of this process was rung.
    pub(super) fn rings(&self) -> u32 {
        self.field(self.own, Field::Rings).load(Ordering::SeqCst)
    }

    /// Sleeps until the bell of this process rings, at most `timeout`. Returns at once if the number of rings
    /// is not `known_rings` any more.
    pub(super) fn sleep(&self, known_rings: u32, timeout: Duration) {
        let Ok(timeout) = timeout.try_into() else { return };
        let sleeping = self.field(self.own, Field::Sleeping);
        sleeping.store(1, Ordering::SeqCst);
        let rings = self.field(self.own, Field::Rings);
        // The caller polls, whatever ended the sleep.
        let _ = futex::wait(rings, futex::Flags::empty(), known_rings, Some(&timeout));
        sleeping.store(0, Ordering::SeqCst);
    }

    /// The bell of a process, if it is on this host.
    fn find(&self, rank: Rank) -> Option<usize> {
        // Sorted, since processes have the same order on the host as in the world.
        self.ranks.binary_search(&i32::try_from(rank.0).ok()?).ok()
    }

    #[expect(unsafe_code, reason = "memory that is shared with other processes")]
    fn field(&self, bell: usize, field: Field) -> &AtomicU32 {
        debug_assert!(bell < self.ranks.len());
        let offset = bell * BELL_BYTES + field as usize * size_of::<u32>();
        // SAFETY: the page has a bell for each rank and lives as long as `self`. The offset is a multiple of
        // 4, and all processes access the page only through atomics.
        unsafe { AtomicU32::from_ptr(self.page.as_mut_ptr().add(offset).cast()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ended_processes_are_gone() {
        for create in [SharedFile::unnamed, SharedFile::named] {
            let shared = create(3 * BELL_BYTES).unwrap();
            let open = |own: usize| shared.open(3 * BELL_BYTES, own * BELL_BYTES).unwrap();
            let ((page, file), (_, other)) = (open(0), open(2));
            let bells = Doorbells {
                page,
                file,
                ranks: vec![0, 4, 7],
                own: 0,
                complete: true,
            };
            bells.field(2, Field::Present).store(1, Ordering::SeqCst);
            assert!(!bells.is_gone(Rank(7)));
            assert!(!bells.is_gone(Rank(4)), "never was present");
            assert!(!bells.is_gone(Rank(5)), "is on another host");
            drop(other);
            assert!(bells.is_gone(Rank(7)));
        }
    }
}
