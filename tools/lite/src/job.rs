//! A job from start to end.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::Instant;

use monitord_compat::lite_log::Step;
use nix::sys::signal::Signal;
use pegasus_kickstart::environment::Environment;
use pegasus_kickstart::exit::SIGNAL;
use pegasus_kickstart::interrupts::{Filtered, Interrupts};
use pegasus_transfer::integrity;
use pmc_job_files::{Container, Description};

use crate::cache::Cache;
use crate::container::{self, ContainerError};
use crate::data::{DataError, Direction, Mover};
use crate::directory::{Helpers, JobDirectory};
use crate::inputs::{self, checkpoints};
use crate::job_context::JobContext;
use crate::kept::Kept;
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

/// How a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Exit code, which is that of its program if this ran and failed.
    pub code: u8,
    /// Bytes of its records.
    pub written: u64,
    /// Peak resident memory of its program, KiB; 0 if it is unknown.
    pub peak_kib: u64,
    /// A transfer did not end when it was cancelled: the process must exit.
    pub has_abandoned: bool,
}

impl Outcome {
    fn of(code: u8) -> Self {
        Self {
            code,
            written: 0,
            peak_kib: 0,
            has_abandoned: false,
        }
    }

    /// Adds what the program has used.
    fn add(&mut self, ended: &Ended) {
        self.written = ended.written;
        self.peak_kib = ended.peak_kib;
    }
}

/// Runs a job.
pub(crate) fn run(
    description: &Description,
    around: &JobContext<'_>,
    interrupts: &mut dyn Interrupts,
) -> Outcome {
    let (start, log) = (Instant::now(), &around.log);
    log.version();
    let host = around.host(false);
    log.say(format_args!(
        "Executing on host {} IP={}",
        String::from_utf8_lossy(&host.name),
        host.address
    ));
    log.heading(Step::Directory);
    let variable = |name: &str| {
        let value = around.context.environment.get(name.as_bytes())?;
        Some(OsStr::from_bytes(value).to_owned())
    };
    let helpers = Helpers {
        left: &|note| container::remove_noted(note, log),
        make_room: &|base| Cache::make_room(base, log),
        log,
    };
    let made = match description.in_start_directory {
        true => Ok(JobDirectory::started_in(&around.context.directory)),
        false => JobDirectory::make(description.scratch.as_deref(), &variable, &helpers),
    };
    let outcome = match made {
        Ok(directory) => {
            let path = directory.path().to_owned();
            let outcome = in_directory(description, &path, Some(&directory), around, interrupts);
            log.heading(Step::Remove);
            if let Err(error) = directory.remove(&helpers) {
                log.say(format_args!("cannot remove {}: {error}", path.display()));
            }
            outcome
        }
        Err(error) => {
            log.error(format_args!("{}: {error}", description.job));
            Outcome::of(FAILURE)
        }
    };
    if description.in_cluster {
        log.say(format_args!(
            "{} ended with exit code {}, one job of a cluster",
            description.job, outcome.code
        ));
    } else {
        log.end(start.elapsed().as_secs(), outcome.code);
    }
    outcome
}

/// Runs what is inside the container of a job: its program, perhaps its transfers. Returns the exit code.
pub(crate) fn run_inside(
    description: &Description,
    mut around: JobContext<'_>,
    interrupts: &mut dyn Interrupts,
) -> u8 {
    let kept = around.context.environment.iter().filter(|(name, _)| {
        let is_name = |other: &String| other.as_bytes() == *name;
        !description.unset.iter().any(is_name)
    });
    let text = |bytes: &[u8]| OsStr::from_bytes(bytes).to_owned();
    let mut environment: Environment = kept.map(|(name, value)| (text(name), text(value))).collect();
    for (name, value) in &description.environment {
        environment.set(name.as_bytes(), value.as_bytes());
    }
    around.context.environment = environment;
    let directory = description.work_directory.as_deref().unwrap_or(Path::new("/"));
    in_directory(description, directory, None, &around, interrupts).code
}

/// Runs the steps of a job in its directory, and writes the records of transfers behind that of the program.
/// `own` is the directory that this process has made.
fn in_directory(
    description: &Description,
    directory: &Path,
    own: Option<&JobDirectory>,
    around: &JobContext<'_>,
    interrupts: &mut dyn Interrupts,
) -> Outcome {
    let failed = |error: JobError| {
        around.log.error(format_args!("{}: {error}", description.job));
        error.code()
    };
    let mut mover = match Mover::new(&description.transfer_arguments, directory, around) {
        Ok(mover) => mover,
        Err(error) => return Outcome::of(failed(error.into())),
    };
    let mut outcome = Outcome::of(0);
    let ran = match own.zip(description.container.as_ref()) {
        Some((own, container)) => {
            let job = Contained {
                description,
                container,
                own,
            };
            job.steps(around, interrupts, &mut mover, &mut outcome)
        }
        None => {
            let job = Plain {
                description,
                directory,
                own,
            };
            job.steps(around, interrupts, &mut mover, &mut outcome)
        }
    };
    outcome.code = ran.unwrap_or_else(failed);
    outcome.has_abandoned = mover.has_abandoned;
    if moves_data(description, own.is_some()) {
        around.log.data(&mover.data);
    }
    let mut records = String::new();
    for record in &mover.records {
        records.push_str(&format!("{RECORD}\n{record}"));
    }
    if let Err(error) = print(around, &records) {
        around
            .log
            .say(format_args!("cannot write the records of transfers: {error}"));
    }
    outcome.written = outcome.written.saturating_add(records.len() as u64);
    outcome
}

/// Writes to the standard output of the job.
fn print(around: &JobContext<'_>, text: &str) -> io::Result<()> {
    if text.is_empty() {
        return Ok(());
    }
    File::from(around.context.stdout.try_clone_to_owned()?).write_all(text.as_bytes())
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

/// A job without a container.
struct Plain<'a> {
    description: &'a Description,
    directory: &'a Path,
    own: Option<&'a JobDirectory>,
}

impl Plain<'_> {
    fn steps(
        &self,
        around: &JobContext<'_>,
        interrupts: &mut dyn Interrupts,
        mover: &mut Mover,
        outcome: &mut Outcome,
    ) -> Result<u8, JobError> {
        let (description, directory) = (self.description, self.directory);
        let kept = Kept::of_job(description, directory, around);
        fetch(description, self.own, kept.as_ref(), interrupts, mover)?;
        mover.log.heading(Step::Program);
        let watch = kept.map(Kept::watch);
        let clock = Instant::now();
        let mut ended = task::run(&description.run, directory, around, interrupts);
        drop(watch);
        mover.data.run = clock.elapsed().as_secs_f64();
        outcome.add(&ended);
        let is_missing = |file: &&String| !directory.join(file).exists();
        if ended.code == 0
            && let Some(missing) = description.required.iter().find(is_missing)
        {
            mover.log.error(format_args!(
                "the program ended with success, but did not write its declared output: {missing}; {}",
                pmc_calls::OUTPUTS_UNCHECKED
            ));
            ended.code = 1;
        }
        stage_out(description, ended, true, interrupts, mover)
    }
}

/// Fetches the inputs, and notes how long that took.
fn fetch(
    description: &Description,
    own: Option<&JobDirectory>,
    kept: Option<&Kept>,
    interrupts: &mut dyn Interrupts,
    mover: &mut Mover,
) -> Result<(), DataError> {
    let clock = Instant::now();
    let fetched = inputs::fetch(description, own, kept, interrupts, mover);
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
        around: &JobContext<'_>,
        interrupts: &mut dyn Interrupts,
        mover: &mut Mover,
        outcome: &mut Outcome,
    ) -> Result<u8, JobError> {
        let description = self.description;
        let transfers = !self.container.transfers_inside;
        let kept = Kept::of_job(description, self.own.path(), around).filter(|_| transfers);
        if transfers {
            fetch(description, Some(self.own), kept.as_ref(), interrupts, mover)?;
        }
        let watch = kept.map(Kept::watch);
        let (clock, without_image) = (Instant::now(), mover.data.stage_in);
        let ended = container::run(description, self.container, self.own, around, mover, interrupts);
        drop(watch);
        let image = mover.data.stage_in - without_image;
        mover.data.run = clock.elapsed().as_secs_f64() - image;
        let ended = ended?;
        outcome.add(&ended);
        stage_out(description, ended, transfers, interrupts, mover)
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
    let interrupts: &mut dyn Interrupts = &mut Filtered(interrupts, task::is_for_the_job);
    if transfers {
        // The next attempt continues there, however this one has ended.
        checkpoints(&description.checkpoint_out, Direction::Out, interrupts, mover)?;
    }
    if let Some(signal) = ended.signal {
        mover
            .log
            .say(format_args!("Caught {signal}; the outputs are not delivered"));
        return Ok(if ended.code == 0 {
            of_signal(signal)
        } else {
            ended.code
        });
    }
    if ended.code != 0 {
        mover.log.say(format_args!(
            "The task ended with exit code {}; its outputs are not delivered",
            ended.code
        ));
        return Ok(ended.code);
    }
    if transfers {
        if !description.stage_out.is_empty() || description.work_directory.is_none() {
            mover.log.heading(Step::StageOut);
        }
        let clock = Instant::now();
        let delivered = mover.transfer(&description.stage_out, Direction::Out, interrupts);
        mover.data.stage_out = clock.elapsed().as_secs_f64();
        delivered?;
    }
    if let Some(file) = &description.checksum_file {
        ended.checksums.extend(mover.hashes(&description.hashed)?);
        let checksums = ended.checksums.iter();
        let checksums = checksums.map(|(lfn, sha256)| (lfn.as_slice(), sha256.as_str()));
        integrity::write_metadata(file, checksums).map_err(|source| DataError::ChecksumFile {
            file: file.clone(),
            source,
        })?;
    }
    Ok(0)
}

/// Returns the exit code for the end by a signal.
fn of_signal(signal: Signal) -> u8 {
    SIGNAL + u8::try_from(signal as i32).unwrap_or(0)
}
