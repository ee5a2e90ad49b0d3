//! Requests to stop or drain a run.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

/// A request to stop or drain, shared by the requesting thread and the loop that checks for it.
#[derive(Default)]
pub struct Interrupt {
    signal: AtomicI32,
    drain: AtomicI32,
    /// Only workers have asked to drain so far.
    by_worker: AtomicBool,
    bell: Arc<Bell>,
}

/// Wakes the loops that wait for messages.
#[derive(Default)]
struct Bell {
    rings: AtomicU32,
    wakers: Mutex<Vec<Box<dyn Fn() + Send>>>,
}

impl Bell {
    fn ring(&self) {
        self.rings.fetch_add(1, Ordering::AcqRel);
        if let Ok(wakers) = self.wakers.lock() {
            wakers.iter().for_each(|wake| wake());
        }
    }
}

impl Interrupt {
    /// Creates the state without a request.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks to stop the run because of a signal. Keeps the first signal.
    pub fn raise(&self, signal: i32) {
        let _ = self
            .signal
            .compare_exchange(0, signal, Ordering::AcqRel, Ordering::Acquire);
        self.wake();
    }

    /// Asks to drain: to start no more tasks and to end the run when the running ones have ended. The second
    /// request stops the run.
    pub fn drain(&self, signal: i32) {
        let first = self
            .drain
            .compare_exchange(0, signal, Ordering::AcqRel, Ordering::Acquire);
        match first {
            Ok(_) => self.wake(),
            // The same signal may reach workers before the master.
            Err(_) if self.by_worker.swap(false, Ordering::AcqRel) => {}
            Err(_) => self.raise(signal),
        }
    }

    /// Asks to drain because a worker was sent this signal. Does nothing during a drain: the signal may have
    /// been sent to all processes of a run.
    pub fn drain_for_worker(&self, signal: i32) {
        let drain = &self.drain;
        if drain.load(Ordering::Acquire) == 0 {
            self.by_worker.store(true, Ordering::Release);
            match drain.compare_exchange(0, signal, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => self.wake(),
                // The signal has reached the master just now.
                Err(_) => self.by_worker.store(false, Ordering::Release),
            }
        }
    }

    fn wake(&self) {
        self.bell.ring();
    }

    /// Returns what wakes the loop, for threads that have work for it.
    pub(crate) fn waker(&self) -> Arc<dyn Fn() + Send + Sync> {
        let bell = Arc::clone(&self.bell);
        Arc::new(move || bell.ring())
    }

    /// The signal that asked to stop, if any.
    #[must_use]
    pub fn signal(&self) -> Option<i32> {
        Some(self.signal.load(Ordering::Acquire)).filter(|signal| *signal != 0)
    }

    /// The first signal that asked to drain, if any.
    #[must_use]
    pub fn drain_signal(&self) -> Option<i32> {
        Some(self.drain.load(Ordering::Acquire)).filter(|signal| *signal != 0)
    }

    /// Number of times that the loop was woken.
    #[must_use]
    pub fn requests(&self) -> u32 {
        self.bell.rings.load(Ordering::Acquire)
    }

    /// Calls `wake` on each request, to wake a loop that waits for messages.
    pub fn on_raise(&self, wake: impl Fn() + Send + 'static) {
        if let Ok(mut wakers) = self.bell.wakers.lock() {
            wakers.push(Box::new(wake));
        }
    }
}

impl std::fmt::Debug for Interrupt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Interrupt")
            .field("signal", &self.signal())
            .field("drain", &self.drain_signal())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_drain_request_stops_the_run() {
        let interrupt = Interrupt::new();
        interrupt.drain(10);
        assert_eq!((interrupt.drain_signal(), interrupt.signal()), (Some(10), None));
        interrupt.drain(15);
        assert_eq!(
            (interrupt.drain_signal(), interrupt.signal()),
            (Some(10), Some(15))
        );
        assert_eq!(interrupt.requests(), 2);
    }

    #[test]
    fn a_signal_to_all_processes_is_one_request() {
        let interrupt = Interrupt::new();
        for _ in 0..2 {
            interrupt.drain_for_worker(15);
        }
        interrupt.drain(15);
        interrupt.drain_for_worker(15);
        assert_eq!((interrupt.drain_signal(), interrupt.signal()), (Some(15), None));
        interrupt.drain(15);
        assert_eq!(interrupt.signal(), Some(15));
    }
}
