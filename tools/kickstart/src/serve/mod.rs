//! Kickstart that stays: one process runs the tasks of a worker one after the other, so that none of them pays
//! for starting a kickstart of its own.
//!
//! For a task everything is as if kickstart had been started for it: the server leads a process group, in which the
//! jobs are, too; a signal to the group reaches both, and the server hands it on; the jobs are its children. When
//! the executor is gone, the group is killed. Jobs that are `pegasus-transfer` or
//! `pegasus-rc-client` are done by a thread of the server.
//!
//! It is a process of its own, not a part of the executor, for two reasons. A child's peak memory counts from that of
//! the process it was started from, until it runs its own program: the record of a small job would show the
//! size of the executor. And what kills kickstart, or its group, must not kill the executor.

use std::borrow::Cow;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, dup2_stdin, dup2_stdout, getpgrp, getpid, setpgid};

use crate::context::{Context, Inherited, OwnUsage};
use crate::environment::Environment;
use crate::inside::Inside;
use crate::interrupts::{Interrupt, Interrupts, ProcessSignals};
use crate::invoke::{self, exit};
use crate::machine::Host;
use crate::program::{self, Outcome};
use crate::spares::Spares;
use crate::usage;
use pmc_wire::{self as wire, Received, Reply};

/// A request or a record of more bytes makes the server end after the task, and with it the memory go that
/// they took: peak memory of later jobs counts from that of the server.
const LARGE: u64 = 256 << 10;

/// How long the working directory is taken to be called as before.
const NAMED: Duration = Duration::from_secs(1);

/// Serves tasks over the socket that is the standard input, until the executor closes it or the server has
/// become too large to go on. The standard output is a pipe that ends when nobody wants the running task any more.
///
/// To be called in a process of its own with one thread: it becomes the leader of a process group and adopts
/// orphans.
///
/// # Errors
/// Standard input and output are no such socket and pipe, or something is refused that it needs.
pub fn run(inherited: Inherited, signals: ProcessSignals) -> io::Result<()> {
    match serve(inherited, signals) {
        // The executor has ended before it had read all, as when it has no task after all.
        Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => Ok(()),
        done => done,
    }
}

fn serve(inherited: Inherited, mut signals: ProcessSignals) -> io::Result<()> {
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    dup2_stdin(std::fs::File::open("/dev/null")?)?;
    // It comes with leases, and with the end of the lifeline, which may have come already: it would end the process.
    signals.include(Signal::SIGIO)?;
    let lifeline = Lifeline::new(io::stdout().as_fd().try_clone_to_owned()?)?;
    dup2_stdout(io::stderr())?;
    if getpgrp() != getpid() {
        setpgid(Pid::from_raw(0), Pid::from_raw(0))?;
    }
    // What a task leaves behind becomes a child of the server, so that it can tell.
    set_child_subreaper(true)?;
    // Dropped after the rest: their end tells the executor that nothing is left to be done here.
    let pipes = wire::send_greeting(&socket)?;
    let mut server = Server {
        host: Host::gather(true),
        inside: Inside::beside(&inherited.program),
        inherited,
        lifeline,
        spares: Spares::new(),
        directory: None,
        streams: None,
    };
    server.spares.prepare();
    let mut buffer = Vec::new();
    loop {
        let Some(request) = wire::receive_request(&socket, &pipes.read, &mut buffer)? else {
            return Ok(());
        };
        // Signals that came meanwhile are for no task.
        signals.forget();
        let reply = server.serve(request, &mut signals);
        wire::send_reply(&pipes.write, reply)?;
        if reply.last {
            return Ok(());
        }
    }
}

struct Server {
    inherited: Inherited,
    host: Host,
    lifeline: Lifeline,
    spares: Spares,
    inside: Inside,
    /// Name of the working directory, and until when it is taken to be that.
    directory: Option<(PathBuf, Instant)>,
    /// Standard input, output and error of the task before.
    streams: Option<[OwnedFd; 3]>,
}

impl Server {
    fn serve(&mut self, mut request: Received<'_>, signals: &mut ProcessSignals) -> Reply {
        let began = (SystemTime::now(), Instant::now());
        let own_usage = OwnUsage::Since(usage::own(OwnUsage::Process));
        let size = request.size as u64;
        if let Some(streams) = request.streams.take() {
            self.streams = Some(streams);
        }
        let directory = self.directory(began.1);
        let Some([stdin, stdout, stderr]) = &self.streams else {
            return Reply {
                code: exit::INITIALISATION,
                last: true,
            };
        };
        let keep: Vec<BorrowedFd<'_>> = request.descriptors.iter().map(AsFd::as_fd).collect();
        let stderr = stderr.as_fd();
        let context = Context {
            began,
            environment: self.environment(&request),
            directory,
            entered: true,
            umask: self.inherited.umask,
            program: self.inherited.program.clone(),
            stdin: stdin.as_fd(),
            stdout: stdout.as_fd(),
            stderr,
            keep,
            spares: &self.spares,
            inside: Some(&self.inside),
            own_usage,
            own_group: false,
        };
        let mut interrupts = Watch {
            signals,
            lifeline: &self.lifeline,
        };
        let bound = match Bound::to(&request.cpus) {
            Ok(bound) => bound,
            Err(error) => {
                program::notice(stderr, &format!("ERROR: cannot bind to the CPUs: {error}"));
                return Reply {
                    code: exit::FAILURE,
                    last: false,
                };
            }
        };
        let host = |_| Cow::Borrowed(&self.host);
        let Outcome { code, written } = program::run(request.words, context, host, &mut interrupts);
        drop(bound);
        let last = size.max(written) > LARGE || self.inside.is_spent() || has_children();
        Reply { code, last }
    }

    /// The working directory; its name is asked for now and then, since it may be given another one.
    fn directory(&mut self, now: Instant) -> PathBuf {
        let known = self.directory.take().filter(|(_, until)| now < *until);
        let (name, until) = known.unwrap_or_else(|| (invoke::current_directory(), now + NAMED));
        self.directory = Some((name.clone(), until));
        name
    }

    fn environment(&self, request: &Received<'_>) -> Environment {
        let mut environment = self.inherited.environment.clone();
        for (name, descriptor) in request.pipes.iter().zip(&request.descriptors) {
            if !name.is_empty() {
                let number = descriptor.as_raw_fd().to_string().into_bytes();
                environment.set(name, &number);
            }
        }
        for variable in &request.variables {
            if let Some(at) = variable.iter().position(|&byte| byte == b'=') {
                environment.set(&variable[..at], &variable[at + 1..]);
            }
        }
        environment
    }
}

/// The CPUs of the process while a task runs.
struct Bound(Option<CpuSet>);

impl Bound {
    fn to(cpus: &[u32]) -> nix::Result<Self> {
        if cpus.is_empty() {
            return Ok(Self(None));
        }
        let own = Pid::from_raw(0);
        let before = sched_getaffinity(own)?;
        let mut set = CpuSet::new();
        for cpu in cpus {
            set.set(*cpu as usize)?;
        }
        sched_setaffinity(own, &set)?;
        Ok(Self(Some(before)))
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            // They were ours a moment ago.
            let _ = sched_setaffinity(Pid::from_raw(0), before);
        }
    }
}

/// Whether a process of the task lives on. Those that have ended are forgotten.
fn has_children() -> bool {
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Err(Errno::ECHILD) => return false,
            Ok(WaitStatus::StillAlive) => return true,
            Ok(_) | Err(Errno::EINTR) => {}
            Err(_) => return true,
        }
    }
}

/// A pipe of which the executor has the other end, until it is gone or does not want the task any more. The system
/// tells that by `SIGIO`; the socket would send it for each request.
struct Lifeline(OwnedFd);

impl Lifeline {
    fn new(pipe: OwnedFd) -> io::Result<Self> {
        #[expect(
            unsafe_code,
            reason = "the call changes nothing but who gets the pipe's signal"
        )]
        Errno::result(unsafe { libc::fcntl(pipe.as_raw_fd(), libc::F_SETOWN, getpid().as_raw()) })?;
        fcntl(&pipe, FcntlArg::F_SETFL(OFlag::O_ASYNC))?;
        Ok(Self(pipe))
    }

    fn has_ended(&self) -> bool {
        let mut source = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        matches!(poll(&mut source, PollTimeout::ZERO), Ok(1..))
    }
}

/// The signals of the process, and the lifeline.
struct Watch<'a> {
    signals: &'a mut ProcessSignals,
    lifeline: &'a Lifeline,
}

impl Interrupts for Watch<'_> {
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.signals.descriptor()
    }

    fn take(&mut self) -> Option<Interrupt> {
        self.signals.take()
    }

    fn pause(&mut self, pause: Option<Duration>) -> Option<io::Result<()>> {
        Some(self.signals.wait(pause).map(|signal| {
            if signal == Some(Signal::SIGIO) && self.lifeline.has_ended() {
                self.abandoned();
            }
        }))
    }

    fn reports_children(&self) -> bool {
        self.signals.reports_children()
    }

    fn client(&self) -> Option<BorrowedFd<'_>> {
        Some(self.lifeline.0.as_fd())
    }

    fn abandoned(&self) {
        // This process is in it, too.
        let _ = killpg(getpgrp(), Signal::SIGKILL);
    }
}
