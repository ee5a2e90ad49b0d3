//! Jobs that are `pegasus-transfer` or `pegasus-rc-client`, done by a thread instead of a process: starting one takes
//! several times as long as copying a small file or entering it into a catalog.
//!
//! The thread has what the process would have: arguments, environment, streams, and a working directory of its own.
//! It stays for the jobs to come, as its stack and what else it has touched are in memory then. One that does not
//! end a job when it is asked to is left alone; then the process must end, and with it the thread.

mod helper;

use std::cell::{Cell, RefCell};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use monitord_compat::invocation_record::{Status, Usage};
use nix::sched::{CloneFlags, CpuSet, sched_getaffinity, sched_setaffinity, unshare};
use nix::unistd::Pid;
use pegasus_rc_client::inproc::{self as registration, Kept};
use pegasus_transfer::cancel::Cancel;
use pegasus_transfer::inproc::{self as transfer, Stdin};

use crate::context::OwnUsage;
use crate::environment::Environment;
use crate::interrupts::Interrupts;
use crate::spawn::Handle;
use crate::usage;
use helper::{End, Helper, Worker};

/// Most memory by which these jobs may let the process grow, KiB: peak memory of later jobs counts from that. A small
/// registration takes 3 MiB, most of it for the code of SQLite.
const GROWTH: u64 = 4 << 10;

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
    worker: fn() -> Worker,
    /// Peak memory before all jobs, KiB.
    peak: u64,
    spent: Cell<bool>,
    /// The thread, when it has nothing to do.
    helper: RefCell<Option<Helper>>,
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
    /// Standard input.
    pub stdin: Handle<'a>,
    /// Standard error. Nothing is written to the standard output.
    pub stderr: BorrowedFd<'a>,
}

impl Inside {
    /// For jobs that are the programs in the directory of the file `own`, as far as they are there.
    #[must_use]
    pub fn beside(own: &Path) -> Self {
        Self {
            files: Program::ALL.map(|program| identity(&own.with_file_name(program.name()))),
            worker,
            peak: usage::own(OwnUsage::Process).max_rss_kib,
            spent: Cell::new(false),
            helper: RefCell::new(None),
        }
    }

    /// The program that `file` is, of which the system says `status`.
    #[must_use]
    pub fn program(&self, file: &Path, status: &fs::Metadata) -> Option<Program> {
        // Other names are not looked at: it would take time for each job.
        let name = file.file_name()?;
        let (program, own) = Program::ALL
            .into_iter()
            .zip(self.files)
            .find(|(program, _)| name == OsStr::new(program.name()))?;
        (own == Some((status.dev(), status.ino()))).then_some(program)
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
        let task = Task::new(program, job).ok()?;
        let idle = self.helper.take().filter(|helper| helper.can_do(&task));
        let helper = idle.map_or_else(|| Helper::start(self.worker), Ok).ok()?;
        let status = match helper.run(task, interrupts) {
            End::Outcome(code, helper) => {
                self.helper.replace(helper);
                code.map(|code| Status::Exited { code })
            }
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

/// What the thread does its jobs with.
fn worker() -> Worker {
    let mut kept = Kept::default();
    Box::new(move |task: Task| task.run(&mut kept))
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
    /// Where the thread that wants it done may run, if the system can tell.
    cpus: Option<CpuSet>,
}

impl Task {
    fn new(program: Program, job: &Job<'_>) -> io::Result<Self> {
        let owned = |text: &[u8]| OsString::from_vec(text.to_vec());
        Ok(Self {
            program,
            arguments: job.arguments.to_vec(),
            environment: job
                .environment
                .iter()
                .map(|(name, value)| (owned(name), owned(value)))
                .collect(),
            directory: job.directory.map(Path::to_owned),
            stdin: job.stdin.as_fd().try_clone_to_owned()?.into(),
            stderr: job.stderr.try_clone_to_owned()?.into(),
            cancel: Cancel::new(),
            cpus: sched_getaffinity(Pid::from_raw(0)).ok(),
        })
    }

    /// The exit code, if the program was not needed.
    fn run(self, kept: &mut Kept) -> Option<u8> {
        let own = Pid::from_raw(0);
        if let Some(cpus) = &self.cpus
            && sched_getaffinity(own).ok()? != *cpus
        {
            sched_setaffinity(own, cpus).ok()?;
        }
        if let Some(directory) = &self.directory {
            // The thread parts with the directory of the process. Where that is forbidden, the program has to run.
            unshare(CloneFlags::CLONE_FS).ok()?;
            std::env::set_current_dir(directory).ok()?;
        }
        match self.program {
            Program::Transfer => self.transfer(),
            Program::Registration => self.register(kept),
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

    fn register(mut self, kept: &mut Kept) -> Option<u8> {
        let environment = |name: &str| {
            let pair = self.environment.iter().find(|(key, _)| key == name);
            pair.map(|(_, value)| value.clone())
        };
        let invocation = registration::Invocation {
            arguments: &self.arguments,
            environment: &environment,
            stderr: &mut self.stderr,
        };
        match registration::run(invocation, kept) {
            registration::Outcome::Ended(code) => Some(code),
            registration::Outcome::NotHandled => None,
        }
    }
}
