//! The host script: a program that prepares a host for the tasks, and may leave services running.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;
use pmc_dag::reason;
use pmc_spawn::{Child, Spawn, Spawner};

use super::ended::reap;
use super::error::{Failure, HostScriptError};
use super::program;
use super::running::RunningAttempt;
use super::watch::Watch;
use crate::transport::local::StopTask as _;

/// Maximum time of the script.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Time between SIGTERM and SIGKILL for processes that the script has left.
const GRACE: Duration = Duration::from_secs(5);

const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// What the host script needs from its worker.
pub(super) struct HostScriptContext<'a> {
    /// Folders of PATH.
    pub(super) path: &'a [PathBuf],
    pub(super) environment: &'a [CString],
    pub(super) input: &'a File,
    pub(super) current: &'a RunningAttempt,
}

/// A host script that has succeeded, and the processes that it has left in its process group.
///
/// The script stays a zombie until [`HostScript::end`], so that no other group gets its number.
pub(super) struct HostScript {
    group: Pid,
}

impl HostScript {
    /// Runs the script and waits for its end.
    pub(super) fn run(
        script: &Path,
        context: &HostScriptContext<'_>,
        spawner: &mut Spawner,
        watch: &mut dyn Watch,
    ) -> Result<Self, Failure> {
        let current = context.current;
        let started = current.start(|| start(script, context, spawner));
        let child = started.ok_or(Failure::Aborted)??;
        if let Some(error) = &child.failure {
            // The script cannot print anything itself.
            let text = format!("Unable to exec host script: {}\n", reason(error));
            let _ = io::stderr().write_all(text.as_bytes());
        }
        let has_ended = wait(child.pid, TIME_LIMIT, watch);
        if !has_ended {
            let _ = killpg(child.pid, Signal::SIGKILL);
        }
        current.wait(&child, watch);
        if current.is_aborted() {
            let _ = reap(child.pid);
            return Err(Failure::Aborted);
        }
        if !has_ended {
            let _ = reap(child.pid);
            return Err(HostScriptError::TimedOut(TIME_LIMIT.as_secs()).into());
        }
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
        if let Ok(WaitStatus::Exited(_, 0)) = waitid(Id::Pid(child.pid), flags) {
            return Ok(Self { group: child.pid });
        }
        // Processes of the script must not outlive a run that does not start.
        let _ = killpg(child.pid, Signal::SIGKILL);
        let status = reap(child.pid).map_or_else(|error| reason(&error), |status| status.to_string());
        Err(HostScriptError::Status(status).into())
    }

    /// Ends the processes that the script has left. After an abort they have less time. Returns whether one
    /// had to be killed.
    pub(super) fn end(self, is_aborted: bool) -> bool {
        // The script is not reaped yet, so no other group has its number.
        let _ = killpg(self.group, Signal::SIGTERM);
        let _ = reap(self.group);
        let grace = if is_aborted { super::GRACE } else { GRACE };
        let asked = Instant::now();
        while asked.elapsed() < grace {
            if killpg(self.group, None).is_err() {
                return false;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        killpg(self.group, Signal::SIGKILL).is_ok()
    }
}

fn start(
    script: &Path,
    context: &HostScriptContext<'_>,
    spawner: &mut Spawner,
) -> Result<Child, HostScriptError> {
    // As in the original, and unlike the program of a task, it is not searched in the current folder.
    let file = program::find_in_path(script.as_os_str().as_bytes(), context.path)
        .ok_or_else(|| HostScriptError::NotFound(script.to_owned()))?;
    let file = CString::new(file.as_os_str().as_bytes())?;
    let name = CString::new(script.as_os_str().as_bytes())?;
    let stderr = io::stderr().as_raw_fd();
    Spawn {
        program: &file,
        arguments: &[name.as_c_str()].into_iter().collect(),
        environment: &context.environment.iter().map(CString::as_c_str).collect(),
        directory: None,
        // Its output must not mix with that of the tasks.
        stdio: [context.input.as_raw_fd(), stderr, stderr],
        keep: &[],
        close_others: true,
        leads_group: true,
        unblock: false,
        memory: None,
        cpus: None,
        die_with_parent: false,
        descriptor: false,
        stop_at_exec: false,
    }
    .start(spawner)
    .map_err(HostScriptError::Start)
}

/// Waits for the end of a process without reaping it. False if it takes longer than `limit`.
fn wait(pid: Pid, limit: Duration, watch: &mut dyn Watch) -> bool {
    let started = Instant::now();
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT | WaitPidFlag::WNOHANG;
    loop {
        match waitid(Id::Pid(pid), flags) {
            Ok(WaitStatus::StillAlive) | Err(nix::errno::Errno::EINTR) => {}
            Ok(_) | Err(_) => return true,
        }
        if started.elapsed() >= limit {
            return false;
        }
        watch.poll();
        std::thread::sleep(POLL_INTERVAL);
    }
}
