//! Starts one child process.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::unistd::Pid;

use crate::context::Environment;

/// What to start.
#[derive(Debug)]
pub struct Program<'a> {
    /// The file, absolute.
    pub file: &'a Path,
    /// Program name the child sees, and its arguments.
    pub words: &'a [OsString],
    /// Its environment.
    pub environment: &'a Environment,
    /// Its working directory, if not that of this process.
    pub directory: Option<&'a Path>,
    /// True for a process group of its own.
    pub own_group: bool,
}

/// Starts `program` on the three streams. No handler of ours stays: signals are at their default and nothing is
/// blocked. Without `fork` of this process' memory, as long as the C library can (glibc 2.29 and later).
pub fn spawn(program: &Program<'_>, streams: [Stdio; 3]) -> io::Result<Pid> {
    let [stdin, stdout, stderr] = streams;
    let mut command = Command::new(program.file);
    if let [name, arguments @ ..] = program.words {
        command.arg0(name).args(arguments);
    }
    command.env_clear();
    for (name, value) in program.environment.iter() {
        command.env(OsStr::from_bytes(name), OsStr::from_bytes(value));
    }
    if let Some(directory) = program.directory {
        command.current_dir(directory);
    }
    if program.own_group {
        command.process_group(0);
    }
    let child = command.stdin(stdin).stdout(stdout).stderr(stderr).spawn()?;
    let pid = i32::try_from(child.id()).map_err(io::Error::other)?;
    Ok(Pid::from_raw(pid))
}
