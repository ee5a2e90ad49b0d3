//! The guard: the parent of an agent, which ends the tasks if the agent cannot.
//!
//! An agent may be killed or stopped. Its tasks would go on, while the master gives them to others. The guard
//! is a process that does nothing else: it kills an agent that lets its lease pass, and after the agent's end
//! it kills all processes that are left. The system makes it their parent, so none escapes. Then it starts
//! the agent again, which reports to the master at once that its tasks have ended.
//!
//! Agent and guard share a pipe, through which the agent says until when its tasks may run.

use std::ffi::OsString;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::Pid;
use pmc_spawn::family::children;
use pmc_system::clock;

use super::guarded::{self, CHECK_INTERVAL, Guarded, MAX_RESTARTS, MESSAGE};
use super::succession;
use crate::host::{OWN_PROGRAM, own_path};
use crate::transport::agents::NUMBER_VARIABLE;
use crate::{exit, logging};

/// Variable with the number of the agent's end of the pipe.
pub const LIFELINE_VARIABLE: &str = "PMC_AGENT_LIFELINE";

/// Variable with epoch and number of the session of the agent before.
const BEFORE_VARIABLE: &str = "PMC_AGENT_BEFORE";

/// Variable with the milliseconds for which an agent that was killed would still have waited for a master.
const PATIENCE_VARIABLE: &str = "PMC_AGENT_PATIENCE";

/// Variables that tasks do not inherit.
pub(super) const VARIABLES: [&str; 4] = [
    LIFELINE_VARIABLE,
    BEFORE_VARIABLE,
    PATIENCE_VARIABLE,
    NUMBER_VARIABLE,
];

/// Time between two looks at processes that were killed.
const REAP_INTERVAL: Duration = Duration::from_millis(5);

/// Takes what an agent says.
type Tell = dyn Fn(&[u8; MESSAGE]) + Send + Sync;

/// The agent's end of the pipe.
pub struct Lifeline {
    /// Takes what the agent says.
    tell: Box<Tell>,
    /// The session of the agent before, whose tasks have ended.
    pub(super) before: Option<(u64, u64)>,
    /// How long the agent before would still have waited for a master.
    pub(super) patience: Option<Duration>,
}

impl Lifeline {
    /// Takes the pipe, if there is a guard.
    pub(super) fn take(environment: &[(OsString, OsString)]) -> Option<Self> {
        let value = |name| {
            let (_, value) = environment.iter().find(|(key, _)| key == name)?;
            value.to_str()
        };
        let number: i32 = value(LIFELINE_VARIABLE)?.parse().ok()?;
        if !is_pipe(number) {
            return None;
        }
        let pipe = take_descriptor(number);
        // Tasks must not keep it open.
        fcntl(&pipe, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).ok()?;
        // Without its guard, the agent ends in order.
        nix::sys::prctl::set_pdeathsig(Signal::SIGINT).ok()?;
        let before = value(BEFORE_VARIABLE).and_then(|text| {
            let (epoch, session) = text.split_once(':')?;
            Some((epoch.parse().ok()?, session.parse().ok()?))
        });
        let patience = value(PATIENCE_VARIABLE).and_then(|text| text.parse().ok());
        let pipe = Mutex::new(std::fs::File::from(pipe));
        let tell = move |message: &[u8; MESSAGE]| {
            let mut pipe = pipe.lock().unwrap_or_else(PoisonError::into_inner);
            // Without its guard, the agent is told to end.
            let _ = pipe.write_all(message);
        };
        Some(Self {
            tell: Box::new(tell),
            before,
            patience: patience.map(Duration::from_millis),
        })
    }

    /// That of an agent of a simulation: `tell` takes what it says. `before` is what its guard knows.
    #[cfg(feature = "simulated")]
    pub fn simulated(before: &Guarded, tell: impl Fn(&[u8; MESSAGE]) + Send + Sync + 'static) -> Self {
        Self {
            tell: Box::new(tell),
            before: before.session(),
            patience: before.patience(clock::now()),
        }
    }

    /// Says for how long tasks may run from now on, `None` if there are none, and for how long the agent
    /// waits for a master that it does not reach.
    pub(super) fn hold(&self, session: Option<(u64, u64)>, time: Option<Duration>, patience: Duration) {
        (self.tell)(&guarded::message(session, time, patience));
    }
}

/// Returns whether this descriptor is a pipe.
fn is_pipe(number: i32) -> bool {
    let target = std::fs::read_link(format!("/proc/self/fd/{number}"));
    number > 2 && target.is_ok_and(|target| target.to_string_lossy().starts_with("pipe:"))
}

#[expect(unsafe_code, reason = "a descriptor that the guard has passed on")]
fn take_descriptor(number: i32) -> OwnedFd {
    // SAFETY: the guard opened this pipe for this process, and nothing else in it uses the number. The caller
    // has checked that it is open.
    unsafe { OwnedFd::from_raw_fd(number) }
}

/// Starts an agent with these words, and guards it. Returns the exit code of the agent.
pub fn run(words: &[OsString]) -> ExitCode {
    if let Err(error) = nix::sys::prctl::set_child_subreaper(true) {
        logging::print(&format!(
            "Unable to guard the agent: {}\n",
            pmc_dag::reason(&error.into())
        ));
        return ExitCode::from(exit::FAILURE);
    }
    let current = Arc::new(Current::default());
    if let Err(error) = forward_signals(&current) {
        logging::print(&format!(
            "Unable to handle signals: {}\n",
            pmc_dag::reason(&error)
        ));
        return ExitCode::from(exit::FAILURE);
    }
    let mut before = Guarded::default();
    for _ in 0..=MAX_RESTARTS {
        let said = Arc::new(Mutex::new(before));
        let started = start(words, &before, &current, &said);
        let (pid, thread) = match started {
            Ok(started) => started,
            Err(error) => {
                logging::print(&format!(
                    "Unable to start the agent: {}\n",
                    pmc_dag::reason(&error)
                ));
                return ExitCode::from(exit::FAILURE);
            }
        };
        let status = wait_for(pid, &current);
        kill_the_rest();
        // The pipe has no writer any more: a child that the agent was about to start may have had it.
        let _ = thread.join();
        match status {
            Some(code) => return ExitCode::from(code),
            None => logging::print("The agent was killed, and its tasks with it: it starts again\n"),
        }
        before = lock(&said).next();
    }
    ExitCode::from(exit::FAILURE)
}

fn lock(said: &Mutex<Guarded>) -> MutexGuard<'_, Guarded> {
    // It is valid at every moment, even if a thread panicked.
    said.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts the agent, and a thread that watches its lease.
fn start(
    words: &[OsString],
    before: &Guarded,
    current: &Arc<Current>,
    said: &Arc<Mutex<Guarded>>,
) -> io::Result<(Pid, std::thread::JoinHandle<()>)> {
    let (reader, writer) = nix::unistd::pipe()?;
    fcntl(&reader, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    let mut command = Command::new(OWN_PROGRAM);
    command
        .arg0(own_path()?)
        .args(words)
        .env(LIFELINE_VARIABLE, writer.as_raw_fd().to_string());
    match before.session() {
        Some((epoch, session)) => command.env(BEFORE_VARIABLE, format!("{epoch}:{session}")),
        None => command.env_remove(BEFORE_VARIABLE),
    };
    match before.patience(clock::now()) {
        Some(patience) => command.env(PATIENCE_VARIABLE, patience.as_millis().to_string()),
        None => command.env_remove(PATIENCE_VARIABLE),
    };
    let child = command.spawn()?;
    drop(writer);
    let pid = Pid::from_raw(child.id().cast_signed());
    *current.lock() = Some(pid);
    let (said, current) = (Arc::clone(said), Arc::clone(current));
    let watch = {
        let said = Arc::clone(&said);
        move || {
            while current.is(pid) {
                if lock(&said).is_over(clock::now()) {
                    current.signal(Some(pid), Signal::SIGKILL);
                }
                std::thread::sleep(CHECK_INTERVAL);
            }
        }
    };
    std::thread::Builder::new()
        .name("lease".to_owned())
        .spawn(watch)?;
    let mut pipe = std::fs::File::from(reader);
    let listen = move || {
        let mut message = [0; MESSAGE];
        while pipe.read_exact(&mut message).is_ok() {
            lock(&said).hear(&message, clock::now());
        }
    };
    let thread = std::thread::Builder::new()
        .name("lifeline".to_owned())
        .spawn(listen)?;
    Ok((pid, thread))
}

/// The agent that was not reaped yet.
#[derive(Debug, Default)]
struct Current(Mutex<Option<Pid>>);

impl Current {
    fn lock(&self) -> MutexGuard<'_, Option<Pid>> {
        // It is valid at every moment, even if a thread panicked.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is(&self, pid: Pid) -> bool {
        *self.lock() == Some(pid)
    }

    /// Sends a signal to the agent; with `only`, if it is that one.
    fn signal(&self, only: Option<Pid>, signal: Signal) {
        let current = self.lock();
        if let Some(pid) = current.filter(|pid| only.is_none_or(|only| only == *pid)) {
            // It is reaped while this is locked, so no other process has the number.
            let _ = kill(pid, signal);
        }
    }

    /// Waits for the end of one of these children, and reaps it.
    fn reap(&self, children: Id<'_>) -> nix::Result<WaitStatus> {
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
        let ended = waitid(children, flags)?.pid();
        let mut current = self.lock();
        let reaped = waitpid(ended, None);
        if reaped.is_ok() && *current == ended {
            *current = None;
        }
        reaped
    }
}

/// Waits for the end of a child, and reaps those that it has left. Returns its exit code, or `None` if it was
/// killed.
fn wait_for(pid: Pid, current: &Current) -> Option<u8> {
    loop {
        match current.reap(Id::All) {
            Ok(WaitStatus::Exited(ended, code)) if ended == pid => {
                return Some(u8::try_from(code).unwrap_or(1));
            }
            Ok(WaitStatus::Signaled(ended, _, _)) if ended == pid => return None,
            Err(Errno::ECHILD) => return Some(exit::FAILURE),
            _ => {}
        }
    }
}

/// Kills all processes that the agent has left, and waits for them. Only the system's word that there is no
/// child counts: a list of them can lack some.
fn kill_the_rest() {
    loop {
        let mut left = children(Pid::this());
        left.retain(|child| !succession::is_successor(*child));
        let is_done = left.is_empty();
        for child in left {
            // They are not reaped yet, so no other process has the number.
            let _ = killpg(child, Signal::SIGKILL);
            let _ = kill(child, Signal::SIGKILL);
        }
        // Their children become those of this process.
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Err(Errno::ECHILD) => return,
            // What starts the next master outlives this agent.
            Ok(WaitStatus::StillAlive) if is_done => return,
            Ok(WaitStatus::StillAlive) => std::thread::sleep(REAP_INTERVAL),
            _ => {}
        }
    }
}

/// Passes signals to the agent.
fn forward_signals(current: &Arc<Current>) -> io::Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT, SIGHUP, SIGUSR1])?;
    let current = Arc::clone(current);
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            for signal in signals.forever() {
                if let Ok(signal) = Signal::try_from(signal) {
                    current.signal(None, signal);
                }
            }
        })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_signals_an_agent_that_was_reaped() {
        let mut child = Command::new("/bin/true").spawn().unwrap();
        let pid = Pid::from_raw(child.id().cast_signed());
        let current = Current::default();
        *current.lock() = Some(pid);
        current.signal(Some(Pid::this()), Signal::SIGKILL);
        assert!(current.is(pid));
        // Other tests have children, too.
        assert_eq!(current.reap(Id::Pid(pid)), Ok(WaitStatus::Exited(pid, 0)));
        assert!(!current.is(pid));
        current.signal(Some(pid), Signal::SIGKILL);
        current.signal(None, Signal::SIGKILL);
        assert!(child.wait().is_err());
    }
}
