//! Asking a run to stop, from a signal handler's thread or from another part of the program.

use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, Ordering};

/// A request to stop; shared between whoever asks and the loop that looks for it.
#[derive(Default)]
pub struct Interrupt {
    signal: AtomicI32,
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
        if let Ok(wakers) = self.wakers.lock() {
            wakers.iter().for_each(|wake| wake());
        }
    }

    /// The signal, if somebody has asked.
    #[must_use]
    pub fn signal(&self) -> Option<i32> {
        Some(self.signal.load(Ordering::Acquire)).filter(|signal| *signal != 0)
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
            .finish_non_exhaustive()
    }
}
