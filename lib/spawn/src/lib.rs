//! Starts processes without copying this one.
//!
//! `fork` copies the page tables of the whole process. That is slow in a process with a large MPI library,
//! and some interconnects forbid it. Here the child borrows the memory of the parent until it calls `execve`,
//! as with `posix_spawn`. That function cannot set resource limits, and it visits all 64 signals each time.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd, RawFd};
use std::ptr;

use nix::sys::signal::{SigSet, SigmaskHow, pthread_sigmask};
use nix::unistd::Pid;

pub mod family;
pub mod open_files;
mod strings;

pub use strings::CStrings;

/// Number of the first descriptor in [`Spawn::keep`], in the new process. Programs may rely on it: some
/// shells redirect only to descriptors of one digit.
pub const FIRST_KEPT: RawFd = 3;

/// A process to start. It has the limit of open files from before [`open_files::raise`].
#[derive(Debug)]
pub struct Spawn<'a> {
    /// File to execute.
    pub program: &'a CStr,
    /// Arguments; the first is the program's name.
    pub arguments: &'a CStrings,
    /// Variables as `NAME=VALUE`.
    pub environment: &'a CStrings,
    /// Working directory; `None` means that of this process.
    pub directory: Option<&'a CStr>,
    /// Standard input, output and error of the process. None of them may be a descriptor below 3.
    pub stdio: [RawFd; 3],
    /// Descriptors that the process inherits. There, their numbers are [`FIRST_KEPT`] and the following ones.
    pub keep: &'a [RawFd],
    /// True closes all other descriptors above 2. False keeps those without the close-on-exec flag.
    pub close_others: bool,
    /// True makes the process leader of a new process group.
    pub leads_group: bool,
    /// True blocks no signal in the process. False keeps the signal mask of this thread.
    pub unblock: bool,
    /// Limit of data, stack, resident set and address space, in bytes.
    pub memory: Option<u64>,
    /// CPUs to run on.
    pub cpus: Option<nix::sched::CpuSet>,
    /// True sends SIGKILL to the process when the thread that started it ends.
    pub die_with_parent: bool,
    /// True asks for [`Child::descriptor`].
    pub descriptor: bool,
    /// True stops the process after its `execve`, before the first instruction of its program. The thread
    /// that starts it is its tracer: it waits for the stop, and lets the process go on. If the system forbids
    /// that, [`Child::failure`] is `EPERM`.
    pub stop_at_exec: bool,
}

/// A started process.
#[derive(Debug)]
pub struct Child {
    /// Process id; also the id of the process group if the process leads one.
    pub pid: Pid,
    /// Why the program could not be executed. The process has then ended with exit code 1.
    pub failure: Option<io::Error>,
    /// Becomes readable when the process ends. `None` on kernels before 5.2.
    pub descriptor: Option<OwnedFd>,
}

/// Reusable state of [`Spawn::start`].
#[derive(Debug)]
pub struct Spawner {
    stack: Vec<u128>,
    /// Signals that the child resets to their default action: a handler must not run in borrowed memory.
    reset_signals: Vec<c_int>,
    /// True if this process has any signal handler.
    has_handlers: bool,
}

const STACK_BYTES: usize = 64 * 1024;

impl Spawner {
    /// Reads the signal handlers of this process. Call it after they are installed.
    #[must_use]
    pub fn new() -> Self {
        let reset_signals = signals_to_reset();
        Self {
            stack: vec![0; STACK_BYTES / size_of::<u128>()],
            has_handlers: reset_signals.iter().any(|&signal| has_handler(signal)),
            reset_signals,
        }
    }
}

impl Default for Spawner {
    fn default() -> Self {
        Self::new()
    }
}

/// Arguments of [`run_child`], in memory that parent and child share.
struct Shared<'a> {
    spawn: &'a Spawn<'a>,
    /// Copy of [`Spawn::keep`]; the child writes to it.
    keep: &'a [Cell<RawFd>],
    /// Ends with a null pointer.
    argv: &'a [*const c_char],
    /// Ends with a null pointer.
    envp: &'a [*const c_char],
    reset_signals: &'a [c_int],
    mask: libc::sigset_t,
    /// Limit of open files, if it is not that of the parent.
    open_files: Option<libc::rlimit>,
    cpus: *const libc::cpu_set_t,
    /// Written by the child if it cannot execute the program.
    errno: c_int,
}

impl Spawn<'_> {
    /// Starts the process. Waits until it executes the program or has failed to do so.
    ///
    /// # Errors
    /// No process could be created. If the program could not be executed, [`Child::failure`] says why.
    #[expect(unsafe_code, reason = "clone with shared memory has no safe wrapper")]
    pub fn start(&self, spawner: &mut Spawner) -> io::Result<Child> {
        let (argv, envp) = (self.arguments.pointers(), self.environment.pointers());
        let mut mask = SigSet::empty();
        // Without handlers, a signal does the same to the child now as it would do a moment later.
        let blocks_signals = spawner.has_handlers || !self.unblock;
        if blocks_signals {
            let all = SigSet::all();
            pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&all), Some(&mut mask))?;
        }
        let child_mask = if self.unblock { SigSet::empty() } else { mask };
        let keep: Vec<Cell<RawFd>> = self.keep.iter().copied().map(Cell::new).collect();
        let mut shared = Shared {
            spawn: self,
            keep: &keep,
            argv: &argv,
            envp: &envp,
            reset_signals: &spawner.reset_signals,
            mask: *child_mask.as_ref(),
            open_files: open_files::earlier(),
            cpus: self
                .cpus
                .as_ref()
                .map_or(ptr::null(), |set| ptr::from_ref(set).cast()),
            errno: 0,
        };
        let stack_top = spawner.stack.as_mut_ptr_range().end;
        let mut flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        if self.descriptor {
            flags |= libc::CLONE_PIDFD;
        }
        let mut descriptor: c_int = -1;
        let argument = (&raw mut shared).cast();
        // SAFETY: CLONE_VFORK stops this thread until the child has left the shared memory by execve or
        // _exit. So `shared` and the stack outlive their use, and nothing else uses them meanwhile. The stack
        // grows down from `stack_top`, which is aligned to 16 bytes. `run_child` only makes system calls. If
        // there are signal handlers, signals are blocked until the child has removed them.
        let pid = unsafe { libc::clone(run_child, stack_top.cast(), flags, argument, &raw mut descriptor) };
        let pid = if pid < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(Pid::from_raw(pid))
        };
        if blocks_signals {
            pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&mask), None)?;
        }
        // SAFETY: `shared` lives in this frame. The read is volatile because the child may have written to
        // it.
        let errno = unsafe { ptr::read_volatile(&raw const shared.errno) };
        let failure = (errno != 0).then(|| io::Error::from_raw_os_error(errno));
        let pid = pid?;
        // SAFETY: the kernel has just opened the descriptor for this process; nothing else owns it.
        let descriptor = (descriptor >= 0).then(|| unsafe { OwnedFd::from_raw_fd(descriptor) });
        Ok(Child {
            pid,
            failure,
            descriptor,
        })
    }
}

/// Runs in the new process, on its own stack but in the memory of the parent.
#[expect(unsafe_code, reason = "system calls between clone and execve")]
extern "C" fn run_child(argument: *mut c_void) -> c_int {
    let shared: *mut Shared<'_> = argument.cast();
    // SAFETY: `start` passes a valid pointer and waits, so all that it refers to is alive. All calls are
    // async-signal-safe system calls. `argv` and `envp` end with null pointers.
    unsafe {
        if prepare(&*shared) {
            let Shared {
                spawn, argv, envp, ..
            } = &*shared;
            libc::execve(spawn.program.as_ptr(), argv.as_ptr(), envp.as_ptr());
        }
        ptr::write_volatile(&raw mut (*shared).errno, *libc::__errno_location());
        libc::_exit(1)
    }
}

/// Sets up the new process. Returns false, with `errno`, if a step fails.
///
/// # Safety
/// Call it in a child between clone and execve; `cpus` is null or valid.
#[expect(unsafe_code, reason = "system calls between clone and execve")]
unsafe fn prepare(shared: &Shared<'_>) -> bool {
    let Shared {
        spawn,
        keep,
        mask,
        cpus,
        ..
    } = shared;
    // SAFETY: the calls affect this process only, and it is about to execute a program. Pointers are to
    // initialised values on this stack or in `shared`; descriptors and the directory are kept alive by the
    // owner of `Spawn`.
    unsafe {
        if spawn.die_with_parent {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        }
        let mut default: libc::sigaction = std::mem::zeroed();
        default.sa_sigaction = libc::SIG_DFL;
        for signal in shared.reset_signals {
            libc::sigaction(*signal, &raw const default, ptr::null_mut());
        }
        if spawn.leads_group && libc::setpgid(0, 0) != 0 {
            return false;
        }
        for (target, fd) in (0..).zip(spawn.stdio) {
            if libc::dup2(fd, target) < 0 {
                return false;
            }
        }
        if spawn.close_others {
            // Descriptors of an MPI library or its launcher keep connections open that should end with this
            // process. Kernels before 5.11 cannot do this; the task then inherits them, as with the original.
            let (first, last, flag) = (3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC);
            libc::syscall(libc::SYS_close_range, first, last, flag);
        }
        if !number(keep) {
            return false;
        }
        // Not before descriptors have their numbers: the limit also holds for those.
        if let Some(limit) = &shared.open_files
            && libc::setrlimit(libc::RLIMIT_NOFILE, ptr::from_ref(limit)) != 0
        {
            return false;
        }
        if let Some(directory) = spawn.directory
            && libc::chdir(directory.as_ptr()) != 0
        {
            return false;
        }
        if !cpus.is_null() && libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), *cpus) != 0 {
            return false;
        }
        if let Some(bytes) = spawn.memory {
            let limit = libc::rlimit {
                rlim_cur: bytes,
                rlim_max: bytes,
            };
            for resource in [
                libc::RLIMIT_DATA,
                libc::RLIMIT_STACK,
                libc::RLIMIT_RSS,
                libc::RLIMIT_AS,
            ] {
                if libc::setrlimit(resource, &raw const limit) != 0 {
                    return false;
                }
            }
        }
        // Nothing but the program follows that could stop the process.
        if spawn.stop_at_exec && libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) != 0 {
            return false;
        }
        libc::sigprocmask(libc::SIG_SETMASK, mask, ptr::null_mut()) == 0
    }
}

/// Gives descriptors the numbers from [`FIRST_KEPT`] on, and lets the new program inherit them. Returns
/// false, with `errno`, if a step fails.
///
/// # Safety
/// Call it in a child between clone and execve: it replaces descriptors of the process.
#[expect(unsafe_code, reason = "system calls between clone and execve")]
unsafe fn number(keep: &[Cell<RawFd>]) -> bool {
    let end = FIRST_KEPT + keep.len() as RawFd;
    for fd in keep.iter().filter(|fd| fd.get() < end) {
        // Another descriptor gets this number.
        // SAFETY: the call takes no pointers.
        let moved = unsafe { libc::fcntl(fd.get(), libc::F_DUPFD_CLOEXEC, end) };
        if moved < 0 {
            return false;
        }
        fd.set(moved);
    }
    (FIRST_KEPT..).zip(keep).all(|(number, fd)| {
        // SAFETY: the call takes no pointers.
        unsafe { libc::dup2(fd.get(), number) >= 0 }
    })
}

/// Returns the signals with a handler, and SIGPIPE: Rust programs ignore it, but other programs do not expect
/// that.
fn signals_to_reset() -> Vec<c_int> {
    (1..=libc::SIGRTMAX())
        .filter(|&signal| signal == libc::SIGPIPE || has_handler(signal))
        .collect()
}

/// Returns whether this process has a handler for a signal.
#[expect(unsafe_code, reason = "reading a signal's action has no safe wrapper")]
fn has_handler(signal: c_int) -> bool {
    // SAFETY: a null pointer for the new action changes nothing. The old one is written to an initialised
    // structure.
    unsafe {
        let mut old: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, ptr::null(), &raw mut old) == 0
            && old.sa_sigaction != libc::SIG_DFL
            && old.sa_sigaction != libc::SIG_IGN
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::fd::AsRawFd as _;

    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::getpgrp;

    use super::*;

    /// Runs a shell script with SIGUSR1 blocked in this thread. Returns the process id and the output.
    fn run(script: &CStr, directory: Option<&CStr>, leads_group: bool, unblock: bool) -> (Pid, String) {
        let folder = tempfile::tempdir().unwrap();
        let (null, out) = (File::open("/dev/null").unwrap(), folder.path().join("out"));
        let file = File::create(&out).unwrap();
        let mask = block(nix::sys::signal::Signal::SIGUSR1);
        let child = Spawn {
            program: c"/bin/sh",
            arguments: &[c"sh", c"-c", script].into_iter().collect(),
            environment: &[c"A=b"].into_iter().collect(),
            directory,
            stdio: [null.as_raw_fd(), file.as_raw_fd(), file.as_raw_fd()],
            keep: &[null.as_raw_fd()],
            close_others: true,
            leads_group,
            unblock,
            memory: None,
            cpus: None,
            die_with_parent: true,
            descriptor: true,
            stop_at_exec: false,
        }
        .start(&mut Spawner::new())
        .unwrap();
        pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&mask), None).unwrap();
        assert!(child.failure.is_none());
        assert_eq!(
            waitpid(child.pid, None).unwrap(),
            WaitStatus::Exited(child.pid, 0)
        );
        (child.pid, fs::read_to_string(out).unwrap())
    }

    /// Blocks `signal` in this thread. Returns the previous mask.
    fn block(signal: nix::sys::signal::Signal) -> SigSet {
        let (mut more, mut before) = (SigSet::empty(), SigSet::empty());
        more.add(signal);
        pthread_sigmask(SigmaskHow::SIG_BLOCK, Some(&more), Some(&mut before)).unwrap();
        before
    }

    #[test]
    fn group_directory_and_environment_are_set() {
        let group = c"ps -o pgid= -p $$ | tr -d ' '; pwd; echo $A";
        let (pid, text) = run(group, Some(c"/usr"), true, false);
        assert_eq!(text, format!("{pid}\n/usr\nb\n"));
        let here = std::env::current_dir().unwrap();
        let (_, text) = run(group, None, false, false);
        assert_eq!(text, format!("{}\n{}\nb\n", getpgrp(), here.display()));
    }

    #[test]
    fn the_mask_is_kept_or_cleared() {
        let blocked = c"grep SigBlk /proc/self/status | cut -f2";
        assert_eq!(run(blocked, None, false, true).1, "0000000000000000\n");
        assert_eq!(run(blocked, None, false, false).1, "0000000000000200\n");
        // This process ignores SIGPIPE, as Rust programs do.
        let ignored = run(c"grep SigIgn /proc/self/status | cut -f2", None, false, true).1;
        let ignored = u64::from_str_radix(ignored.trim(), 16).unwrap();
        assert_eq!(ignored & 1 << (libc::SIGPIPE - 1), 0);
    }

    #[test]
    fn descriptors_are_numbered_from_three() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: usize| folder.path().join(name.to_string());
        let files: Vec<File> = (0..4).map(|name| File::create(path(name)).unwrap()).collect();
        let null = File::open("/dev/null").unwrap();
        let mut numbers: Vec<RawFd> = files.iter().map(|file| file.as_raw_fd()).collect();
        // The first tests of a process have low numbers, in which case this is a permutation of them.
        numbers.reverse();
        let script = c"for n in 3 4 5 6; do echo $n >&$n; done; ls /proc/self/fd | wc -l >&3";
        let child = Spawn {
            program: c"/bin/sh",
            arguments: &[c"sh", c"-c", script].into_iter().collect(),
            environment: &CStrings::default(),
            directory: None,
            stdio: [null.as_raw_fd(); 3],
            keep: &numbers,
            close_others: true,
            leads_group: false,
            unblock: false,
            memory: None,
            cpus: None,
            die_with_parent: true,
            descriptor: false,
            stop_at_exec: false,
        }
        .start(&mut Spawner::new())
        .unwrap();
        assert_eq!(
            waitpid(child.pid, None).unwrap(),
            WaitStatus::Exited(child.pid, 0)
        );
        let content: Vec<String> = (0..4)
            .map(|name| fs::read_to_string(path(name)).unwrap())
            .collect();
        // Three streams, these four, and the directory that ls reads.
        assert_eq!(content, ["6\n", "5\n", "4\n", "3\n8\n"]);
    }

    #[test]
    fn a_process_can_stop_before_its_first_instruction() {
        let folder = tempfile::tempdir().unwrap();
        let (null, out) = (File::open("/dev/null").unwrap(), folder.path().join("out"));
        let file = File::create(&out).unwrap();
        let child = Spawn {
            program: c"/bin/echo",
            arguments: &[c"echo", c"x"].into_iter().collect(),
            environment: &CStrings::default(),
            directory: None,
            stdio: [null.as_raw_fd(), file.as_raw_fd(), file.as_raw_fd()],
            keep: &[],
            close_others: true,
            leads_group: true,
            unblock: true,
            memory: None,
            cpus: None,
            die_with_parent: true,
            descriptor: false,
            stop_at_exec: true,
        }
        .start(&mut Spawner::new())
        .unwrap();
        if child
            .failure
            .is_some_and(|failure| failure.raw_os_error() == Some(libc::EPERM))
        {
            // This system forbids it.
            waitpid(child.pid, None).unwrap();
            return;
        }
        let stopped = WaitStatus::Stopped(child.pid, nix::sys::signal::Signal::SIGTRAP);
        assert_eq!(waitpid(child.pid, None).unwrap(), stopped);
        let program = fs::read_link(format!("/proc/{}/exe", child.pid)).unwrap();
        assert_eq!(program, fs::canonicalize("/bin/echo").unwrap());
        assert_eq!(fs::read_to_string(&out).unwrap(), "");
        nix::sys::ptrace::detach(child.pid, None).unwrap();
        assert_eq!(
            waitpid(child.pid, None).unwrap(),
            WaitStatus::Exited(child.pid, 0)
        );
        assert_eq!(fs::read_to_string(&out).unwrap(), "x\n");
    }

    #[test]
    fn failures_are_reported() {
        let null = File::open("/dev/null").unwrap();
        let mut spawn = Spawn {
            program: c"/nonexistent",
            arguments: &[c"x"].into_iter().collect(),
            environment: &CStrings::default(),
            directory: None,
            stdio: [null.as_raw_fd(); 3],
            keep: &[],
            close_others: false,
            leads_group: false,
            unblock: true,
            memory: None,
            cpus: None,
            die_with_parent: false,
            descriptor: false,
            stop_at_exec: false,
        };
        let failure = |spawn: &Spawn<'_>| {
            let child = spawn.start(&mut Spawner::new()).unwrap();
            assert_eq!(
                waitpid(child.pid, None).unwrap(),
                WaitStatus::Exited(child.pid, 1)
            );
            child.failure.and_then(|error| error.raw_os_error())
        };
        assert_eq!(failure(&spawn), Some(libc::ENOENT));
        (spawn.program, spawn.directory) = (c"/bin/true", Some(c"/nonexistent"));
        assert_eq!(failure(&spawn), Some(libc::ENOENT));
        (spawn.program, spawn.directory) = (c"/etc/passwd", None);
        assert_eq!(failure(&spawn), Some(libc::EACCES));
    }
}
