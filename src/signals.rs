//! What signals ask for.
//!
//! | signal | first | again |
//! |---|---|---|
//! | SIGUSR1, SIGTERM | drain | stop now |
//! | SIGINT, SIGHUP | stop now | |
//!
//! Launchers that are told to end send SIGTERM to all their processes, and SIGKILL about a second
//! later (Open MPI; others are not slower by much). No task would end in that time, so SIGTERM
//! from the launcher, which is the parent of an MPI process, means stop now.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use crate::interrupt::Interrupt;

/// What a process is in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Process {
    /// Master and workers in one.
    Alone,
    /// The master, started by a launcher.
    Master,
    /// A worker, started by a launcher.
    Worker,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Request {
    Nothing,
    Drain,
    Stop,
}

impl Process {
    fn request(self, signal: i32, from_parent: bool) -> Request {
        match (self, signal) {
            // The affair of the master; launchers send it to all.
            (Self::Worker, SIGUSR1) => Request::Nothing,
            (Self::Alone | Self::Master, SIGUSR1) | (Self::Alone, SIGTERM) => Request::Drain,
            (Self::Master, SIGTERM) if !from_parent => Request::Drain,
            _ => Request::Stop,
        }
    }
}

/// Makes the signals known to the run; not those that whoever started the program wants to be
/// ignored, as `nohup` does.
///
/// # Errors
/// The system does not allow it.
pub fn catch(interrupt: &Arc<Interrupt>, process: Process) -> io::Result<()> {
    let ignored = std::fs::read_to_string("/proc/self/status").map_or(0, |status| ignored_signals(&status));
    let is_wanted = |signal: &i32| ignored >> (signal - 1) & 1 == 0;
    // Noted before the thread below hears of the signal: handlers run in the order of registration.
    let by_parent = Arc::new(AtomicBool::new(false));
    if is_wanted(&SIGTERM) {
        note_parent(SIGTERM, Arc::clone(&by_parent))?;
    }
    let wanted = [SIGTERM, SIGINT, SIGHUP, SIGUSR1].into_iter().filter(is_wanted);
    let mut signals = Signals::new(wanted)?;
    let interrupt = Arc::clone(interrupt);
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            for signal in signals.forever() {
                match process.request(signal, by_parent.load(Ordering::Acquire)) {
                    Request::Nothing => {}
                    Request::Drain => interrupt.drain(signal),
                    Request::Stop => interrupt.raise(signal),
                }
            }
        })?;
    Ok(())
}

/// Notes that the parent has sent this signal. That others sent it, too, before or after, does not
/// matter.
#[expect(unsafe_code, reason = "who sent a signal is known to its handler only")]
fn note_parent(signal: i32, by_parent: Arc<AtomicBool>) -> io::Result<()> {
    let parent = nix::unistd::getppid().as_raw();
    let note = move |info: &libc::siginfo_t| {
        // SAFETY: signals that a process sends have this field; in others it is some number.
        if unsafe { info.si_pid() } == parent {
            by_parent.store(true, Ordering::Release);
        }
    };
    // SAFETY: the handler only stores to an atomic.
    unsafe { signal_hook_registry::register_sigaction(signal, note) }.map(|_| ())
}

/// The set of ignored signals in the text of `/proc/self/status`; bit 0 is signal 1.
fn ignored_signals(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_bits() {
        assert_eq!(ignored_signals("Name:\tx\nSigIgn:\t0000000000001001\n"), 0x1001);
        assert_eq!(ignored_signals("Name:\tx\n"), 0);
        let here = std::fs::read_to_string("/proc/self/status").unwrap();
        // Rust programs ignore SIGPIPE.
        assert_eq!(ignored_signals(&here) >> 12 & 1, 1);
    }

    #[test]
    fn a_launcher_that_ends_leaves_no_time() {
        for (process, signal, from_parent, request) in [
            (Process::Master, SIGTERM, true, Request::Stop),
            (Process::Master, SIGTERM, false, Request::Drain),
            (Process::Master, SIGUSR1, true, Request::Drain),
            // The parent may be `timeout` or a script.
            (Process::Alone, SIGTERM, true, Request::Drain),
            (Process::Alone, SIGINT, false, Request::Stop),
            (Process::Worker, SIGUSR1, true, Request::Nothing),
            (Process::Worker, SIGTERM, false, Request::Stop),
        ] {
            assert_eq!(
                process.request(signal, from_parent),
                request,
                "{process:?} {signal}"
            );
        }
    }
}
