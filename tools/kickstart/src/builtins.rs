//! Jobs that this process runs itself, instead of starting a program. The task server implements
//! [`Builtins`].

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::Path;

use monitord_compat::invocation_record::{Status, Usage};

use crate::environment::Environment;
use crate::interrupts::Interrupts;
use crate::lookup::Found;

/// Programs that this process can stand in for.
pub trait Builtins {
    /// Returns whether the file is one of the programs.
    fn contains(&self, program: &Found) -> bool;

    /// Runs the job. Returns `None` if it needs a process of the program; nothing has been done then.
    ///
    /// `interrupts` have the effect that they would have on the program.
    fn run(&self, job: &BuiltinJob<'_>, interrupts: &mut dyn Interrupts) -> Option<(Status, Usage)>;
}

/// A job for [`Builtins::run`].
#[derive(Debug)]
pub struct BuiltinJob<'a> {
    /// The program, one that [`Builtins::contains`].
    pub program: &'a Found,
    /// Arguments after the program's name.
    pub arguments: &'a [OsString],
    /// Environment.
    pub environment: &'a Environment,
    /// Working directory; `None` means that of the process.
    pub directory: Option<&'a Path>,
    /// Standard input.
    pub stdin: OwnedFd,
    /// Standard error. Built-ins write nothing to standard output.
    pub stderr: OwnedFd,
}
