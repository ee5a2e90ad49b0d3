//! Workers as ranks of an MPI program. Only this module knows MPI.
//!
//! A process waits for messages by polling MPI: blocking calls of MPI keep a core busy, which the tasks need.
//! The pauses between polls grow with the time already waited. So a message is late by at most a small part
//! of that time, and never by more than two milliseconds. Processes of the same host need not wait for the
//! end of a pause; see [`doorbell`].
//!
//! Only the thread that called [`Mpi::start`] calls MPI.

mod doorbell;
mod endpoint;
mod finalize;
mod master;
mod networks;
mod patience;
mod shared_memory;
mod worker;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use mpi::environment::Universe;
use mpi::topology::{Communicator as _, SimpleCommunicator};

use self::doorbell::Doorbells;
use self::endpoint::Endpoint;
pub use self::endpoint::Waiting;
pub use self::master::MpiMaster;
pub use self::worker::MpiWorker;
use super::TransportError;
use crate::interrupt::Interrupt;
use crate::protocol::Rank;

const MASTER: Rank = Rank(0);

/// Maximum time for the end of MPI. It takes milliseconds if all processes take part.
const MAX_FINALIZE_TIME: Duration = Duration::from_secs(30);
/// Maximum time for MPI to end all processes at once.
const MAX_ABORT_TIME: Duration = Duration::from_secs(10);

/// Returns name and version of the MPI library.
#[must_use]
pub fn library_version() -> String {
    let (major, minor) = mpi::environment::version();
    // Some libraries return several lines, and more than one version in a line.
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

/// The part of this process in the MPI program. Dropping it finalizes MPI, which waits for the other
/// processes.
pub struct Mpi {
    universe: Universe,
    world: SimpleCommunicator,
    bells: Option<Doorbells>,
}

impl Mpi {
    /// Joins the other processes. `environment` is that of this process, which must have only one thread.
    ///
    /// # Errors
    /// The library does not support threads, or was started before.
    #[expect(unsafe_code, reason = "the library takes settings only from the environment")]
    pub fn start(environment: &[(OsString, OsString)]) -> Result<Self, TransportError> {
        let is_open_mpi =
            mpi::environment::library_version().is_ok_and(|library| library.starts_with("Open MPI"));
        if let Some((name, value)) = networks::setting(environment).filter(|_| is_open_mpi) {
            // SAFETY: there is no other thread that could read the environment meanwhile.
            unsafe { std::env::set_var(name, value) };
        }
        let started = mpi::initialize_with_threading(mpi::Threading::Funneled);
        let (universe, threading) = started.ok_or(TransportError::MpiInUse)?;
        if threading < mpi::Threading::Funneled {
            return Err(TransportError::MpiWithoutThreads);
        }
        let world = universe.world();
        let bells = Doorbells::join(&world);
        Ok(Self {
            universe,
            world,
            bells,
        })
    }

    /// Returns the rank of this process.
    #[must_use]
    pub fn rank(&self) -> Rank {
        Rank(u32::try_from(self.world.rank()).unwrap_or(0))
    }

    /// Returns the number of processes.
    #[must_use]
    pub fn size(&self) -> u32 {
        u32::try_from(self.world.size()).unwrap_or(0)
    }

    /// Returns the master's side; for rank 0. Files without names for large data are in `folder`.
    #[must_use]
    pub fn master(&self, waiting: Waiting, interrupt: Arc<Interrupt>, folder: &Path) -> MpiMaster<'_> {
        let workers = self.size().saturating_sub(1);
        MpiMaster::new(Endpoint::new(self, waiting, interrupt), workers, folder)
    }

    /// Returns a worker's side; for the other ranks.
    #[must_use]
    pub fn worker(&self, waiting: Waiting, interrupt: Arc<Interrupt>) -> MpiWorker<'_> {
        MpiWorker::new(Endpoint::new(self, waiting, interrupt), self.rank())
    }

    /// Finalizes MPI, which waits for the other processes. If that takes too long, ends this process without
    /// it.
    pub fn end(self, code: ExitCode) -> ExitCode {
        finalize::exit_after(MAX_FINALIZE_TIME, i32::from(code != ExitCode::SUCCESS));
        finalize::disable_send_delay();
        drop(self);
        code
    }

    /// Ends all processes of the program at once.
    pub fn abort(self, code: i32) -> ! {
        finalize::exit_after(MAX_ABORT_TIME, code);
        // Dropping the universe would finalize MPI.
        std::mem::forget(self.universe);
        self.world.abort(code)
    }
}
