//! Ending the task that runs, from another thread.

use std::os::fd::AsFd as _;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;
use pmc_spawn::Child;

use super::watch::Watch;

/// Knows the process group of a worker's running task and can end it.
///
/// A group is known from before its first process can do anything until its leader has ended but
/// is not yet reaped: so a signal never goes to a group of other people that got the same number.
#[derive(Debug, Default)]
pub struct KillSwitch {
    state: Mutex<State>,
    idle: Condvar,
}

/// The first process of a task's group.
pub(super) trait Leader {
    /// Its id, which is that of the group, too.
    fn pid(&self) -> Pid;

    /// Waits for the end of the task.
    fn wait(&self);

    /// Waits for the end of the task, but not longer than `timeout`; it has been running for `since`. False if it
    /// still runs.
    fn has_ended_within(&self, timeout: Duration, since: Duration) -> bool;
}

impl Leader for Child {
    fn pid(&self) -> Pid {
        self.pid
    }

    fn wait(&self) {
        while !has_ended(self.pid, WaitPidFlag::empty()) {}
    }

    fn has_ended_within(&self, timeout: Duration, since: Duration) -> bool {
        let Some(descriptor) = &self.descriptor else {
            std::thread::sleep((since / 8).min(timeout));
            return has_ended(self.pid, WaitPidFlag::WNOHANG);
        };
        let mut ended = [PollFd::new(descriptor.as_fd(), PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::ZERO);
        matches!(poll(&mut ended, timeout), Ok(1..))
    }
}

#[derive(Debug, Default)]
struct State {
    group: Option<Pid>,
    /// The group was sent a signal.
    signalled: bool,
    aborted: bool,
    /// Threads that wait for the end of the group.
    waiting: u32,
}

impl KillSwitch {
    /// Nothing runs and nobody has asked for an end.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks the running task to end (SIGTERM) and lets no other one start.
    pub fn terminate(&self) {
        self.signal(Signal::SIGTERM);
    }

    /// Ends the running task (SIGKILL) and lets no other one start.
    pub fn kill(&self) {
        self.signal(Signal::SIGKILL);
    }

    /// Ends the running task if it still runs after `limit`: SIGTERM, and SIGKILL after `grace`. Calls
    /// `notice` before. Returns when no task runs, or at once after SIGKILL. Others may start.
    pub(super) fn end_after(&self, limit: Duration, grace: Duration, notice: impl FnOnce()) {
        if self.wait_idle(limit) {
            return;
        }
        notice();
        self.signal_group(Signal::SIGTERM);
        if !self.wait_idle(grace) {
            self.signal_group(Signal::SIGKILL);
        }
    }

    /// Kills the running task. Others may start.
    pub(super) fn end_now(&self) {
        self.signal_group(Signal::SIGKILL);
    }

    fn signal_group(&self, signal: Signal) {
        self.state().signal_group(signal);
    }

    /// Somebody has asked for the end: results of tasks do not count any more.
    #[must_use]
    pub fn is_aborted(&self) -> bool {
        self.state().aborted
    }

    /// Waits until no task runs, but not longer than `timeout`. True if none runs.
    #[must_use]
    pub fn wait_idle(&self, timeout: Duration) -> bool {
        let mut state = self.state();
        state.waiting += 1;
        let waited = self
            .idle
            .wait_timeout_while(state, timeout, |state| state.group.is_some());
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.waiting -= 1;
        state.group.is_none()
    }

    /// Starts a process that leads its own group, unless the end was asked for.
    pub(super) fn start<L: Leader, E>(&self, start: impl FnOnce() -> Result<L, E>) -> Option<Result<L, E>> {
        let mut state = self.state();
        if state.aborted {
            return None;
        }
        Some(start().inspect(|leader| {
            state.group = Some(leader.pid());
            state.signalled = false;
        }))
    }

    /// Waits for the end of the group's leader, which stays to be reaped, or of the task that it has begun, and
    /// forgets the group. Looks after `watch` meanwhile. Tells whether the group was sent a signal.
    pub(super) fn wait(&self, leader: &dyn Leader, watch: &mut dyn Watch) -> bool {
        match watch.every() {
            None => leader.wait(),
            Some(every) => watch_and_wait(leader, every, watch),
        }
        let mut state = self.state();
        state.group = None;
        if state.waiting > 0 {
            self.idle.notify_all();
        }
        state.signalled
    }

    fn signal(&self, signal: Signal) {
        let mut state = self.state();
        state.aborted = true;
        state.signal_group(signal);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The state is valid at every moment, whatever a thread that held it did.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn signal_group(&mut self, signal: Signal) {
        if let Some(group) = self.group {
            self.signalled = true;
            // It may have ended by itself.
            let _ = killpg(group, signal);
        }
    }
}

fn watch_and_wait(leader: &dyn Leader, every: Duration, watch: &mut dyn Watch) {
    let began = Instant::now();
    let mut looked = began;
    while !leader.has_ended_within(every, began.elapsed()) {
        if looked.elapsed() >= every {
            watch.look();
            looked = Instant::now();
        }
    }
}

/// Whether a child has ended; it stays to be reaped. Waits for that without `WNOHANG`.
fn has_ended(pid: Pid, how: WaitPidFlag) -> bool {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT | how;
    !matches!(
        waitid(Id::Pid(pid), flags),
        Ok(WaitStatus::StillAlive) | Err(nix::errno::Errno::EINTR)
    )
}
