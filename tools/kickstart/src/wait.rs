//! Waits for a child: status, usage, time limit, forwarded signals.

use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use monitord_compat::invocation_record::{Status, Usage};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use pmc_spawn::family::children;

use crate::interrupts::{Interrupt, Interrupts};
use crate::usage;

/// Time between checks of a child on systems that cannot wait for it with a limit.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The time limit of the jobs of one invocation.
#[derive(Debug)]
pub struct Limit {
    next: Option<Instant>,
    kill_delay: Duration,
    passed: bool,
}

impl Limit {
    /// Makes a limit that starts now: SIGTERM follows `after` this time, SIGKILL follows `kill_delay` later.
    #[must_use]
    pub fn new(after: Option<Duration>, kill_delay: Duration) -> Self {
        Self {
            next: after.and_then(|after| Instant::now().checked_add(after)),
            kill_delay,
            passed: false,
        }
    }

    /// Returns an unlimited one.
    #[must_use]
    pub fn none() -> Self {
        Self::new(None, Duration::MAX)
    }

    /// Returns whether the time is over.
    pub fn passed(&mut self) -> bool {
        self.passed = self.passed || self.next.is_some_and(|at| at <= Instant::now());
        self.passed
    }
}

/// The processes of a job.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The child.
    pub pid: Pid,
    /// True if it leads a process group.
    pub leads_group: bool,
}

impl Target {
    fn forward(self, signal: Signal) {
        // These ask a program to do something. It may be behind a script.
        if matches!(signal, Signal::SIGUSR1 | Signal::SIGUSR2) {
            self.signal_tree(signal);
            return;
        }
        // The id still belongs to the child: it has not been waited for.
        let _ = if self.leads_group {
            killpg(self.pid, signal)
        } else {
            kill(self.pid, signal)
        };
    }

    /// Signals the child and its descendants.
    fn signal_tree(self, signal: Signal) {
        if self.leads_group {
            let _ = killpg(self.pid, signal);
            return;
        }
        let mut tree = vec![self.pid];
        let mut next = 0;
        while let Some(&pid) = tree.get(next) {
            tree.extend(children(pid));
            next += 1;
        }
        for pid in tree {
            let _ = kill(pid, signal);
        }
    }
}

/// Waits until the child ends. `notice` receives a line when the time limit sends a signal.
///
/// # Errors
/// A system call fails.
pub fn wait(
    target: Target,
    limit: &mut Limit,
    interrupts: &mut dyn Interrupts,
    notice: &mut dyn FnMut(&str),
) -> io::Result<(Status, Usage)> {
    let watched = if interrupts.reports_children() {
        None
    } else {
        open_process(target.pid)
    };
    let polls = watched.is_none() && !interrupts.reports_children();
    let blocks = limit.next.is_none() && interrupts.descriptor().is_none();
    // If the child has ended already, its interrupt is pending.
    let mut check = !interrupts.reports_children();
    loop {
        if check && let Some(ended) = reap(target.pid, blocks)? {
            return Ok(ended);
        }
        check = true;
        if let Some(at) = limit.next
            && at <= Instant::now()
        {
            let signal = if limit.passed {
                Signal::SIGKILL
            } else {
                Signal::SIGTERM
            };
            notice(if limit.passed {
                "Job still running, sending SIGKILL"
            } else {
                "Job timed out, sending SIGTERM"
            });
            target.signal_tree(signal);
            limit.passed = true;
            limit.next = Instant::now().checked_add(limit.kill_delay);
        }
        let mut pause = limit.next.map(|at| at.saturating_duration_since(Instant::now()));
        if polls {
            pause = Some(pause.map_or(POLL_INTERVAL, |pause| pause.min(POLL_INTERVAL)));
        }
        // The descriptor of a process has to be polled.
        let paused = if watched.is_none() {
            interrupts.pause(pause)
        } else {
            None
        };
        match paused {
            Some(paused) => paused?,
            None if poll_interrupts(pause, watched.as_ref(), interrupts)?.abandoned => interrupts.abandoned(),
            None => {}
        }
        while let Some(interrupt) = interrupts.take() {
            if let Interrupt::Forward(signal) = interrupt {
                target.forward(signal);
            }
        }
    }
}

/// Why [`poll_interrupts`] returned, besides signals and time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wakeup {
    /// The client has abandoned the job.
    pub abandoned: bool,
    /// The watched descriptor is readable or closed.
    pub watched: bool,
}

/// Waits for an interrupt, the watched descriptor, the end of the client, or the end of the pause.
///
/// # Errors
/// The system call fails.
pub fn poll_interrupts(
    pause: Option<Duration>,
    watched: Option<&OwnedFd>,
    interrupts: &dyn Interrupts,
) -> io::Result<Wakeup> {
    let mut sources = Vec::with_capacity(3);
    sources.extend(interrupts.client().map(|fd| PollFd::new(fd, PollFlags::POLLIN)));
    sources.extend(watched.map(|process| PollFd::new(process.as_fd(), PollFlags::POLLIN)));
    sources.extend(
        interrupts
            .descriptor()
            .map(|fd| PollFd::new(fd, PollFlags::POLLIN)),
    );
    let timeout = match pause {
        None => PollTimeout::NONE,
        Some(Duration::ZERO) => PollTimeout::ZERO,
        // Rounded up: otherwise the last millisecond would be spent in a busy loop.
        Some(pause) => PollTimeout::try_from(pause + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX),
    };
    match poll(&mut sources, timeout) {
        Ok(_) => {
            let clients = usize::from(interrupts.client().is_some());
            let any = |sources: &[PollFd<'_>]| sources.iter().any(|source| source.any().unwrap_or(false));
            Ok(Wakeup {
                abandoned: any(&sources[..clients]),
                watched: any(&sources[clients..clients + usize::from(watched.is_some())]),
            })
        }
        Err(Errno::EINTR) => Ok(Wakeup::default()),
        Err(error) => Err(error.into()),
    }
}

/// Opens a descriptor that is readable when the process has ended. Returns `None` before Linux 5.3.
fn open_process(pid: Pid) -> Option<OwnedFd> {
    #[expect(unsafe_code, reason = "pidfd_open has no safe wrapper")]
    // SAFETY: the call takes plain numbers and returns a new descriptor, which nothing else owns.
    unsafe {
        let descriptor = libc::syscall(libc::SYS_pidfd_open, pid.as_raw(), 0);
        let descriptor = i32::try_from(descriptor)
            .ok()
            .filter(|&descriptor| descriptor >= 0)?;
        Some(OwnedFd::from_raw_fd(descriptor))
    }
}

/// Returns status and usage of the child if it has ended; with `block`, waits for that.
fn reap(pid: Pid, block: bool) -> io::Result<Option<(Status, Usage)>> {
    let flags = if block { 0 } else { libc::WNOHANG };
    loop {
        let mut status = 0;
        #[expect(unsafe_code, reason = "wait4 has no safe wrapper")]
        // SAFETY: a zeroed rusage is valid, and wait4 writes only to it and to `status`.
        let (ended, usage) = unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            (
                libc::wait4(pid.as_raw(), &raw mut status, flags, &raw mut usage),
                usage,
            )
        };
        match ended {
            0 => return Ok(None),
            1.. => {
                let usage = usage::measurable(usage::from_system(&usage));
                return Ok(Some((decode(status), usage)));
            }
            _ => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}

/// Returns the status of a job that kickstart could not run to its end.
#[must_use]
pub fn failure(raw: i32, errno: i32) -> Status {
    Status::Failed {
        raw,
        errno,
        text: Errno::from_raw(errno).desc().to_owned(),
    }
}

fn decode(status: i32) -> Status {
    if libc::WIFEXITED(status) {
        return Status::Exited {
            code: u8::try_from(libc::WEXITSTATUS(status)).unwrap_or(u8::MAX),
        };
    }
    let signal = libc::WTERMSIG(status);
    Status::Signalled {
        signal,
        name: signal_text(signal),
        core: libc::WCOREDUMP(status),
    }
}

/// Returns the text that shells print for a signal.
#[must_use]
pub fn signal_text(signal: i32) -> String {
    let text = match signal {
        libc::SIGHUP => "Hangup",
        libc::SIGINT => "Interrupt",
        libc::SIGQUIT => "Quit",
        libc::SIGILL => "Illegal instruction",
        libc::SIGTRAP => "Trace/breakpoint trap",
        libc::SIGABRT => "Aborted",
        libc::SIGBUS => "Bus error",
        libc::SIGFPE => "Floating point exception",
        libc::SIGKILL => "Killed",
        libc::SIGUSR1 => "User defined signal 1",
        libc::SIGSEGV => "Segmentation fault",
        libc::SIGUSR2 => "User defined signal 2",
        libc::SIGPIPE => "Broken pipe",
        libc::SIGALRM => "Alarm clock",
        libc::SIGTERM => "Terminated",
        libc::SIGSTKFLT => "Stack fault",
        libc::SIGXCPU => "CPU time limit exceeded",
        libc::SIGXFSZ => "File size limit exceeded",
        libc::SIGVTALRM => "Virtual timer expired",
        libc::SIGPROF => "Profiling timer expired",
        libc::SIGIO => "I/O possible",
        libc::SIGPWR => "Power failure",
        libc::SIGSYS => "Bad system call",
        signal if (libc::SIGRTMIN()..=libc::SIGRTMAX()).contains(&signal) => {
            return format!("Real-time signal {}", signal - libc::SIGRTMIN());
        }
        signal => return format!("Unknown signal {signal}"),
    };
    text.to_owned()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::interrupts::Uninterrupted;

    fn run(script: &str, limit: &mut Limit) -> (Status, Vec<String>, Duration) {
        let start = Instant::now();
        #[expect(clippy::zombie_processes, reason = "the function tested waits for it")]
        let child = Command::new("/bin/sh").args(["-c", script]).spawn().unwrap();
        let target = Target {
            pid: Pid::from_raw(i32::try_from(child.id()).unwrap()),
            leads_group: false,
        };
        let mut notices = Vec::new();
        let mut notice = |line: &str| notices.push(line.to_owned());
        let (status, usage) = wait(target, limit, &mut Uninterrupted, &mut notice).unwrap();
        assert!(usage.max_rss_kib > 0 && usage.user_time >= Duration::from_millis(1));
        (status, notices, start.elapsed())
    }

    #[test]
    fn exit_codes_and_signals_are_statuses() {
        assert_eq!(run("exit 3", &mut Limit::none()).0, Status::Exited { code: 3 });
        let killed = Status::Signalled {
            signal: 9,
            name: "Killed".into(),
            core: false,
        };
        assert_eq!(run("kill -9 $$", &mut Limit::none()).0, killed);
    }

    #[test]
    fn the_limit_ends_all_descendants() {
        let mut limit = Limit::new(Some(Duration::from_millis(100)), Duration::from_secs(5));
        let (status, notices, took) = run("sleep 20 & sleep 20; wait", &mut limit);
        assert_eq!(status.raw(), libc::SIGTERM);
        assert_eq!(notices, ["Job timed out, sending SIGTERM"]);
        assert!(limit.passed() && took < Duration::from_secs(4), "{took:?}");
    }

    #[test]
    fn stubborn_jobs_are_killed() {
        let mut limit = Limit::new(Some(Duration::from_millis(100)), Duration::from_millis(200));
        let (status, notices, _) = run("trap '' TERM; while :; do sleep 0.05; done", &mut limit);
        assert_eq!((status.raw(), notices.len()), (libc::SIGKILL, 2));
    }
}
