//! A job from start to end.

use std::env;
use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::Instant;

use nix::sys::signal::Signal;
use pegasus_kickstart::context::Inherited;
use pegasus_kickstart::environment::Environment;
use pegasus_kickstart::exit::SIGNAL;
use pegasus_kickstart::interrupts::Interrupts;
use pegasus_kickstart::machine::Host;
use pegasus_transfer::cancel::Cancel;
use pegasus_transfer::integrity;

use crate::cache::Cache;
use crate::container::{self, ContainerError};
use crate::data::{DataError, Direction, Mover};
use crate::description::{Container, Description};
use crate::directory::{Helpers, JobDirectory};
use crate::inputs::{self, checkpoints};
use crate::messages::{self, heading, log};
use crate::task::{self, Ended};

/// Exit code if something but the job's program fails: no directory, a transfer.
pub(crate) const FAILURE: u8 = 71;

/// Exit code if an input is not what its producer wrote.
pub(crate) const INTEGRITY_FAILURE: u8 = 65;

/// Line before each record for monitoring in the output of a job.
const RECORD: &str = "---------------pegasus-multipart";

/// What keeps a job from its end.
#[derive(Debug, thiserror::Error)]
enum JobError {
    #[error("{0}")]
    Data(#[from] DataError),
    #[error("{0}")]
    Container(#[from] ContainerError),
}

impl JobError {
    fn code(&self) -> u8 {
        match self {
            JobError::Data(error) | JobError::Container(ContainerError::Data(error)) => match error {
                DataError::Integrity(_) => INTEGRITY_FAILURE,
                DataError::Signal(signal) => of_signal(*signal),
                _ => FAILURE,
            },
            JobError::Container(_) => FAILURE,
        }
    }
}

/// Runs a job. Returns the exit code, which is that of its program if this ran and failed.
pub(crate) fn run(description: &Description, inherited: Inherited, interrupts: &mut dyn Interrupts) -> u8 {
    let start = Instant::now();
    messages::version();
    let host = Host::gather(false);
    log(format_args!(
        "Executing on host {} IP={}",
        String::from_utf8_lossy(&host.name),
        host.address
    ));
    heading("[Pegasus Lite] Setting up workdir");
    let variable = |name: &str| env::var_os(name);
    let helpers = Helpers {
        left: &container::remove_noted,
        make_room: &Cache::make_room,
    };
    let made = JobDirectory::make(description.scratch.as_deref(), &variable, &helpers);
    let code = match made {
        Ok(directory) => {
            let code = in_directory(
                description,
                directory.path(),
                Some(&directory),
                inherited,
                interrupts,
            );
            heading("[Pegasus Lite] Removing workdir");
            // Nobody can remove the working directory of a process on some file systems.
            let _ = env::set_current_dir("/");
            let path = directory.path().to_owned();
            if let Err(error) = directory.remove() {
                log(format_args!("cannot remove {}: {error}", path.display()));
            }
            code
        }
        Err(error) => {
            log(format_args!("ERROR: {}: {error}", description.job));
            FAILURE
        }
    };
    if description.in_cluster {
        log(format_args!(
            "{} ended with exit code {code}, one job of a cluster",
            description.job
        ));
    } else {
        messages::end(start.elapsed().as_secs(), code);
    }
    code
}

/// Runs what is inside the container of a job: its program, perhaps its transfers. Returns the exit code.
pub(crate) fn run_inside(
    description: &Description,
    mut inherited: Inherited,
    interrupts: &mut dyn Interrupts,
) -> u8 {
    let kept = inherited.environment.iter().filter(|(name, _)| {
        let is_name = |other: &String| other.as_bytes() == *name;
        !description.unset.iter().any(is_name)
    });
    let text = |bytes: &[u8]| OsStr::from_bytes(bytes).to_owned();
    let mut environment: Environment = kept.map(|(name, value)| (text(name), text(value))).collect();
    for (name, value) in &description.environment {
        environment.set(name.as_bytes(), value.as_bytes());
    }
    inherited.environment = environment;
    let directory = description.work_directory.as_deref().unwrap_or(Path::new("/"));
    in_directory(description, directory, None, inherited, interrupts)
}

/// Runs the steps of a job in its directory, and writes the records of transfers behind that of the program.
/// `own` is the directory that this process has made.
fn in_directory(
    description: &Description,
    directory: &Path,
    own: Option<&JobDirectory>,
    inherited: Inherited,
    interrupts: &mut dyn Interrupts,
) -> u8 {
    let failed = |error: JobError| {
        log(format_args!("ERROR: {}: {error}", description.job));
        error.code()
    };
    if let Err(error) = env::set_current_dir(directory) {
        return failed(DataError::from(error).into());
    }
    let mut mover = match Mover::new(&description.transfer_arguments, directory) {
        Ok(mover) => mover,
        Err(error) => return failed(error.into()),
    };
    let ran = match own.zip(description.container.as_ref()) {
        Some((own, container)) => {
            let job = Contained {
                description,
                container,
                own,
            };
            job.steps(&inherited, interrupts, &mut mover)
        }
        None => steps(description, directory, own, inherited, interrupts, &mut mover),
    };
    let code = ran.unwrap_or_else(failed);
    if moves_data(description, own.is_some()) {
        messages::data(&mover.data);
    }
    let mut records = String::new();
    for record in &mover.records {
        records.push_str(&format!("{RECORD}\n{record}"));
    }
    if let Err(error) = std::io::stdout().lock().write_all(records.as_bytes()) {
        log(format_args!("cannot write the records of transfers: {error}"));
    }
    code
}

/// Returns whether this process moves the data of the job, not the one around its container or inside.
fn moves_data(description: &Description, is_outside: bool) -> bool {
    if is_outside {
        let container = description.container.as_ref();
        container.is_none_or(|container| !container.transfers_inside)
    } else {
        !(description.stage_in.is_empty() && description.stage_out.is_empty())
    }
}

fn steps(
    description: &Description,
    directory: &Path,
    own: Option<&JobDirectory>,
    inherited: Inherited,
    interrupts: &mut dyn Interrupts,
    mover: &mut Mover,
) -> Result<u8, JobError> {
    fetch(description, own, interrupts, mover)?;
    heading("[Pegasus Lite] Executing the user task");
    let clock = Instant::now();
    let mut ended = task::run(&description.run, directory, inherited, interrupts);
    mover.data.run = clock.elapsed().as_secs_f64();
    if ended.code == 0
        && let Some(missing) = description.required.iter().find(|file| !Path::new(file).exists())
    {
        log(format_args!(
            "the program ended with success, but did not write its declared output: {missing}"
        ));
        ended.code = 1;
    }
    stage_out(description, ended, true, interrupts, mover)
}

/// Fetches the inputs, and notes how long that took.
fn fetch(
    description: &Description,
    own: Option<&JobDirectory>,
    interrupts: &mut dyn Interrupts,
    mover: &mut Mover,
) -> Result<(), DataError> {
    let clock = Instant::now();
    let fetched = inputs::fetch(description, own, interrupts, mover);
    mover.data.stage_in = clock.elapsed().as_secs_f64();
    fetched
}

/// A job with a container.
struct Contained<'a> {
    description: &'a Description,
    container: &'a Container,
    own: &'a JobDirectory,
}

impl Contained<'_> {
    fn steps(
        &self,
        inherited: &Inherited,
        interrupts: &mut dyn Interrupts,
        mover: &mut Mover,
    ) -> Result<u8, JobError> {
        let description = self.description;
        let transfers = !self.container.transfers_inside;
        if transfers {
            fetch(description, Some(self.own), interrupts, mover)?;
        }
        let (clock, without_image) = (Instant::now(), mover.data.stage_in);
        let ended = container::run(
            description,
            self.container,
            self.own,
            inherited,
            mover,
            interrupts,
        );
        let image = mover.data.stage_in - without_image;
        mover.data.run = clock.elapsed().as_secs_f64() - image;
        stage_out(description, ended?, transfers, interrupts, mover)
    }
}

/// Delivers the outputs, if `transfers`, and writes their checksums. Returns the exit code of the job.
fn stage_out(
    description: &Description,
    mut ended: Ended,
    transfers: bool,
    interrupts: &mut dyn Interrupts,
    mover: &mut Mover,
) -> Result<u8, JobError> {
    if transfers {
        // The next attempt continues there, however this one has ended.
        checkpoints(&description.checkpoint_out, Direction::Out, interrupts, mover)?;
    }
    if let Some(signal) = ended.signal {
        log(format_args!("Caught {signal}; the outputs are not delivered"));
        return Ok(if ended.code == 0 {
            of_signal(signal)
        } else {
            ended.code
        });
    }
    if ended.code != 0 {
        log(format_args!(
            "The task ended with exit code {}; its outputs are not delivered",
            ended.code
        ));
        return Ok(ended.code);
    }
    if transfers {
        if !description.stage_out.is_empty() || description.work_directory.is_none() {
            heading("Staging out output files");
        }
        let clock = Instant::now();
        let delivered = mover.transfer(&description.stage_out, Direction::Out, interrupts);
        mover.data.stage_out = clock.elapsed().as_secs_f64();
        delivered?;
    }
    if let Some(file) = &description.checksum_file {
        ended.checksums.extend(hashes(&description.hashed)?);
        let checksums = ended.checksums.iter();
        let checksums = checksums.map(|(lfn, sha256)| (lfn.as_slice(), sha256.as_str()));
        integrity::write_metadata(file, checksums).map_err(|source| DataError::ChecksumFile {
            file: file.clone(),
            source,
        })?;
    }
    Ok(0)
}

/// Computes checksums of files in the working directory. Files that are not there have none.
fn hashes(files: &[String]) -> Result<Vec<(Vec<u8>, String)>, DataError> {
    let files = files.iter().filter(|file| Path::new(file).is_file());
    files
        .map(|file| {
            let sha256 = integrity::sha256(Path::new(file), &Cancel::new())?;
            Ok((file.clone().into_bytes(), integrity::hex(&sha256)))
        })
        .collect()
}

/// Returns the exit code for the end by a signal.
fn of_signal(signal: Signal) -> u8 {
    SIGNAL + u8::try_from(signal as i32).unwrap_or(0)
}
