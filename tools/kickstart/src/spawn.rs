//! Starts one child process.
//!
//! The standard library's `Command` keeps the signal mask of this process, which blocks some signals.

use std::ffi::{CString, OsString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::errno::Errno;
use nix::sys::wait::waitpid;
use nix::unistd::Pid;
use pmc_spawn::{CStrings, Spawn, Spawner};

use crate::environment::Environment;

/// A program to start.
#[derive(Debug)]
pub struct Program<'a> {
    /// The file, absolute.
    pub file: &'a Path,
    /// Name of the program as it sees it, and its arguments.
    pub words: &'a [OsString],
    /// Environment.
    pub environment: &'a Environment,
    /// Working directory; `None` means that of this process.
    pub directory: Option<&'a Path>,
    /// Descriptors that it inherits besides the streams, as 3, 4, … in this order.
    pub keep: &'a [BorrowedFd<'a>],
    /// True starts a new process group.
    pub own_group: bool,
    /// True kills it when the thread that starts it has ended.
    pub die_with_parent: bool,
}

/// Starts `program` with the three streams as standard input, output and error. The child starts with no
/// signal blocked and the default action of `SIGPIPE`. The streams must not be descriptors 0 to 2.
///
/// # Errors
/// No process could be created, or it could not execute the program.
pub fn spawn(program: &Program<'_>, streams: &[OwnedFd; 3], spawner: &mut Spawner) -> io::Result<Pid> {
    let file = CString::new(program.file.as_os_str().as_bytes())?;
    let directory = program
        .directory
        .map(|path| CString::new(path.as_os_str().as_bytes()));
    let directory = directory.transpose()?;
    let mut arguments = CStrings::default();
    for word in program.words {
        arguments.push_bytes(word.as_bytes())?;
    }
    let keep: Vec<RawFd> = program.keep.iter().map(AsRawFd::as_raw_fd).collect();
    let child = Spawn {
        program: &file,
        arguments: &arguments,
        environment: &program.environment.to_c_strings(),
        directory: directory.as_deref(),
        stdio: streams.each_ref().map(|stream| stream.as_raw_fd()),
        keep: &keep,
        // Jobs inherit the descriptors that kickstart inherited.
        close_others: false,
        leads_group: program.own_group,
        unblock: true,
        memory: None,
        cpus: None,
        die_with_parent: program.die_with_parent,
        descriptor: false,
        stop_at_exec: false,
    }
    .start(spawner)?;
    let Some(error) = child.failure else {
        return Ok(child.pid);
    };
    while waitpid(child.pid, None) == Err(Errno::EINTR) {}
    Err(error)
}
