//! Workers as ranks of an MPI program. The only module that knows MPI.
//!
//! A process waits for messages by asking MPI again and again: its own blocking calls keep a core
//! busy, which the tasks need. The pauses in between grow with the time already waited, so that
//! a message is never late by more than a small part of that time, nor by more than two milliseconds.
//! Processes of the same host need not wait for the end of a pause: see [`doorbell`].
//!
//! MPI is called by the thread that called [`Mpi::start`], and by no other.

mod doorbell;
mod ending;
mod networks;
mod patience;

use std::collections::VecDeque;
use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mpi::environment::Universe;
use mpi::ffi;
use mpi::topology::{AnyProcess, Communicator as _, SimpleCommunicator};
use mpi::traits::{Equivalence as _, Source as _};

use self::doorbell::Doorbells;
use self::patience::Patience;
use super::{MasterTransport, Traffic, TransportError, WaitPolicy, WorkerTransport};
use crate::interrupt::Interrupt;
use crate::protocol::{Rank, ToMaster, ToWorker};

/// Tag of encoded messages.
const MESSAGE: mpi::Tag = 1;
/// Tag of the empty message that is the last one of its sender.
const GOODBYE: mpi::Tag = 2;

const MASTER: Rank = Rank(0);

/// Longest pause between two looks for a message: idle processes are to need less than a hundredth
/// of a core, and to serve a message within two milliseconds.
const LONGEST_PAUSE: Duration = Duration::from_micros(1_500);
/// The same where every message comes with the ring of a bell.
const LONGEST_SLEEP: Duration = Duration::from_millis(10);
/// How long the master looks without any pause: others need its core.
const MASTER_SPIN: Duration = Duration::from_micros(20);
/// The same while messages follow each other quickly and a core has nothing else to do: in a chain of
/// short tasks, each waits for the master.
const IDLE_CORE_SPIN: Duration = Duration::from_millis(1);
/// The same for a worker, which mostly has just told the master that it has nothing to do: the answer
/// takes about as long as falling asleep and being woken.
const WORKER_SPIN: Duration = Duration::from_micros(400);

/// How often a process that waits looks whether those that it talks to are still there.
const LOOK: Duration = Duration::from_secs(1);
/// How long the end of MPI may take, which is a matter of milliseconds if all processes take part.
const LONGEST_END: Duration = Duration::from_secs(30);
/// How long it may take MPI to end all processes at once.
const LONGEST_ABORT: Duration = Duration::from_secs(10);

/// How processes wait for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// With pauses, which leave the core to others.
    Sleep,
    /// Without: for systems with cores to spare.
    Busy,
}

/// Name and version of the MPI library.
#[must_use]
pub fn library_version() -> String {
    let (major, minor) = mpi::environment::version();
    // Some libraries give several lines and more than one version in a line.
    let library = mpi::environment::library_version().unwrap_or_default();
    let words: Vec<&str> = library
        .lines()
        .next()
        .unwrap_or_default()
        .split(',')
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    format!("{major}.{minor} ({})", words.join(" "))
}

/// The MPI program that this process is a part of; ends its part when dropped, which waits for
/// the others.
pub struct Mpi {
    universe: Universe,
    world: SimpleCommunicator,
    bells: Option<Doorbells>,
}

impl Mpi {
    /// Joins the other processes. `environment` is that of this process, which has one thread only
    /// when it calls this.
    ///
    /// # Errors
    /// The library does not support what is needed, or was in use already.
    #[expect(unsafe_code, reason = "the library takes settings from the environment only")]
    pub fn start(environment: &[(OsString, OsString)]) -> Result<Self, TransportError> {
        let open = mpi::environment::library_version().is_ok_and(|library| library.starts_with("Open MPI"));
        if let Some((name, value)) = networks::setting(environment).filter(|_| open) {
            // SAFETY: there is no other thread that could look at the environment meanwhile.
            unsafe { std::env::set_var(name, value) };
        }
        let started = mpi::initialize_with_threading(mpi::Threading::Funneled);
        let (universe, threading) =
            started.ok_or_else(|| TransportError("MPI is in use already".to_owned()))?;
        if threading < mpi::Threading::Funneled {
            return Err(TransportError(
                "The MPI library does not support threads".to_owned(),
            ));
        }
        let world = universe.world();
        let bells = Doorbells::join(&world);
        Ok(Self {
            universe,
            world,
            bells,
        })
    }

    /// Number of this process.
    #[must_use]
    pub fn rank(&self) -> Rank {
        Rank(u32::try_from(self.world.rank()).unwrap_or(0))
    }

    /// Number of processes.
    #[must_use]
    pub fn size(&self) -> u32 {
        u32::try_from(self.world.size()).unwrap_or(0)
    }

    /// The master's side; for rank 0.
    #[must_use]
    pub fn master(&self, waiting: Waiting, interrupt: Arc<Interrupt>) -> MpiMaster<'_> {
        let workers = self.size().saturating_sub(1);
        MpiMaster {
            endpoint: Endpoint::new(self, waiting, interrupt),
            workers,
            early: VecDeque::new(),
            gone: vec![false; workers as usize],
            suspect: None,
            traffic: Traffic::default(),
            buffer: Vec::new(),
        }
    }

    /// A worker's side; for the other ranks.
    #[must_use]
    pub fn worker(&self, waiting: Waiting, interrupt: Arc<Interrupt>) -> MpiWorker<'_> {
        MpiWorker {
            rank: self.rank(),
            endpoint: Endpoint::new(self, waiting, interrupt),
            released: false,
            master_gone: false,
            buffer: Vec::new(),
        }
    }

    /// Ends the part of this process in the orderly way, which waits for the others; without, if that
    /// takes too long.
    pub fn end(self, code: ExitCode) -> ExitCode {
        ending::exit_after(LONGEST_END, i32::from(code != ExitCode::SUCCESS));
        ending::send_at_once();
        drop(self);
        code
    }

    /// Ends all processes of the program at once.
    pub fn abort(self, code: i32) -> ! {
        ending::exit_after(LONGEST_ABORT, code);
        // The universe must not end MPI in the orderly way any more.
        std::mem::forget(self.universe);
        self.world.abort(code)
    }
}

/// What both sides share: sending without waiting, and receiving with pauses.
struct Endpoint<'a> {
    world: &'a SimpleCommunicator,
    bells: Option<&'a Doorbells>,
    waiting: Waiting,
    spin: Duration,
    /// The last message came so quickly that it was worth while to look without a pause.
    lively: bool,
    interrupt: Arc<Interrupt>,
    /// Requests that whoever waits here has been told of.
    requests: u32,
    sends: VecDeque<Send>,
    /// When somebody looked whether the others are there.
    looked: Instant,
}

/// A message on its way. MPI reads the bytes until the request is complete.
struct Send {
    _bytes: Vec<u8>,
    request: ffi::MPI_Request,
}

impl<'a> Endpoint<'a> {
    fn new(mpi: &'a Mpi, waiting: Waiting, interrupt: Arc<Interrupt>) -> Self {
        if let Err(error) = nix::sys::prctl::set_timerslack(1_000) {
            tracing::debug!("Unable to make timers precise: {error}");
        }
        Self {
            world: &mpi.world,
            bells: mpi.bells.as_ref(),
            waiting,
            spin: if mpi.rank() == MASTER {
                MASTER_SPIN
            } else {
                WORKER_SPIN
            },
            lively: false,
            interrupt,
            requests: 0,
            sends: VecDeque::new(),
            looked: Instant::now(),
        }
    }

    /// Whether it is time to look for those that are gone.
    fn is_time_to_look(&mut self) -> bool {
        let is_time = self.looked.elapsed() >= LOOK;
        if is_time {
            self.looked = Instant::now();
        }
        is_time
    }

    fn is_gone(&self, rank: Rank) -> bool {
        self.bells.is_some_and(|bells| bells.is_gone(rank))
    }

    #[expect(
        unsafe_code,
        reason = "the safe interface ties a send to the life of a borrowed buffer"
    )]
    fn send(&mut self, to: Rank, tag: mpi::Tag, bytes: Vec<u8>) -> Result<(), TransportError> {
        let too_long = |_| TransportError(format!("Message of {} bytes is too long for MPI", bytes.len()));
        let count = i32::try_from(bytes.len()).map_err(too_long)?;
        let no_rank = |_| TransportError(format!("There is no rank {}", to.0));
        let rank = i32::try_from(to.0).map_err(no_rank)?;
        let mut request = std::mem::MaybeUninit::uninit();
        // SAFETY: the bytes are on the heap and stay there, unchanged, in the queue until MPI is
        // done with them; the communicator is that of the running program.
        let request = unsafe {
            ffi::MPI_Isend(
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
        self.sends.push_back(Send {
            _bytes: bytes,
            request,
        });
        self.progress();
        Ok(())
    }

    /// Wakes the receiver of what was sent, if it sleeps on this host.
    fn ring(&self, rank: Rank) {
        if let Some(bells) = self.bells {
            bells.ring(rank);
        }
    }

    /// Forgets messages that have been sent. They need not end in the order of sending, but
    /// mostly do.
    #[expect(unsafe_code, reason = "see `send`")]
    fn progress(&mut self) {
        while let Some(send) = self.sends.front_mut() {
            let mut done = 0;
            // SAFETY: the request is one that has not been seen to be complete.
            unsafe { ffi::MPI_Test(&raw mut send.request, &raw mut done, ffi::RSMPI_STATUS_IGNORE) };
            if done == 0 {
                return;
            }
            self.sends.pop_front();
        }
    }

    /// A message, if there is one: sender and tag; the content goes to `buffer`.
    fn poll(&mut self, buffer: &mut Vec<u8>) -> Option<(Rank, mpi::Tag)> {
        self.progress();
        let (message, status) = AnyProcess::immediate_matched_probe(&self.world.any_process())?;
        let len = usize::try_from(status.count(u8::equivalent_datatype())).unwrap_or(0);
        buffer.clear();
        buffer.resize(len, 0);
        message.matched_receive_into(&mut buffer[..]);
        Some((
            Rank(u32::try_from(status.source_rank()).unwrap_or(u32::MAX)),
            status.tag(),
        ))
    }

    /// Waits for a message until `timeout` is over or somebody asks for something.
    fn wait(&mut self, timeout: Duration, buffer: &mut Vec<u8>) -> Option<(Rank, mpi::Tag)> {
        let asked = Instant::now();
        // When the bell was rung last, or the waiting began.
        let mut began = asked;
        let mut heard = self.bells.map(Doorbells::rings);
        let mut rung = false;
        loop {
            let received = self.poll(buffer);
            let now = Instant::now();
            let left = timeout.saturating_sub(now - asked);
            if received.is_some() || (left.is_zero() && !timeout.is_zero()) {
                self.lively = now - asked < IDLE_CORE_SPIN;
            }
            if received.is_some() {
                return received;
            }
            let requests = self.interrupt.requests();
            if left.is_zero() || self.interrupt.signal().is_some() || requests != self.requests {
                self.requests = requests;
                return None;
            }
            let waited = now - began;
            // A message may come a little after the ring, but what is not sent yet needs this
            // process to look.
            let quiet = self.sends.is_empty() && (!rung || waited > LONGEST_PAUSE);
            match self.bells.zip(heard) {
                _ if self.waiting == Waiting::Busy => std::thread::yield_now(),
                _ if waited < self.spin => std::thread::yield_now(),
                Some((bells, heard)) if bells.are_complete() && quiet => {
                    bells.sleep(heard, LONGEST_SLEEP.min(left));
                }
                bells => {
                    let pause = (waited / 8).min(LONGEST_PAUSE).min(left);
                    match bells {
                        Some((bells, heard)) => bells.sleep(heard, pause),
                        None => std::thread::sleep(pause),
                    }
                }
            }
            let rings = self.bells.map(Doorbells::rings);
            if rings != heard {
                (heard, rung, began) = (rings, true, Instant::now());
            }
        }
    }
}

impl Drop for Endpoint<'_> {
    fn drop(&mut self) {
        // MPI may still read what has not been received; the end of the program frees it.
        self.progress();
        for send in self.sends.drain(..) {
            std::mem::forget(send._bytes);
        }
    }
}

/// The master's side.
pub struct MpiMaster<'a> {
    endpoint: Endpoint<'a>,
    workers: u32,
    /// Messages that came while [`MasterTransport::close`] waited for something else.
    early: VecDeque<(Rank, ToMaster)>,
    /// Workers that have said goodbye.
    gone: Vec<bool>,
    /// A worker that seemed to have died at the last look.
    suspect: Option<Rank>,
    traffic: Traffic,
    buffer: Vec<u8>,
}

impl MpiMaster<'_> {
    /// Lets the workers end: they wait for this after their goodbye.
    pub fn release(&mut self) {
        for rank in 1..=self.workers {
            // A worker that cannot be reached needs no release.
            let _ = self.endpoint.send(Rank(rank), GOODBYE, Vec::new());
            self.endpoint.ring(Rank(rank));
        }
    }

    /// Notices workers of this host that have died. Mostly the launcher ends all others then, but that
    /// cannot be relied on.
    fn look_after_workers(&mut self) -> Result<(), TransportError> {
        if !self.endpoint.is_time_to_look() {
            return Ok(());
        }
        let missing = self.missing().next();
        // What it sent before its end is worked off between two looks.
        if missing.is_some() && missing == self.suspect {
            let rank = missing.map_or(0, |rank| rank.0);
            return Err(TransportError(format!(
                "Worker {rank} has died: its process is gone (killed by the system for want of memory, perhaps)"
            )));
        }
        self.suspect = missing;
        Ok(())
    }

    /// Workers of this host that have ended and did not say so.
    fn missing(&self) -> impl Iterator<Item = Rank> + '_ {
        let expected = (1..).map(Rank).zip(&self.gone).filter(|(_, gone)| !**gone);
        expected
            .map(|(rank, _)| rank)
            .filter(|rank| self.endpoint.is_gone(*rank))
    }

    /// The message in the buffer; nothing if it was a goodbye, which is noted.
    fn take(&mut self, from: Rank, tag: mpi::Tag) -> Result<Option<(Rank, ToMaster)>, TransportError> {
        self.traffic.received += self.buffer.len() as u64;
        if tag == GOODBYE {
            if let Some(gone) = self.gone.get_mut(from.0.wrapping_sub(1) as usize) {
                *gone = true;
            }
            return Ok(None);
        }
        let message = ToMaster::decode(&self.buffer);
        let message = message
            .map_err(|error| TransportError(format!("Invalid message from worker {}: {error}", from.0)))?;
        Ok(Some((from, message)))
    }
}

impl MasterTransport for MpiMaster<'_> {
    fn workers(&self) -> u32 {
        self.workers
    }

    fn send(&mut self, to: Rank, message: ToWorker) -> Result<(), TransportError> {
        let mut bytes = Vec::with_capacity(message.encoded_len());
        message.encode(&mut bytes);
        self.traffic.sent += bytes.len() as u64;
        self.endpoint.send(to, MESSAGE, bytes)?;
        self.endpoint.ring(to);
        Ok(())
    }

    fn receive(&mut self, timeout: Duration) -> Result<Option<(Rank, ToMaster)>, TransportError> {
        if let Some(early) = self.early.pop_front() {
            return Ok(Some(early));
        }
        loop {
            let mut buffer = std::mem::take(&mut self.buffer);
            let received = self.endpoint.wait(timeout.min(LOOK), &mut buffer);
            self.buffer = buffer;
            let Some((from, tag)) = received else {
                self.look_after_workers()?;
                return Ok(None);
            };
            if let Some(message) = self.take(from, tag)? {
                return Ok(Some(message));
            }
        }
    }

    fn set_wait_policy(&mut self, wait_policy: WaitPolicy) {
        self.endpoint.spin = match wait_policy {
            WaitPolicy::IdleCore if self.endpoint.lively => IDLE_CORE_SPIN,
            WaitPolicy::IdleCore | WaitPolicy::Normal => MASTER_SPIN,
            WaitPolicy::Batch => Duration::ZERO,
        };
    }

    fn supports_prefill(&self) -> bool {
        true
    }

    fn traffic(&self) -> Traffic {
        self.traffic
    }

    fn close(&mut self, timeout: Duration) -> Vec<Rank> {
        let mut patience = Patience::new(timeout);
        let mut awaited = true;
        while awaited && !patience.is_over() {
            let mut buffer = std::mem::take(&mut self.buffer);
            let received = self.endpoint.poll(&mut buffer);
            self.buffer = buffer;
            match received.map(|(from, tag)| self.take(from, tag)) {
                Some(Ok(Some(message))) => self.early.push_back(message),
                // What cannot be read does not matter any more.
                Some(Ok(None) | Err(_)) => {}
                None => std::thread::sleep(LONGEST_PAUSE),
            }
            // Nobody waits for the dead.
            if self.endpoint.is_time_to_look() || !self.gone.contains(&false) {
                let silent = self.gone.iter().filter(|gone| !**gone).count();
                awaited = self.missing().count() < silent;
            }
        }
        let gone = (1..).map(Rank).zip(&self.gone);
        gone.filter(|(_, gone)| !**gone).map(|(rank, _)| rank).collect()
    }
}

/// A worker's side.
pub struct MpiWorker<'a> {
    rank: Rank,
    endpoint: Endpoint<'a>,
    released: bool,
    /// The master seemed to have died at the last look.
    master_gone: bool,
    buffer: Vec<u8>,
}

impl MpiWorker<'_> {
    /// The worker has closed its files. Waits for the master, at rest, since the end of MPI
    /// itself waits busily.
    pub fn goodbye(&mut self) -> Result<(), TransportError> {
        self.endpoint.send(MASTER, GOODBYE, Vec::new())?;
        self.endpoint.ring(MASTER);
        while !self.released || !self.endpoint.sends.is_empty() {
            let mut buffer = std::mem::take(&mut self.buffer);
            match self.endpoint.poll(&mut buffer) {
                Some((_, tag)) => self.released |= tag == GOODBYE,
                None => {
                    self.look_after_master()?;
                    std::thread::sleep(LONGEST_PAUSE);
                }
            }
            self.buffer = buffer;
        }
        Ok(())
    }

    /// Notices if the master is on this host and has died; it ends after its workers.
    fn look_after_master(&mut self) -> Result<(), TransportError> {
        if !self.endpoint.is_time_to_look() {
            return Ok(());
        }
        let is_gone = !self.released && self.endpoint.is_gone(MASTER);
        let was_gone = std::mem::replace(&mut self.master_gone, is_gone);
        if was_gone && is_gone {
            return Err(TransportError(
                "The master has died: its process is gone".to_owned(),
            ));
        }
        Ok(())
    }
}

impl WorkerTransport for MpiWorker<'_> {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn send(&mut self, message: ToMaster) -> Result<(), TransportError> {
        self.send_deferred(message)?;
        self.endpoint.ring(MASTER);
        Ok(())
    }

    fn send_deferred(&mut self, message: ToMaster) -> Result<(), TransportError> {
        let mut bytes = Vec::with_capacity(message.encoded_len());
        message.encode(&mut bytes);
        self.endpoint.send(MASTER, MESSAGE, bytes)
    }

    fn receive(&mut self, timeout: Duration) -> Result<Option<ToWorker>, TransportError> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let received = self.endpoint.wait(timeout.min(LOOK), &mut buffer);
        self.buffer = buffer;
        match received {
            None => {
                self.look_after_master()?;
                Ok(None)
            }
            Some((_, GOODBYE)) => {
                self.released = true;
                Ok(Some(ToWorker::Shutdown))
            }
            Some(_) => ToWorker::decode(&self.buffer)
                .map(Some)
                .map_err(|error| TransportError(format!("Invalid message from the master: {error}"))),
        }
    }
}
