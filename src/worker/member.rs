//! Commands of a gang on a host that is not its lead, and on the lead if they come from another host.

use std::ffi::{CString, OsString};
use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use nix::sched::CpuSet;
use nix::unistd::Pid;
use pmc_spawn::{CStrings, Spawn, Spawner};

use super::environment::part_variables;
use super::gpus::Devices;
use crate::options::WorkerOptions;
use crate::protocol::{Part, Rank};

/// Variables that say something about a host. A command does not get them from the lead.
const OF_THE_HOST: [&[u8]; 8] = [
    b"HOSTNAME",
    b"PMC_HOST_CPUS",
    b"PMC_HOST_GPUS",
    b"PMC_HOST_MEMORY",
    b"PMC_HOST_NAME",
    b"SLURMD_NODENAME",
    b"SLURM_TOPOLOGY_ADDR",
    b"TMPDIR",
];

/// The shell of a user without one.
const DEFAULT_SHELL: &str = "/bin/sh";

/// A command of a gang, as the shell gets it, and what it finds.
#[derive(Clone, Copy)]
pub struct GangCommand<'a> {
    /// The command.
    pub command: &'a [u8],
    /// Its variables, as `NAME=VALUE`.
    pub environment: &'a [Vec<u8>],
    /// Its directory.
    pub directory: &'a Path,
    /// Numbers of its CPUs on this host, if it has a block of CPUs.
    pub cpus: &'a [u32],
    /// Memory in MB, if it has a limit.
    pub memory_mb: u64,
    /// Its standard input is empty.
    pub no_input: bool,
}

/// A command that was started. It leads a process group.
#[derive(Debug)]
pub struct StartedCommand {
    /// Its process and group.
    pub pid: Pid,
    /// Becomes readable when it ends.
    pub process: OwnedFd,
    /// The pipe to its standard input.
    pub input: Option<OwnedFd>,
    /// The pipes from its standard output and error.
    pub output: [OwnedFd; 2],
}

/// Returns the environment of commands of a gang on a member: that of the lead, with what this host and its
/// part of the gang have of their own.
#[must_use]
pub fn member_environment(
    options: &WorkerOptions,
    lead: &[Vec<u8>],
    part: &Part,
    (rank, host_rank): (Rank, u32),
) -> Vec<Vec<u8>> {
    let name = |variable: &[u8]| {
        variable
            .split(|byte| *byte == b'=')
            .next()
            .unwrap_or_default()
            .to_vec()
    };
    let devices = Devices::from_environment(&options.environment);
    let mut own = part_variables(part, rank, host_rank, &devices);
    own.extend(of_the_host(&options.environment));
    let replaced: Vec<Vec<u8>> = own.iter().map(|variable| name(variable)).collect();
    let is_kept = |variable: &&Vec<u8>| {
        let name = name(variable);
        !replaced.contains(&name) && !OF_THE_HOST.contains(&name.as_slice())
    };
    lead.iter()
        .filter(is_kept)
        .cloned()
        .chain(own.iter().cloned())
        .collect()
}

fn of_the_host(environment: &[(OsString, OsString)]) -> impl Iterator<Item = Vec<u8>> {
    let own = environment
        .iter()
        .filter(|(name, _)| OF_THE_HOST.contains(&name.as_bytes()));
    own.map(|(name, value)| [name.as_bytes(), b"=", value.as_bytes()].concat())
}

/// Starts a command.
///
/// # Errors
/// The system refuses what it needs, or the shell or the directory is missing.
pub fn start(options: &WorkerOptions, command: &GangCommand<'_>) -> io::Result<StartedCommand> {
    let (output, error) = (io::pipe()?, io::pipe()?);
    let input = match command.no_input {
        true => None,
        false => Some(io::pipe()?),
    };
    let null = std::fs::File::open("/dev/null")?;
    let stdin = input
        .as_ref()
        .map_or(null.as_raw_fd(), |(read, _): &(PipeReader, PipeWriter)| {
            read.as_raw_fd()
        });
    let (pid, process) = spawn(
        options,
        command,
        [stdin, output.1.as_raw_fd(), error.1.as_raw_fd()],
    )?;
    Ok(StartedCommand {
        pid,
        process,
        input: input.map(|(_, write)| write.into()),
        output: [output.0.into(), error.0.into()],
    })
}

fn spawn(
    options: &WorkerOptions,
    command: &GangCommand<'_>,
    stdio: [RawFd; 3],
) -> io::Result<(Pid, OwnedFd)> {
    let shell = options.environment.iter().find(|(name, _)| name == "SHELL");
    let shell = shell
        .map(|(_, value)| Path::new(value))
        .filter(|shell| shell.is_absolute());
    let shell = shell
        .filter(|shell| shell.is_file())
        .unwrap_or_else(|| Path::new(DEFAULT_SHELL));
    let program = CString::new(shell.as_os_str().as_bytes())?;
    let directory = CString::new(command.directory.as_os_str().as_bytes())?;
    let (mut arguments, mut environment) = (CStrings::default(), CStrings::default());
    arguments.push(&program);
    arguments.push_bytes(b"-c")?;
    arguments.push_bytes(command.command)?;
    for variable in command.environment {
        environment.push_bytes(variable)?;
    }
    let limit_mb = Some(command.memory_mb).filter(|mb| options.strict_limits && *mb > 0);
    let started = Spawn {
        program: &program,
        arguments: &arguments,
        environment: &environment,
        directory: Some(&directory),
        stdio,
        keep: &[],
        close_others: true,
        leads_group: true,
        unblock: true,
        memory: limit_mb.map(|mb| mb.saturating_mul(1 << 20)),
        cpus: binding(options, command.cpus),
        die_with_parent: true,
        descriptor: true,
        stop_at_exec: false,
    }
    .start(&mut Spawner::new())?;
    let failed = started.failure.or_else(|| {
        let lacks = started.descriptor.is_none();
        lacks.then(|| io::Error::from(io::ErrorKind::Unsupported))
    });
    match (failed, started.descriptor) {
        (None, Some(descriptor)) => Ok((started.pid, descriptor)),
        (failed, _) => {
            let _ = nix::sys::signal::kill(started.pid, nix::sys::signal::Signal::SIGKILL);
            let _ = nix::sys::wait::waitpid(started.pid, None);
            Err(failed.unwrap_or_else(|| io::ErrorKind::Unsupported.into()))
        }
    }
}

/// The CPUs of a part, if its commands are bound.
fn binding(options: &WorkerOptions, cpus: &[u32]) -> Option<CpuSet> {
    if !options.set_affinity || cpus.is_empty() {
        return None;
    }
    let mut set = CpuSet::new();
    cpus.iter().try_for_each(|cpu| set.set(*cpu as usize)).ok()?;
    Some(set)
}
