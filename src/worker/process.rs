//! The process of a task: one of its own, or a server that has begun the task.

use std::io;

use nix::unistd::Pid;
use pmc_spawn::Child;

use super::kill::Leader;
use super::task_server::TaskServer;

/// What runs a task.
pub(super) enum Process {
    /// A process of its own.
    Own(Child),
    /// A server.
    Served(TaskServer),
}

/// How a task ended.
pub(super) struct Ended {
    /// As `waitpid(2)` gives it.
    pub(super) status: i32,
    /// What ran the task can run another one.
    pub(super) goes_on: bool,
    /// The server has ended without an answer.
    pub(super) broken: bool,
}

impl Process {
    pub(super) fn leader(&self) -> &dyn Leader {
        match self {
            Self::Own(child) => child,
            Self::Served(server) => server,
        }
    }

    /// Why the program could not be executed.
    pub(super) fn failure(&self) -> Option<&io::Error> {
        match self {
            Self::Own(child) => child.failure.as_ref(),
            Self::Served(_) => None,
        }
    }

    /// Waits for the end of the task.
    pub(super) fn conclude(&mut self) -> io::Result<Ended> {
        match self {
            Self::Own(child) => Ok(Ended {
                status: reap(child.pid)?,
                goes_on: false,
                broken: false,
            }),
            Self::Served(server) => server.conclude(),
        }
    }
}

/// Raw wait status of a process that has ended.
#[expect(
    unsafe_code,
    reason = "nix takes the status apart, and leaves out the core dump flag"
)]
pub(super) fn reap(pid: Pid) -> io::Result<i32> {
    let mut status = 0;
    // SAFETY: the pointer is to a local variable.
    while unsafe { libc::waitpid(pid.as_raw(), &raw mut status, 0) } < 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    Ok(status)
}
