//! PMIx servers: one that tools find with `PMIx_tool_init`, and one for the ranks of a launch ([`ranks`]).
//!
//! The library has one server in a process, with a thread of its own, and this crate the same: a program runs
//! one for one run. [`Host`] answers what tools ask for; [`Server::deliver`] gives them output.
//!
//! The library listens on a TCP port of the loopback device, and believes whatever user number a tool gives.
//! So this crate looks up in `/proc/net/tcp` whose connection it is, and cuts those of other users
//! ([`peers`]).
#![cfg(feature = "library")]

mod ffi;
mod peers;
pub mod ranks;

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use peers::Connection;

pub use ffi::{Taken, Wants};

/// Time for a tool to take output. Then its connection is cut.
const TAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time between two looks at the connection of a tool that takes no more.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// Time at the end for tools to take the rest.
const LAST_OUTPUT: Duration = Duration::from_secs(2);
/// Time for the thread of the library to send what it was given.
const SEND: Duration = Duration::from_millis(200);
/// Maximum bytes of a piece of output.
const PIECE: usize = 64 << 10;

/// Processes that a tool means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Processes {
    /// Name of their namespace.
    pub namespace: String,
    /// Number of the process; `None` for all.
    pub rank: Option<u32>,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It is not possible with these processes, or not as the tool wants it.
    NotSupported,
    /// There are no such processes.
    NotFound,
    /// The process reads its input too slowly.
    Timeout,
    /// The process takes no more input.
    Failed,
}

/// Tools that were connected at a moment.
#[derive(Clone, Debug)]
pub struct Tools(Vec<Connection>);

impl Tools {
    /// The tools that are connected now.
    #[must_use]
    pub fn now() -> Self {
        Self(peers::connections())
    }

    /// Returns whether all of them are still connected.
    #[must_use]
    pub fn are_there(&self) -> bool {
        let now = peers::connections();
        self.0.iter().all(|connection| now.contains(connection))
    }
}

/// What the host of a server does. The thread of the library calls it, and must get an answer at once.
pub trait Host: Send + Sync {
    /// A tool wants output of processes.
    ///
    /// # Errors
    /// It is refused.
    fn pull(&self, processes: &[Processes], streams: [bool; 2], wants: Wants) -> Result<(), Refusal>;

    /// A tool ends one of its pulls. The library does not say which.
    fn stop(&self);

    /// A tool pushes input to processes. `taken` is answered when they have it, or at once with a refusal.
    fn push(&self, processes: &[Processes], bytes: &[u8], wants: Wants, taken: Taken);

    /// Calls `add` with rank, task and host of each process that runs.
    fn list(&self, add: &mut dyn FnMut(u32, &str, &str));
}

/// A server does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The directory for the files by which tools find it cannot be made.
    #[error("cannot make a directory in {}: {source}", std::env::temp_dir().display())]
    Directory {
        /// Why.
        source: io::Error,
    },
    /// A name or path has a zero byte, or this process has a server.
    #[error("the server of PMIx cannot start a second time, or with such a name")]
    Name,
    /// The library refuses.
    #[error("the library of PMIx does not start a server: {reason}")]
    Library {
        /// Its words.
        reason: String,
    },
}

/// A server. It ends when it is dropped.
#[derive(Debug)]
pub struct Server {
    directory: TempDir,
}

/// Name of the file in the directory of a server by which tools find it.
const ADDRESS: &str = "address";

impl Server {
    /// Starts a server with this namespace. Tools find it by the files in a new directory for temporary
    /// files, or by a file with its [`address`](Self::address).
    ///
    /// It removes the settings of PMIx from the environment, so no other thread may run that reads it.
    ///
    /// # Errors
    /// The library refuses, or the process has a server.
    pub fn start(namespace: &str, host: Arc<dyn Host>) -> Result<Self, StartError> {
        // The mode is 0700.
        let directory = tempfile::Builder::new().prefix("pmc-pmix-").tempdir();
        let directory = directory.map_err(|source| StartError::Directory { source })?;
        let text = |bytes: &[u8]| CString::new(bytes).map_err(|_| StartError::Name);
        let namespace = text(namespace.as_bytes())?;
        let in_directory = text(directory.path().as_os_str().as_bytes())?;
        // The library follows links, so that it writes nowhere else.
        let uri_file = text(directory.path().join(ADDRESS).as_os_str().as_bytes())?;
        ffi::start(&namespace, &in_directory, &uri_file, host)?;
        Ok(Self { directory })
    }

    /// Returns the text of a file by which tools find the server.
    ///
    /// # Errors
    /// The library has not written it.
    pub fn address(&self) -> io::Result<String> {
        std::fs::read_to_string(self.directory.path().join(ADDRESS))
    }

    /// Delivers output of a process, or its end if there are no bytes, to the tools that have asked for it.
    ///
    /// Waits while a tool takes no more, because the library would gather the output in memory. A tool
    /// that takes nothing for ten seconds loses its connection.
    pub fn deliver(&self, rank: u32, is_error: bool, bytes: &[u8]) {
        if bytes.is_empty() {
            ffi::deliver(rank, is_error, bytes);
        }
        for piece in bytes.chunks(PIECE) {
            wait_for_room(TAKE_TIMEOUT);
            ffi::deliver(rank, is_error, piece);
        }
    }

    /// Returns whether a tool is connected.
    #[must_use]
    pub fn has_tools(&self) -> bool {
        !peers::connections().is_empty()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.has_tools() {
            wait_for_room(LAST_OUTPUT);
            std::thread::sleep(SEND);
        }
        ffi::stop();
    }
}

/// Waits until all tools can take more. Cuts those that cannot within this time.
fn wait_for_room(patience: Duration) {
    let end = Instant::now() + patience;
    loop {
        let full = peers::full();
        if full.is_empty() {
            return;
        }
        if Instant::now() >= end {
            return peers::cut(&full);
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}
