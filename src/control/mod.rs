//! Control of a run from outside: the run's side of [`pmc_control`].
//!
//! A thread of its own does the talking; the driver takes the requests between two messages
//! ([`Control::take`]), so a slow tool holds up nothing. Output of tasks waits nowhere in memory.
//!
//! The socket has the mode 0600, and the peer must be the same user or root. Without a socket, for example on
//! a file system that has none, the run goes on and cannot be controlled.

mod read_ahead;
mod redirect;
mod server;
#[cfg(feature = "simulated")]
pub(crate) mod simulated;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, PoisonError};

use pmc_control::{Answer, Output, RedirectRequest, Request};

use crate::protocol::{Deliverer, RedirectAnswer};
use crate::relay::Relay;
pub(crate) use server::Server;

/// Returns who delivers what a request redirects. A run that has room waits for output.
pub(crate) fn deliverer(request: &RedirectRequest) -> Deliverer {
    match request.to_files {
        false => Deliverer::Tool,
        true => Deliverer::Run {
            has_room: request.may_wait,
        },
    }
}

/// What the driver answers.
#[derive(Debug)]
pub(crate) enum Reply {
    Answer(Answer),
    Output(Output),
    /// The relay of an attempt of a worker that is a thread of this process.
    Relay(Target, Relay),
    /// What an attempt of another worker answers.
    Redirected(Target, RedirectAnswer),
}

/// An attempt of which a tool asks something.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) task: String,
    pub(crate) worker: u32,
    pub(crate) attempt: u64,
}

/// A request and where its answer goes.
pub(crate) struct Pending {
    pub(crate) request: Request,
    pub(crate) answer: SyncSender<Reply>,
    /// The guest whose socket it came by.
    pub(crate) guest: Option<u32>,
}

/// Requests that the driver has not taken.
#[derive(Clone, Default)]
pub(crate) struct Control {
    shared: Arc<Queue>,
    /// The guest whose requests this adds.
    guest: Option<u32>,
}

#[derive(Default)]
struct Queue {
    has_some: AtomicBool,
    requests: Mutex<VecDeque<Pending>>,
    /// Redirects of which only the thread of the connection knows what was delivered.
    redirects: AtomicU32,
    /// The run is about to end its tasks.
    ends: AtomicBool,
}

/// A redirect that [`Control::end_redirects`] ends.
pub(crate) struct OpenRedirect(Arc<Queue>);

impl OpenRedirect {
    /// Returns whether the run is about to end its tasks: it waits for a moment until nothing more is
    /// delivered and all workers know what was.
    pub(crate) fn is_to_end(&self) -> bool {
        self.0.ends.load(Ordering::SeqCst)
    }
}

impl Drop for OpenRedirect {
    fn drop(&mut self) {
        self.0.redirects.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Control {
    /// The same requests, for the socket of a guest.
    pub(crate) fn of_guest(&self, guest: u32) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            guest: Some(guest),
        }
    }

    /// Notes a redirect that begins.
    pub(crate) fn open_redirect(&self) -> OpenRedirect {
        // It counts before it looks whether it is to end.
        self.shared.redirects.fetch_add(1, Ordering::SeqCst);
        OpenRedirect(Arc::clone(&self.shared))
    }

    /// Asks all redirects to end, and lets no other one begin. Each passes a last request on.
    pub(crate) fn end_redirects(&self) {
        self.shared.ends.store(true, Ordering::SeqCst);
    }

    /// Returns whether a redirect has not ended.
    pub(crate) fn has_redirects(&self) -> bool {
        self.shared.redirects.load(Ordering::SeqCst) > 0
    }

    /// Forgets the requests of its socket: nobody takes them any more.
    fn clear(&self) {
        let requests = self.shared.requests.lock();
        let mut requests = requests.unwrap_or_else(PoisonError::into_inner);
        requests.retain(|pending| pending.guest != self.guest);
    }

    /// Takes the next request.
    pub(crate) fn take(&self) -> Option<Pending> {
        if !self.shared.has_some.load(Ordering::Acquire) {
            return None;
        }
        let mut requests = self
            .shared
            .requests
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let next = requests.pop_front();
        self.shared
            .has_some
            .store(!requests.is_empty(), Ordering::Release);
        next
    }

    fn push(&self, request: Request, answer: SyncSender<Reply>) {
        let mut requests = self
            .shared
            .requests
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        requests.push_back(Pending {
            request,
            answer,
            guest: self.guest,
        });
        self.shared.has_some.store(true, Ordering::Release);
    }
}
