//! The running commands, and signals for them.

use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Time before a signal is forwarded. A signal to the process group reaches the commands by itself meanwhile.
const FORWARD_DELAY: Duration = Duration::from_millis(250);

/// Processes of running commands.
#[derive(Debug, Default)]
pub struct Children {
    stopped: AtomicBool,
    running: Mutex<Vec<Pid>>,
}

impl Children {
    /// Stops at SIGTERM and SIGINT: no more commands are started, and running ones receive the signal.
    ///
    /// # Errors
    /// The signals cannot be handled.
    pub fn stop_at_signals(self: &Arc<Self>) -> io::Result<()> {
        let mut signals = Signals::new([SIGTERM, SIGINT])?;
        let this = Arc::clone(self);
        thread::Builder::new().name("signals".into()).spawn(move || {
            for number in signals.forever() {
                this.stopped.store(true, Ordering::SeqCst);
                thread::sleep(FORWARD_DELAY);
                if let Ok(signal) = Signal::try_from(number) {
                    for &pid in this.lock().iter() {
                        // The process may have ended.
                        let _ = kill(pid, signal);
                    }
                }
            }
        })?;
        Ok(())
    }

    /// Returns whether a signal has arrived.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Pid>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a command. Returns `None` after a signal.
    ///
    /// # Errors
    /// The command cannot be started.
    pub fn start(&self, command: &mut Command) -> io::Result<Option<Child>> {
        let mut running = self.lock();
        if self.is_stopped() {
            return Ok(None);
        }
        let child = command.spawn()?;
        running.push(pid(&child));
        Ok(Some(child))
    }

    /// Waits for the end of a command. Returns its raw wait status.
    ///
    /// # Errors
    /// The system does not know the process.
    pub fn wait(&self, child: &mut Child) -> io::Result<i32> {
        let pid = pid(child);
        // The process stays a zombie until it is off the list, so that no other process gets its id.
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
        while let Err(error) = waitid(Id::Pid(pid), flags) {
            if error != Errno::EINTR {
                return Err(error.into());
            }
        }
        let mut running = self.lock();
        running.retain(|&other| other != pid);
        child.wait().map(|status| status.into_raw())
    }
}

fn pid(child: &Child) -> Pid {
    // Process ids of Linux have at most 22 bits.
    Pid::from_raw(i32::try_from(child.id()).unwrap_or(i32::MAX))
}
