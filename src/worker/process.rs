//! The process that runs a task: one started for it, or a task server.

use std::io;

use nix::unistd::Pid;
use pmc_spawn::Child;

use super::kill::Leader;
use super::task_server::TaskServer;

/// The process that runs a task.
pub(super) enum Process {
    /// Started for this task.
    Own(Child),
    /// A task server.
    Served(TaskServer),
}

/// How a task ended.
pub(super) struct Ended {
    /// Raw status, as of `waitpid(2)`.
    pub(super) status: i32,
    /// The process can run another task.
    pub(super) is_reusable: bool,
    /// The task server ended without a reply.
    pub(super) server_died: bool,
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

    /// Returns how the task ended, after its end.
    pub(super) fn conclude(&mut self) -> io::Result<Ended> {
        match self {
            Self::Own(child) => Ok(Ended {
                status: reap(child.pid)?,
                is_reusable: false,
                server_died: false,
            }),
            Self::Served(server) => server.conclude(),
        }
    }
}

/// Reaps a process and returns its raw wait status.
#[expect(unsafe_code, reason = "nix decodes the status and drops the core dump flag")]
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
