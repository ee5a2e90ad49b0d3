//! Asking a run to stop or to drain, from a signal handler's thread or from another part of the program.

use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

/// A request to stop or to drain; shared between whoever asks and the loop that looks for it.
#[derive(Default)]
pub struct Interrupt {
    signal: AtomicI32,
    drain: AtomicI32,
    requests: AtomicU32,
    wakers: Mutex<Vec<Box<dyn Fn() + Send>>>,
}

impl Interrupt {
    /// Nobody has asked yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks for the end of the run. `signal` is the number of the signal that was the reason; the
    /// first one counts.
    pub fn raise(&self, signal: i32) {
        let _ = self
            .signal
            .compare_exchange(0, signal, Ordering::AcqRel, Ordering::Acquire);
        self.wake();
    }

    /// Asks to start nothing new and to end the run when the running tasks have ended; for the second
    /// time, to end it now.
    pub fn drain(&self, signal: i32) {
        let first = self
            .drain
            .compare_exchange(0, signal, Ordering::AcqRel, Ordering::Acquire);
        match first {
            Ok(_) => self.wake(),
            Err(_) => self.raise(signal),
        }
    }

    fn wake(&self) {
        self.requests.fetch_add(1, Ordering::AcqRel);
        if let Ok(wakers) = self.wakers.lock() {
            wakers.iter().for_each(|wake| wake());
        }
    }

    /// The signal, if somebody has asked for the end.
    #[must_use]
    pub fn signal(&self) -> Option<i32> {
        Some(self.signal.load(Ordering::Acquire)).filter(|signal| *signal != 0)
    }

    /// The signal that was the first to ask to start nothing new.
    #[must_use]
    pub fn drain_signal(&self) -> Option<i32> {
        Some(self.drain.load(Ordering::Acquire)).filter(|signal| *signal != 0)
    }

    /// How often somebody has asked for something.
    #[must_use]
    pub fn requests(&self) -> u32 {
        self.requests.load(Ordering::Acquire)
    }

    /// Calls `wake` whenever somebody asks, so that a loop that waits for messages takes notice.
    pub fn on_raise(&self, wake: impl Fn() + Send + 'static) {
        if let Ok(mut wakers) = self.wakers.lock() {
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
    fn to_ask_twice_is_to_insist() {
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
}
