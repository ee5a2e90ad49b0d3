//! Ranks that stay traced while they run, for `-g`: where they are when a signal ends them.
//!
//! The thread that has started the ranks is their tracer. Their threads and children are traced, too, as
//! a rank may be a script. All of them run as they would otherwise, but that they cannot be stopped by a
//! signal.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::ptrace::{self, Options};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::Pid;
use pmc_stacks::{HostStacks, Process};

/// Signals by which programs that have a fault end.
const FATAL: [i32; 5] = [
    libc::SIGSEGV,
    libc::SIGABRT,
    libc::SIGFPE,
    libc::SIGBUS,
    libc::SIGILL,
];

/// Most stacks of a host.
const MAX_STACKS: usize = 64;

/// Time between two looks at a process that was killed.
const INTERVAL: Duration = Duration::from_millis(1);

/// Traces the ranks of this host.
pub(super) struct Tracer {
    /// Becomes readable when a process stops or ends.
    bell: UnixStream,
    /// Threads that are traced, with the number of their rank.
    threads: BTreeMap<i32, u32>,
    /// Processes that this one has started: others reap them.
    leaders: BTreeSet<i32>,
    /// Threads that stop once because they are new.
    fresh: BTreeSet<i32>,
    stacks: pmc_stacks::Tracer,
    count: usize,
}

impl Tracer {
    /// Begins to hear of stops.
    pub(super) fn new() -> io::Result<Self> {
        let (bell, theirs) = UnixStream::pair()?;
        bell.set_nonblocking(true)?;
        signal_hook::low_level::pipe::register(libc::SIGCHLD, theirs)?;
        Ok(Self {
            bell,
            threads: BTreeMap::new(),
            leaders: BTreeSet::new(),
            fresh: BTreeSet::new(),
            stacks: pmc_stacks::Tracer::default(),
            count: 0,
        })
    }

    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Lets a rank go that stands before its first instruction.
    pub(super) fn begin(&mut self, pid: Pid, rank: u32) {
        let options = Options::PTRACE_O_EXITKILL
            | Options::PTRACE_O_TRACECLONE
            | Options::PTRACE_O_TRACEFORK
            | Options::PTRACE_O_TRACEVFORK
            | Options::PTRACE_O_TRACEEXEC;
        // One that was killed needs nothing.
        let _ = ptrace::setoptions(pid, options);
        self.threads.insert(pid.as_raw(), rank);
        self.leaders.insert(pid.as_raw());
        resume(pid, 0);
    }

    /// Lets all go on that have stopped. Returns the stacks of those that a signal ends.
    pub(super) fn look(&mut self) -> Vec<HostStacks> {
        let mut buffer = [0; 256];
        while matches!(self.bell.read(&mut buffer), Ok(1..)) {}
        let mut found = Vec::new();
        // New threads may have stopped already.
        while self.look_once(&mut found) {}
        found
    }

    /// Returns whether there was something to do.
    fn look_once(&mut self, found: &mut Vec<HostStacks>) -> bool {
        let mut any = false;
        for (number, rank) in self.threads.clone() {
            let thread = Pid::from_raw(number);
            let flags = WaitPidFlag::WNOHANG | WaitPidFlag::__WALL;
            // The end of a rank itself is noted and reaped elsewhere.
            let status = match self.leaders.contains(&number) {
                true => waitid(Id::Pid(thread), flags | WaitPidFlag::WSTOPPED),
                false => waitpid(thread, Some(flags)),
            };
            match status {
                Ok(WaitStatus::StillAlive) | Err(Errno::EINTR) => {}
                Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)) | Err(Errno::ECHILD) => {
                    self.threads.remove(&number);
                    self.fresh.remove(&number);
                }
                Ok(WaitStatus::PtraceEvent(_, _, event)) if event != 0 => {
                    any = true;
                    self.note_event(thread, rank, event);
                }
                // Those that this library has no name for are errors.
                Ok(_) | Err(_) => {
                    any = true;
                    found.extend(self.pass_signal(thread, rank));
                }
            }
        }
        any
    }

    fn note_event(&mut self, thread: Pid, rank: u32, event: i32) {
        let begins = [
            libc::PTRACE_EVENT_CLONE,
            libc::PTRACE_EVENT_FORK,
            libc::PTRACE_EVENT_VFORK,
        ];
        if begins.contains(&event)
            && let Ok(new) = ptrace::getevent(thread)
            && let Ok(new) = i32::try_from(new)
        {
            self.threads.insert(new, rank);
            self.fresh.insert(new);
        }
        resume(thread, 0);
    }

    /// Gives a thread the signal that it has stopped at.
    fn pass_signal(&mut self, thread: Pid, rank: u32) -> Option<HostStacks> {
        let signal = match ptrace::getsiginfo(thread) {
            Ok(info) => info.si_signo,
            // It would stand still until it is continued, which this is.
            Err(_) => 0,
        };
        let is_new = self.fresh.remove(&thread.as_raw()) && signal == libc::SIGSTOP;
        let ends = FATAL.contains(&signal) && !is_caught(thread, signal) && self.count < MAX_STACKS;
        let stacks = ends.then(|| self.stack(thread, rank));
        resume(thread, if is_new { 0 } else { signal });
        stacks
    }

    fn stack(&mut self, thread: Pid, rank: u32) -> HostStacks {
        self.count += 1;
        let pid = status_of(thread, "Tgid:").and_then(|pid| pid.parse().ok());
        let pid = pid.unwrap_or(thread.as_raw());
        let program = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let mut stacks = HostStacks {
            processes: vec![Process {
                pid,
                program: program.trim_end().to_owned(),
                rank: Some(rank),
            }],
            ..HostStacks::default()
        };
        match self.stacks.frames(thread.as_raw()) {
            Ok(frames) => stacks.add(0, thread.as_raw(), frames),
            Err(why) => stacks.failures.push((0, why)),
        }
        stacks
    }

    /// Reaps a rank that was killed. Its threads are reaped first, or it would not end.
    pub(super) fn reap(&mut self, pid: Pid) {
        loop {
            let flags = WaitPidFlag::WNOHANG | WaitPidFlag::__WALL;
            match waitpid(pid, Some(flags)) {
                Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)) | Err(Errno::ECHILD) => return,
                _ => {}
            }
            self.look();
            std::thread::sleep(INTERVAL);
        }
    }
}

/// A line of what the system says of a thread.
fn status_of(thread: Pid, name: &str) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim().to_owned())
}

/// True if the program has said what is to happen at a signal: it goes on.
fn is_caught(thread: Pid, signal: i32) -> bool {
    let caught = status_of(thread, "SigCgt:").and_then(|set| u64::from_str_radix(&set, 16).ok());
    caught.is_some_and(|set| set >> (signal - 1) & 1 == 1)
}

/// Lets a thread go on that stands still, with a signal.
#[expect(unsafe_code, reason = "the library knows no signals above 31")]
fn resume(thread: Pid, signal: i32) {
    // SAFETY: the call has no pointers. If the thread does not stand still, it fails.
    unsafe {
        libc::ptrace(libc::PTRACE_CONT, thread.as_raw(), 0_usize, i64::from(signal));
    }
}
