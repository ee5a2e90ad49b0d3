//! The limit of open files. This process raises its own; the processes that it starts get the earlier one.
//!
//! Programs may rely on the usual limit: some close every descriptor below it, and those that use `select`
//! take no descriptor above 1023.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::OnceLock;

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Soft and hard limit of this process before it raised its own.
static EARLIER: OnceLock<(u64, u64)> = OnceLock::new();

/// Raises the limit to the highest value that the system allows to this process, and returns it. If that
/// fails, the limit stays.
pub fn raise() -> u64 {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else {
        return u64::MAX;
    };
    if soft >= hard || setrlimit(Resource::RLIMIT_NOFILE, hard, hard).is_err() {
        return soft;
    }
    // Two threads may be here: the first one has seen the earlier limit.
    let _ = EARLIER.set((soft, hard));
    hard
}

/// Gives a process that the standard library starts the earlier limit.
#[expect(unsafe_code, reason = "a system call between fork and exec")]
pub fn restore_in(command: &mut Command) {
    if let Some(&(soft, hard)) = EARLIER.get() {
        let restore = move || Ok(setrlimit(Resource::RLIMIT_NOFILE, soft, hard)?);
        // SAFETY: the closure makes one system call and allocates nothing.
        unsafe { command.pre_exec(restore) };
    }
}

/// The limit for new processes, if it is not that of this one.
pub(crate) fn earlier() -> Option<libc::rlimit> {
    EARLIER.get().map(|&(soft, hard)| libc::rlimit {
        rlim_cur: soft,
        rlim_max: hard,
    })
}

/// Returns whether an error says that this process or the system has too many open files. Some will be
/// closed.
#[must_use]
pub fn are_short(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw);
    matches!(errno, Some(Errno::EMFILE | Errno::ENFILE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_have_the_limit_from_before() {
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        let lower = hard.min(soft).saturating_sub(1);
        setrlimit(Resource::RLIMIT_NOFILE, lower, hard).unwrap();
        assert_eq!(raise(), hard);
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "ulimit -Sn"]);
        restore_in(&mut command);
        let output = command.output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{lower}\n"));
        assert_eq!(getrlimit(Resource::RLIMIT_NOFILE).unwrap().0, hard);
    }
}
