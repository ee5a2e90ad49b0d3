//! Receives tasks from an executor and runs them.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime};

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::prctl::{get_dumpable, set_child_subreaper, set_dumpable};
use nix::sys::signal::Signal;
use nix::unistd::{Pid, dup2_stdin, dup2_stdout, getpgrp, getpid, setpgid};
use pegasus_kickstart::cache::InvocationCache;
use pegasus_kickstart::cli::{self, Outcome};
use pegasus_kickstart::context::{Context, Inherited, current_directory};
use pegasus_kickstart::environment::Environment;
use pegasus_kickstart::exit;
use pegasus_kickstart::interrupts::ProcessSignals;
use pegasus_kickstart::machine::Host;
use pegasus_kickstart::usage::{self, UsageScope};
use pmc_wire::{Received, Reply, Tool};

use crate::builtins::ToolBuiltins;
use crate::children;
use crate::lifeline::{Lifeline, TaskInterrupts};
use crate::process;

/// The server ends after a task whose request or record has more bytes than this, to free its memory: the
/// peak memory of later jobs counts from that of the server.
const MAX_MESSAGE: u64 = 256 << 10;

/// Serves tasks until the executor closes the socket or the server has become too large. Standard input is
/// the socket. Standard output is a pipe that ends when the executor abandons the running task.
///
/// Call it in a process with one thread. The process becomes leader of a process group and adopts orphans.
///
/// # Errors
/// Standard input and output are no such socket and pipe, or the system refuses what the server needs.
pub fn run(inherited: Inherited, signals: ProcessSignals) -> io::Result<()> {
    match serve(inherited, signals) {
        // The executor has ended before it had read everything.
        Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => Ok(()),
        result => result,
    }
}

fn serve(inherited: Inherited, mut signals: ProcessSignals) -> io::Result<()> {
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    dup2_stdin(std::fs::File::open("/dev/null")?)?;
    // The lifeline may send it at once. Not blocked, it would end the process.
    signals.include(Signal::SIGIO)?;
    let lifeline = Lifeline::new(io::stdout().as_fd().try_clone_to_owned()?)?;
    dup2_stdout(io::stderr())?;
    if getpgrp() != getpid() {
        setpgid(Pid::from_raw(0), Pid::from_raw(0))?;
    }
    // Tasks must not reach the pipes and the memory of the server, which has the rights of the same user.
    set_dumpable(false)?;
    // Processes that a task leaves behind become children of the server, so it notices them.
    set_child_subreaper(true)?;
    // Dropped last: their end shows the executor that the server has finished.
    let pipes = pmc_wire::send_greeting(&socket)?;
    let mut server = Server {
        host: Host::gather(true),
        builtins: ToolBuiltins::beside(&inherited.program),
        inherited,
        lifeline,
        cache: InvocationCache::with_captures(),
        streams: None,
        home: current_directory(),
        away: None,
    };
    server.cache.prepare();
    let mut buffer = Vec::new();
    while let Some(request) = pmc_wire::receive_request(&socket, &pipes.read, &mut buffer)? {
        // Signals between tasks are for no task.
        signals.discard();
        let ticket = request.ticket;
        let reply = server.run_task(request, &mut signals);
        pmc_wire::send_reply(&pipes.write, ticket, reply)?;
        if reply.last {
            break;
        }
    }
    Ok(())
}

struct Server {
    inherited: Inherited,
    host: Host,
    lifeline: Lifeline,
    cache: InvocationCache,
    builtins: ToolBuiltins,
    /// Standard input, output and error of the last task.
    streams: Option<[OwnedFd; 3]>,
    /// Where the server was started.
    home: PathBuf,
    /// Where it is now, if it is elsewhere.
    away: Option<PathBuf>,
}

impl Server {
    fn run_task(&mut self, mut request: Received<'_>, signals: &mut ProcessSignals) -> Reply {
        let start = (SystemTime::now(), Instant::now());
        let usage_scope = UsageScope::Since(usage::own(UsageScope::Process));
        let size = request.size as u64;
        if let Some(streams) = request.streams.take() {
            self.streams = Some(streams);
        }
        let Some([stdin, stdout, stderr]) = &self.streams else {
            return Reply {
                code: exit::INITIALISATION,
                last: true,
                peak_kib: 0,
            };
        };
        let stderr = stderr.as_fd();
        if let Err(error) = move_to(&self.home, &mut self.away, request.directory) {
            let directory = Path::new(OsStr::from_bytes(request.directory));
            cli::notice(
                stderr,
                &format!(
                    "ERROR: cannot change to the directory {}: {error}",
                    directory.display()
                ),
            );
            return Reply {
                code: exit::FAILURE,
                last: false,
                peak_kib: 0,
            };
        }
        let context = Context {
            start,
            environment: self.environment(&request),
            directory: current_directory(),
            is_process_directory: true,
            umask: self.inherited.umask,
            program: self.inherited.program.clone(),
            stdin: stdin.as_fd(),
            stdout: stdout.as_fd(),
            stderr,
            keep: request.descriptors.iter().map(AsFd::as_fd).collect(),
            cache: &self.cache,
            builtins: Some(&self.builtins),
            usage_scope,
            own_group: false,
        };
        let mut interrupts = TaskInterrupts {
            signals,
            lifeline: &self.lifeline,
            has_forwarded: false,
        };
        let binding = match CpuBinding::new(&request.cpus) {
            Ok(binding) => binding,
            Err(error) => {
                cli::notice(stderr, &format!("ERROR: cannot bind to the CPUs: {error}"));
                return Reply {
                    code: exit::FAILURE,
                    last: false,
                    peak_kib: 0,
                };
            }
        };
        let words = request.words.into_iter();
        let words = words.map(|word| OsString::from_vec(word.to_vec())).collect();
        let (outcome, has_abandoned) = self.run_tool(request.tool, words, context, &mut interrupts);
        drop(binding);
        if interrupts.has_forwarded {
            children::end();
        }
        // Kickstart makes the process accessible if a job cannot do its work otherwise.
        let is_open = get_dumpable() != Ok(false);
        let last = size.max(outcome.written) > MAX_MESSAGE
            || has_abandoned
            || self.builtins.must_exit()
            || is_open
            || children::are_left();
        Reply {
            code: outcome.code,
            last,
            peak_kib: outcome.peak_kib,
        }
    }

    /// Stands in for a program. Also returns whether a thread of it goes on, so that the server must exit.
    fn run_tool(
        &self,
        tool: Tool,
        words: Vec<OsString>,
        context: Context<'_>,
        interrupts: &mut TaskInterrupts<'_>,
    ) -> (Outcome, bool) {
        if tool == Tool::Kickstart {
            let host = |_| Cow::Borrowed(&self.host);
            return (cli::run(words, context, host, interrupts), false);
        }
        let Some(job) = pegasus_lite::inproc::run(&words, &context, &self.host, interrupts) else {
            return (process::run(tool, &words, &context, interrupts), false);
        };
        self.builtins.check_growth();
        let outcome = Outcome {
            code: job.code,
            written: job.written,
            peak_kib: job.peak_kib,
        };
        (outcome, job.has_abandoned)
    }

    fn environment(&self, request: &Received<'_>) -> Environment {
        let mut environment = self.inherited.environment.clone();
        for variable in &request.variables {
            if let Some(at) = variable.iter().position(|&byte| byte == b'=') {
                environment.set(&variable[..at], &variable[at + 1..]);
            }
        }
        environment
    }
}

/// Binds the process to CPUs until it is dropped.
struct CpuBinding {
    /// The CPUs before, if they were changed.
    before: Option<CpuSet>,
}

impl CpuBinding {
    fn new(cpus: &[u32]) -> nix::Result<Self> {
        if cpus.is_empty() {
            return Ok(Self { before: None });
        }
        let this = Pid::from_raw(0);
        let before = sched_getaffinity(this)?;
        let mut set = CpuSet::new();
        for cpu in cpus {
            set.set(*cpu as usize)?;
        }
        sched_setaffinity(this, &set)?;
        Ok(Self { before: Some(before) })
    }
}

impl Drop for CpuBinding {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // The process was allowed to use them before.
            let _ = sched_setaffinity(Pid::from_raw(0), before);
        }
    }
}

/// Changes to the directory of a task; an empty one is that where the server was started.
fn move_to(home: &Path, away: &mut Option<PathBuf>, directory: &[u8]) -> io::Result<()> {
    let wanted = (!directory.is_empty()).then(|| home.join(OsStr::from_bytes(directory)));
    if *away != wanted {
        std::env::set_current_dir(wanted.as_deref().unwrap_or(home))?;
        *away = wanted;
    }
    Ok(())
}
