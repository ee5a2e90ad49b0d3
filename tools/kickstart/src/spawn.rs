//! Starts one child process.
//!
//! The standard library's `Command` leaves the signals blocked that this process has blocked; an executor and
//! kickstart both block some.

use std::ffi::{CString, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::errno::Errno;
use nix::sys::wait::waitpid;
use nix::unistd::Pid;
use pmc_spawn::{CStrings, Spawn, Spawner};

use crate::environment::Environment;

/// What to start.
#[derive(Debug)]
pub struct Program<'a> {
    /// The file, absolute.
    pub file: &'a Path,
    /// Program name the child sees, and its arguments.
    pub words: &'a [OsString],
    /// Its environment.
    pub environment: &'a Environment,
    /// Its working directory, unless it is that of this process.
    pub directory: Option<&'a Path>,
    /// Descriptors that it gets under their numbers, besides the streams.
    pub keep: &'a [BorrowedFd<'a>],
    /// True for a process group of its own.
    pub own_group: bool,
}

/// A stream of a child: opened for it, or one that stays open here.
#[derive(Debug)]
#[expect(missing_docs, reason = "the sentence above says it")]
pub enum Handle<'a> {
    Own(OwnedFd),
    Lent(BorrowedFd<'a>),
}

impl AsFd for Handle<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Own(descriptor) => descriptor.as_fd(),
            Self::Lent(descriptor) => *descriptor,
        }
    }
}

/// Starts `program` with the three streams as its standard input, output and error. No signal is blocked in
/// the child and `SIGPIPE` is at its default. The streams must not be descriptors 0 to 2 themselves.
///
/// # Errors
/// No process could be made, or it could not run the program.
pub fn spawn(program: &Program<'_>, streams: &[Handle<'_>; 3], spawner: &mut Spawner) -> io::Result<Pid> {
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
        stdio: streams.each_ref().map(|stream| stream.as_fd().as_raw_fd()),
        keep: &keep,
        // Whatever kickstart was started with is for its jobs, too.
        close_others: false,
        leads_group: program.own_group,
        unblock: true,
        memory: None,
        cpus: None,
        die_with_parent: false,
        descriptor: false,
    }
    .start(spawner)?;
    let Some(error) = child.failure else {
        return Ok(child.pid);
    };
    while waitpid(child.pid, None) == Err(Errno::EINTR) {}
    Err(error)
}
