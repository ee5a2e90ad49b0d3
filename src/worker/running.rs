//! The attempt that a worker runs, for other threads: they end it, and tools ask for its output and input.

use std::fs::File;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;
use pmc_spawn::Child;

use super::captures;
use super::input::Pushed;
use super::sentinel::Watched;
use super::strays::Strays;
use super::watch::Watch;
use crate::bell::Bell;
use crate::protocol::{Captures, RedirectAnswer, SubmitId, WriteAnswer};
use crate::relay::Relay;
use crate::requests::AttemptHandle;
use crate::transport::local::StopTask;

/// What other threads know of a worker's running task: its process group, which they can end, and its
/// streams.
///
/// The group is known from before its first process can do anything until its leader has ended but is not yet
/// reaped. So a signal never reaches another group with the same number.
#[derive(Debug, Default)]
pub struct RunningAttempt {
    state: Mutex<State>,
    idle: Condvar,
    /// Knows the group, too, and ends it after the death of this process.
    watched: Option<Watched>,
}

/// Maximum uninterrupted wait of a time limit. A suspension is noticed at its end.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// A wait that ends later than this was interrupted: the process was suspended.
const MAX_DELAY: Duration = Duration::from_millis(100);

/// Returns how much of the time `elapsed` counts, after a wait that was to take `wait`. After a suspension,
/// this is half of the wait, because its moment is unknown. So a time limit never ends a task directly
/// after a suspension.
fn awake_part(wait: Duration, elapsed: Duration) -> Duration {
    if elapsed > wait + MAX_DELAY {
        wait / 2
    } else {
        elapsed
    }
}

/// The first process of a task's group.
pub(super) trait Leader {
    /// Its process id, which is also that of the group.
    fn pid(&self) -> Pid;

    /// It ends the task by itself when the executor dies. To do so, it has to live a moment longer.
    fn outlives_executor(&self) -> bool {
        false
    }

    /// It passes signals on to the processes that it has started.
    fn passes_signals(&self) -> bool {
        false
    }

    /// Waits for the end of the task.
    fn wait(&self);

    /// Waits for the end of the task, at most `timeout` or until the bell rings. `running_for` is the time
    /// since it started. False if it still runs.
    fn has_ended_within(&self, timeout: Duration, running_for: Duration, bell: Option<&Bell>) -> bool;
}

impl Leader for Child {
    fn pid(&self) -> Pid {
        self.pid
    }

    fn wait(&self) {
        while !has_ended(self.pid, WaitPidFlag::empty()) {}
    }

    fn has_ended_within(&self, timeout: Duration, running_for: Duration, bell: Option<&Bell>) -> bool {
        let Some(descriptor) = &self.descriptor else {
            std::thread::sleep((running_for / 8).min(timeout));
            return has_ended(self.pid, WaitPidFlag::WNOHANG);
        };
        is_readable(descriptor.as_fd(), timeout, bell)
    }
}

/// Returns whether a descriptor can be read. Waits for that, at most `timeout` or until the bell rings.
pub(super) fn is_readable(descriptor: BorrowedFd<'_>, timeout: Duration, bell: Option<&Bell>) -> bool {
    let entry = |descriptor| PollFd::new(descriptor, PollFlags::POLLIN);
    let mut both = [entry(descriptor), entry(bell.map_or(descriptor, Bell::as_fd))];
    let polled = &mut both[..if bell.is_some() { 2 } else { 1 }];
    let timeout = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX);
    // Interrupted or not, the caller looks again.
    let _ = poll(polled, timeout);
    polled[0].revents().is_some_and(|events| !events.is_empty())
}

/// Where the output of the attempt goes.
#[derive(Debug, Default)]
enum Streams {
    /// The attempt has not started.
    #[default]
    NotYet,
    /// To its files.
    Files,
    /// To this relay.
    Relay(Relay),
}

#[derive(Debug, Default)]
struct State {
    /// The attempt that runs, or is about to.
    attempt: Option<SubmitId>,
    group: Option<Pid>,
    /// Standard input of the attempt.
    input: Pushed,
    output: Streams,
    /// Files without names to which the attempt writes.
    own_streams: Captures,
    /// The first process of the group passes signals on.
    passes_signals: bool,
    /// The group was sent a signal.
    signalled: bool,
    /// The signal was SIGKILL.
    killed: bool,
    aborted: bool,
    /// A signal for an attempt that is about to start.
    notice: Option<(SubmitId, i32)>,
    /// Number of threads that wait for the end of the group.
    waiters: u32,
    /// Set if the task is one of a simulation: it has no group.
    #[cfg(feature = "simulated")]
    simulated: Option<SimulatedSignals>,
}

/// Signals that a task of a simulation is to get from the thread that runs it.
#[cfg(feature = "simulated")]
#[derive(Debug)]
struct SimulatedSignals {
    sent: Vec<i32>,
    thread: Option<pmc_system::simulated::ThreadId>,
}

impl RunningAttempt {
    /// Returns the state of a worker without a task.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the same, with a sentinel for the tasks if there is one.
    #[must_use]
    pub fn watched(watched: Option<Watched>) -> Self {
        Self {
            watched,
            ..Self::default()
        }
    }

    fn note(&self, group: Option<Pid>) {
        if let Some(watched) = &self.watched {
            watched.note(group);
        }
    }

    /// Ends the running task if it still runs after `limit`: SIGTERM, and SIGKILL after `grace`. Ends itself
    /// when no task runs, or directly after SIGKILL. Other tasks may start afterwards. Returns whether it
    /// signalled the task.
    pub(super) fn end_after(&self, limit: Duration, grace: Duration) -> bool {
        if self.wait_idle_awake(limit) {
            return false;
        }
        let strays = self.strays();
        self.state().signal_group(Signal::SIGTERM);
        strays.terminate();
        if !self.wait_idle(grace) {
            self.state().signal_group(Signal::SIGKILL);
        }
        strays.kill();
        true
    }

    /// Like `wait_idle`, without the time in which this process was suspended.
    fn wait_idle_awake(&self, timeout: Duration) -> bool {
        let interval = (timeout / 10).min(MAX_WAIT);
        let mut left = timeout;
        while !left.is_zero() {
            let (wait, begin) = (interval.min(left), Instant::now());
            if self.wait_idle(wait) {
                return true;
            }
            left = left.saturating_sub(awake_part(wait, begin.elapsed()));
        }
        false
    }

    /// Names the attempt whose processes start next.
    pub(super) fn begin(&self, attempt: SubmitId) {
        let mut state = self.state();
        state.attempt = Some(attempt);
        state.input = Pushed::Not;
        state.output = Streams::NotYet;
        state.own_streams = Captures::default();
        state.passes_signals = false;
    }

    /// Notes whether the first process of the attempt that starts next passes signals on.
    pub(super) fn begin_signals(&self, passes_signals: bool) {
        self.state().passes_signals = passes_signals;
    }

    /// Lets tools fill the standard input of the attempt that runs now.
    pub(super) fn begin_input(&self, pipe: Option<File>) {
        if let Some(pipe) = pipe {
            self.state().input = Pushed::Open(pipe);
        }
    }

    /// Lets tools redirect the output of the attempt that runs now, if it has a relay.
    pub(super) fn begin_output(&self, relay: Option<Relay>) {
        self.state().output = relay.map_or(Streams::Files, Streams::Relay);
    }

    /// Lets tools read the files of the attempt that runs now, which have no names.
    pub(super) fn begin_own_streams(&self, streams: [&File; 2]) {
        // Without a descriptor, tools see the output at the end.
        self.state().own_streams = streams.map(|file| file.try_clone().ok());
    }

    /// Kills the running task. Other tasks may start afterwards.
    pub(super) fn end_now(&self) {
        let strays = self.strays();
        self.state().signal_group(Signal::SIGKILL);
        strays.kill();
    }

    /// Returns the processes of the running task that have left its group.
    fn strays(&self) -> Strays {
        let group = self.state().group;
        group.map(Strays::of).unwrap_or_default()
    }

    /// Returns whether SIGKILL was sent to the task that runs or ran last.
    pub(super) fn is_killed(&self) -> bool {
        self.state().killed
    }

    /// Starts a process that leads its own group. `None` after an abort.
    pub(super) fn start<L: Leader, E>(&self, start: impl FnOnce() -> Result<L, E>) -> Option<Result<L, E>> {
        let mut state = self.state();
        if state.aborted {
            return None;
        }
        Some(start().inspect(|leader| {
            state.group = Some(leader.pid());
            state.passes_signals |= leader.passes_signals();
            if !leader.outlives_executor() {
                self.note(state.group);
            }
            state.signalled = false;
            state.killed = false;
            state.notify_late();
        }))
    }

    /// Waits for the end of the leader's task and forgets the group; the caller reaps the leader. Polls
    /// `watch` meanwhile. Returns whether the group was sent a signal.
    pub(super) fn wait(&self, leader: &dyn Leader, watch: &mut dyn Watch) -> bool {
        match watch.interval() {
            None => leader.wait(),
            Some(interval) => wait_and_watch(leader, interval, watch),
        }
        let mut state = self.state();
        state.group = None;
        self.note(None);
        state.input = Pushed::Ended;
        state.own_streams = Captures::default();
        if state.waiters > 0 {
            self.idle.notify_all();
        }
        state.signalled
    }

    /// Begins a task of a simulation. This thread is woken when there is a signal for it.
    #[cfg(feature = "simulated")]
    pub(super) fn begin_simulated(&self) {
        let mut state = self.state();
        state.simulated = Some(SimulatedSignals {
            sent: Vec::new(),
            thread: pmc_system::simulated::current_thread(),
        });
        state.notify_late();
    }

    /// Returns the signals that the task of a simulation is to get.
    #[cfg(feature = "simulated")]
    pub(super) fn take_signals(&self) -> Vec<i32> {
        let mut state = self.state();
        let simulated = state.simulated.as_mut();
        simulated.map_or_else(Vec::new, |simulated| std::mem::take(&mut simulated.sent))
    }

    /// The task of a simulation has ended.
    #[cfg(feature = "simulated")]
    pub(super) fn end_simulated(&self) {
        self.state().simulated = None;
    }

    fn abort(&self, signal: Signal) {
        let mut state = self.state();
        state.aborted = true;
        state.signal_group(signal);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The state is valid at every moment, even if a thread panicked.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AttemptHandle for RunningAttempt {
    fn signal(&self, attempt: SubmitId, signal: i32) {
        let mut state = self.state();
        if state.attempt == Some(attempt)
            && let Ok(signal) = Signal::try_from(signal)
        {
            state.signal_group(signal);
        }
    }

    fn notify(&self, attempt: SubmitId, signal: i32) {
        let mut state = self.state();
        match state.attempt {
            Some(current) if current == attempt && state.has_process() => state.notify(signal),
            Some(current) if current > attempt => {}
            // It is about to start, unless it has just ended.
            _ => state.notice = Some((attempt, signal)),
        }
    }

    fn captures(&self, attempt: SubmitId, is_own: bool) -> Option<Captures> {
        // The lock keeps the leader from being reaped.
        let state = self.state();
        let group = state.group.filter(|_| state.attempt == Some(attempt))?;
        let reopen = |file: &Option<File>| file.as_ref().and_then(captures::reopen);
        Some(match is_own {
            true => state.own_streams.each_ref().map(reopen),
            false => captures::find(group),
        })
    }

    fn leader(&self, attempt: SubmitId) -> Option<Pid> {
        let state = self.state();
        state.group.filter(|_| state.attempt == Some(attempt))
    }

    fn write(&self, attempt: SubmitId, bytes: &[u8], is_end: bool) -> WriteAnswer {
        let mut state = self.state();
        match state.attempt {
            Some(current) if current == attempt => state.input.push(bytes, is_end),
            Some(current) if current > attempt => WriteAnswer::Ended,
            // It is about to start.
            _ => WriteAnswer::NotPushed,
        }
    }

    fn relay(&self, attempt: SubmitId) -> Result<Relay, RedirectAnswer> {
        let state = self.state();
        match (state.attempt, &state.output) {
            (Some(current), Streams::Relay(relay)) if current == attempt => Ok(relay.clone()),
            (Some(current), Streams::Files) if current == attempt => Err(RedirectAnswer::NoRelay),
            (Some(current), _) if current > attempt => Err(RedirectAnswer::NotRunning),
            // It is about to start.
            _ => Err(RedirectAnswer::NotYet),
        }
    }
}

impl StopTask for RunningAttempt {
    fn terminate(&self) {
        self.abort(Signal::SIGTERM);
    }

    fn kill(&self) {
        self.abort(Signal::SIGKILL);
    }

    fn is_aborted(&self) -> bool {
        self.state().aborted
    }

    fn wait_idle(&self, timeout: Duration) -> bool {
        let mut state = self.state();
        state.waiters += 1;
        let waited = self
            .idle
            .wait_timeout_while(state, timeout, |state| state.group.is_some());
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.waiters -= 1;
        state.group.is_none()
    }
}

impl State {
    /// True if signals reach something.
    fn has_process(&self) -> bool {
        #[cfg(feature = "simulated")]
        if self.simulated.is_some() {
            return true;
        }
        self.group.is_some()
    }

    /// Passes a signal to the task of a simulation, if it is one.
    #[cfg(feature = "simulated")]
    fn simulate(&mut self, signal: i32) {
        if let Some(simulated) = &mut self.simulated {
            simulated.sent.push(signal);
            simulated
                .thread
                .into_iter()
                .for_each(pmc_system::simulated::unpark);
        }
    }

    /// Sends the signal that came before the attempt had a process.
    fn notify_late(&mut self) {
        if let Some((attempt, signal)) = self.notice.take()
            && self.attempt == Some(attempt)
        {
            self.notify(signal);
        }
    }

    /// Sends the signal by which the attempt is to save itself.
    fn notify(&mut self, signal: i32) {
        #[cfg(feature = "simulated")]
        self.simulate(signal);
        let Some(group) = self.group else { return };
        self.signalled = true;
        let target = if self.passes_signals {
            group.as_raw()
        } else {
            -group.as_raw()
        };
        // Real-time signals have no name in nix. The group may have ended by itself.
        send(target, signal);
    }

    fn signal_group(&mut self, signal: Signal) {
        #[cfg(feature = "simulated")]
        self.simulate(signal as i32);
        if let Some(group) = self.group {
            self.signalled = true;
            self.killed |= signal == Signal::SIGKILL;
            // It may have ended by itself.
            let _ = killpg(group, signal);
        }
    }
}

/// Sends a signal to a process or, with a negative number, to a process group.
#[expect(unsafe_code, reason = "nix knows no real-time signals")]
fn send(target: i32, signal: i32) {
    // SAFETY: the call has no requirements.
    unsafe { libc::kill(target, signal) };
}

fn wait_and_watch(leader: &dyn Leader, interval: Duration, watch: &mut dyn Watch) {
    let started = Instant::now();
    let mut last_poll = started;
    let mut interval = interval;
    while !leader.has_ended_within(interval, started.elapsed(), watch.bell()) {
        let has_rung = watch.bell().is_some_and(Bell::silence);
        if has_rung || last_poll.elapsed() >= interval {
            watch.poll();
            last_poll = Instant::now();
            interval = watch.interval().unwrap_or(interval);
        }
    }
}

/// Returns whether a child has ended; it is not reaped. Without `WNOHANG`, waits for the end.
fn has_ended(pid: Pid, how: WaitPidFlag) -> bool {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT | how;
    !matches!(
        waitid(Id::Pid(pid), flags),
        Ok(WaitStatus::StillAlive) | Err(nix::errno::Errno::EINTR)
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
    use std::process::{Child as Process, Command};

    use super::*;

    /// A process that leads its own group.
    struct Group(Process);

    impl Leader for Group {
        fn pid(&self) -> Pid {
            Pid::from_raw(i32::try_from(self.0.id()).unwrap())
        }

        fn wait(&self) {
            while !has_ended(self.pid(), WaitPidFlag::empty()) {}
        }

        fn has_ended_within(&self, _: Duration, _: Duration, _: Option<&Bell>) -> bool {
            has_ended(self.pid(), WaitPidFlag::WNOHANG)
        }
    }

    fn start(running: &RunningAttempt, attempt: u64) -> Process {
        running.begin(SubmitId(attempt));
        let mut command = Command::new("sleep");
        let started = running.start(|| command.arg("1000").process_group(0).spawn().map(Group));
        started.unwrap().unwrap().0
    }

    #[test]
    fn an_attempt_that_is_about_to_start_gets_its_signal() {
        let running = RunningAttempt::new();
        // The master sends it before the worker has begun.
        running.notify(SubmitId(3), libc::SIGUSR1);
        let mut process = start(&running, 3);
        assert_eq!(process.wait().unwrap().signal(), Some(libc::SIGUSR1));
        // Now the process is not there yet.
        running.state().group = None;
        running.begin(SubmitId(4));
        running.notify(SubmitId(4), libc::SIGUSR2);
        let mut process = start(&running, 4);
        assert_eq!(process.wait().unwrap().signal(), Some(libc::SIGUSR2));
    }

    #[test]
    fn an_attempt_gets_no_signal_of_another_one() {
        let running = RunningAttempt::new();
        // It ends before it could get its signal.
        running.notify(SubmitId(3), libc::SIGUSR1);
        let mut process = start(&running, 4);
        running.notify(SubmitId(3), libc::SIGUSR1);
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(process.try_wait().unwrap(), None);
        running.notify(SubmitId(4), libc::SIGUSR2);
        assert_eq!(process.wait().unwrap().signal(), Some(libc::SIGUSR2));
    }

    #[test]
    fn suspended_time_does_not_count() {
        let ms = Duration::from_millis;
        assert_eq!(awake_part(ms(500), ms(510)), ms(510));
        assert_eq!(awake_part(ms(500), ms(60_000)), ms(250));
    }
}
