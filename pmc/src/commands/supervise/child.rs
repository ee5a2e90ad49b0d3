//! The command, and the signals that it gets.

use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pmc_control::{Answer, Request, ask};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals as Caught;

use super::say;

/// How often the command is looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Time that the executor has to see SIGTERM itself, before it is asked to drain.
const OWN_SIGNAL: Duration = Duration::from_secs(2);

/// How the command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// With this exit code.
    Code(u8),
    /// By this signal.
    Signal(i32),
    /// It cannot be run; why.
    NotFound(String),
}

/// What to run.
pub struct Settings {
    /// The words.
    pub command: Vec<String>,
    /// When to ask it to drain.
    pub drain_after: Option<Duration>,
    /// The DAG file.
    pub dag: PathBuf,
}

/// Signals that this process has got.
pub struct Signals {
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    /// The command, while it runs.
    child: AtomicI32,
    is_drained: AtomicBool,
    is_terminated: AtomicBool,
    is_interrupted: AtomicBool,
}

impl Signals {
    /// Handles signals from now on: USR1, USR2 and HUP go to the command. The batch system sends SIGTERM to
    /// all processes of the job, a terminal SIGINT; so the command has got these.
    ///
    /// # Errors
    /// The system refuses the handlers.
    pub fn catch() -> io::Result<Self> {
        let mut caught = Caught::new([SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2])?;
        let state = Arc::new(State::default());
        let shared = Arc::clone(&state);
        let thread = std::thread::Builder::new().name("signals".to_owned());
        thread.spawn(move || {
            for signal in caught.forever() {
                match signal {
                    SIGTERM => shared.is_terminated.store(true, Ordering::Release),
                    SIGINT => shared.is_interrupted.store(true, Ordering::Release),
                    _ => {
                        if signal == SIGUSR1 {
                            shared.is_drained.store(true, Ordering::Release);
                        }
                        shared.pass(signal);
                    }
                }
            }
        })?;
        Ok(Self { state })
    }

    /// True after SIGUSR1 or SIGTERM.
    pub fn drains(&self) -> bool {
        self.state.is_drained.load(Ordering::Acquire) || self.is_terminated()
    }

    /// True after SIGINT.
    pub fn is_interrupted(&self) -> bool {
        self.state.is_interrupted.load(Ordering::Acquire)
    }

    /// True after SIGTERM.
    pub fn is_terminated(&self) -> bool {
        self.state.is_terminated.load(Ordering::Acquire)
    }

    /// Returns whether to end between two starts: true after a signal to drain.
    pub fn must_end(&self) -> Option<bool> {
        (self.drains() || self.is_interrupted()).then_some(self.drains())
    }
}

impl State {
    fn pass(&self, signal: i32) {
        let child = self.child.load(Ordering::Acquire);
        if let (true, Ok(signal)) = (child > 0, Signal::try_from(signal)) {
            // It may have ended. It is not reaped before it is forgotten here.
            let _ = kill(Pid::from_raw(child), signal);
        }
    }
}

/// What is done while the command runs.
pub trait Watch {
    /// SIGTERM has come; once.
    fn terminated(&mut self);

    /// Some time has passed.
    fn tick(&mut self);
}

/// Runs the command to its end.
pub fn run(settings: &Settings, signals: &Signals, watch: &mut dyn Watch) -> Outcome {
    let (program, words) = match settings.command.split_first() {
        Some((program, words)) => (program, words),
        None => return Outcome::NotFound("there is no command".to_owned()),
    };
    let mut child = match Command::new(program).args(words).spawn() {
        Ok(child) => child,
        Err(error) => {
            let reason = pmc_dag::reason(&error);
            return Outcome::NotFound(format!("cannot run {program}: {reason}"));
        }
    };
    let begun = Instant::now();
    let id = i32::try_from(child.id()).unwrap_or(0);
    signals.state.child.store(id, Ordering::Release);
    let (mut has_told, mut ask_at, mut drain_at) = (false, None, settings.drain_after);
    loop {
        if has_ended(id) {
            break;
        }
        if signals.is_terminated() && !has_told {
            has_told = true;
            watch.terminated();
            ask_at = Some(Instant::now() + OWN_SIGNAL);
        }
        if ask_at.take_if(|at| *at <= Instant::now()).is_some() {
            drain(&settings.dag);
        }
        if drain_at.take_if(|after| begun.elapsed() >= *after).is_some() {
            signals.state.is_drained.store(true, Ordering::Release);
            signals.state.pass(SIGUSR1);
        }
        watch.tick();
        std::thread::sleep(POLL_INTERVAL);
    }
    signals.state.child.store(0, Ordering::Release);
    // The signal may have ended the command before it was seen here.
    if signals.is_terminated() && !has_told {
        watch.terminated();
    }
    match child.wait() {
        Ok(status) => match (status.code(), status.signal()) {
            (Some(code), _) => Outcome::Code(u8::try_from(code).unwrap_or(u8::MAX)),
            (None, signal) => Outcome::Signal(signal.unwrap_or(libc_kill())),
        },
        Err(error) => Outcome::NotFound(format!("cannot wait for {program}: {}", pmc_dag::reason(&error))),
    }
}

const fn libc_kill() -> i32 {
    signal_hook::consts::SIGKILL
}

/// Returns whether the command has ended. It is not reaped.
fn has_ended(pid: i32) -> bool {
    use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT | WaitPidFlag::WNOHANG;
    !matches!(
        waitid(Id::Pid(Pid::from_raw(pid)), flags),
        Ok(WaitStatus::StillAlive) | Err(nix::errno::Errno::EINTR)
    )
}

/// Asks the run to drain, if the signal has not reached it.
fn drain(dag: &std::path::Path) {
    let drains = match ask(dag, &Request::Limits) {
        Ok(Answer::Limits(limits)) => limits.drains,
        // It has ended, or has not begun.
        _ => return,
    };
    if !drains && ask(dag, &Request::Drain { after_seconds: None }).is_ok() {
        say("The run is asked to drain");
    }
}
