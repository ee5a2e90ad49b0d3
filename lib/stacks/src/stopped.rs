//! Threads of another process that stand still while this value lives.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::ptrace;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// Longest time until a thread stands still. One that waits for a disk does not before that is over.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

const POLL_INTERVAL: Duration = Duration::from_micros(200);

/// A thread of another process, which stands still. It goes on when this is dropped, or this process ends.
pub(crate) struct Stopped {
    thread: Pid,
    is_stopped: bool,
}

/// The registers that lead to the callers of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Registers {
    pub(crate) instruction: u64,
    pub(crate) stack: u64,
    pub(crate) frame: u64,
    /// Where the function returns to; some processors have a register for it, else 0.
    pub(crate) link: u64,
}

impl Stopped {
    /// Stops a thread. [`Stopped::wait`] is to follow.
    ///
    /// # Errors
    /// The system does not allow it, or the thread has ended.
    pub(crate) fn begin(thread: Pid) -> Result<Self, Errno> {
        ptrace::seize(thread, ptrace::Options::empty())?;
        let stopped = Self {
            thread,
            is_stopped: false,
        };
        ptrace::interrupt(thread)?;
        Ok(stopped)
    }

    /// Waits until the thread stands still. Returns its registers.
    ///
    /// # Errors
    /// It has ended, or does not stand still within two seconds.
    pub(crate) fn wait(&mut self) -> Result<Registers, Errno> {
        let end = Instant::now() + STOP_TIMEOUT;
        let flags = WaitPidFlag::WNOHANG | WaitPidFlag::__WALL;
        loop {
            match waitpid(self.thread, Some(flags))? {
                WaitStatus::StillAlive if Instant::now() < end => std::thread::sleep(POLL_INTERVAL),
                WaitStatus::StillAlive => return Err(Errno::ETIMEDOUT),
                WaitStatus::Exited(..) | WaitStatus::Signaled(..) => return Err(Errno::ESRCH),
                _ => break,
            }
        }
        self.is_stopped = true;
        registers(self.thread)
    }
}

/// The registers of a thread that stands still for this one, which traces it.
///
/// # Errors
/// It does not.
pub(crate) fn registers(thread: Pid) -> Result<Registers, Errno> {
    ptrace::getregs(thread).map(registers_of)
}

#[cfg(target_arch = "x86_64")]
fn registers_of(all: nix::libc::user_regs_struct) -> Registers {
    Registers {
        instruction: all.rip,
        stack: all.rsp,
        frame: all.rbp,
        link: 0,
    }
}

#[cfg(target_arch = "aarch64")]
fn registers_of(all: nix::libc::user_regs_struct) -> Registers {
    Registers {
        instruction: all.pc,
        stack: all.sp,
        frame: all.regs[29],
        link: all.regs[30],
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        if self.is_stopped {
            // It may have been killed meanwhile.
            let _ = ptrace::detach(self.thread, None);
        }
        // One that does not stand still cannot be left. It goes on when this process ends.
    }
}

/// The memory of a process.
pub(crate) struct Memory(File);

impl Memory {
    /// Opens it.
    ///
    /// # Errors
    /// The system does not allow it, or the process has ended.
    pub(crate) fn open(pid: Pid) -> std::io::Result<Self> {
        File::open(format!("/proc/{pid}/mem")).map(Self)
    }

    /// The word at an address.
    pub(crate) fn word(&self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.0.read_exact_at(&mut bytes, address).ok()?;
        Some(u64::from_ne_bytes(bytes))
    }

    /// Bytes at an address.
    pub(crate) fn bytes(&self, address: u64, length: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.0.read_exact_at(&mut bytes, address).ok()?;
        Some(bytes)
    }
}

/// Says why a process cannot be traced.
pub(crate) fn refusal(pid: Pid, error: Errno) -> String {
    match error {
        Errno::ESRCH | Errno::ECHILD => "it has ended".to_owned(),
        Errno::ETIMEDOUT => {
            "it does not stand still: it waits for a disk or a network file system".to_owned()
        }
        Errno::EPERM | Errno::EACCES => forbidden(pid),
        error => format!("it cannot be traced: {}", error.desc()),
    }
}

fn forbidden(pid: Pid) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:"));
    let tracer = tracer.and_then(|tracer| tracer.trim().parse::<i32>().ok());
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    match (tracer, scope.trim()) {
        (Some(tracer), _) if tracer > 0 => format!("process {tracer} traces it already, as a debugger does"),
        (_, "1") => "this system allows it only for processes that the tracing one has started \
                     (kernel.yama.ptrace_scope is 1; an administrator can set 0)"
            .to_owned(),
        (_, scope @ ("2" | "3")) => format!(
            "this system allows it to nobody but administrators (kernel.yama.ptrace_scope is {scope})"
        ),
        _ => "the system does not allow it: it runs as another user, or protects itself".to_owned(),
    }
}
