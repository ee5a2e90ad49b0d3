//! Waiting for other threads.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A [`std::sync::Condvar`]. State that it guards is valid at every moment: a panic does not count.
#[derive(Debug, Default)]
pub struct Condvar {
    inner: std::sync::Condvar,
    waiters: Waiters,
}

impl Condvar {
    /// Waits for a notification.
    pub fn wait<'a, T>(&self, mutex: &'a Mutex<T>, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        #[cfg(feature = "simulated")]
        if crate::is_simulated() {
            drop(guard);
            self.waiters.wait(None);
            return lock(mutex);
        }
        let _ = mutex;
        self.inner.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a notification, at most `timeout`.
    pub fn wait_timeout<'a, T>(
        &self,
        mutex: &'a Mutex<T>,
        guard: MutexGuard<'a, T>,
        timeout: Duration,
    ) -> MutexGuard<'a, T> {
        #[cfg(feature = "simulated")]
        if crate::is_simulated() {
            drop(guard);
            self.waiters.wait(crate::clock::now().checked_add(timeout));
            return lock(mutex);
        }
        let _ = mutex;
        let waited = self.inner.wait_timeout(guard, timeout);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Waits while this is true, at most `timeout`.
    pub fn wait_timeout_while<'a, T>(
        &self,
        mutex: &'a Mutex<T>,
        guard: MutexGuard<'a, T>,
        timeout: Duration,
        is_waiting: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        #[cfg(feature = "simulated")]
        if crate::is_simulated() {
            let until = crate::clock::now().checked_add(timeout);
            let (mut guard, mut is_waiting) = (guard, is_waiting);
            while is_waiting(&mut guard) && until.is_none_or(|until| crate::clock::now() < until) {
                drop(guard);
                self.waiters.wait(until);
                guard = lock(mutex);
            }
            return guard;
        }
        let _ = mutex;
        let waited = self.inner.wait_timeout_while(guard, timeout, is_waiting);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Wakes all threads that wait.
    pub fn notify_all(&self) {
        self.waiters.wake_all();
        self.inner.notify_all();
    }
}

#[cfg(feature = "simulated")]
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Threads of a simulation that wait for something.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    #[cfg(feature = "simulated")]
    waiting: Mutex<Vec<crate::simulated::ThreadId>>,
}

#[cfg_attr(
    not(feature = "simulated"),
    expect(clippy::unused_self, reason = "nobody waits")
)]
impl Waiters {
    #[inline]
    pub(crate) fn wake_all(&self) {
        #[cfg(feature = "simulated")]
        if crate::is_simulated() {
            let waiting = std::mem::take(&mut *lock(&self.waiting));
            waiting.into_iter().for_each(crate::simulated::unpark);
        }
    }

    /// Waits until woken, or until this moment.
    #[cfg(feature = "simulated")]
    pub(crate) fn wait(&self, until: Option<std::time::Instant>) {
        self.note();
        crate::simulated::park(until);
    }

    /// Wakes the thread that runs when something comes.
    #[cfg(feature = "simulated")]
    pub(crate) fn note(&self) {
        if let Some(thread) = crate::simulated::current_thread() {
            let mut waiting = lock(&self.waiting);
            if !waiting.contains(&thread) {
                waiting.push(thread);
            }
        }
    }
}
