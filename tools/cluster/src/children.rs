//! The commands that run just now, and signals for them.

use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// A signal to a process group has reached the commands by itself after this time; who is left then gets it
/// from here.
const GRACE: Duration = Duration::from_millis(250);

/// Processes of running commands.
#[derive(Debug, Default)]
pub struct Children {
    stopped: AtomicBool,
    running: Mutex<Vec<Pid>>,
}

impl Children {
    /// Stops at SIGTERM and SIGINT: no command is started any more, and those that run get the signal.
    ///
    /// # Errors
    /// The signals cannot be handled.
    pub fn stop_at_signals(self: &Arc<Self>) -> io::Result<()> {
        let mut signals = Signals::new([SIGTERM, SIGINT])?;
        let this = Arc::clone(self);
        thread::Builder::new().name("signals".into()).spawn(move || {
            for number in signals.forever() {
                this.stopped.store(true, Ordering::SeqCst);
                thread::sleep(GRACE);
                if let Ok(signal) = Signal::try_from(number) {
                    for &pid in this.lock().iter() {
                        // It may have ended just now.
                        let _ = kill(pid, signal);
                    }
                }
            }
        })?;
        Ok(())
    }

    /// Whether a signal has come.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Pid>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a command; `None` after a signal.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(&self, command: &mut Command) -> io::Result<Option<Child>> {
        let mut running = self.lock();
        if self.is_stopped() {
            return Ok(None);
        }
        let child = command.spawn()?;
        running.push(pid(&child));
        Ok(Some(child))
    }

    /// Waits for the end of a command; gives its raw wait status.
    ///
    /// # Errors
    /// The system does not know it.
    pub fn wait(&self, child: &mut Child) -> io::Result<i32> {
        let pid = pid(child);
        // Its number is not given to another process before it is off the list.
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
    // Process numbers of Linux have 22 bits at most.
    Pid::from_raw(i32::try_from(child.id()).unwrap_or(i32::MAX))
}
