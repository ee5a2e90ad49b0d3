//! A launch as a task of a session: what a person has started is elsewhere, and says over the standard input
//! of the task what to do. So environment and directory of the person are on no disk.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::stat::{Mode, umask};
use pmc_wire::command::{frame, receive};
use serde::{Deserialize, Serialize};

use crate::frames::Bytes;
use crate::inherited::Inherited;
use crate::{NAME, NOT_STARTED, RELAYED};

/// Seconds for the person's process to say what to do.
const PATIENCE: u32 = 60;

/// Limits that ranks have as the person has them.
const LIMITS: [Resource; 5] = [
    Resource::RLIMIT_CORE,
    Resource::RLIMIT_STACK,
    Resource::RLIMIT_NOFILE,
    Resource::RLIMIT_DATA,
    Resource::RLIMIT_FSIZE,
];

/// Beginnings of variables that say something about the task, or about its host: they stay.
const OF_THE_TASK: [&str; 13] = [
    "PMC_",
    "OMPI_MCA_",
    "PRTE_MCA_",
    "HYDRA_",
    "I_MPI_HYDRA_",
    "SLURM_HOSTFILE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "CUDA_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "TMPDIR",
    "HOSTNAME",
];

/// What is to be started.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Hello {
    /// Of `pmc-launch`.
    arguments: Vec<Bytes>,
    /// As `NAME=VALUE`.
    environment: Vec<Bytes>,
    directory: Bytes,
    umask: u32,
    /// Soft limits, in the order of [`LIMITS`].
    limits: Vec<u64>,
}

/// Returns the first bytes of the input of the task: `arguments`, and all that ranks get from this process.
///
/// # Errors
/// The environment is too large, or the directory is gone.
pub fn hello(arguments: impl IntoIterator<Item = OsString>) -> io::Result<Vec<u8>> {
    let Inherited {
        environment,
        directory,
        umask,
    } = Inherited::of_this_process()?;
    frame(&Hello {
        arguments: arguments.into_iter().map(|word| Bytes(word.into_vec())).collect(),
        environment,
        directory,
        umask,
        limits: LIMITS
            .map(|limit| getrlimit(limit).map_or(u64::MAX, |(soft, _)| soft))
            .into(),
    })
}

/// The program as such a task. `ticket` is a file that is there as long as somebody waits for the launch: a
/// task of a session that was killed runs for nobody.
pub(crate) fn main(ticket: Option<&OsString>) -> ExitCode {
    let error = match ticket.is_some_and(|ticket| Path::new(ticket).exists()) {
        true => start().unwrap_or_else(|error| error),
        false => io::Error::other("nobody waits for this launch any more"),
    };
    pmc_terminal::message(format_args!("{NAME}: {}", pmc_dag::reason(&error)));
    ExitCode::from(NOT_STARTED)
}

/// Returns only if that is not possible.
fn start() -> io::Result<io::Error> {
    nix::unistd::alarm::set(PATIENCE);
    // What follows is for the ranks: nothing of it is read here.
    let input = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let hello = receive(&input)?;
    nix::unistd::alarm::cancel();
    let Some(hello): Option<Hello> = hello else {
        return Err(io::Error::other("nobody says what to start"));
    };
    std::env::set_current_dir(OsStr::from_bytes(&hello.directory.0))?;
    umask(Mode::from_bits_truncate(hello.umask));
    for (limit, soft) in LIMITS.into_iter().zip(hello.limits) {
        if let Ok((_, hard)) = getrlimit(limit) {
            // A host may allow less.
            let _ = setrlimit(limit, soft.min(hard), hard);
        }
    }
    let arguments = hello.arguments.into_iter().map(|word| OsString::from_vec(word.0));
    let own = std::env::vars_os();
    let error = Command::new(std::env::current_exe()?)
        .arg(RELAYED)
        .args(arguments)
        .env_clear()
        .envs(merged(hello.environment, own))
        .exec();
    Ok(error)
}

/// The environment of the person, with what is of the task.
fn merged(
    given: Vec<Bytes>,
    own: impl Iterator<Item = (OsString, OsString)>,
) -> BTreeMap<OsString, OsString> {
    let is_of_task = |name: &OsStr| {
        OF_THE_TASK
            .iter()
            .any(|start| name.as_bytes().starts_with(start.as_bytes()))
    };
    let given = given.into_iter().filter_map(|Bytes(variable)| {
        let end = variable.iter().position(|byte| *byte == b'=')?;
        let (name, value) = variable.split_at(end);
        let value = value.get(1..).unwrap_or_default();
        Some((
            OsString::from_vec(name.to_vec()),
            OsString::from_vec(value.to_vec()),
        ))
    });
    let mut all: BTreeMap<OsString, OsString> = given.filter(|(name, _)| !name.is_empty()).collect();
    all.extend(own.filter(|(name, _)| is_of_task(name)));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_of_the_task_stays() {
        let given = ["A=1=2", "PMC_GANG=old", "TMPDIR=/mine", "=x", "none"];
        let given = given.map(|text| Bytes(text.as_bytes().to_vec())).to_vec();
        let own = [("PMC_GANG", "new"), ("A", "agent"), ("B", "agent")];
        let own = own.map(|(name, value)| (name.into(), value.into()));
        let all = merged(given, own.into_iter());
        let value = |name: &str| all.get(OsStr::new(name)).and_then(|value| value.to_str());
        assert_eq!(value("A"), Some("1=2"));
        assert_eq!(value("PMC_GANG"), Some("new"));
        assert_eq!((value("B"), value("TMPDIR")), (None, Some("/mine")));
        assert_eq!(all.len(), 3);
    }

    #[test]
    fn a_hello_has_all_of_this_process() {
        let bytes = hello(["-n".into(), "2".into()]).unwrap();
        let read: Hello = receive(&bytes[..]).unwrap().unwrap();
        assert_eq!(read.arguments[1], Bytes(b"2".to_vec()));
        assert!(
            read.environment
                .iter()
                .any(|variable| variable.0.starts_with(b"PATH="))
        );
        assert_eq!(read.limits.len(), LIMITS.len());
    }
}
