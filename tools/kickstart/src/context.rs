//! What an invocation inherits: environment, directory, streams. The program takes it from its process; an
//! executor makes one for each task.

use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::time::{Instant, SystemTime};

use monitord_compat::invocation_record::Usage;
use nix::sys::stat::{Mode, umask};

use crate::environment::Environment;
use crate::inside::Inside;
use crate::spares::Spares;

/// What a process got from whoever started it.
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
    /// That of this process. To be called before any other thread exists: the only way to ask for the mask is to change it.
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

/// What an invocation inherits.
#[derive(Clone, Debug)]
pub struct Context<'a> {
    /// When the invocation began: by the clock, and for durations.
    pub began: (SystemTime, Instant),
    /// Environment of the jobs before kickstart's own changes; also where its settings are.
    pub environment: Environment,
    /// Working directory, absolute; relative names of options are relative to it.
    pub directory: PathBuf,
    /// Whether that is the working directory of the process, which jobs inherit.
    pub entered: bool,
    /// File mode creation mask of the process, for the record.
    pub umask: u32,
    /// File of the program, for the record.
    pub program: PathBuf,
    /// Standard input for `-i -`.
    pub stdin: BorrowedFd<'a>,
    /// Standard output for `-o -`.
    pub stdout: BorrowedFd<'a>,
    /// Standard error for `-e -`.
    pub stderr: BorrowedFd<'a>,
    /// Descriptors that the jobs keep under their numbers.
    pub keep: Vec<BorrowedFd<'a>>,
    /// What earlier invocations of this process have left to use again.
    pub spares: &'a Spares,
    /// Does jobs of some programs without a process for each; nothing does so otherwise.
    pub inside: Option<&'a Inside>,
    /// Whose usage the record states as kickstart's.
    pub own_usage: OwnUsage,
    /// True to start each job in a process group of its own and to signal the group. Otherwise the jobs stay in
    /// the group of kickstart, so that a batch system that kills the group reaches them.
    pub own_group: bool,
}

/// Whose resources are stated as kickstart's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnUsage {
    /// Those of the process.
    Process,
    /// Those of the process since it had used so much.
    Since(Usage),
    /// Those of the calling thread.
    Thread,
}
