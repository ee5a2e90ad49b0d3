//! A rank: its process and its streams.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::net::UnixStream;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sched::{CpuSet, sched_getaffinity};
use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::Pid;
use pmc_spawn::{CStrings, Child, FIRST_KEPT, Spawn, Spawner};

use super::environment::{self, Numbers};
use super::spread::Places;
use super::tracer::Tracer;
use super::{program, say, strace};
use crate::frames::{Bytes, Load, LocalRank, MAX_DATA, Stream, ToFront};

/// The two outputs of a rank.
const STREAMS: [Stream; 2] = [Stream::Out, Stream::Err];

/// A rank that was started.
pub(super) struct Rank {
    number: u32,
    pid: Pid,
    /// Becomes readable when it ends.
    process: OwnedFd,
    /// It stands before its first instruction, and this thread is its tracer.
    is_held: bool,
    outputs: [Output; 2],
    input: Option<InputPipe>,
    pmi: Option<Line>,
    status: Option<i32>,
    is_reported: bool,
}

/// A pipe from an output.
struct Output {
    pipe: Option<File>,
    /// The front end has not taken the last frame.
    is_waiting: bool,
}

/// The pipe to the standard input.
struct InputPipe {
    pipe: File,
    /// What the pipe had no room for.
    left: Vec<u8>,
    /// No more comes.
    has_ended: bool,
}

/// The socket of PMI.
pub(super) struct Line {
    pub(super) socket: UnixStream,
    /// Bytes of a line that is not complete.
    pub(super) begun: Vec<u8>,
}

impl Output {
    fn new(pipe: io::PipeReader) -> io::Result<Self> {
        let pipe = File::from(OwnedFd::from(pipe));
        set_nonblocking(&pipe)?;
        Ok(Self {
            pipe: Some(pipe),
            is_waiting: false,
        })
    }
}

impl InputPipe {
    fn new(pipe: io::PipeWriter) -> io::Result<Self> {
        let pipe = File::from(OwnedFd::from(pipe));
        set_nonblocking(&pipe)?;
        Ok(Self {
            pipe,
            left: Vec::new(),
            has_ended: false,
        })
    }
}

/// What is executed.
struct Command {
    program: CString,
    arguments: CStrings,
    environment: CStrings,
}

impl Command {
    fn new(file: &[u8], words: &[Bytes], variables: &BTreeMap<Vec<u8>, Vec<u8>>) -> io::Result<Self> {
        let (mut arguments, mut environment) = (CStrings::default(), CStrings::default());
        words.iter().try_for_each(|word| arguments.push_bytes(&word.0))?;
        for (name, value) in variables {
            environment.push_bytes(&[name.as_slice(), b"=", value].concat())?;
        }
        Ok(Self {
            program: CString::new(file)?,
            arguments,
            environment,
        })
    }
}

/// What all ranks of this host have in common.
pub(super) struct Setting<'a> {
    load: &'a Load,
    /// Where programs are that were sent.
    places: Places,
    own: Vec<(Vec<u8>, Vec<u8>)>,
    null: File,
    /// CPUs of each rank; empty if ranks are not bound.
    cpus: Vec<CpuSet>,
}

impl<'a> Setting<'a> {
    /// Goes to the directory of the launch. On failure, returns what failed, and why.
    pub(super) fn new(load: &'a Load, places: Places) -> Result<Self, (String, String)> {
        let directory = std::ffi::OsStr::from_bytes(&load.directory.0);
        let failed = |error: io::Error| (directory.to_string_lossy().into_owned(), reason(&error));
        std::env::set_current_dir(directory).map_err(failed)?;
        nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(load.umask));
        let own = std::env::vars_os().map(|(name, value)| (name.into_vec(), value.into_vec()));
        Ok(Self {
            load,
            places,
            own: own.collect(),
            null: File::open("/dev/null").map_err(|error| ("/dev/null".to_owned(), reason(&error)))?,
            cpus: if load.binds {
                cpus_of_each(load.ranks.len())
            } else {
                Vec::new()
            },
        })
    }

    /// The program of a rank, for messages.
    pub(super) fn shown(&self, number: u32) -> String {
        let rank = self.load.ranks.iter().find(|rank| rank.rank == number);
        let words = rank.map_or(&[][..], |rank| self.words(rank));
        let name = words.first().map(|word| String::from_utf8_lossy(&word.0));
        name.unwrap_or_default().into_owned()
    }

    fn words<'w>(&'w self, rank: &'w LocalRank) -> &'w [Bytes] {
        let program = self.load.programs.get(rank.program as usize);
        rank.words
            .as_deref()
            .or(program.map(Vec::as_slice))
            .unwrap_or_default()
    }

    /// Starts a rank. On failure, returns what failed, and why.
    pub(super) fn start(
        &self,
        spawner: &mut Spawner,
        (rank, local): (&LocalRank, u32),
        has_input: bool,
        pmix: &[(Vec<u8>, Vec<u8>)],
    ) -> Result<Rank, (String, String)> {
        let shown = || self.shown(rank.rank);
        let pmi = match self.load.has_pmi {
            true => Some(UnixStream::pair().map_err(|error| (shown(), reason(&error)))?),
            false => None,
        };
        let numbers = Numbers {
            rank: rank.rank,
            local,
        };
        let descriptor = pmi.as_ref().map(|_| FIRST_KEPT);
        let mut variables = environment::of_rank(self.load, self.own.iter().cloned(), &numbers, descriptor);
        variables.extend(pmix.iter().cloned());
        let words = self.words(rank);
        let first = words.first().map_or(&[][..], |word| &word.0);
        let file = match self.places.get(&rank.program) {
            Some(place) => {
                place.add_to(&mut variables);
                place.program.clone()
            }
            None => {
                let path = variables.get(&b"PATH"[..]).map(Vec::as_slice);
                program::find(first, path).map_err(|why| (shown(), why))?
            }
        };
        if self.load.has_pmi
            && self.load.size > 1
            && let Some(library) = program::open_mpi_of(&file)
        {
            let why = format!(
                "it is a program of Open MPI ({library}), whose ranks find each other by PMIx: start it with \
                 --pmi pmix, or with --pmi none if each rank is to be alone"
            );
            return Err((shown(), why));
        }
        let path = variables.get(&b"PATH"[..]).map(Vec::as_slice);
        let wrapped = strace::wrap(self.load.strace.as_ref(), rank.rank, (&file, words), path)?;
        let (file, words) = match &wrapped {
            Some(wrapped) => (&wrapped.file, &wrapped.words[..]),
            None => (&file, words),
        };
        let command = Command::new(file.as_os_str().as_bytes(), words, &variables);
        let command = command.map_err(|error| (shown(), reason(&error)))?;
        self.spawn(spawner, &numbers, &command, has_input, pmi)
            .map_err(|error| (shown(), reason(&error)))
    }

    fn spawn(
        &self,
        spawner: &mut Spawner,
        numbers: &Numbers,
        command: &Command,
        has_input: bool,
        pmi: Option<(UnixStream, UnixStream)>,
    ) -> io::Result<Rank> {
        let (output, error) = (io::pipe()?, io::pipe()?);
        let input = match has_input {
            true => Some(io::pipe()?),
            false => None,
        };
        let stdin = input
            .as_ref()
            .map_or(self.null.as_raw_fd(), |(read, _)| read.as_raw_fd());
        let keep: Vec<_> = pmi.iter().map(|(_, theirs)| theirs.as_raw_fd()).collect();
        let mut wanted = Spawn {
            program: &command.program,
            arguments: &command.arguments,
            environment: &command.environment,
            directory: None,
            stdio: [stdin, output.1.as_raw_fd(), error.1.as_raw_fd()],
            keep: &keep,
            close_others: true,
            leads_group: true,
            unblock: true,
            memory: None,
            cpus: self.cpus.get(numbers.local as usize).copied(),
            die_with_parent: true,
            descriptor: true,
            stop_at_exec: true,
        };
        let mut child = started(wanted.start(spawner)?);
        if child
            .as_ref()
            .is_err_and(|error| error.raw_os_error() == Some(libc::EPERM))
        {
            // The system may forbid to trace: then ranks start as they can.
            wanted.stop_at_exec = false;
            child = started(wanted.start(spawner)?);
        }
        let (pid, process) = child?;
        let input = input.map(|(_, write)| InputPipe::new(write)).transpose()?;
        if let Some((ours, _)) = &pmi {
            ours.set_nonblocking(true)?;
        }
        Ok(Rank {
            number: numbers.rank,
            pid,
            process,
            is_held: wanted.stop_at_exec,
            outputs: [Output::new(output.0)?, Output::new(error.0)?],
            input,
            pmi: pmi.map(|(socket, _)| Line {
                socket,
                begun: Vec::new(),
            }),
            status: None,
            is_reported: false,
        })
    }
}

/// A process that executes its program. One that could not has ended.
fn started(child: Child) -> io::Result<(Pid, OwnedFd)> {
    match (child.failure, child.descriptor) {
        (None, Some(descriptor)) => Ok((child.pid, descriptor)),
        (failure, _) => {
            let _ = kill(child.pid, Signal::SIGKILL);
            let _ = waitpid(child.pid, None);
            Err(failure.unwrap_or_else(|| io::ErrorKind::Unsupported.into()))
        }
    }
}

fn set_nonblocking(file: &File) -> io::Result<()> {
    let flags = OFlag::from_bits_retain(fcntl(file, FcntlArg::F_GETFL)?);
    fcntl(file, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    Ok(())
}

fn reason(error: &io::Error) -> String {
    pmc_dag::reason(error).to_string()
}

/// Divides the CPUs of this process among ranks, in order; empty if they are too few.
fn cpus_of_each(ranks: usize) -> Vec<CpuSet> {
    let Ok(own) = sched_getaffinity(Pid::from_raw(0)) else {
        return Vec::new();
    };
    let cpus: Vec<usize> = (0..CpuSet::count())
        .filter(|cpu| own.is_set(*cpu).unwrap_or(false))
        .collect();
    let each = cpus.len().checked_div(ranks).unwrap_or(0);
    if each == 0 {
        return Vec::new();
    }
    let set = |cpus: &[usize]| {
        let mut set = CpuSet::new();
        for cpu in cpus {
            // It is of a set of the same size.
            let _ = set.set(*cpu);
        }
        set
    };
    cpus.chunks_exact(each).take(ranks).map(set).collect()
}

impl Rank {
    pub(super) fn number(&self) -> u32 {
        self.number
    }

    pub(super) fn pid(&self) -> Pid {
        self.pid
    }

    pub(super) fn is_held(&self) -> bool {
        self.is_held
    }

    /// Waits until it has stopped before its first instruction. On failure, says why it has not.
    pub(super) fn wait_for_stop(&mut self) -> Result<(), String> {
        if !self.is_held {
            return Ok(());
        }
        loop {
            return match waitpid(self.pid, None) {
                Ok(WaitStatus::Stopped(..)) => {
                    // If this process dies now, the rank does, too.
                    let _ = ptrace::setoptions(self.pid, ptrace::Options::PTRACE_O_EXITKILL);
                    Ok(())
                }
                Ok(status) => {
                    self.is_held = false;
                    Err(format!("it ended before it began: {status:?}"))
                }
                Err(nix::errno::Errno::EINTR) => continue,
                Err(error) => Err(error.desc().to_owned()),
            };
        }
    }

    /// Lets it run, or leaves it stopped for a debugger. With a tracer, it stays traced.
    pub(super) fn go(&mut self, tracer: Option<&mut Tracer>, holds: bool) {
        if !std::mem::take(&mut self.is_held) {
            return;
        }
        match tracer {
            Some(tracer) => tracer.begin(self.pid, self.number),
            // One that was killed needs nothing.
            None => drop(ptrace::detach(self.pid, holds.then_some(Signal::SIGSTOP))),
        }
    }

    /// It has neither ended, nor said anything by PMI: it has another MPI than that.
    pub(super) fn has_open_mpi(&self) -> bool {
        self.status.is_none() && program::has_open_mpi(self.pid)
    }

    /// Sends a signal to its group. Until it is reaped, no other group has the number.
    pub(super) fn signal(&self, signal: i32) {
        if let Ok(signal) = Signal::try_from(signal) {
            let _ = killpg(self.pid, signal);
        }
    }

    /// Reaps a process that was killed.
    pub(super) fn reap(self, tracer: Option<&mut Tracer>) {
        if let Some(tracer) = tracer {
            return tracer.reap(self.pid);
        }
        // One that had stopped says so first.
        while let Ok(WaitStatus::Stopped(..)) | Err(nix::errno::Errno::EINTR) = waitpid(self.pid, None) {}
    }

    /// What becomes readable when it ends, until it has.
    pub(super) fn unended(&self) -> Option<BorrowedFd<'_>> {
        self.status.is_none().then(|| self.process.as_fd())
    }

    /// Notes that it has ended. It stays a zombie, so that its group keeps its number.
    pub(super) fn note_end(&mut self) {
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT | WaitPidFlag::WNOHANG;
        self.status = match waitid(Id::Pid(self.pid), flags) {
            Ok(WaitStatus::Exited(_, code)) => Some((code & 0xff) << 8),
            Ok(WaitStatus::Signaled(_, signal, _)) => Some(signal as i32),
            Ok(_) => None,
            Err(_) => Some(1 << 8),
        };
        if self.status.is_some() {
            self.input = None;
        }
    }

    /// Returns its wait status, once, when all its output was sent.
    pub(super) fn take_end(&mut self) -> Option<i32> {
        let status = self.status.filter(|_| !self.is_reported)?;
        if self.outputs.iter().any(|output| output.pipe.is_some()) {
            return None;
        }
        self.is_reported = true;
        Some(status)
    }

    /// Outputs of which the front end takes more.
    pub(super) fn readable_outputs(&self) -> impl Iterator<Item = (usize, BorrowedFd<'_>)> {
        let outputs = self
            .outputs
            .iter()
            .enumerate()
            .filter(|(_, output)| !output.is_waiting);
        outputs.filter_map(|(number, output)| Some((number, output.pipe.as_ref()?.as_fd())))
    }

    pub(super) fn output_taken(&mut self, stream: Stream) {
        for (output, own) in self.outputs.iter_mut().zip(STREAMS) {
            output.is_waiting &= own != stream;
        }
    }

    /// Sends what an output has.
    pub(super) fn send_output(&mut self, number: usize) -> io::Result<()> {
        let has_ended = self.status.is_some();
        let (Some(output), Some(stream)) = (self.outputs.get_mut(number), STREAMS.get(number)) else {
            return Ok(());
        };
        let Some(mut pipe) = output.pipe.as_ref() else {
            return Ok(());
        };
        let mut buffer = vec![0; MAX_DATA];
        match pipe.read(&mut buffer) {
            Ok(0) => output.pipe = None,
            Ok(length) => {
                buffer.truncate(length);
                output.is_waiting = true;
                say(&ToFront::Output {
                    rank: self.number,
                    stream: *stream,
                    bytes: Bytes(buffer),
                })?;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // Who holds the pipe after its end is no rank.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && !has_ended => {}
            Err(_) => output.pipe = None,
        }
        Ok(())
    }

    /// Sends what a rank that has ended has left in its pipes.
    pub(super) fn send_rest(&mut self) -> io::Result<()> {
        for number in 0..self.outputs.len() {
            let is_waiting = self.outputs.get(number).is_some_and(|output| output.is_waiting);
            if self.status.is_some() && !is_waiting {
                self.send_output(number)?;
            }
        }
        Ok(())
    }

    /// Takes input; nothing ends it.
    pub(super) fn push_input(&mut self, bytes: &[u8]) {
        if let Some(input) = &mut self.input {
            input.has_ended |= bytes.is_empty();
            input.left.extend_from_slice(bytes);
            self.write_input();
        }
    }

    /// The input that has no room in its pipe yet.
    pub(super) fn unwritten_input(&self) -> Option<BorrowedFd<'_>> {
        let input = self.input.as_ref().filter(|input| !input.left.is_empty())?;
        Some(input.pipe.as_fd())
    }

    pub(super) fn write_input(&mut self) {
        let Some(input) = &mut self.input else { return };
        while !input.left.is_empty() {
            match input.pipe.write(&input.left) {
                Ok(written) => drop(input.left.drain(..written)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // It reads no more.
                Err(_) => input.left.clear(),
            }
        }
        if input.has_ended {
            self.input = None;
        }
    }

    pub(super) fn pmi_socket(&self) -> Option<BorrowedFd<'_>> {
        self.pmi.as_ref().map(|line| line.socket.as_fd())
    }

    pub(super) fn pmi(&mut self) -> &mut Option<Line> {
        &mut self.pmi
    }
}
