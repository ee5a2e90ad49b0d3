//! Ordered parallel work: several threads process items, and the results are taken in the order of the items.
//!
//! Each thread renders a chunk into its buffer and writes the buffer when all earlier chunks are written. The
//! result does not depend on the number of threads.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Maximum threads. More would only wait for each other, since results are taken one at a time.
const MAX_THREADS: usize = 8;

/// The chunk whose result is taken next.
struct Turn<T, E> {
    chunk: usize,
    take: T,
    failed: Option<E>,
    /// A chunk was abandoned.
    stopped: bool,
}

/// Calls `work` for chunks of `size` of `count` items, and then `take` for each chunk, in order. Both get the
/// state that `new` made for the thread. The first error of `take` ends the work.
///
/// # Errors
/// That of `take`.
pub(crate) fn in_order<S, E: Send>(
    count: usize,
    size: usize,
    new: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, Range<usize>) + Sync,
    take: impl FnMut(&mut S) -> Result<(), E> + Send,
) -> Result<(), E> {
    let chunks = count.div_ceil(size.max(1));
    // Querying the available parallelism reads several system files, so avoid it for few items.
    let threads = match chunks {
        0 | 1 => chunks,
        _ => std::thread::available_parallelism().map_or(1, usize::from),
    };
    let threads = threads.min(MAX_THREADS).min(chunks);
    let next = AtomicUsize::new(0);
    let turn = Mutex::new(Turn {
        chunk: 0,
        take,
        failed: None,
        stopped: false,
    });
    let changed = Condvar::new();
    let thread = || {
        let mut state = new();
        loop {
            let chunk = next.fetch_add(1, Ordering::Relaxed);
            if chunk >= chunks {
                return;
            }
            // If this thread panics, the others must not wait forever.
            let stop = StopOnDrop {
                turn: &turn,
                changed: &changed,
            };
            work(&mut state, chunk * size..count.min((chunk + 1) * size));
            let mut now = lock(&turn);
            while now.chunk != chunk && !now.stopped {
                now = changed.wait(now).unwrap_or_else(PoisonError::into_inner);
            }
            if now.stopped {
                return;
            }
            if let Err(error) = (now.take)(&mut state) {
                now.failed = Some(error);
                return;
            }
            now.chunk += 1;
            drop(now);
            std::mem::forget(stop);
            changed.notify_all();
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(thread);
        }
        thread();
    });
    let turn = turn.into_inner().unwrap_or_else(PoisonError::into_inner);
    turn.failed.map_or(Ok(()), Err)
}

/// Ends the work if a chunk is abandoned. Must be dropped after the guard of the turn.
struct StopOnDrop<'a, T, E> {
    turn: &'a Mutex<Turn<T, E>>,
    changed: &'a Condvar,
}

impl<T, E> Drop for StopOnDrop<'_, T, E> {
    fn drop(&mut self) {
        lock(self.turn).stopped = true;
        self.changed.notify_all();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_order() {
        for count in [0, 1, 99, 100, 101, 5000] {
            let mut all = Vec::new();
            let result: Result<(), ()> = in_order(
                count,
                7,
                Vec::new,
                |state: &mut Vec<usize>, range| {
                    if range.start % 3 == 0 {
                        std::thread::yield_now();
                    }
                    state.extend(range);
                },
                |state| {
                    all.append(state);
                    Ok(())
                },
            );
            assert_eq!(result, Ok(()));
            assert_eq!(all, (0..count).collect::<Vec<_>>());
        }
    }

    #[test]
    fn the_first_error_ends_the_work() {
        let mut taken = 0;
        let result = in_order(
            1_000_000,
            1,
            || 0,
            |state, range| *state = range.start,
            |state| {
                taken += 1;
                if *state == 10 { Err(*state) } else { Ok(()) }
            },
        );
        assert_eq!(result, Err(10));
        assert_eq!(taken, 11);
    }
}
