//! Processes of a task that have left its process group, for example by `setsid`.
//!
//! The signals to the group do not reach them. They are found in two ways: as descendants of the group's
//! leader while it lives, and by the pipe of the task that they hold. Each is signalled through a descriptor
//! that was opened before the check, so a signal never reaches another process with the same number.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use nix::unistd::{Pid, getpgid};
use pmc_spawn::family::{children, parent_of};
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// How often holders are looked for: one may have started another one meanwhile.
const ROUNDS: usize = 3;

/// Device and inode of a pipe; both its ends have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PipeId(u64, u64);

impl PipeId {
    /// `None` if the file cannot be inspected.
    pub(super) fn of(pipe: &fs::File) -> Option<Self> {
        let data = pipe.metadata().ok()?;
        Some(Self(data.dev(), data.ino()))
    }
}

/// Descendants of a process that are not in its group.
#[derive(Debug, Default)]
pub(super) struct Strays(Vec<OwnedFd>);

impl Strays {
    /// Finds those of a leader that has not been reaped.
    pub(super) fn of(leader: Pid) -> Self {
        let mut found = Vec::new();
        let mut left: Vec<(Pid, Pid)> = with_parent(leader).collect();
        while let Some((pid, parent)) = left.pop() {
            let Some(descriptor) = open(pid) else { continue };
            // The number may have been reused before it was opened.
            if parent_of(pid) != Some(parent) {
                continue;
            }
            left.extend(with_parent(pid));
            if getpgid(Some(pid)) != Ok(leader) {
                found.push(descriptor);
            }
        }
        Self(found)
    }

    pub(super) fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    pub(super) fn kill(&self) {
        self.signal(Signal::KILL);
    }

    fn signal(&self, signal: Signal) {
        for process in &self.0 {
            // It may have ended.
            let _ = pidfd_send_signal(process, signal);
        }
    }
}

/// Kills the processes that can write into one of these pipes. This process must not be able to.
pub(super) fn kill_writers(pipes: &[PipeId]) {
    for _ in 0..ROUNDS {
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let mut found = false;
        for pid in pids.map(Pid::from_raw).filter(|pid| *pid != Pid::this()) {
            let Some(descriptor) = open(pid) else { continue };
            if can_write(pid, pipes) {
                found = true;
                tracing::debug!("Killing process {pid}, which holds the pipe of a task that has ended");
                let _ = pidfd_send_signal(&descriptor, Signal::KILL);
            }
        }
        if !found {
            return;
        }
    }
}

/// Returns whether a process can write into one of the pipes. False if that cannot be known.
fn can_write(pid: Pid, pipes: &[PipeId]) -> bool {
    let entries = fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten()
        .flatten();
    let mut held = entries.filter(|entry| {
        let identity = fs::metadata(entry.path()).map(|data| PipeId(data.dev(), data.ino()));
        identity.is_ok_and(|identity| pipes.contains(&identity))
    });
    held.any(|entry| {
        let info = Path::new("/proc")
            .join(pid.to_string())
            .join("fdinfo")
            .join(entry.file_name());
        let info = fs::read_to_string(info).unwrap_or_default();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
        let flags = flags.and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok());
        flags.is_some_and(|flags| flags & libc::O_ACCMODE != libc::O_RDONLY)
    })
}

pub(super) fn open(pid: Pid) -> Option<OwnedFd> {
    pidfd_open(rustix::process::Pid::from_raw(pid.as_raw())?, PidfdFlags::empty()).ok()
}

/// Returns the children of a process, each with this parent.
fn with_parent(parent: Pid) -> impl Iterator<Item = (Pid, Pid)> {
    children(parent).into_iter().map(move |child| (child, parent))
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt as _;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_process_in_a_session_of_its_own_is_found() {
        let mut shell = Command::new("/bin/sh");
        let mut shell = shell
            .args(["-c", "setsid sleep 1000 & wait"])
            .process_group(0)
            .spawn()
            .unwrap();
        let leader = Pid::from_raw(shell.id() as i32);
        // The shell starts it at once, and it leaves the group soon.
        let strays = (0..1000).find_map(|_| {
            std::thread::sleep(std::time::Duration::from_millis(5));
            Some(Strays::of(leader)).filter(|strays| strays.0.len() == 1)
        });
        strays.expect("a descendant of the shell").kill();
        shell.wait().unwrap();
    }

    #[test]
    fn only_writers_of_the_pipe_are_killed() {
        let (read, write) = std::io::pipe().unwrap();
        let read: fs::File = std::os::fd::OwnedFd::from(read).into();
        let id = PipeId::of(&read).unwrap();
        let sleep = || {
            let mut command = Command::new("/bin/sleep");
            command.arg("1000").stdin(Stdio::null());
            command
        };
        let mut reader = sleep().stdin(read).spawn().unwrap();
        let mut writer = sleep().stdout(write).spawn().unwrap();
        kill_writers(&[id]);
        assert!(!writer.wait().unwrap().success());
        assert!(reader.try_wait().unwrap().is_none(), "it only reads");
        reader.kill().unwrap();
        reader.wait().unwrap();
    }
}
