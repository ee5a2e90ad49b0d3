//! How tasks end.

use std::io;

use nix::unistd::Pid;

/// How a task ended.
pub(super) struct Ended {
    /// Raw status, as of `waitpid(2)`.
    pub(super) status: i32,
    /// The process can run another task.
    pub(super) is_reusable: bool,
    /// The task server ended without a reply.
    pub(super) server_died: bool,
}

/// Describes a wait status.
pub(super) fn describe_end(status: i32) -> String {
    if libc::WIFSIGNALED(status) {
        format!("on signal {}", libc::WTERMSIG(status))
    } else {
        format!("with status {}", libc::WEXITSTATUS(status))
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
