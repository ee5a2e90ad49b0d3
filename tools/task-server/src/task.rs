//! A job as the thread runs it. The thread owns all of it, since it may outlive the job.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use nix::sched::{CloneFlags, CpuSet, sched_getaffinity, sched_setaffinity, unshare};
use nix::unistd::Pid;
use pegasus_kickstart::builtins::BuiltinJob;
use pegasus_rc_client::inproc::{self as registration, OpenDatabase};
use pegasus_transfer::cancel::Cancel;
use pegasus_transfer::inproc::{self as transfer, Stdin};

/// Runs tasks: returns the exit code, or `None` if the program is needed.
pub(crate) type Worker = Box<dyn FnMut(Task) -> Option<u8>>;

/// A built-in program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tool {
    /// `pegasus-transfer`. A request to end lets it clean up.
    Transfer,
    /// `pegasus-rc-client`. It dies of signals, and its catalog has all entries or none.
    Registration,
}

impl Tool {
    pub(crate) const ALL: [Self; 2] = [Self::Transfer, Self::Registration];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Transfer => "pegasus-transfer",
            Self::Registration => "pegasus-rc-client",
        }
    }
}

pub(crate) struct Task {
    pub(crate) tool: Tool,
    pub(crate) arguments: Vec<OsString>,
    pub(crate) environment: Vec<(OsString, OsString)>,
    pub(crate) directory: Option<PathBuf>,
    pub(crate) stdin: File,
    pub(crate) stderr: File,
    pub(crate) cancel: Cancel,
    /// CPUs of the thread that requests the task, if they are known.
    pub(crate) cpus: Option<CpuSet>,
}

impl Task {
    pub(crate) fn new(tool: Tool, job: &BuiltinJob<'_>) -> io::Result<Self> {
        let owned = |text: &[u8]| OsString::from_vec(text.to_vec());
        Ok(Self {
            tool,
            arguments: job.arguments.to_vec(),
            environment: job
                .environment
                .iter()
                .map(|(name, value)| (owned(name), owned(value)))
                .collect(),
            directory: job.directory.map(Path::to_owned),
            stdin: job.stdin.try_clone()?.into(),
            stderr: job.stderr.try_clone()?.into(),
            cancel: Cancel::new(),
            cpus: sched_getaffinity(Pid::from_raw(0)).ok(),
        })
    }

    /// Runs the task in this thread. Returns the exit code, or `None` if the program is needed.
    fn run(self, database: &mut OpenDatabase) -> Option<u8> {
        let this = Pid::from_raw(0);
        if let Some(cpus) = &self.cpus
            && sched_getaffinity(this).ok()? != *cpus
        {
            sched_setaffinity(this, cpus).ok()?;
        }
        if let Some(directory) = &self.directory {
            // The thread gets a working directory of its own. Where that is forbidden, the program has to
            // run.
            unshare(CloneFlags::CLONE_FS).ok()?;
            std::env::set_current_dir(directory).ok()?;
        }
        match self.tool {
            Tool::Transfer => self.transfer(),
            Tool::Registration => self.register(database),
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

    fn register(mut self, database: &mut OpenDatabase) -> Option<u8> {
        let environment = |name: &str| {
            let pair = self.environment.iter().find(|(key, _)| key == name);
            pair.map(|(_, value)| value.clone())
        };
        let invocation = registration::Invocation {
            arguments: &self.arguments,
            environment: &environment,
            stderr: &mut self.stderr,
        };
        match registration::run(invocation, database) {
            registration::Outcome::Ended(code) => Some(code),
            registration::Outcome::NotHandled => None,
        }
    }
}

/// Returns what runs the tasks of one thread.
pub(crate) fn worker() -> Worker {
    let mut database = OpenDatabase::default();
    Box::new(move |task: Task| task.run(&mut database))
}
