//! Jobs that are `pegasus-transfer` or `pegasus-rc-client`, done by a thread instead of a process: starting one takes
//! several times as long as copying a small file or entering it into a catalog.
//!
//! The thread has what the process would have: arguments, environment, streams, and a working directory of its own.
//! One that does not end when it is asked to is left alone; then the process must end, and with it the thread.

use std::cell::Cell;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, PipeReader};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use monitord_compat::invocation_record::{Status, Usage};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::Signal;
use pegasus_rc_client::inproc as registration;
use pegasus_transfer::cancel::Cancel;
use pegasus_transfer::inproc::{self as transfer, Stdin};

use crate::context::{Environment, OwnUsage};
use crate::interrupts::{Interrupt, Interrupts};
use crate::spawn::Handle;
use crate::usage;
use crate::wait::{pause_for, signal_text};

/// How long a transfer may go on after it was asked to end.
const PATIENCE: Duration = Duration::from_secs(2);

/// Most memory by which these jobs may let the process grow, KiB: peak memory of later jobs counts from that. A small
/// registration takes 3 MiB, most of it for the code of SQLite.
const GROWTH: u64 = 4 << 10;

/// Stack of the thread, as much as a process usually has.
const STACK: usize = 8 << 20;

/// The exit code after a second request to end, and that of a program of ours that has a defect.
const STOPPED: u8 = 1;
const DEFECT: u8 = 101;

/// A program whose jobs are done inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// `pegasus-transfer`. A request to end lets it clean up.
    Transfer,
    /// `pegasus-rc-client`. It dies of signals, and its catalog has all entries or none.
    Registration,
}

impl Program {
    const ALL: [Self; 2] = [Self::Transfer, Self::Registration];

    fn name(self) -> &'static str {
        match self {
            Self::Transfer => "pegasus-transfer",
            Self::Registration => "pegasus-rc-client",
        }
    }
}

/// Does such jobs for one process, one at a time.
#[derive(Debug)]
pub struct Inside {
    /// What identifies the files of [`Program::ALL`].
    files: [Option<(u64, u64)>; 2],
    /// By its address, so that only programs that make an [`Inside`] have the libraries linked in.
    work: fn(Task) -> Option<u8>,
    /// Peak memory before all jobs, KiB.
    peak: u64,
    spent: Cell<bool>,
}

/// A job that is one of the programs.
#[derive(Debug)]
pub struct Job<'a> {
    /// Arguments after the program's name.
    pub arguments: &'a [OsString],
    /// Environment.
    pub environment: &'a Environment,
    /// Working directory, unless it is that of the process.
    pub directory: Option<&'a Path>,
    /// Standard input, output and error.
    pub streams: &'a [Handle<'a>; 3],
}

impl Inside {
    /// For jobs that are the programs in the directory of the file `own`, as far as they are there.
    #[must_use]
    pub fn beside(own: &Path) -> Self {
        Self {
            files: Program::ALL.map(|program| identity(&own.with_file_name(program.name()))),
            work: Task::run,
            peak: usage::own(OwnUsage::Process).max_rss_kib,
            spent: Cell::new(false),
        }
    }

    /// The program that `file` is.
    #[must_use]
    pub fn program(&self, file: &Path) -> Option<Program> {
        // Other names are not looked at: it would take time for each job.
        let name = file.file_name()?;
        let (program, own) = Program::ALL
            .into_iter()
            .zip(self.files)
            .find(|(program, _)| name == OsStr::new(program.name()))?;
        (own.is_some() && own == identity(file)).then_some(program)
    }

    /// Whether the process must end after this job: it has grown, or the thread is still there.
    #[must_use]
    pub fn is_spent(&self) -> bool {
        self.spent.get()
    }

    /// Does the job. `None` if it needs the program itself; nothing has been done then.
    ///
    /// Signals have the effect that they would have on the program: the first SIGINT, SIGTERM or SIGHUP lets a transfer
    /// clean up, the others end it.
    pub fn run(
        &self,
        program: Program,
        job: &Job<'_>,
        interrupts: &mut dyn Interrupts,
    ) -> Option<(Status, Usage)> {
        let before = usage::own(OwnUsage::Process);
        let running = Running::start(self.work, program, job).ok()?;
        let status = match running.wait(interrupts) {
            End::Outcome(code) => code.map(|code| Status::Exited { code }),
            End::Abandoned(status) => {
                self.spent.set(true);
                Some(status)
            }
        };
        let used = usage::own(OwnUsage::Since(before));
        if used.max_rss_kib > self.peak + GROWTH {
            self.spent.set(true);
        }
        Some((status?, used))
    }
}

/// Device and inode.
fn identity(file: &Path) -> Option<(u64, u64)> {
    let status = fs::metadata(file).ok().filter(fs::Metadata::is_file)?;
    Some((status.dev(), status.ino()))
}

/// What the thread owns: it may be there longer than the job.
struct Task {
    program: Program,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    directory: Option<PathBuf>,
    stdin: File,
    stderr: File,
    cancel: Cancel,
}

impl Task {
    /// The exit code, if the program was not needed.
    fn run(self) -> Option<u8> {
        if let Some(directory) = &self.directory {
            // The thread parts with the directory of the process. Where that is forbidden, the program has to run.
            unshare(CloneFlags::CLONE_FS).ok()?;
            std::env::set_current_dir(directory).ok()?;
        }
        match self.program {
            Program::Transfer => self.transfer(),
            Program::Registration => self.register(),
        }
    }

    fn transfer(mut self) -> Option<u8> {
        match transfer::run(transfer::Invocation {
            arguments: &self.arguments,
            environment: &self.environment,
            stdin: Stdin::File(&self.stdin),
            stderr: &mut self.stderr,
            cancel: self.cancel,
        }) {
            transfer::Outcome::Ended(code) => Some(code),
            transfer::Outcome::NotHandled => None,
        }
    }

    fn register(mut self) -> Option<u8> {
        let environment = |name: &str| {
            let pair = self.environment.iter().find(|(key, _)| key == name);
            pair.map(|(_, value)| value.clone())
        };
        match registration::run(registration::Invocation {
            arguments: &self.arguments,
            environment: &environment,
            stderr: &mut self.stderr,
        }) {
            registration::Outcome::Ended(code) => Some(code),
            registration::Outcome::NotHandled => None,
        }
    }
}

/// How a thread ended, or that it did not.
enum End {
    /// The exit code; nothing if the program is needed.
    Outcome(Option<u8>),
    Abandoned(Status),
}

struct Running {
    program: Program,
    thread: JoinHandle<Option<u8>>,
    cancel: Cancel,
    /// At its end when the thread has let go of everything.
    ended: OwnedFd,
}

impl Running {
    fn start(work: fn(Task) -> Option<u8>, program: Program, job: &Job<'_>) -> io::Result<Self> {
        let [stdin, _, stderr] = job.streams;
        let owned = |text: &[u8]| OsString::from_vec(text.to_vec());
        let cancel = Cancel::new();
        let task = Task {
            program,
            arguments: job.arguments.to_vec(),
            environment: job
                .environment
                .iter()
                .map(|(name, value)| (owned(name), owned(value)))
                .collect(),
            directory: job.directory.map(Path::to_owned),
            stdin: stdin.as_fd().try_clone_to_owned()?.into(),
            stderr: stderr.as_fd().try_clone_to_owned()?.into(),
            cancel: cancel.clone(),
        };
        let (ended, running): (PipeReader, _) = io::pipe()?;
        let builder = thread::Builder::new()
            .name(program.name().into())
            .stack_size(STACK);
        let thread = builder.spawn(move || {
            let running = running;
            let outcome = work(task);
            drop(running);
            outcome
        })?;
        Ok(Self {
            program,
            thread,
            cancel,
            ended: ended.into(),
        })
    }

    fn wait(self, interrupts: &mut dyn Interrupts) -> End {
        let mut until: Option<Instant> = None;
        loop {
            let pause = until.map(|until| until.saturating_duration_since(Instant::now()));
            match pause_for(pause, Some(&self.ended), interrupts) {
                Ok(woken) if woken.ended => return self.outcome(),
                Ok(woken) if woken.abandoned => interrupts.abandoned(),
                Ok(_) => {}
                Err(error) => {
                    let errno = error.raw_os_error().unwrap_or(libc::EIO);
                    return self.abandon(crate::invoke::failure(-42, errno));
                }
            }
            let stopped = Status::Exited { code: STOPPED };
            while let Some(interrupt) = interrupts.take() {
                match interrupt {
                    Interrupt::Child => {}
                    Interrupt::Forward(Signal::SIGINT | Signal::SIGTERM | Signal::SIGHUP)
                        if self.program == Program::Transfer =>
                    {
                        if until.is_some() {
                            return self.abandon(stopped);
                        }
                        self.cancel.cancel();
                        until = Some(Instant::now() + PATIENCE);
                    }
                    Interrupt::Forward(signal) => {
                        let signal = signal as i32;
                        return self.abandon(Status::Signalled {
                            signal,
                            name: signal_text(signal),
                            core: false,
                        });
                    }
                }
            }
            if until.is_some_and(|until| until <= Instant::now()) {
                return self.abandon(stopped);
            }
        }
    }

    fn outcome(self) -> End {
        // The system has told the user about the defect.
        End::Outcome(self.thread.join().unwrap_or(Some(DEFECT)))
    }

    fn abandon(self, status: Status) -> End {
        self.cancel.cancel();
        End::Abandoned(status)
    }
}
