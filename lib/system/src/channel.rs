//! Messages between threads.

use std::sync::Arc;
use std::time::Duration;

pub use crossbeam_channel::RecvTimeoutError;

use crate::sync::Waiters;

/// Sends messages. It never waits.
#[derive(Debug)]
pub struct Sender<T> {
    inner: crossbeam_channel::Sender<T>,
    waiters: Arc<Waiters>,
}

/// Receives messages.
#[derive(Debug)]
pub struct Receiver<T> {
    inner: crossbeam_channel::Receiver<T>,
    #[cfg(feature = "simulated")]
    waiters: Arc<Waiters>,
}

/// A channel without a limit.
#[must_use]
pub fn unbounded<T>() -> (Sender<T>, Receiver<T>) {
    let (sender, receiver) = crossbeam_channel::unbounded();
    let waiters = Arc::new(Waiters::default());
    let sender = Sender {
        inner: sender,
        waiters: Arc::clone(&waiters),
    };
    (
        sender,
        Receiver {
            inner: receiver,
            #[cfg(feature = "simulated")]
            waiters,
        },
    )
}

impl<T> Sender<T> {
    /// Sends a message. Returns false if nobody receives any more.
    pub fn send(&self, message: T) -> bool {
        let is_sent = self.inner.send(message).is_ok();
        self.waiters.wake_all();
        is_sent
    }
}

impl<T> Receiver<T> {
    /// Returns the next message. Waits at most `timeout`.
    ///
    /// # Errors
    /// None came, or none will come.
    pub fn recv_timeout(&self, timeout: Duration) -> Result<T, RecvTimeoutError> {
        #[cfg(feature = "simulated")]
        if crate::is_simulated() {
            return self.recv_simulated(timeout);
        }
        self.inner.recv_timeout(timeout)
    }

    #[cfg(feature = "simulated")]
    fn recv_simulated(&self, timeout: Duration) -> Result<T, RecvTimeoutError> {
        use crossbeam_channel::TryRecvError;
        let until = crate::clock::now().checked_add(timeout);
        loop {
            match self.inner.try_recv() {
                Ok(message) => return Ok(message),
                Err(TryRecvError::Disconnected) => return Err(RecvTimeoutError::Disconnected),
                Err(TryRecvError::Empty) => {}
            }
            if until.is_some_and(|until| crate::clock::now() >= until) {
                // The thread may wait otherwise: then it is woken, too.
                self.waiters.note();
                return Err(RecvTimeoutError::Timeout);
            }
            self.waiters.wait(until);
        }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.waiters.wake_all();
    }
}
