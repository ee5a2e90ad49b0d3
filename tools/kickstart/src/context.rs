//! What an invocation inherits: environment, directory, streams.

use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::time::{Instant, SystemTime};

use nix::sys::stat::{Mode, umask};
use rustix::stdio;

use crate::builtins::Builtins;
use crate::cache::InvocationCache;
use crate::environment::Environment;
use crate::usage::UsageScope;

/// What a process inherits from its parent.
#[derive(Clone, Debug)]
pub struct Inherited {
    /// Environment.
    pub environment: Environment,
    /// File mode creation mask.
    pub umask: u32,
    /// File of kickstart.
    pub program: PathBuf,
}

impl Inherited {
    /// Reads the environment and the mask of this process.
    ///
    /// Call it before other threads exist: reading the mask means changing it for a moment.
    #[must_use]
    pub fn of_process(program: PathBuf) -> Self {
        let mask = umask(Mode::empty());
        umask(mask);
        Self {
            environment: std::env::vars_os().collect(),
            umask: mask.bits(),
            program,
        }
    }
}

/// What an invocation inherits. The program takes it from its process, the task server from each task.
#[derive(Clone)]
pub struct Context<'a> {
    /// Start of the invocation: clock time, and the origin of durations.
    pub start: (SystemTime, Instant),
    /// Environment of the jobs before kickstart's changes. Kickstart's settings are in it, too.
    pub environment: Environment,
    /// Working directory, absolute. Relative file names in options are relative to it.
    pub directory: PathBuf,
    /// True if `directory` is the working directory of the process, which jobs inherit.
    pub is_process_directory: bool,
    /// File mode creation mask, for the record.
    pub umask: u32,
    /// File of the program, for the record.
    pub program: PathBuf,
    /// Standard input for `-i -`.
    pub stdin: BorrowedFd<'a>,
    /// Standard output for `-o -`.
    pub stdout: BorrowedFd<'a>,
    /// Standard error for `-e -`.
    pub stderr: BorrowedFd<'a>,
    /// Descriptors that the jobs inherit as 3, 4, … in this order.
    pub keep: Vec<BorrowedFd<'a>>,
    /// What earlier invocations of this process have left for reuse.
    pub cache: &'a InvocationCache,
    /// Runs some jobs without a process. `None` starts a process for every job.
    pub builtins: Option<&'a dyn Builtins>,
    /// Whose usage the record shows as kickstart's.
    pub usage_scope: UsageScope,
    /// True starts each job in a new process group and signals the group. False keeps the jobs in kickstart's
    /// group, so that a batch system that kills the group reaches them.
    pub own_group: bool,
}

impl<'a> Context<'a> {
    /// An invocation that inherits what its process has. `directory` is the working directory of the process.
    #[must_use]
    pub fn of_process(inherited: Inherited, directory: PathBuf, cache: &'a InvocationCache) -> Self {
        Self {
            start: (SystemTime::now(), Instant::now()),
            environment: inherited.environment,
            directory,
            is_process_directory: true,
            umask: inherited.umask,
            program: inherited.program,
            stdin: stdio::stdin(),
            stdout: stdio::stdout(),
            stderr: stdio::stderr(),
            keep: Vec::new(),
            cache,
            builtins: None,
            usage_scope: UsageScope::Process,
            own_group: false,
        }
    }
}

/// Returns the working directory of the process, or `.` if it has none.
#[must_use]
pub fn current_directory() -> PathBuf {
    std::env::current_dir().unwrap_or_else(|_| PathBuf::from("."))
}
