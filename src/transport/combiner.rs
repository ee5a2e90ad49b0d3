//! How threads of one process pass messages to the master without waking a thread for it.
//!
//! Waking a thread takes about as long as starting a small task, twice for each task if the
//! master has a thread of its own. So whoever brings a message does the master's work with it,
//! and finds its next task when it is done: the master is lent ([`Combiner::lend`]) to the
//! threads of the workers, one at a time. A worker that comes while another one is at it leaves
//! its message there and goes on; the other one looks again before it ends its turn. So nobody
//! waits for the master, and under load many messages are worked off in one go.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use crate::protocol::{Rank, ToMaster};

/// What is to be done with messages.
pub trait Combine {
    /// Works off these messages, of which there may be none. True when nothing more is to be done.
    fn combine(&mut self, messages: &mut VecDeque<(Rank, ToMaster)>) -> bool;

    /// When the next turn is due even if no message comes.
    fn deadline(&self) -> Option<Instant>;
}

/// Where messages to the master go.
#[derive(Default)]
pub struct Combiner {
    inbox: Mutex<Inbox>,
    /// For the thread that lends the master, or receives messages itself.
    wake: Condvar,
    lent: Mutex<Option<Lent>>,
}

#[derive(Default)]
struct Inbox {
    messages: VecDeque<(Rank, ToMaster)>,
    /// Somebody wants the owner of the master to have a look.
    called: bool,
    /// Whoever brings a message is to take a turn.
    lending: bool,
    /// The last turn was taken.
    over: bool,
}

/// A borrowed [`Combine`] whose borrower's name is not known to the compiler.
struct Lent(*mut (dyn Combine + Send));

#[expect(unsafe_code, reason = "see `Combiner::lend`")]
// SAFETY: the pointer is to something that may be used by any thread, one at a time.
unsafe impl Send for Lent {}

impl Combiner {
    /// Brings a message, and takes turns if the master is lent.
    pub fn submit(&self, from: Rank, message: ToMaster) {
        let mut inbox = self.inbox();
        inbox.messages.push_back((from, message));
        if inbox.lending {
            drop(inbox);
            self.work();
        } else {
            self.wake.notify_all();
        }
    }

    /// Wakes the thread that lends the master or receives messages.
    pub fn call(&self) {
        self.inbox().called = true;
        self.wake.notify_all();
    }

    /// The next message, for as long as the master is not lent. None when there was none within
    /// `timeout`, or somebody called.
    pub fn receive(&self, timeout: Duration) -> Option<(Rank, ToMaster)> {
        let waiting = |inbox: &mut Inbox| inbox.messages.is_empty() && !inbox.called;
        let inbox = self.inbox();
        let mut inbox = if timeout.is_zero() {
            inbox
        } else {
            let waited = self.wake.wait_timeout_while(inbox, timeout, waiting);
            waited.unwrap_or_else(PoisonError::into_inner).0
        };
        inbox.called = false;
        inbox.messages.pop_front()
    }

    /// Lets the threads that bring messages take turns, until one says that nothing more is to be
    /// done. Begins with a turn of this thread.
    pub fn run(&self, master: &mut (dyn Combine + Send)) {
        let lending = Lending { combiner: self };
        *self.lent() = Some(Lent(outlive(master)));
        {
            let mut inbox = self.inbox();
            (inbox.lending, inbox.over, inbox.called) = (true, false, true);
        }
        loop {
            let deadline = self.with_lent(|master| master.deadline());
            let mut inbox = self.inbox();
            // A message that came while this thread had the master was left for it to see.
            while !inbox.over && !inbox.called && inbox.messages.is_empty() {
                let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
                inbox = match left {
                    None => self.wake.wait(inbox).unwrap_or_else(PoisonError::into_inner),
                    Some(left) if left.is_zero() => break,
                    Some(left) => {
                        let waited = self.wake.wait_timeout(inbox, left);
                        waited.unwrap_or_else(PoisonError::into_inner).0
                    }
                };
            }
            if inbox.over {
                break;
            }
            inbox.called = false;
            drop(inbox);
            self.combine(&mut self.lent());
        }
        drop(lending);
    }

    /// Takes turns for as long as there are messages and nobody else does.
    fn work(&self) {
        loop {
            match self.lent.try_lock() {
                Ok(mut lent) => self.combine(&mut lent),
                Err(TryLockError::Poisoned(error)) => self.combine(&mut error.into_inner()),
                // Who has it looks at the messages once more afterwards.
                Err(TryLockError::WouldBlock) => return,
            }
            let inbox = self.inbox();
            if inbox.messages.is_empty() || inbox.over || !inbox.lending {
                return;
            }
        }
    }

    fn combine(&self, lent: &mut Option<Lent>) {
        let Some(lent) = lent else { return };
        let mut messages = {
            let mut inbox = self.inbox();
            if inbox.over {
                return;
            }
            std::mem::take(&mut inbox.messages)
        };
        // If the turn panics, its thread ends, and the one that lends must not wait for ever.
        let ending = Ending { combiner: self };
        let over = lent.get().combine(&mut messages);
        if !messages.is_empty() {
            let mut inbox = self.inbox();
            messages.append(&mut inbox.messages);
            inbox.messages = messages;
        }
        if !over {
            std::mem::forget(ending);
        }
    }

    fn with_lent<R>(&self, ask: impl FnOnce(&mut dyn Combine) -> Option<R>) -> Option<R> {
        self.lent().as_mut().and_then(|lent| ask(lent.get()))
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        // The inbox is valid at every moment, whatever a thread that held it did.
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lent(&self) -> MutexGuard<'_, Option<Lent>> {
        self.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes the master back, whatever happens.
struct Lending<'a> {
    combiner: &'a Combiner,
}

impl Drop for Lending<'_> {
    fn drop(&mut self) {
        self.combiner.inbox().lending = false;
        // Waits for whoever has it.
        *self.combiner.lent() = None;
    }
}

/// Says that the last turn was taken.
struct Ending<'a> {
    combiner: &'a Combiner,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.combiner.inbox().over = true;
        self.combiner.wake.notify_all();
    }
}

#[expect(unsafe_code, reason = "only the lifetime changes; see the comments")]
fn outlive<'a>(master: &'a mut (dyn Combine + Send + 'a)) -> *mut (dyn Combine + Send + 'static) {
    // SAFETY: the types differ in the lifetime only. The pointer is used under the lock of `lent`,
    // and `Lending` removes it from there before `lend`, which holds the borrow, returns.
    unsafe {
        std::mem::transmute::<*mut (dyn Combine + Send + 'a), *mut (dyn Combine + Send + 'static)>(master)
    }
}

impl Lent {
    #[expect(unsafe_code, reason = "see `outlive`")]
    fn get(&mut self) -> &mut (dyn Combine + Send) {
        // SAFETY: `lend` still holds the borrow, and the lock through which this was reached makes
        // sure that nobody else has it now.
        unsafe { &mut *self.0 }
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

    /// Counts messages up to a number.
    struct Count {
        seen: usize,
        until: usize,
        turns: usize,
        deadline: Option<Instant>,
    }

    impl Combine for Count {
        fn combine(&mut self, messages: &mut VecDeque<(Rank, ToMaster)>) -> bool {
            self.turns += 1;
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
            turns: 0,
            deadline: None,
        }
    }

    #[test]
    fn no_message_is_lost_or_seen_twice() {
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
        assert_eq!(left, 40, "what came too late is still there");
    }

    #[test]
    fn messages_that_are_there_are_worked_off_first() {
        let combiner = Combiner::default();
        combiner.submit(Rank(1), failed("early"));
        let mut master = count(1);
        combiner.run(&mut master);
        assert_eq!((master.seen, master.turns), (1, 1));
    }

    #[test]
    fn a_call_and_a_deadline_are_turns() {
        let combiner = Combiner::default();
        combiner.call();
        assert_eq!(combiner.receive(Duration::MAX), None);
        let mut master = count(1);
        master.deadline = Some(Instant::now() + Duration::from_millis(20));
        thread::scope(|scope| {
            scope.spawn(|| combiner.call());
            combiner.run(&mut master);
        });
        assert_eq!((master.seen, master.until), (0, 0));
    }

    /// Another thread brings a message while the owner has the master, for a turn or to ask for the deadline.
    struct Busy<'a> {
        combiner: &'a Combiner,
        in_turn: bool,
        brought: AtomicBool,
        until: Instant,
        seen: bool,
    }

    impl Busy<'_> {
        fn bring_meanwhile(&self) {
            if !self.brought.swap(true, Ordering::Relaxed) {
                thread::scope(|scope| scope.spawn(|| self.combiner.submit(Rank(1), failed("x"))).join())
                    .expect("the thread ends");
            }
        }
    }

    impl Combine for Busy<'_> {
        fn combine(&mut self, messages: &mut VecDeque<(Rank, ToMaster)>) -> bool {
            if self.in_turn {
                self.bring_meanwhile();
            }
            let late = Instant::now() >= self.until;
            self.seen = !late && messages.pop_front().is_some();
            self.seen || late
        }

        fn deadline(&self) -> Option<Instant> {
            if !self.in_turn {
                self.bring_meanwhile();
            }
            Some(self.until)
        }
    }

    #[test]
    fn a_message_brought_while_the_owner_has_the_master_is_seen() {
        for in_turn in [true, false] {
            let combiner = Combiner::default();
            let mut master = Busy {
                combiner: &combiner,
                in_turn,
                brought: AtomicBool::new(false),
                until: Instant::now() + Duration::from_secs(20),
                seen: false,
            };
            combiner.run(&mut master);
            assert!(master.seen, "in a turn: {in_turn}");
        }
    }

    #[test]
    fn a_turn_that_panics_ends_the_lending() {
        struct Panics;
        impl Combine for Panics {
            fn combine(&mut self, messages: &mut VecDeque<(Rank, ToMaster)>) -> bool {
                assert!(messages.is_empty(), "on purpose");
                false
            }
            fn deadline(&self) -> Option<Instant> {
                None
            }
        }
        let combiner = Combiner::default();
        let ended = thread::scope(|scope| {
            let brings = scope.spawn(|| {
                thread::sleep(Duration::from_millis(5));
                combiner.submit(Rank(1), failed("x"));
            });
            combiner.run(&mut Panics);
            brings.join()
        });
        assert!(ended.is_err());
    }
}
