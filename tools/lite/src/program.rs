//! The process: command line, signals, exit status.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::{CommandFactory, Parser};
use pegasus_kickstart::cache::InvocationCache;
use pegasus_kickstart::context::{Context, Inherited, current_directory};
use pegasus_kickstart::interrupts::ProcessSignals;
use pmc_calls::{KICKSTART, LITE, Part};
use pmc_files::MAX_LIST;
use pmc_job_files::{Description, DescriptionError};
use pmc_terminal::finish_early;

use crate::container::STARTED;
use crate::job::{self, FAILURE};
use crate::job_context::JobContext;
use crate::messages::Log;

/// Runs one job in a directory of its own on the node: fetches its inputs, runs it, delivers its outputs.
#[derive(Debug, Parser)]
#[command(name = LITE, version)]
pub(crate) struct Args {
    /// Read only LENGTH bytes of FILE, starting at byte START; large plans keep all descriptions in one file
    #[arg(long, value_name = "START:LENGTH")]
    part: Option<Part>,
    /// The job is a cluster, whose program reads files of its jobs in the submit directory; agents start
    /// it only on hosts that see this directory
    #[arg(long)]
    cluster: bool,
    /// The script for the environment has run
    #[arg(long, hide = true)]
    env_sourced: bool,
    /// This is the container of the job
    #[arg(long, hide = true)]
    inside: bool,
    /// Description of the job, as pmc-plan writes it
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

impl Args {
    /// Reads the description of the job. Its name, and that of a directory in it, are relative to
    /// `directory`.
    ///
    /// # Errors
    /// It cannot be read or used.
    pub(crate) fn description(&self, directory: &Path) -> Result<Description, ProgramError> {
        let text = read(&directory.join(&self.file), self.part).map_err(|source| ProgramError::Read {
            file: self.file.clone(),
            source,
        })?;
        let mut description = Description::parse(&text).map_err(|source| ProgramError::Description {
            file: self.file.clone(),
            source,
        })?;
        if let Some(shared) = description
            .work_directory
            .as_mut()
            .filter(|path| path.is_relative())
        {
            *shared = directory.join(&shared).components().collect();
        }
        Ok(description)
    }

    /// Returns whether the job needs a process of its own: a shell sets its environment, or the program runs
    /// in a container, whose engine takes longer than a process.
    pub(crate) fn needs_process(&self, description: &Description) -> bool {
        self.inside || self.env_sourced || description.env_source.is_some() || description.container.is_some()
    }
}

/// Variable with the directory to which HTCondor brings the files of a job.
const SCRATCH: &[u8] = b"_CONDOR_SCRATCH_DIR";

/// What is wrong if a file of the submit directory is not there.
const INVISIBLE: &str = "; the submit directory must be visible on the node";

/// What keeps a job from beginning.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProgramError {
    #[error(
        "cannot read the description of the job {}: {source}{}",
        file.display(),
        if source.kind() == io::ErrorKind::NotFound { INVISIBLE } else { "" }
    )]
    Read { file: PathBuf, source: io::Error },
    #[error("{}: {source}", file.display())]
    Description { file: PathBuf, source: DescriptionError },
    #[error("cannot read the script for the environment {}: {source}", file.display())]
    EnvSource { file: PathBuf, source: io::Error },
    #[error("cannot begin: {0}")]
    System(#[from] io::Error),
}

/// Returns the description of the command line.
#[must_use]
pub fn command() -> clap::Command {
    Args::command()
}

/// Runs the program with the arguments and the environment of the process. Returns its exit status.
#[must_use]
pub fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => return finish_early(LITE, error.print(), error.use_stderr(), FAILURE),
    };
    let Ok(log) = Log::new(io::stderr().as_fd()) else {
        return FAILURE.into();
    };
    match run(&args, &log) {
        Ok(code) => code.into(),
        Err(error) => {
            if args.inside {
                log.error(&error);
                return FAILURE.into();
            }
            log.version();
            log.error(&error);
            log.end(0, FAILURE);
            FAILURE.into()
        }
    }
}

fn run(args: &Args, log: &Log) -> Result<u8, ProgramError> {
    let description = args.description(&current_directory())?;
    if let Some(file) = description.env_source.as_deref().filter(|_| !args.env_sourced) {
        return Err(source_environment(file));
    }
    // Before other threads exist, so that all of them block the signals.
    let mut signals = ProcessSignals::install()?;
    let own = std::env::current_exe()?;
    let inherited = Inherited::of_process(own.with_file_name(KICKSTART));
    let cache = InvocationCache::default();
    let mut context = Context::of_process(inherited, current_directory(), &cache);
    if description.in_start_directory && context.environment.get(SCRATCH).is_none() {
        // Batch systems behind HTCondor do not set it.
        let directory = context.directory.clone();
        context
            .environment
            .set(SCRATCH, directory.as_os_str().as_encoded_bytes());
    }
    let around = JobContext {
        context,
        log: log.clone(),
        host: None,
    };
    if args.inside {
        // The process that started the container learns that it runs.
        File::create(args.file.with_file_name(STARTED))?;
        return Ok(job::run_inside(&description, around, &mut signals));
    }
    Ok(job::run(&description, &around, &mut signals).code)
}

/// Becomes a shell that runs the script and then this program again. Returns only if that fails.
fn source_environment(file: &Path) -> ProgramError {
    const SCRIPT: &str = ". \"$0\" && exec \"$@\"";
    let failed = |source| ProgramError::EnvSource {
        file: file.to_owned(),
        source,
    };
    // The shell would look for a name without a slash elsewhere.
    let script = match file
        .canonicalize()
        .and_then(|script| File::open(&script).map(|_| script))
    {
        Ok(script) => script,
        Err(error) => return failed(error),
    };
    let own = match std::env::current_exe() {
        Ok(own) => own,
        Err(error) => return error.into(),
    };
    let mut shell = Command::new("/bin/sh");
    shell
        .arg("-c")
        .arg(SCRIPT)
        .arg(script)
        .arg(own)
        .arg("--env-sourced");
    failed(shell.args(std::env::args_os().skip(1)).exec())
}

/// Reads a file or a part of it.
fn read(path: &Path, part: Option<Part>) -> io::Result<Vec<u8>> {
    let mut file = pmc_files::open(path)?;
    match part {
        None => pmc_files::read_rest(&file, MAX_LIST),
        Some(part) => {
            file.seek(SeekFrom::Start(part.start))?;
            pmc_files::read_at_most(file.take(part.length), MAX_LIST)
        }
    }
}
