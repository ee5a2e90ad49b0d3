//! The sentinel: a process that ends the tasks of this one if it is killed.
//!
//! When the executor dies, the system ends the first process of each task. What that has started would go on,
//! and the next run would start a second copy of it. So the executor keeps a small process beside it, which
//! knows the process groups of running tasks by a file in memory, and waits for the end of a pipe. Every now
//! and then it also looks for processes that have left these groups: after the death of their parents they
//! cannot be found.
//!
//! Agents need no sentinel: their guard does more. Nor do task servers, which see the end of the executor
//! themselves, and adopt what has left their groups.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::File;
use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::{AsFd as _, AsRawFd as _, RawFd};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::{SigHandler, Signal, killpg, signal};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, close, dup2_stderr, dup2_stdin, dup2_stdout, fork, setpgid};
use rustix::fs::{MemfdFlags, memfd_create};

use super::running::is_readable;
use super::strays::Strays;

/// Name of the process.
const NAME: &std::ffi::CStr = c"pmc-sentinel";

/// Time between two looks for processes that have left their groups.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Signals that are for the executor.
const IGNORED: [Signal; 6] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];

/// Bytes of a number in the file.
const NUMBER_SIZE: usize = size_of::<i32>();

/// The process. It ends when this is dropped.
#[derive(Debug)]
pub struct Sentinel {
    pid: Pid,
    /// For each worker, the process group of its task, or 0.
    groups: File,
    /// Its end shows that this process has died.
    lifeline: Option<PipeWriter>,
}

impl Sentinel {
    /// Starts the process. Call it before the memory of this one is large.
    ///
    /// # Errors
    /// The system refuses what it needs. Then only the first processes of tasks end with this one.
    #[expect(unsafe_code, reason = "the process needs no program of its own")]
    pub fn start() -> io::Result<Arc<Self>> {
        // The C library of older systems lacks this function; rustix makes the system call.
        let groups = File::from(memfd_create(NAME, MemfdFlags::CLOEXEC)?);
        let (watched, lifeline) = io::pipe()?;
        // SAFETY: the C library lets the child of a process with threads allocate memory. Beside that, the
        // child uses only what it has here, and ends without running what this program does at its end.
        match unsafe { fork() }? {
            ForkResult::Parent { child } => Ok(Arc::new(Self {
                pid: child,
                groups,
                lifeline: Some(lifeline),
            })),
            ForkResult::Child => {
                drop(lifeline);
                watch(&groups, &watched);
                // SAFETY: the call does not return.
                unsafe { libc::_exit(0) }
            }
        }
    }

    /// The same. If it cannot start, a warning says so.
    #[must_use]
    pub fn start_or_warn() -> Option<Arc<Self>> {
        let started = Self::start().inspect_err(|error| {
            let reason = pmc_dag::reason(error);
            tracing::warn!("If this process is killed, processes of tasks may go on: {reason}");
        });
        started.ok()
    }

    /// Notes which group the task of a worker has.
    fn note(&self, worker: u32, group: Option<Pid>) {
        let number = group.map_or(0, Pid::as_raw);
        // A file in memory of a few bytes: without it, only first processes end.
        let _ = self
            .groups
            .write_at(&number.to_ne_bytes(), u64::from(worker) * NUMBER_SIZE as u64);
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        self.lifeline = None;
        let _ = waitpid(self.pid, None);
    }
}

/// The part of a sentinel that is for one worker.
#[derive(Clone, Debug)]
pub struct Watched {
    /// The process.
    pub sentinel: Arc<Sentinel>,
    /// Number of the worker, from 0.
    pub worker: u32,
}

impl Watched {
    pub(super) fn note(&self, group: Option<Pid>) {
        self.sentinel.note(self.worker, group);
    }
}

/// Runs the sentinel until the executor has ended, and then ends the tasks that are left.
fn watch(groups: &File, lifeline: &PipeReader) {
    if leave_the_executor([groups.as_raw_fd(), lifeline.as_raw_fd()]).is_err() {
        return;
    }
    let mut strays = BTreeMap::new();
    while !is_readable(lifeline.as_fd(), POLL_INTERVAL, None) {
        strays = read(groups)
            .into_iter()
            .map(|group| (group, Strays::of(group)))
            .collect();
    }
    for group in read(groups) {
        // No other group can have the number yet: the task has run a moment ago.
        let _ = killpg(group, Signal::SIGKILL);
        if let Some(strays) = strays.get(&group) {
            strays.kill();
        }
    }
}

/// Shares nothing with the executor any more but these descriptors.
fn leave_the_executor(keep: [RawFd; 2]) -> io::Result<()> {
    setpgid(Pid::from_raw(0), Pid::from_raw(0))?;
    for number in IGNORED {
        #[expect(unsafe_code, reason = "nix marks the call unsafe for handlers")]
        // SAFETY: to ignore a signal runs no code of this process.
        unsafe { signal(number, SigHandler::SigIgn) }?;
    }
    let _ = nix::sys::prctl::set_name(&CString::from(NAME));
    let null = File::options().read(true).write(true).open("/dev/null")?;
    dup2_stdin(&null)?;
    dup2_stdout(&null)?;
    dup2_stderr(&null)?;
    let open: Vec<RawFd> = std::fs::read_dir("/proc/self/fd")?
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    for descriptor in open {
        if descriptor > 2 && !keep.contains(&descriptor) {
            // The owners of these descriptors are never dropped here.
            let _ = close(descriptor);
        }
    }
    std::mem::forget(null);
    Ok(())
}

/// The groups of the tasks that run.
fn read(groups: &File) -> Vec<Pid> {
    let length = groups.metadata().map_or(0, |data| data.len());
    let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
    if groups.read_exact_at(&mut bytes, 0).is_err() {
        return Vec::new();
    }
    let numbers = bytes.chunks_exact(NUMBER_SIZE).map(|chunk| {
        let mut number = [0; NUMBER_SIZE];
        number.copy_from_slice(chunk);
        i32::from_ne_bytes(number)
    });
    numbers.filter(|number| *number > 1).map(Pid::from_raw).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_known_by_worker() {
        let sentinel = Sentinel::start().unwrap();
        let groups = sentinel.groups.try_clone().unwrap();
        sentinel.note(3, Some(Pid::from_raw(77)));
        sentinel.note(0, Some(Pid::from_raw(78)));
        assert_eq!(read(&groups), [78, 77].map(Pid::from_raw));
        sentinel.note(3, None);
        sentinel.note(0, None);
        assert!(read(&groups).is_empty());
    }
}
