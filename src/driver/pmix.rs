//! The server of PMIx: a process of its own, so that the run goes on whatever the library and its tools do.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pmc_spawn::open_files;

use crate::options::{Options, folder};

/// Time for it to end by itself when the log says that the run has ended.
const END: Duration = Duration::from_secs(5);
/// Time for it to end after a signal.
const SIGNALLED: Duration = Duration::from_secs(3);
/// Time between two looks.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The process. It ends when this is dropped.
pub(super) struct Bridge(Child);

impl Bridge {
    /// Starts `pmc pmix`, if the options ask for it. A run without it is as good, but for such tools.
    pub(super) fn start(options: &Options) -> Option<Self> {
        if !options.pmix {
            return None;
        }
        let started = std::env::current_exe().and_then(|program| {
            let mut command = Command::new(program.with_file_name("pmc"));
            open_files::restore_in(&mut command);
            command
                .arg("pmix")
                .arg(folder(&options.dag))
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .spawn()
        });
        let failed = |error: &std::io::Error| {
            let reason = pmc_dag::reason(error);
            tracing::warn!(
                "Tools of PMIx cannot find the run: cannot start pmc beside this program: {reason}"
            );
        };
        started.inspect_err(failed).ok().map(Self)
    }

    /// Returns whether it ends within this time.
    fn ends(&mut self, time: Duration) -> bool {
        let end = Instant::now() + time;
        loop {
            match self.0.try_wait() {
                Ok(None) if Instant::now() < end => std::thread::sleep(POLL_INTERVAL),
                Ok(None) => return false,
                _ => return true,
            }
        }
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        if self.ends(END) {
            return;
        }
        if let Ok(process) = i32::try_from(self.0.id()) {
            // It was not waited for, so the number is still its own.
            let _ = kill(Pid::from_raw(process), Signal::SIGTERM);
        }
        if !self.ends(SIGNALLED) {
            // Nothing else is left to try.
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}
