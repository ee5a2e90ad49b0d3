//! What a task leaves behind. The server adopts it.

use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// Maximum time for the end of killed processes.
const MAX_TIME: Duration = Duration::from_secs(1);

/// Interval between checks for their end.
const INTERVAL: Duration = Duration::from_millis(2);

/// Kills the processes of a task that was asked to end, in whatever session. When a process ends, its
/// children become children of the server.
pub(crate) fn end() {
    let started = Instant::now();
    while are_left() && started.elapsed() < MAX_TIME {
        let threads = std::fs::read_dir("/proc/self/task")
            .into_iter()
            .flatten()
            .flatten();
        for thread in threads {
            let list = std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            for child in list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()) {
                // It is not reaped, so no other process has its number.
                let _ = kill(Pid::from_raw(child), Signal::SIGKILL);
            }
        }
        std::thread::sleep(INTERVAL);
    }
}

/// Returns whether a process of the task lives on. Reaps those that have ended.
pub(crate) fn are_left() -> bool {
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Err(Errno::ECHILD) => return false,
            Ok(WaitStatus::StillAlive) => return true,
            Ok(_) | Err(Errno::EINTR) => {}
            Err(_) => return true,
        }
    }
}
