//! Starting a process without copying this one.
//!
//! `fork` copies the page tables of the whole process, which is slow in a process with a large
//! MPI library and forbidden by some interconnects. Here the child borrows the memory of the
//! parent until it calls `execve`, as with `posix_spawn`. That function would do for most tasks,
//! but cannot set resource limits, and looks at all 64 signals each time.
//!
//! The unsafe code of starting processes is here, for all programs that start many.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd, RawFd};
use std::ptr;

use nix::sys::signal::{SigSet, SigmaskHow, pthread_sigmask};
use nix::unistd::Pid;

/// A process to start.
#[derive(Debug)]
pub struct Spawn<'a> {
    /// File to execute.
    pub program: &'a CStr,
    /// Pointers to the arguments, the program's name first, ended by a null pointer.
    pub argv: &'a [*const c_char],
    /// Pointers to the variables as `NAME=VALUE`, ended by a null pointer.
    pub envp: &'a [*const c_char],
    /// Working directory, unless it is that of this process.
    pub directory: Option<&'a CStr>,
    /// Standard input, output and error of the process. None of them may be one of the descriptors 0 to 2.
    pub stdio: [RawFd; 3],
    /// Descriptors that stay open in the process under their numbers.
    pub keep: &'a [RawFd],
    /// Whether all other descriptors above the first three are closed. Otherwise those that are not marked so
    /// stay open.
    pub close_others: bool,
    /// Whether the process leads a process group of its own.
    pub leads_group: bool,
    /// Whether no signal is blocked in the process. Otherwise those are that are blocked in this thread.
    pub unblock: bool,
    /// Limit of data, stack, resident set and address space in bytes.
    pub memory: Option<u64>,
    /// CPUs to run on.
    pub cpus: Option<nix::sched::CpuSet>,
    /// The process gets SIGKILL if the thread that started it ends.
    pub die_with_parent: bool,
    /// Whether a descriptor of the process is wanted.
    pub descriptor: bool,
}

/// A process that was started.
#[derive(Debug)]
pub struct Child {
    /// Its id, which is also that of its process group if it leads one.
    pub pid: Pid,
    /// Why the program could not be executed; the process has then ended with exit code 1.
    pub failure: Option<io::Error>,
    /// Can be read from when the process has ended. Kernels before 5.2 have none.
    pub descriptor: Option<OwnedFd>,
}

/// What [`Spawn::start`] needs besides and can use again.
#[derive(Debug)]
pub struct Spawner {
    stack: Vec<u128>,
    /// Signals that this process has handlers for. They are made default in the child, since a
    /// handler must not run in borrowed memory.
    caught: Vec<c_int>,
    /// There are handlers at all.
    handles: bool,
}

const STACK_BYTES: usize = 64 * 1024;

impl Spawner {
    /// Looks at the signal handlers of this process: call it when they are installed.
    #[must_use]
    pub fn new() -> Self {
        let caught = caught_signals();
        Self {
            stack: vec![0; STACK_BYTES / size_of::<u128>()],
            handles: caught.iter().any(|&signal| handles(signal)),
            caught,
        }
    }
}

impl Default for Spawner {
    fn default() -> Self {
        Self::new()
    }
}

/// What parent and child share while the child borrows the parent's memory.
struct Shared<'a> {
    spawn: &'a Spawn<'a>,
    caught: &'a [c_int],
    mask: libc::sigset_t,
    cpus: *const libc::cpu_set_t,
    errno: c_int,
}

impl Spawn<'_> {
    /// Starts the process. Waits until it executes the program or has failed to do so.
    ///
    /// # Errors
    /// No process could be made. That the program could not be executed is in the [`Child`].
    #[expect(unsafe_code, reason = "clone with shared memory; see the comments")]
    pub fn start(&self, spawner: &mut Spawner) -> io::Result<Child> {
        let mut mask = SigSet::empty();
        // Without handlers, a signal at any moment does to the child what it would do a moment later.
        let guarded = spawner.handles || !self.unblock;
        if guarded {
            let all = SigSet::all();
            pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&all), Some(&mut mask))?;
        }
        let wanted = if self.unblock { SigSet::empty() } else { mask };
        let mut shared = Shared {
            spawn: self,
            caught: &spawner.caught,
            mask: *wanted.as_ref(),
            cpus: self
                .cpus
                .as_ref()
                .map_or(ptr::null(), |set| ptr::from_ref(set).cast()),
            errno: 0,
        };
        let top = spawner.stack.as_mut_ptr_range().end;
        let mut flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        if self.descriptor {
            flags |= libc::CLONE_PIDFD;
        }
        let mut descriptor: c_int = -1;
        // SAFETY: CLONE_VFORK stops this thread until the child has left the shared memory by
        // execve or _exit, so `shared` and the stack outlive their use, and nobody else uses them.
        // The stack grows down from `top`, which is aligned to 16 bytes. `child` only makes
        // system calls. Signals are blocked until it has removed all handlers, if there are any.
        let pid = unsafe {
            let shared = (&raw mut shared).cast();
            libc::clone(child, top.cast(), flags, shared, &raw mut descriptor)
        };
        let result = if pid < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(Pid::from_raw(pid))
        };
        if guarded {
            pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&mask), None)?;
        }
        // SAFETY: `shared` is ours; the child has written to it behind the compiler's back.
        let errno = unsafe { ptr::read_volatile(&raw const shared.errno) };
        let failure = (errno != 0).then(|| io::Error::from_raw_os_error(errno));
        let pid = result?;
        // SAFETY: the kernel has made the descriptor for this process, and nobody else knows it.
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
extern "C" fn child(argument: *mut c_void) -> c_int {
    let shared: *mut Shared<'_> = argument.cast();
    // SAFETY: `start` passes a valid pointer and waits. Only system calls are made, all of them
    // async-signal-safe; pointers and descriptors are those that the owner of `Spawn` keeps alive.
    unsafe {
        let Shared {
            spawn,
            caught,
            mask,
            cpus,
            ..
        } = &*shared;
        if prepare(spawn, caught, mask, *cpus) {
            libc::execve(spawn.program.as_ptr(), spawn.argv.as_ptr(), spawn.envp.as_ptr());
        }
        ptr::write_volatile(&raw mut (*shared).errno, *libc::__errno_location());
        libc::_exit(1)
    }
}

/// Makes the new process what it is to be. False, with `errno`, if something fails.
///
/// # Safety
/// To be called between clone and execve, with the pointers that [`Shared`] holds.
#[expect(unsafe_code, reason = "system calls between clone and execve")]
unsafe fn prepare(
    spawn: &Spawn<'_>,
    caught: &[c_int],
    mask: &libc::sigset_t,
    cpus: *const libc::cpu_set_t,
) -> bool {
    // SAFETY: as the caller promises; the structures are on this stack and initialised.
    unsafe {
        if spawn.die_with_parent {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        }
        let mut default: libc::sigaction = std::mem::zeroed();
        default.sa_sigaction = libc::SIG_DFL;
        for signal in caught {
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
            // Descriptors that an MPI library has opened, or its launcher, are not for the task: they
            // keep connections open that should end with this process. Kernels before 5.11 cannot
            // do this; the task then sees them, as with the original.
            let (first, last, flag) = (3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC);
            libc::syscall(libc::SYS_close_range, first, last, flag);
        }
        for fd in spawn.keep {
            if libc::fcntl(*fd, libc::F_SETFD, 0) != 0 {
                return false;
            }
        }
        if let Some(directory) = spawn.directory
            && libc::chdir(directory.as_ptr()) != 0
        {
            return false;
        }
        if !cpus.is_null() && libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), cpus) != 0 {
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
        libc::sigprocmask(libc::SIG_SETMASK, mask, ptr::null_mut()) == 0
    }
}

/// Signals whose action is neither default nor ignored, and SIGPIPE, which Rust programs ignore
/// but others do not expect to be ignored.
fn caught_signals() -> Vec<c_int> {
    (1..=libc::SIGRTMAX())
        .filter(|&signal| signal == libc::SIGPIPE || handles(signal))
        .collect()
}

/// Whether this process has a handler for a signal.
#[expect(unsafe_code, reason = "looking at a signal's action has no safe wrapper")]
fn handles(signal: c_int) -> bool {
    // SAFETY: a null pointer for the new action changes nothing; the old one is written to
    // an initialised structure.
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

    /// What a shell prints that is started in `directory` with one signal blocked here.
    fn run(script: &CStr, directory: Option<&CStr>, leads_group: bool, unblock: bool) -> (Pid, String) {
        let folder = tempfile::tempdir().unwrap();
        let (null, out) = (File::open("/dev/null").unwrap(), folder.path().join("out"));
        let file = File::create(&out).unwrap();
        let own = pthread_mask_with(nix::sys::signal::Signal::SIGUSR1);
        let child = Spawn {
            program: c"/bin/sh",
            argv: &[c"sh".as_ptr(), c"-c".as_ptr(), script.as_ptr(), ptr::null()],
            envp: &[c"A=b".as_ptr(), ptr::null()],
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
        }
        .start(&mut Spawner::new())
        .unwrap();
        pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&own), None).unwrap();
        assert!(child.failure.is_none());
        assert_eq!(
            waitpid(child.pid, None).unwrap(),
            WaitStatus::Exited(child.pid, 0)
        );
        (child.pid, fs::read_to_string(out).unwrap())
    }

    /// Blocks `signal` in this thread, and gives what was blocked before.
    fn pthread_mask_with(signal: nix::sys::signal::Signal) -> SigSet {
        let (mut more, mut before) = (SigSet::empty(), SigSet::empty());
        more.add(signal);
        pthread_sigmask(SigmaskHow::SIG_BLOCK, Some(&more), Some(&mut before)).unwrap();
        before
    }

    #[test]
    fn the_process_is_what_it_was_asked_to_be() {
        let group = c"ps -o pgid= -p $$ | tr -d ' '; pwd; echo $A";
        let (pid, text) = run(group, Some(c"/usr"), true, false);
        assert_eq!(text, format!("{pid}\n/usr\nb\n"));
        let here = std::env::current_dir().unwrap();
        let (_, text) = run(group, None, false, false);
        assert_eq!(text, format!("{}\n{}\nb\n", getpgrp(), here.display()));
    }

    #[test]
    fn signals_are_blocked_or_not() {
        let blocked = c"grep SigBlk /proc/self/status | cut -f2";
        assert_eq!(run(blocked, None, false, true).1, "0000000000000000\n");
        assert_eq!(run(blocked, None, false, false).1, "0000000000000200\n");
        // Rust programs ignore SIGPIPE.
        let ignored = run(c"grep SigIgn /proc/self/status | cut -f2", None, false, true).1;
        let ignored = u64::from_str_radix(ignored.trim(), 16).unwrap();
        assert_eq!(ignored & 1 << (libc::SIGPIPE - 1), 0);
    }

    #[test]
    fn failures_are_told() {
        let null = File::open("/dev/null").unwrap();
        let mut spawn = Spawn {
            program: c"/nonexistent",
            argv: &[c"x".as_ptr(), ptr::null()],
            envp: &[ptr::null()],
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
