//! Flat combining: the thread that submits a message does the master's work with it.
//!
//! Waking a thread takes about as long as starting a small task. A master with a thread of its own would need
//! two wake-ups for each task. Here the threads of the workers run the master instead, one at a time
//! ([`Combiner::run`]). A thread that submits a message while another one runs the master leaves the message
//! and continues; the other thread checks for new messages before it stops. So no thread waits for the
//! master, and under load one thread handles many messages at once.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use pmc_system::clock;
use pmc_system::sync::Condvar;

use crate::protocol::{Rank, ToMaster};

/// The work of the master.
pub trait Combine {
    /// Handles these messages, of which there may be none. Returns true when no more work will follow.
    fn combine(&mut self, messages: &mut VecDeque<(Rank, ToMaster)>) -> bool;

    /// When to call [`Self::combine`] next even if no message comes.
    fn deadline(&self) -> Option<Instant>;
}

/// Receives the messages of worker threads and lets these threads handle them.
#[derive(Default)]
pub struct Combiner {
    inbox: Mutex<Inbox>,
    /// Wakes the thread that owns the master.
    owner: Condvar,
    master: Mutex<Option<Borrowed>>,
}

#[derive(Default)]
struct Inbox {
    messages: VecDeque<(Rank, ToMaster)>,
    /// The owner was woken by [`Combiner::wake`].
    woken: bool,
    /// Threads that submit a message combine.
    running: bool,
    /// The master has no more work.
    finished: bool,
}

/// A borrowed [`Combine`] with its lifetime erased.
struct Borrowed {
    master: *mut (dyn Combine + Send),
    /// The deadline that the owner knows.
    announced: Option<Instant>,
}

#[expect(unsafe_code, reason = "see `Combiner::run`")]
// SAFETY: the pointee is `Send`, and the lock around this value lets one thread at a time use it.
unsafe impl Send for Borrowed {}

impl Combiner {
    /// Submits a message, and combines if the master runs.
    pub fn submit(&self, from: Rank, message: ToMaster) {
        let mut inbox = self.inbox();
        inbox.messages.push_back((from, message));
        if inbox.running {
            drop(inbox);
            self.combine_all();
        } else {
            self.owner.notify_all();
        }
    }

    /// Wakes the thread that runs the master or receives messages.
    pub fn wake(&self) {
        self.inbox().woken = true;
        self.owner.notify_all();
    }

    /// Returns the next message while the master does not run. `None` if there was none within `timeout`, or
    /// after [`Self::wake`].
    pub fn receive(&self, timeout: Duration) -> Option<(Rank, ToMaster)> {
        let is_waiting = |inbox: &mut Inbox| inbox.messages.is_empty() && !inbox.woken;
        let inbox = self.inbox();
        let mut inbox = if timeout.is_zero() {
            inbox
        } else {
            self.owner
                .wait_timeout_while(&self.inbox, inbox, timeout, is_waiting)
        };
        inbox.woken = false;
        inbox.messages.pop_front()
    }

    /// Runs the master until it has no more work. This thread combines first, later the threads that submit
    /// messages do.
    pub fn run(&self, master: &mut (dyn Combine + Send)) {
        let running = Running { combiner: self };
        *self.master() = Some(Borrowed {
            master: erase_lifetime(master),
            announced: None,
        });
        {
            let mut inbox = self.inbox();
            (inbox.running, inbox.finished, inbox.woken) = (true, false, true);
        }
        loop {
            let deadline = self.master().as_mut().and_then(Borrowed::announce);
            let mut inbox = self.inbox();
            // Messages may have come while this thread held the master.
            while !inbox.finished && !inbox.woken && inbox.messages.is_empty() {
                let left = deadline.map(|at| at.saturating_duration_since(clock::now()));
                inbox = match left {
                    None => self.owner.wait(&self.inbox, inbox),
                    Some(left) if left.is_zero() => break,
                    Some(left) => self.owner.wait_timeout(&self.inbox, inbox, left),
                };
            }
            if inbox.finished {
                break;
            }
            inbox.woken = false;
            drop(inbox);
            self.combine_once(&mut self.master());
        }
        drop(running);
    }

    /// Combines while there are messages and no other thread does.
    fn combine_all(&self) {
        loop {
            match self.master.try_lock() {
                Ok(mut master) => self.combine_once(&mut master),
                Err(TryLockError::Poisoned(error)) => self.combine_once(&mut error.into_inner()),
                // The thread that holds the lock checks for messages before it stops.
                Err(TryLockError::WouldBlock) => return,
            }
            let inbox = self.inbox();
            if inbox.messages.is_empty() || inbox.finished || !inbox.running {
                return;
            }
        }
    }

    fn combine_once(&self, master: &mut Option<Borrowed>) {
        let Some(master) = master else { return };
        let mut messages = {
            let mut inbox = self.inbox();
            if inbox.finished {
                return;
            }
            std::mem::take(&mut inbox.messages)
        };
        // After a panic the thread in `run` must not wait for ever.
        let finish = FinishOnDrop { combiner: self };
        let finished = master.get().combine(&mut messages);
        if !messages.is_empty() {
            let mut inbox = self.inbox();
            messages.append(&mut inbox.messages);
            inbox.messages = messages;
        }
        if !finished {
            std::mem::forget(finish);
            // The owner waits for a later one, or for none.
            if master.has_earlier_deadline() {
                self.wake();
            }
        }
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        // The inbox is valid at every moment, even if a thread panicked.
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn master(&self) -> MutexGuard<'_, Option<Borrowed>> {
        self.master.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes the master back when dropped, also after a panic.
struct Running<'a> {
    combiner: &'a Combiner,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.combiner.inbox().running = false;
        // Waits for the thread that combines.
        *self.combiner.master() = None;
    }
}

/// Marks the work as finished when dropped.
struct FinishOnDrop<'a> {
    combiner: &'a Combiner,
}

impl Drop for FinishOnDrop<'_> {
    fn drop(&mut self) {
        self.combiner.inbox().finished = true;
        self.combiner.owner.notify_all();
    }
}

#[expect(unsafe_code, reason = "only the lifetime changes")]
fn erase_lifetime<'a>(master: &'a mut (dyn Combine + Send + 'a)) -> *mut (dyn Combine + Send + 'static) {
    // SAFETY: the types differ only in the lifetime. The pointer is used under the lock of `master`, and
    // `Running` removes it from there before `run`, which holds the borrow, returns.
    unsafe {
        std::mem::transmute::<*mut (dyn Combine + Send + 'a), *mut (dyn Combine + Send + 'static)>(master)
    }
}

impl Borrowed {
    #[expect(unsafe_code, reason = "see `erase_lifetime`")]
    fn get(&mut self) -> &mut (dyn Combine + Send) {
        // SAFETY: `run` still holds the borrow, and the lock through which the caller reached `self` excludes
        // other threads.
        unsafe { &mut *self.master }
    }

    /// Returns the deadline, for the owner.
    fn announce(&mut self) -> Option<Instant> {
        self.announced = self.get().deadline();
        self.announced
    }

    /// True if the deadline has become earlier than the owner knows. It learns this once.
    fn has_earlier_deadline(&mut self) -> bool {
        let deadline = self.get().deadline();
        let known = self.announced;
        let is_earlier = deadline.is_some_and(|at| known.is_none_or(|known| at < known));
        if is_earlier {
            self.announced = deadline;
        }
        is_earlier
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;

    fn failed(text: &str) -> ToMaster {
        ToMaster::Failed {
            message: text.to_owned(),
        }
    }

    /// Ends at a deadline that the first message sets.
    struct Timer(Option<Instant>);

    impl Combine for Timer {
        fn combine(&mut self, messages: &mut VecDeque<(Rank, ToMaster)>) -> bool {
            if messages.drain(..).count() > 0 {
                self.0 = Some(Instant::now() + Duration::from_millis(30));
            }
            self.0.is_some_and(|at| at <= Instant::now())
        }

        fn deadline(&self) -> Option<Instant> {
            self.0
        }
    }

    /// The turn of another thread sets a deadline, and then nothing happens any more.
    #[test]
    fn the_owner_learns_of_deadlines_that_others_set() {
        let combiner = Combiner::default();
        thread::scope(|scope| {
            scope.spawn(|| {
                // The owner waits by then, without a deadline.
                thread::sleep(Duration::from_millis(50));
                combiner.submit(Rank(1), failed("now"));
            });
            combiner.run(&mut Timer(None));
        });
    }

    /// Counts messages up to a number.
    struct Count {
        seen: usize,
        until: usize,
        rounds: usize,
        deadline: Option<Instant>,
    }

    impl Combine for Count {
        fn combine(&mut self, messages: &mut VecDeque<(Rank, ToMaster)>) -> bool {
            self.rounds += 1;
            while self.seen < self.until && messages.pop_front().is_some() {
                self.seen += 1;
            }
            if self.deadline.take_if(|at| *at <= Instant::now()).is_some() {
                self.until = self.seen;
            }
            self.seen == self.until
        }

        fn deadline(&self) -> Option<Instant> {
            self.deadline
        }
    }

    fn count(until: usize) -> Count {
        Count {
            seen: 0,
            until,
            rounds: 0,
            deadline: None,
        }
    }

    #[test]
    fn every_message_is_handled_once() {
        let combiner = Combiner::default();
        let mut master = count(4 * 5_000);
        thread::scope(|scope| {
            for rank in 1..=4 {
                let combiner = &combiner;
                scope.spawn(move || {
                    for _ in 0..5_010 {
                        combiner.submit(Rank(rank), failed("x"));
                    }
                });
            }
            combiner.run(&mut master);
        });
        assert_eq!(master.seen, 20_000);
        let mut left = 0;
        while combiner.receive(Duration::ZERO).is_some() {
            left += 1;
        }
        assert_eq!(left, 40, "late messages stay in the inbox");
    }

    #[test]
    fn early_messages_are_handled_first() {
        let combiner = Combiner::default();
        combiner.submit(Rank(1), failed("early"));
        let mut master = count(1);
        combiner.run(&mut master);
        assert_eq!((master.seen, master.rounds), (1, 1));
    }

    #[test]
    fn wake_and_deadline_make_the_owner_combine() {
        let combiner = Combiner::default();
        combiner.wake();
        assert_eq!(combiner.receive(Duration::MAX), None);
        let mut master = count(1);
        master.deadline = Some(Instant::now() + Duration::from_millis(20));
        thread::scope(|scope| {
            scope.spawn(|| combiner.wake());
            combiner.run(&mut master);
        });
        assert_eq!((master.seen, master.until), (0, 0));
    }

    /// Another thread submits a message while the owner holds the master.
    struct Busy<'a> {
        combiner: &'a Combiner,
        in_combine: bool,
        submitted: AtomicBool,
        until: Instant,
        seen: bool,
    }

    impl Busy<'_> {
        fn submit_meanwhile(&self) {
            if !self.submitted.swap(true, Ordering::Relaxed) {
                thread::scope(|scope| scope.spawn(|| self.combiner.submit(Rank(1), failed("x"))).join())
                    .expect("the thread does not panic");
            }
        }
    }

    impl Combine for Busy<'_> {
        fn combine(&mut self, messages: &mut VecDeque<(Rank, ToMaster)>) -> bool {
            if self.in_combine {
                self.submit_meanwhile();
            }
            let late = Instant::now() >= self.until;
            self.seen = !late && messages.pop_front().is_some();
            self.seen || late
        }

        fn deadline(&self) -> Option<Instant> {
            if !self.in_combine {
                self.submit_meanwhile();
            }
            Some(self.until)
        }
    }

    #[test]
    fn message_submitted_while_the_owner_holds_the_master_is_handled() {
        for in_combine in [true, false] {
            let combiner = Combiner::default();
            let mut master = Busy {
                combiner: &combiner,
                in_combine,
                submitted: AtomicBool::new(false),
                until: Instant::now() + Duration::from_secs(20),
                seen: false,
            };
            combiner.run(&mut master);
            assert!(master.seen, "during combine: {in_combine}");
        }
    }

    #[test]
    fn panic_ends_the_run() {
        struct Panics;
        impl Combine for Panics {
            fn combine(&mut self, messages: &mut VecDeque<(Rank, ToMaster)>) -> bool {
                assert!(messages.is_empty(), "panics on purpose");
                false
            }
            fn deadline(&self) -> Option<Instant> {
                None
            }
        }
        let combiner = Combiner::default();
        let ended = thread::scope(|scope| {
            let submitter = scope.spawn(|| {
                thread::sleep(Duration::from_millis(5));
                combiner.submit(Rank(1), failed("x"));
            });
            combiner.run(&mut Panics);
            submitter.join()
        });
        assert!(ended.is_err());
    }
}
