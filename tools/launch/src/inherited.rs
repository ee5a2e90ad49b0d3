//! What ranks get from the process that a person or a task starts.

use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

use nix::sys::stat::{Mode, umask};

use crate::frames::Bytes;

/// What ranks inherit.
pub(crate) struct Inherited {
    /// As `NAME=VALUE`.
    pub(crate) environment: Vec<Bytes>,
    pub(crate) directory: Bytes,
    pub(crate) umask: u32,
}

impl Inherited {
    /// What this process has.
    ///
    /// # Errors
    /// Its directory is gone.
    pub(crate) fn of_this_process() -> io::Result<Self> {
        let variable = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Bytes([name.as_bytes(), b"=", value.as_bytes()].concat())
        };
        // There is no other way to find out.
        let mask = umask(Mode::empty());
        umask(mask);
        Ok(Self {
            environment: std::env::vars_os().map(variable).collect(),
            directory: Bytes(std::env::current_dir()?.into_os_string().into_vec()),
            umask: mask.bits(),
        })
    }
}
