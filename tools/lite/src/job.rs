//! A job from start to end.

use std::env;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use nix::sys::signal::Signal;
use pegasus_kickstart::context::Inherited;
use pegasus_kickstart::exit::SIGNAL;
use pegasus_kickstart::interrupts::Interrupts;
use pegasus_kickstart::machine::Host;
use pegasus_transfer::cancel::Cancel;
use pegasus_transfer::integrity;
use serde_json::Value;

use crate::data::{DataError, Direction, Mover, make_executable};
use crate::description::Description;
use crate::directory::JobDirectory;
use crate::messages::{self, heading, log};
use crate::task;

/// Exit code if something but the job's program fails: no directory, a transfer.
pub(crate) const FAILURE: u8 = 71;

/// Exit code if an input is not what its producer wrote.
pub(crate) const INTEGRITY_FAILURE: u8 = 65;

/// Line before each record for monitoring in the output of a job.
const RECORD: &str = "---------------pegasus-multipart";

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
    let made = JobDirectory::make(description.scratch.as_deref(), &|name| env::var_os(name));
    let code = match made {
        Ok(directory) => {
            let code = in_directory(description, directory.path(), inherited, interrupts);
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
    messages::end(start.elapsed().as_secs(), code);
    code
}

/// Runs the steps of a job in its directory, and writes the records of transfers behind that of the program.
fn in_directory(
    description: &Description,
    directory: &Path,
    inherited: Inherited,
    interrupts: &mut dyn Interrupts,
) -> u8 {
    let failed = |error: DataError| {
        log(format_args!("ERROR: {}: {error}", description.job));
        match error {
            DataError::Integrity(_) => INTEGRITY_FAILURE,
            DataError::Signal(signal) => of_signal(signal),
            _ => FAILURE,
        }
    };
    if let Err(error) = env::set_current_dir(directory) {
        return failed(error.into());
    }
    let mut mover = match Mover::new(&description.transfer_arguments, directory) {
        Ok(mover) => mover,
        Err(error) => return failed(error),
    };
    let code = steps(description, directory, inherited, interrupts, &mut mover).unwrap_or_else(failed);
    let mut records = String::new();
    for record in &mover.records {
        records.push_str(&format!("{RECORD}\n{record}"));
    }
    if let Err(error) = std::io::stdout().lock().write_all(records.as_bytes()) {
        log(format_args!("cannot write the records of transfers: {error}"));
    }
    code
}

fn steps(
    description: &Description,
    directory: &Path,
    inherited: Inherited,
    interrupts: &mut dyn Interrupts,
    mover: &mut Mover,
) -> Result<u8, DataError> {
    heading("Staging in input data and executables");
    mover.transfer(&description.stage_in, Direction::In, interrupts)?;
    checkpoints(&description.checkpoint_in, Direction::In, interrupts, mover)?;
    make_executable(&description.executables)?;
    if !description.verify.is_empty() {
        heading("Checking file integrity for input files");
        mover.verify(&description.verify)?;
    }
    heading("[Pegasus Lite] Executing the user task");
    let mut ended = task::run(&description.run, directory, inherited, interrupts);
    // The next attempt continues there, however this one has ended.
    checkpoints(&description.checkpoint_out, Direction::Out, interrupts, mover)?;
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
    heading("Staging out output files");
    mover.transfer(&description.stage_out, Direction::Out, interrupts)?;
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

/// Moves checkpoint files. The first attempt has none, so a failure is no failure of the job.
fn checkpoints(
    list: &[Value],
    direction: Direction,
    interrupts: &mut dyn Interrupts,
    mover: &mut Mover,
) -> Result<(), DataError> {
    if list.is_empty() {
        return Ok(());
    }
    heading(match direction {
        Direction::In => "Staging in checkpoint files",
        Direction::Out => "Staging out checkpoint files",
    });
    match mover.transfer(list, direction, interrupts) {
        Err(error @ DataError::Transfers { .. }) => {
            log(format_args!("No matter for checkpoint files: {error}"));
            Ok(())
        }
        moved => moved,
    }
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
