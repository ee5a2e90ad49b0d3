//! Turns signals into requests.
//!
//! | signal | first | again |
//! |---|---|---|
//! | SIGUSR1, SIGTERM | drain | stop now |
//! | SIGINT, SIGHUP | stop now | |
//!
//! A launcher that must end sends SIGTERM to its processes and SIGKILL about a second later (Open MPI; others
//! take little longer). Tasks would not end in that time. So SIGTERM from the launcher, the parent of an MPI
//! process, means to stop now. From others, it may be sent to all processes of a run: a worker reports it to
//! the master, and keeps its task until the master ends it.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use crate::interrupt::Interrupt;

/// Set when SIGTERM comes, by the handler itself.
static TERMINATED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Maximum time between two signals that are sent to all processes of a job at once.
const SPREAD: Duration = Duration::from_millis(250);

/// True if this process gets SIGTERM, too, or has got it: then the batch system has sent it to all processes
/// of the job. Waits a moment for it.
pub(crate) fn is_terminated() -> bool {
    let Some(terminated) = TERMINATED.get() else {
        return false;
    };
    let begun = Instant::now();
    while !terminated.load(Ordering::Acquire) {
        if begun.elapsed() >= SPREAD {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

/// The role of a process in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Process {
    /// Master and workers in one process.
    Alone,
    /// The master, a process of a launcher.
    Master,
    /// A worker, a process of a launcher.
    Worker,
    /// An agent: asked to end, it leaves its run.
    Agent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Request {
    Nothing,
    Drain,
    /// As `Drain`, however often.
    Leave,
    Stop,
}

impl Process {
    fn request(self, signal: i32, from_parent: bool) -> Request {
        match (self, signal) {
            // Launchers send it to all processes.
            (Self::Worker, SIGUSR1) => Request::Nothing,
            (Self::Agent, SIGTERM | SIGUSR1) => Request::Leave,
            (Self::Alone | Self::Master, SIGUSR1) | (Self::Alone, SIGTERM) => Request::Drain,
            // A worker passes the request on to the master.
            (Self::Master | Self::Worker, SIGTERM) if !from_parent => Request::Drain,
            _ => Request::Stop,
        }
    }
}

/// Passes signals on to `interrupt`, except those that are ignored, for example because of `nohup`.
///
/// # Errors
/// A handler or the thread cannot be created.
pub fn catch(interrupt: &Arc<Interrupt>, process: Process) -> io::Result<()> {
    let ignored = std::fs::read_to_string("/proc/self/status").map_or(0, |status| ignored_signals(&status));
    let is_handled = |signal: &i32| ignored >> (signal - 1) & 1 == 0;
    // Registered first, so that the sender is known when the thread below sees the signal.
    let by_parent = Arc::new(AtomicBool::new(false));
    if is_handled(&SIGTERM) {
        note_parent(SIGTERM, Arc::clone(&by_parent))?;
        let terminated = TERMINATED.get_or_init(Arc::default);
        signal_hook::flag::register(SIGTERM, Arc::clone(terminated))?;
    }
    let handled = [SIGTERM, SIGINT, SIGHUP, SIGUSR1].into_iter().filter(is_handled);
    let mut signals = Signals::new(handled)?;
    let interrupt = Arc::clone(interrupt);
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            for signal in signals.forever() {
                match process.request(signal, by_parent.load(Ordering::Acquire)) {
                    Request::Nothing => {}
                    Request::Drain => interrupt.drain(signal),
                    Request::Leave => interrupt.drain_for_worker(signal),
                    Request::Stop => interrupt.raise(signal),
                }
            }
        })?;
    Ok(())
}

/// Sets `by_parent` when the parent sends this signal, even if other processes also send it.
#[expect(unsafe_code, reason = "only a signal handler knows the sender")]
fn note_parent(signal: i32, by_parent: Arc<AtomicBool>) -> io::Result<()> {
    let parent = nix::unistd::getppid().as_raw();
    let note = move |info: &libc::siginfo_t| {
        // SAFETY: the field exists in signals from processes; in others it holds some number.
        if unsafe { info.si_pid() } == parent {
            by_parent.store(true, Ordering::Release);
        }
    };
    // SAFETY: the handler only stores to an atomic.
    unsafe { signal_hook_registry::register_sigaction(signal, note) }.map(|_| ())
}

/// Returns the set of ignored signals from the text of `/proc/self/status`; bit 0 is signal 1.
fn ignored_signals(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read_from_the_status() {
        assert_eq!(ignored_signals("Name:\tx\nSigIgn:\t0000000000001001\n"), 0x1001);
        assert_eq!(ignored_signals("Name:\tx\n"), 0);
        let here = std::fs::read_to_string("/proc/self/status").unwrap();
        // Rust programs ignore SIGPIPE.
        assert_eq!(ignored_signals(&here) >> 12 & 1, 1);
    }

    #[test]
    fn sigterm_of_a_launcher_stops_the_master() {
        for (process, signal, from_parent, request) in [
            (Process::Master, SIGTERM, true, Request::Stop),
            (Process::Master, SIGTERM, false, Request::Drain),
            (Process::Master, SIGUSR1, true, Request::Drain),
            // The parent may be `timeout` or a script.
            (Process::Alone, SIGTERM, true, Request::Drain),
            (Process::Alone, SIGINT, false, Request::Stop),
            (Process::Worker, SIGUSR1, true, Request::Nothing),
            (Process::Worker, SIGTERM, false, Request::Drain),
            (Process::Worker, SIGTERM, true, Request::Stop),
        ] {
            assert_eq!(
                process.request(signal, from_parent),
                request,
                "{process:?} {signal}"
            );
        }
    }
}
