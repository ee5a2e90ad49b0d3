//! How tasks end.

use std::io;

use nix::unistd::Pid;

/// How a task ended.
pub(super) struct Ended {
    /// Raw status, as of `waitpid(2)`.
    pub(super) status: i32,
    /// Peak resident memory of its processes, KiB; 0 if it is unknown.
    pub(super) peak_kib: u64,
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
pub(super) fn reap(pid: Pid) -> io::Result<i32> {
    reap_with_peak(pid).map(|(status, _)| status)
}

/// As [`reap`]. Also returns the peak resident memory of the process and of those that it has waited for,
/// KiB.
#[expect(
    unsafe_code,
    reason = "nix decodes the status, drops the core dump flag, and has no usage"
)]
pub(super) fn reap_with_peak(pid: Pid) -> io::Result<(i32, u64)> {
    let mut status = 0;
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the pointers are to local variables.
    while unsafe { libc::wait4(pid.as_raw(), &raw mut status, 0, usage.as_mut_ptr()) } < 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    // SAFETY: it consists of integers, for which zero is a value.
    let usage = unsafe { usage.assume_init() };
    Ok((status, u64::try_from(usage.ru_maxrss).unwrap_or(0)))
}
