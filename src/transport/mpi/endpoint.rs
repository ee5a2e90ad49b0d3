//! Sends without waiting, and receives with pauses: the part that both sides share.

use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mpi::ffi;
use mpi::topology::{AnyProcess, Communicator as _, SimpleCommunicator};
use mpi::traits::{Equivalence as _, Source as _};
use rustc_hash::FxHashMap;

use super::doorbell::Doorbells;
use super::{MASTER, Mpi};
use crate::interrupt::Interrupt;
use crate::protocol::Rank;
use crate::transport::{TransportError, WaitPolicy};

/// Tag of encoded messages.
pub(super) const MESSAGE: mpi::Tag = 1;
/// Tag of a piece of an encoded message that is too long for one MPI message; [`MESSAGE`] ends it.
const CHUNK: mpi::Tag = 3;
/// Tag of forwarded data that comes ahead of its message.
pub(super) const PART: mpi::Tag = 4;
/// Tag of the empty message that is the last one of its sender.
pub(super) const GOODBYE: mpi::Tag = 2;

/// Maximum bytes of an MPI message. MPI libraries may send more than about 4 kB in another way: the receiver
/// reads the memory of the sender, which the system forbids for processes that do not trust their tasks.
pub(super) const MAX_BYTES: usize = 4000;

/// Maximum bytes of an encoded message: more than any system takes as the arguments of a process.
const MAX_MESSAGE: usize = 64 << 20;

/// Maximum parts on their way from one process.
const MAX_PARTS: usize = 16;

/// Maximum pause between two polls. Idle processes then need less than a hundredth of a core, and receive a
/// message within two milliseconds.
pub(super) const MAX_PAUSE: Duration = Duration::from_micros(1_500);
/// The same if a doorbell announces every message.
const MAX_SLEEP: Duration = Duration::from_millis(10);
/// How long the master polls without pauses. Tasks need its core.
const MASTER_SPIN: Duration = Duration::from_micros(20);
/// The same while messages arrive quickly and a core is idle. In a chain of short tasks, each task waits for
/// the master.
const IDLE_CORE_SPIN: Duration = Duration::from_millis(1);
/// The same for a worker. It has usually just reported a result, and the answer takes about as long as
/// falling asleep and waking up.
const WORKER_SPIN: Duration = Duration::from_micros(400);

/// How often a process checks whether its peers are alive.
pub(super) const PEER_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// How processes wait for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// With pauses, which leave the core to others.
    Sleep,
    /// Without pauses, for systems with spare cores.
    Busy,
}

/// `MPI_Isend`, or `MPI_Issend`, which completes when the receiver takes the message.
type SendFunction = unsafe extern "C" fn(
    *const c_void,
    c_int,
    ffi::MPI_Datatype,
    c_int,
    c_int,
    ffi::MPI_Comm,
    *mut ffi::MPI_Request,
) -> c_int;

/// This process in the MPI program.
pub(super) struct Endpoint<'a> {
    world: &'a SimpleCommunicator,
    bells: Option<&'a Doorbells>,
    waiting: Waiting,
    spin: Duration,
    /// The last message came within [`IDLE_CORE_SPIN`].
    messages_are_quick: bool,
    interrupt: Arc<Interrupt>,
    /// Requests of `interrupt` that the caller knows of.
    known_requests: u32,
    sends: VecDeque<PendingSend>,
    /// Messages of which only the first pieces have come.
    incomplete: FxHashMap<Rank, Vec<u8>>,
    last_peer_check: Instant,
}

/// A message on its way. MPI reads the bytes until the request is complete.
struct PendingSend {
    bytes: Vec<u8>,
    request: ffi::MPI_Request,
}

impl<'a> Endpoint<'a> {
    pub(super) fn new(mpi: &'a Mpi, waiting: Waiting, interrupt: Arc<Interrupt>) -> Self {
        if let Err(error) = nix::sys::prctl::set_timerslack(1_000) {
            tracing::debug!("Unable to make timers precise: {error}");
        }
        let is_master = mpi.rank() == MASTER;
        Self {
            world: &mpi.world,
            bells: mpi.bells.as_ref(),
            waiting,
            spin: if is_master { MASTER_SPIN } else { WORKER_SPIN },
            messages_are_quick: false,
            interrupt,
            known_requests: 0,
            sends: VecDeque::new(),
            incomplete: FxHashMap::default(),
            last_peer_check: Instant::now(),
        }
    }

    /// Returns whether a check of the peers is due; the next one is then due later.
    pub(super) fn is_peer_check_due(&mut self) -> bool {
        let is_due = self.last_peer_check.elapsed() >= PEER_CHECK_INTERVAL;
        if is_due {
            self.last_peer_check = Instant::now();
        }
        is_due
    }

    pub(super) fn is_gone(&self, rank: Rank) -> bool {
        self.bells.is_some_and(|bells| bells.is_gone(rank))
    }

    pub(super) fn set_wait_policy(&mut self, policy: WaitPolicy) {
        self.spin = match policy {
            WaitPolicy::IdleCore if self.messages_are_quick => IDLE_CORE_SPIN,
            WaitPolicy::IdleCore | WaitPolicy::Normal => MASTER_SPIN,
            WaitPolicy::Batch => Duration::ZERO,
        };
    }

    /// Returns whether all messages have left.
    pub(super) fn has_sent_all(&self) -> bool {
        self.sends.is_empty()
    }

    /// Sends a message without waiting.
    pub(super) fn send(&mut self, to: Rank, tag: mpi::Tag, mut bytes: Vec<u8>) -> Result<(), TransportError> {
        if bytes.len() > MAX_MESSAGE {
            return Err(TransportError::TooLong(bytes.len()));
        }
        if bytes.len() > MAX_BYTES {
            let last = (bytes.len() - 1) / MAX_BYTES * MAX_BYTES;
            for chunk in bytes[..last].chunks(MAX_BYTES) {
                self.start_send(to, CHUNK, chunk.to_vec(), ffi::MPI_Isend)?;
            }
            bytes = bytes.split_off(last);
        }
        self.start_send(to, tag, bytes, ffi::MPI_Isend)
    }

    /// Sends a part if there are not too many on their way. A part is on its way until the receiver takes it,
    /// so that parts need no memory there. Returns whether it was sent.
    pub(super) fn send_part(&mut self, to: Rank, part: &[u8]) -> Result<bool, TransportError> {
        self.drop_completed_sends();
        let has_room = self.sends.len() < MAX_PARTS;
        if has_room {
            self.start_send(to, PART, part.to_vec(), ffi::MPI_Issend)?;
        }
        Ok(has_room)
    }

    #[expect(
        unsafe_code,
        reason = "the safe interface ties a send to the life of a borrowed buffer"
    )]
    fn start_send(
        &mut self,
        to: Rank,
        tag: mpi::Tag,
        bytes: Vec<u8>,
        function: SendFunction,
    ) -> Result<(), TransportError> {
        let count = i32::try_from(bytes.len()).map_err(|_| TransportError::TooLong(bytes.len()))?;
        let rank = i32::try_from(to.0).map_err(|_| TransportError::UnknownRank(to))?;
        let mut request = std::mem::MaybeUninit::uninit();
        // SAFETY: the bytes are on the heap and stay in the queue, unchanged, until MPI is done with them.
        // The communicator is that of the running program. The function initializes the request.
        let request = unsafe {
            function(
                bytes.as_ptr().cast(),
                count,
                ffi::RSMPI_UINT8_T,
                rank,
                tag,
                ffi::RSMPI_COMM_WORLD,
                request.as_mut_ptr(),
            );
            request.assume_init()
        };
        self.sends.push_back(PendingSend { bytes, request });
        self.drop_completed_sends();
        Ok(())
    }

    /// Wakes the receiver of a message if it sleeps on this host.
    pub(super) fn ring(&self, rank: Rank) {
        if let Some(bells) = self.bells {
            bells.ring(rank);
        }
    }

    /// Drops messages that have been sent. They usually complete in the order of sending.
    #[expect(unsafe_code, reason = "see `send`")]
    fn drop_completed_sends(&mut self) {
        while let Some(send) = self.sends.front_mut() {
            let mut done = 0;
            // SAFETY: the request is valid: MPI has not reported its completion yet.
            unsafe { ffi::MPI_Test(&raw mut send.request, &raw mut done, ffi::RSMPI_STATUS_IGNORE) };
            if done == 0 {
                return;
            }
            self.sends.pop_front();
        }
    }

    /// Receives a message into `buffer`, if there is one. Returns sender and tag.
    pub(super) fn poll(&mut self, buffer: &mut Vec<u8>) -> Option<(Rank, mpi::Tag)> {
        self.drop_completed_sends();
        loop {
            let (from, tag) = self.receive(buffer)?;
            if tag == CHUNK {
                self.incomplete.entry(from).or_default().extend_from_slice(buffer);
                continue;
            }
            if tag == MESSAGE
                && !self.incomplete.is_empty()
                && let Some(mut whole) = self.incomplete.remove(&from)
            {
                whole.append(buffer);
                *buffer = whole;
            }
            return Some((from, tag));
        }
    }

    fn receive(&self, buffer: &mut Vec<u8>) -> Option<(Rank, mpi::Tag)> {
        let (message, status) = AnyProcess::immediate_matched_probe(&self.world.any_process())?;
        let len = usize::try_from(status.count(u8::equivalent_datatype())).unwrap_or(0);
        buffer.clear();
        buffer.resize(len, 0);
        message.matched_receive_into(&mut buffer[..]);
        let from = Rank(u32::try_from(status.source_rank()).unwrap_or(u32::MAX));
        Some((from, status.tag()))
    }

    /// Waits for a message until `timeout` has passed or there is a new request of `interrupt`.
    pub(super) fn wait(&mut self, timeout: Duration, buffer: &mut Vec<u8>) -> Option<(Rank, mpi::Tag)> {
        let called = Instant::now();
        // Time of the last ring, or of the call.
        let mut since = called;
        let mut rings = self.bells.map(Doorbells::rings);
        let mut has_rung = false;
        loop {
            let received = self.poll(buffer);
            let now = Instant::now();
            let left = timeout.saturating_sub(now - called);
            if received.is_some() || (left.is_zero() && !timeout.is_zero()) {
                self.messages_are_quick = now - called < IDLE_CORE_SPIN;
            }
            if received.is_some() {
                return received;
            }
            let requests = self.interrupt.requests();
            if left.is_zero() || self.interrupt.signal().is_some() || requests != self.known_requests {
                self.known_requests = requests;
                return None;
            }
            self.pause(now - since, left, rings, has_rung);
            let new_rings = self.bells.map(Doorbells::rings);
            if new_rings != rings {
                (rings, has_rung, since) = (new_rings, true, Instant::now());
            }
        }
    }

    /// Pauses between two polls. `waited` is the time since the last ring or the call, `left` that to the
    /// timeout.
    fn pause(&self, waited: Duration, left: Duration, rings: Option<u32>, has_rung: bool) {
        if self.waiting == Waiting::Busy || waited < self.spin {
            std::thread::yield_now();
            return;
        }
        // A message may come a little after the ring. Pending sends need this process to poll.
        let may_sleep = self.sends.is_empty() && (!has_rung || waited > MAX_PAUSE);
        let pause = (waited / 8).min(MAX_PAUSE).min(left);
        match self.bells.zip(rings) {
            Some((bells, rings)) if bells.are_complete() && may_sleep => {
                bells.sleep(rings, MAX_SLEEP.min(left));
            }
            Some((bells, rings)) => bells.sleep(rings, pause),
            None => std::thread::sleep(pause),
        }
    }
}

impl Drop for Endpoint<'_> {
    fn drop(&mut self) {
        self.drop_completed_sends();
        for send in self.sends.drain(..) {
            // MPI may still read the bytes; the end of the process frees them.
            std::mem::forget(send.bytes);
        }
    }
}
