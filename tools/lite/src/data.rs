//! Inputs and outputs of a job: transfers, checksums.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, PipeReader};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use monitord_compat::lite_data::LiteData;
use nix::sys::signal::Signal;
use pegasus_kickstart::environment::Environment;
use pegasus_kickstart::interrupts::{Interrupt, Interrupts};
use pegasus_kickstart::wait::poll_interrupts;
use pegasus_transfer::cancel::Cancel;
use pegasus_transfer::engine::Settings;
use pegasus_transfer::error::TransferError;
use pegasus_transfer::integrity::{self, Checksums};
use pegasus_transfer::local::{CopyOptions, copy_path};
use pegasus_transfer::multipart::{self, Comparison};
use pegasus_transfer::program::{Call, Log, Options, ProgramError};
use pegasus_transfer::report::Report;
use pmc_job_files::{Entry, Verified};

use crate::job_context::JobContext;
use crate::messages::Log as Messages;

/// How long a cancelled transfer may clean up.
const CLEANUP_LIMIT: Duration = Duration::from_secs(2);

/// Bytes of the stack of the thread that transfers.
const STACK_BYTES: usize = 8 << 20;

/// Transfers or checks of a job that failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DataError {
    /// A signal arrived meanwhile.
    #[error("stopped by {0}")]
    Signal(Signal),
    /// Some files could not be transferred; the log says which.
    #[error("{failed} of {all} files could not be {done}; see the messages above")]
    Transfers {
        failed: usize,
        all: usize,
        done: &'static str,
    },
    /// The transfers could not begin.
    #[error("the transfers cannot begin: {0}")]
    Program(#[from] ProgramError),
    /// Invalid options of `pegasus-transfer`.
    #[error("the profile or property transfer.lite.arguments: {0}")]
    Options(String),
    /// A system call failed.
    #[error("{0}")]
    System(#[from] io::Error),
    /// The code of a transfer has a defect.
    #[error("the transfer ended without a result")]
    NoResult,
    /// A file cannot be made executable.
    #[error("cannot make {} executable: {source}", file.display())]
    Executable { file: PathBuf, source: io::Error },
    /// Checksums of parents cannot be read.
    #[error(
        "cannot read the checksum of {lfn} in {}: {source}; the submit directory must be visible on the node",
        file.display()
    )]
    Checksums {
        lfn: String,
        file: PathBuf,
        source: io::Error,
    },
    /// An output cannot be read, or a file of the node cannot be copied.
    #[error(transparent)]
    File(#[from] TransferError),
    /// The checksums of the outputs cannot be written.
    #[error(
        "cannot write the checksums of the outputs into {}: {source}; the submit directory must be writable on the \
         node, or set pegasus.integrity.checking to none",
        file.display()
    )]
    ChecksumFile { file: PathBuf, source: io::Error },
    /// Files differ from what their producers wrote.
    #[error("{0} files have not the expected checksum or none is known; see the messages above")]
    Integrity(usize),
}

/// Direction of the transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    In,
    Out,
}

/// Moves files between the job's directory and others.
pub(crate) struct Mover {
    options: Options,
    directory: PathBuf,
    /// Variables of the job.
    environment: Environment,
    /// Where the programs of this installation are.
    programs: Option<PathBuf>,
    pub(crate) log: Messages,
    /// A transfer did not end when it was cancelled: its thread goes on until the process ends.
    pub(crate) has_abandoned: bool,
    /// Records for monitoring, in the order of the work.
    pub(crate) records: Vec<String>,
    /// What was moved, and in which time.
    pub(crate) data: LiteData,
}

impl Mover {
    /// Makes a mover for `directory`. `arguments` are options of `pegasus-transfer`.
    ///
    /// # Errors
    /// Invalid options.
    pub(crate) fn new(
        arguments: &[String],
        directory: &Path,
        around: &JobContext<'_>,
    ) -> Result<Self, DataError> {
        let words = std::iter::once("pegasus-transfer").chain(arguments.iter().map(String::as_str));
        let options =
            Options::try_parse_from(words).map_err(|error| DataError::Options(error.to_string()))?;
        Ok(Self {
            options,
            directory: directory.to_owned(),
            environment: around.context.environment.clone(),
            programs: around.context.program.parent().map(Path::to_owned),
            log: around.log.clone(),
            has_abandoned: false,
            records: Vec::new(),
            data: LiteData::default(),
        })
    }

    /// Returns a variable of the job, if it is set and has UTF-8 text.
    pub(crate) fn variable(&self, name: &str) -> Option<String> {
        String::from_utf8(self.environment.get(name.as_bytes())?.to_vec()).ok()
    }

    /// Does something in another directory.
    ///
    /// # Errors
    /// Those of what it does.
    pub(crate) fn within<T>(
        &mut self,
        directory: &Path,
        work: impl FnOnce(&mut Self) -> Result<T, DataError>,
    ) -> Result<T, DataError> {
        let own = std::mem::replace(&mut self.directory, directory.to_owned());
        let done = work(self);
        self.directory = own;
        done
    }

    /// Returns names and checksums of files, of those whose checksums are known.
    ///
    /// # Errors
    /// Checksums of parents cannot be read.
    pub(crate) fn expected(&self, files: &[Verified]) -> Result<Vec<(String, String)>, DataError> {
        let known = files.iter().zip(checksums(files.iter())?);
        Ok(known
            .filter_map(|(file, sha256)| Some((file.lfn.clone(), sha256?)))
            .collect())
    }

    /// Carries out a list of transfers. A signal cancels them.
    ///
    /// # Errors
    /// A file could not be transferred, or a signal arrived.
    pub(crate) fn transfer(
        &mut self,
        list: &[Entry],
        direction: Direction,
        interrupts: &mut dyn Interrupts,
    ) -> Result<(), DataError> {
        if list.is_empty() {
            return Ok(());
        }
        let entries = list.to_vec();
        let transfer = Transfer {
            direction,
            options: self.options.clone(),
            directory: self.directory.clone(),
            environment: self.environment.clone(),
            programs: self.programs.clone(),
            log: self.log.clone(),
        };
        let work = move |cancel: &Cancel| transfer.carry_out(entries, cancel);
        let report = self.in_thread(interrupts, work)??;
        let bytes = report.attempts.iter().map(|attempt| attempt.bytes).sum();
        match direction {
            Direction::In => self.data.fetched = self.data.fetched.saturating_add(bytes),
            Direction::Out => self.data.delivered = self.data.delivered.saturating_add(bytes),
        }
        if !report.attempts.is_empty() {
            self.records.push(multipart::record(&report.attempts));
        }
        if report.success() {
            return Ok(());
        }
        Err(DataError::Transfers {
            failed: report.failures.len(),
            all: list.len(),
            done: match direction {
                Direction::In => "fetched",
                Direction::Out => "delivered",
            },
        })
    }

    /// Copies a file of the node into the directory. A signal stops it.
    ///
    /// # Errors
    /// It cannot be copied, or a signal arrived.
    pub(crate) fn copy(
        &mut self,
        file: &Path,
        name: &str,
        interrupts: &mut dyn Interrupts,
    ) -> Result<u64, DataError> {
        let (file, copy) = (file.to_owned(), self.directory.join(name));
        let work = move |cancel: &Cancel| {
            let options = CopyOptions {
                hash: false,
                cancel: cancel.clone(),
            };
            copy_path(&file, &copy, &options)
        };
        Ok(self.in_thread(interrupts, work)??.bytes)
    }

    /// Compares inputs with the checksums that their producers have recorded.
    ///
    /// # Errors
    /// A checksum differs, or none is known.
    pub(crate) fn verify<'v>(
        &mut self,
        files: impl Iterator<Item = &'v Verified> + Clone,
    ) -> Result<(), DataError> {
        let clock = Instant::now();
        let (mut comparisons, mut failed) = (Vec::new(), 0);
        for (file, expected) in files.clone().zip(checksums(files)?) {
            if expected.is_none() && self.directory.join(&file.lfn).is_dir() {
                // Nobody makes checksums of directories.
                continue;
            }
            match compare(&self.directory, &file.lfn, expected) {
                Ok(comparison) => {
                    if comparison.expected.is_some() {
                        self.log.error(format_args!(
                            "Integrity check: {}: SHA-256 is {}, but {} was expected",
                            file.lfn,
                            comparison.sha256,
                            comparison.expected.as_deref().unwrap_or_default()
                        ));
                        failed += 1;
                    }
                    comparisons.push(comparison);
                }
                Err(error) => {
                    self.log
                        .error(format_args!("Integrity check: {}: {error}", file.lfn));
                    failed += 1;
                }
            }
        }
        if !comparisons.is_empty() {
            self.records
                .push(multipart::comparisons(&comparisons, clock.elapsed()));
        }
        if failed == 0 {
            Ok(())
        } else {
            Err(DataError::Integrity(failed))
        }
    }

    /// Returns whether a file that another node has given has the size and the checksum that it should have.
    /// Monitoring hears of a check only if it has: otherwise the file is fetched, and checked again.
    ///
    /// # Errors
    /// Checksums of parents cannot be read.
    pub(crate) fn agrees(&mut self, file: &Path, bytes: u64, verify: &[Verified]) -> Result<bool, DataError> {
        if fs::metadata(file).map_or(true, |status| status.len() != bytes) {
            return Ok(false);
        }
        let records = self.records.len();
        match self.verify(verify.iter()) {
            Ok(()) => Ok(true),
            Err(DataError::Integrity(_)) => {
                self.records.truncate(records);
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Makes files of the directory executable for their owner and all who may read them.
    ///
    /// # Errors
    /// A file is not there, or belongs to somebody else.
    pub(crate) fn make_executable(&self, files: &[PathBuf]) -> Result<(), DataError> {
        for file in files {
            let path = self.directory.join(file);
            let changed = fs::metadata(&path).and_then(|status| {
                let mode = status.permissions().mode();
                fs::set_permissions(&path, fs::Permissions::from_mode(mode | 0o111))
            });
            changed.map_err(|source| DataError::Executable {
                file: file.clone(),
                source,
            })?;
        }
        Ok(())
    }

    /// Computes checksums of files in the directory. Files that are not there have none.
    ///
    /// # Errors
    /// A file cannot be read.
    pub(crate) fn hashes(&self, files: &[String]) -> Result<Vec<(Vec<u8>, String)>, DataError> {
        let files = files.iter().map(|file| (file, self.directory.join(file)));
        files
            .filter(|(_, path)| path.is_file())
            .map(|(file, path)| {
                let sha256 = integrity::sha256(&path, &Cancel::new())?;
                Ok((file.clone().into_bytes(), integrity::hex(&sha256)))
            })
            .collect()
    }

    /// Does work in a thread, and waits for it or for a signal.
    fn in_thread<T: Send + 'static>(
        &mut self,
        interrupts: &mut dyn Interrupts,
        work: impl FnOnce(&Cancel) -> T + Send + 'static,
    ) -> Result<T, DataError> {
        let cancel = Cancel::new();
        let (sender, results) = channel();
        let (ended, bell): (PipeReader, _) = io::pipe()?;
        let flag = cancel.clone();
        let builder = thread::Builder::new().stack_size(STACK_BYTES);
        builder.spawn(move || {
            // If nobody waits any more, the process is about to end.
            let _ = sender.send(work(&flag));
            drop(bell);
        })?;
        let ended = OwnedFd::from(ended);
        let mut stopped: Option<(Signal, Instant)> = None;
        loop {
            let pause = stopped.map(|(_, until)| until.saturating_duration_since(Instant::now()));
            let wakeup = poll_interrupts(pause, Some(&ended), interrupts)?;
            if wakeup.abandoned {
                interrupts.abandoned();
            }
            while let Some(interrupt) = interrupts.take() {
                if let Interrupt::Forward(signal) = interrupt {
                    cancel.cancel();
                    stopped.get_or_insert_with(|| (signal, Instant::now() + CLEANUP_LIMIT));
                }
            }
            let is_over = stopped.is_some_and(|(_, until)| until <= Instant::now());
            if !wakeup.watched && !is_over {
                continue;
            }
            return match stopped {
                Some((signal, _)) => {
                    self.has_abandoned |= !wakeup.watched;
                    Err(DataError::Signal(signal))
                }
                // The panic has printed its message.
                None => results.recv().map_err(|_| DataError::NoResult),
            };
        }
    }
}

/// Returns the known checksums of files.
fn checksums<'v>(files: impl Iterator<Item = &'v Verified>) -> Result<Vec<Option<String>>, DataError> {
    let mut known: HashMap<&Path, Checksums> = HashMap::new();
    let checksum = |file: &'v Verified| -> Result<Option<String>, DataError> {
        Ok(match (&file.sha256, &file.checksum_file) {
            (Some(sha256), _) => Some(sha256.clone()),
            (None, Some(path)) => {
                if !known.contains_key(path.as_path()) {
                    let read = integrity::read_metadata(path).map_err(|source| DataError::Checksums {
                        lfn: file.lfn.clone(),
                        file: path.clone(),
                        source,
                    })?;
                    known.insert(path, read);
                }
                known[path.as_path()].get(file.lfn.as_bytes()).cloned()
            }
            (None, None) => None,
        })
    };
    files.map(checksum).collect()
}

/// Compares one file with its checksum.
fn compare(directory: &Path, lfn: &str, expected: Option<String>) -> Result<Comparison, TransferError> {
    let expected = expected.ok_or_else(|| TransferError::ChecksumUnknown(lfn.as_bytes().to_vec()))?;
    let sha256 = integrity::hex(&integrity::sha256(&directory.join(lfn), &Cancel::new())?);
    Ok(Comparison {
        lfn: lfn.as_bytes().to_vec(),
        path: PathBuf::from(lfn),
        expected: (!sha256.eq_ignore_ascii_case(&expected)).then_some(expected),
        sha256,
    })
}

/// What a list of transfers needs. A thread owns it, since it may outlive the job.
struct Transfer {
    direction: Direction,
    options: Options,
    directory: PathBuf,
    environment: Environment,
    programs: Option<PathBuf>,
    log: Messages,
}

impl Transfer {
    /// Carries out a list in this thread. `$PWD` in URLs is the job's directory.
    fn carry_out(self, list: Vec<Entry>, cancel: &Cancel) -> Result<Report, ProgramError> {
        let environment = |name: &str| match name {
            // HTCondor has brought files into it.
            "PWD" | "pegasus_lite_work_dir" => Some(OsString::from(&self.directory)),
            // The records are taken from the report.
            "PEGASUS_MULTIPART_DIR" | "KICKSTART_INTEGRITY_DATA" => None,
            name => self.environment.get(name.as_bytes()).map(owned),
        };
        let call = Call {
            options: &self.options,
            environment: &environment,
            start: Instant::now(),
        };
        let mut stderr = self.log.stream();
        let log = Log::new(&mut stderr, self.options.debug);
        let settings = Settings {
            base: Some(self.directory.clone()),
            full_disk_is_final: self.direction == Direction::In,
            ..call.settings(cancel)?
        };
        call.check_credentials(&log)?;
        let work = call.work_of(list)?;
        let variables = self.environment.iter();
        let variables = variables.map(|(name, value)| (owned(name), owned(value)));
        let registry = pegasus_transfer::registry(variables, self.programs, &self.options, cancel);
        Ok(call.carry_out_for(&registry, &work, &settings, &log))
    }
}

fn owned(text: &[u8]) -> OsString {
    OsStr::from_bytes(text).to_owned()
}
