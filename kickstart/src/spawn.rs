//! Starts one child process with `posix_spawn(3)`.
//!
//! The standard library's `Command` leaves the signals blocked that this process has blocked; an executor and
//! kickstart both block some. No memory of this process is copied, however large it is.

use std::ffi::{CString, OsString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

use nix::sys::signal::{SigSet, Signal};
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
    /// Its working directory.
    pub directory: &'a Path,
    /// Descriptors that it gets under their numbers, besides the streams.
    pub keep: &'a [BorrowedFd<'a>],
    /// True for a process group of its own.
    pub own_group: bool,
}

/// Starts `program` with the three streams as its standard input, output and error. No signal is blocked in
/// the child and `SIGPIPE` is at its default. The streams must not be descriptors 0 to 2 themselves.
pub fn spawn(program: &Program<'_>, streams: &[OwnedFd; 3]) -> io::Result<Pid> {
    let file = CString::new(program.file.as_os_str().as_bytes())?;
    let directory = CString::new(program.directory.as_os_str().as_bytes())?;
    let words = program
        .words
        .iter()
        .map(|word| CString::new(word.as_bytes()))
        .collect::<Result<Vec<_>, _>>()?;
    let environment = program
        .environment
        .iter()
        .map(|(name, value)| CString::new([name, b"=", value].concat()))
        .collect::<Result<Vec<_>, _>>()?;
    let streams = streams.iter().map(AsRawFd::as_raw_fd);
    let kept = program.keep.iter().map(AsRawFd::as_raw_fd);
    // Copied to its own number, a descriptor stays open.
    let targets = (0..).zip(streams).chain(kept.map(|fd| (fd, fd)));
    let actions = Actions::new(&directory, targets)?;
    let attributes = Attributes::new(program.own_group)?;
    let (words, environment) = (pointers(&words), pointers(&environment));
    let mut pid = 0;
    #[expect(
        unsafe_code,
        reason = "all pointers are to initialised data that outlives the call"
    )]
    check(unsafe {
        libc::posix_spawn(
            &raw mut pid,
            file.as_ptr(),
            &raw const actions.0,
            &raw const attributes.0,
            words.as_ptr(),
            environment.as_ptr(),
        )
    })?;
    Ok(Pid::from_raw(pid))
}

/// The strings as C wants them: pointers with a null pointer at the end.
fn pointers(strings: &[CString]) -> Vec<*mut libc::c_char> {
    strings
        .iter()
        .map(|string| string.as_ptr().cast_mut())
        .chain([ptr::null_mut()])
        .collect()
}

/// These functions return the error number instead of setting it.
fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(result))
    }
}

struct Actions(libc::posix_spawn_file_actions_t);

impl Actions {
    fn new(directory: &CString, targets: impl Iterator<Item = (RawFd, RawFd)>) -> io::Result<Self> {
        let mut raw = MaybeUninit::uninit();
        #[expect(unsafe_code, reason = "initialised by the call whose success is checked")]
        let mut actions = unsafe {
            check(libc::posix_spawn_file_actions_init(raw.as_mut_ptr()))?;
            Self(raw.assume_init())
        };
        for (number, stream) in targets {
            #[expect(unsafe_code, reason = "the actions are initialised")]
            check(unsafe { libc::posix_spawn_file_actions_adddup2(&raw mut actions.0, stream, number) })?;
        }
        #[expect(
            unsafe_code,
            reason = "the actions are initialised and the call copies the name"
        )]
        check(unsafe { libc::posix_spawn_file_actions_addchdir_np(&raw mut actions.0, directory.as_ptr()) })?;
        Ok(actions)
    }
}

impl Drop for Actions {
    fn drop(&mut self) {
        #[expect(unsafe_code, reason = "initialised, and destroyed once")]
        unsafe {
            libc::posix_spawn_file_actions_destroy(&raw mut self.0);
        }
    }
}

struct Attributes(libc::posix_spawnattr_t);

impl Attributes {
    fn new(own_group: bool) -> io::Result<Self> {
        let mut default = SigSet::empty();
        default.add(Signal::SIGPIPE);
        let flags = libc::POSIX_SPAWN_SETSIGMASK
            | libc::POSIX_SPAWN_SETSIGDEF
            | if own_group { libc::POSIX_SPAWN_SETPGROUP } else { 0 };
        let flags = libc::c_short::try_from(flags).map_err(io::Error::other)?;
        let mut raw = MaybeUninit::uninit();
        #[expect(
            unsafe_code,
            reason = "initialised by the first call whose success is checked"
        )]
        unsafe {
            check(libc::posix_spawnattr_init(raw.as_mut_ptr()))?;
            let mut attributes = Self(raw.assume_init());
            check(libc::posix_spawnattr_setsigmask(
                &raw mut attributes.0,
                SigSet::empty().as_ref(),
            ))?;
            check(libc::posix_spawnattr_setsigdefault(
                &raw mut attributes.0,
                default.as_ref(),
            ))?;
            check(libc::posix_spawnattr_setpgroup(&raw mut attributes.0, 0))?;
            check(libc::posix_spawnattr_setflags(&raw mut attributes.0, flags))?;
            Ok(attributes)
        }
    }
}

impl Drop for Attributes {
    fn drop(&mut self) {
        #[expect(unsafe_code, reason = "initialised, and destroyed once")]
        unsafe {
            libc::posix_spawnattr_destroy(&raw mut self.0);
        }
    }
}
