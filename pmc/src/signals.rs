//! Signals such as Ctrl-C: the first one ends the run in order, the second one at once.

use std::io::{IsTerminal as _, Write as _};
use std::thread::JoinHandle;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

/// Handles signals until it is dropped.
#[derive(Debug)]
pub struct Guard {
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

impl Guard {
    /// Calls `stop` with the number of the first signal.
    pub fn new(stop: impl Fn(i32) + Send + 'static) -> std::io::Result<Self> {
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
        let handle = signals.handle();
        let thread = std::thread::Builder::new()
            .name("signals".into())
            .spawn(move || {
                let mut first = true;
                for signal in signals.forever() {
                    if first {
                        first = false;
                        let mut stderr = std::io::stderr();
                        // Clears the progress bar; it is redrawn below.
                        let clear = if stderr.is_terminal() { "\r\x1b[2K" } else { "" };
                        let _ = writeln!(
                            stderr,
                            "{clear}pmc: stopping the running tasks; repeat to exit at once"
                        );
                        stop(signal);
                    } else {
                        let _ = signal_hook::low_level::emulate_default_handler(signal);
                    }
                }
            })?;
        Ok(Guard {
            handle,
            thread: Some(thread),
        })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.handle.close();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
