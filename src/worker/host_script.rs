//! The host script: a program that prepares a host for the tasks, and may leave services running.

use std::ffi::CString;
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;
use pmc_dag::reason;
use pmc_spawn::{Spawn, Spawner};

use super::kill::KillSwitch;
use super::process::reap;
use super::program;
use super::task::Failure;
use super::watch::Watch;
use crate::transport::local::StopTask as _;

/// How long the script may take.
const LIMIT: Duration = Duration::from_secs(60);

/// How long processes that the script has left may take to end when they are asked to.
const PATIENCE: Duration = Duration::from_secs(5);

/// How often to look whether a process has ended.
const LOOK: Duration = Duration::from_millis(10);

/// A host script that has ended well, and what it has left running in its process group.
///
/// The script itself stays a zombie until [`HostScript::end`], so that its number, which is that
/// of the group, goes to nobody else.
pub(super) struct HostScript {
    group: Pid,
}

impl HostScript {
    /// Runs the script and waits for its end.
    pub(super) fn run(
        script: &Path,
        path: &[PathBuf],
        environment: &[CString],
        input: &std::fs::File,
        spawner: &mut Spawner,
        kill: &KillSwitch,
        watch: &mut dyn Watch,
    ) -> Result<Self, Failure> {
        let file = program::find_in_path(script.as_os_str().as_bytes(), path);
        let failed = |what: &str| Failure::Fatal(format!("Host script {what}"));
        let file = CString::new(file.as_os_str().as_bytes());
        let name = CString::new(script.as_os_str().as_bytes());
        let (Ok(file), Ok(name)) = (file, name) else {
            return Err(failed("has a name that no file can have"));
        };
        let stderr = std::io::stderr().as_raw_fd();
        let spawn = Spawn {
            program: &file,
            arguments: &[name.as_c_str()].into_iter().collect(),
            environment: &environment.iter().map(CString::as_c_str).collect(),
            directory: None,
            // What it prints must not mix with the output of the tasks.
            stdio: [input.as_raw_fd(), stderr, stderr],
            keep: &[],
            close_others: true,
            leads_group: true,
            unblock: false,
            memory: None,
            cpus: None,
            die_with_parent: false,
            descriptor: false,
        };
        let child = match kill.start(|| spawn.start(spawner)) {
            None => return Err(Failure::Aborted),
            Some(child) => {
                child.map_err(|error| failed(&format!("cannot be started: {}", reason(&error))))?
            }
        };
        if let Some(error) = &child.failure {
            // In place of the script, where its own complaints would go.
            let text = format!("Unable to exec host script: {}\n", reason(error));
            let _ = std::io::stderr().write_all(text.as_bytes());
        }
        let ended = wait(child.pid, LIMIT, watch);
        if !ended {
            let _ = killpg(child.pid, Signal::SIGKILL);
        }
        kill.wait(&child, watch);
        if kill.is_aborted() {
            let _ = reap(child.pid);
            return Err(Failure::Aborted);
        }
        if !ended {
            let _ = reap(child.pid);
            return Err(failed(&format!("timed out after {} seconds", LIMIT.as_secs())));
        }
        let good = matches!(
            waitid(Id::Pid(child.pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT),
            Ok(WaitStatus::Exited(_, 0))
        );
        if good {
            return Ok(Self { group: child.pid });
        }
        // What it has left must not outlive a run that does not begin.
        let _ = killpg(child.pid, Signal::SIGKILL);
        let status = reap(child.pid).map_or_else(|error| reason(&error), |status| status.to_string());
        Err(failed(&format!("failed with status {status}")))
    }

    /// Ends what the script has left. With `hurry` it gets less time to end by itself. Tells
    /// whether something had to be killed.
    pub(super) fn end(self, hurry: bool) -> bool {
        // As long as it is not reaped, nobody else has its number.
        let _ = killpg(self.group, Signal::SIGTERM);
        let _ = reap(self.group);
        let patience = if hurry { super::GRACE } else { PATIENCE };
        let began = Instant::now();
        while began.elapsed() < patience {
            if killpg(self.group, None).is_err() {
                return false;
            }
            std::thread::sleep(LOOK);
        }
        killpg(self.group, Signal::SIGKILL).is_ok()
    }
}

/// Waits for the end of a process, which stays to be reaped. False if it takes longer than `limit`.
fn wait(pid: Pid, limit: Duration, watch: &mut dyn Watch) -> bool {
    let began = Instant::now();
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT | WaitPidFlag::WNOHANG;
    loop {
        match waitid(Id::Pid(pid), flags) {
            Ok(WaitStatus::StillAlive) | Err(nix::errno::Errno::EINTR) => {}
            Ok(_) | Err(_) => return true,
        }
        if began.elapsed() >= limit {
            return false;
        }
        watch.poll();
        std::thread::sleep(LOOK);
    }
}
