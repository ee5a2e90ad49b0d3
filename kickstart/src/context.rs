//! What an invocation inherits: environment, directory, streams. The program takes it from its process; an
//! executor makes one for each task.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::time::{Instant, SystemTime};

use monitord_compat::invocation_record::Usage;

use crate::spares::Spares;
use crate::transfer::Transfers;

/// Environment variables by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment(BTreeMap<Vec<u8>, Vec<u8>>);

impl Environment {
    /// The value of `name`.
    #[must_use]
    pub fn get(&self, name: &[u8]) -> Option<&[u8]> {
        self.0.get(name).map(Vec::as_slice)
    }

    /// The value of `name` as a path, if it is set and not empty.
    #[must_use]
    pub fn path(&self, name: &[u8]) -> Option<PathBuf> {
        let value = self.get(name).filter(|value| !value.is_empty())?;
        Some(OsString::from_vec(value.to_vec()).into())
    }

    /// The value of `KICKSTART_name`, or else of `GRIDSTART_name`.
    #[must_use]
    pub fn setting(&self, name: &str) -> Option<&[u8]> {
        ["KICKSTART_", "GRIDSTART_"]
            .iter()
            .find_map(|prefix| self.get(format!("{prefix}{name}").as_bytes()))
    }

    /// Sets `name` to `value`.
    pub fn set(&mut self, name: &[u8], value: Vec<u8>) {
        self.0.insert(name.to_vec(), value);
    }

    /// All variables, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.0
            .iter()
            .map(|(name, value)| (name.as_slice(), value.as_slice()))
    }
}

impl FromIterator<(OsString, OsString)> for Environment {
    fn from_iter<I: IntoIterator<Item = (OsString, OsString)>>(variables: I) -> Self {
        Self(
            variables
                .into_iter()
                .map(|(name, value)| (name.into_vec(), value.into_vec()))
                .collect(),
        )
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
    /// Temporary files of earlier invocations of this process.
    pub spares: &'a Spares,
    /// Does transfers without a process for each; nothing does so otherwise.
    pub transfers: Option<&'a Transfers>,
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
