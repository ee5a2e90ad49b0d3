//! `pegasus-transfer` without its process: environment, input and log are parameters.

mod log;
mod options;

use std::fs;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use pmc_files::MAX_LIST;

use crate::cancel::Cancel;
use crate::engine::{self, Settings, Waits};
use crate::protocol::Registry;
use crate::report::Report;
use crate::spec::{self, SpecError, Work};
use crate::url::Lookup;
use crate::{integrity, multipart, shown};

pub use log::{Level, Log};
pub use options::Options;

/// One run of the program.
pub struct Call<'a> {
    /// The command line.
    pub options: &'a Options,
    /// The environment.
    pub environment: Lookup<'a>,
    /// Start time, for the statistics.
    pub start: Instant,
}

/// A specification and its name for messages.
pub struct Input {
    /// The file, or `stdin`.
    pub name: String,
    /// Its content.
    pub bytes: Vec<u8>,
}

/// An error before any work was done.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// The variable `PEGASUS_TRANSFER_THREADS` has an invalid value.
    #[error("PEGASUS_TRANSFER_THREADS is '{0}', but must be a whole number above 0")]
    Threads(String),
    /// A duration is out of range.
    #[error("{option} must be between {min} and {max} seconds")]
    Seconds {
        /// The option.
        option: &'static str,
        /// Minimum in seconds.
        min: f64,
        /// Maximum in seconds.
        max: f64,
    },
    /// The credentials file cannot be examined.
    #[error("credentials file {name}: {source}")]
    Credentials {
        /// The file.
        name: String,
        /// The error of the system.
        source: io::Error,
    },
    /// Other users can read the credentials file.
    #[error("Permissions of credentials file {0} are too liberal; run: chmod 600 {0}")]
    CredentialsMode(String),
    /// The specification cannot be read.
    #[error("{name}: {source}")]
    Read {
        /// The file, or `stdin`.
        name: String,
        /// The error of the system.
        source: io::Error,
    },
    /// The specification is invalid.
    #[error("{name}: {source}")]
    Specification {
        /// The file, or `stdin`.
        name: String,
        /// The error in it.
        source: SpecError,
    },
    /// Signal handlers cannot be installed.
    #[error("cannot listen to signals: {0}")]
    Signals(io::Error),
}

impl Call<'_> {
    fn variable(&self, name: &str) -> Option<PathBuf> {
        let value = (self.environment)(name).filter(|value| !value.is_empty());
        value.map(PathBuf::from)
    }

    /// Derives the settings from options and environment.
    pub fn settings(&self, cancel: &Cancel) -> Result<Settings, ProgramError> {
        let options = self.options;
        let text = |name: &str| (self.environment)(name).and_then(|value| value.into_string().ok());
        let threads = match (options.threads, text("PEGASUS_TRANSFER_THREADS")) {
            (0, Some(text)) if !text.trim().is_empty() => text
                .trim()
                .parse::<u16>()
                .ok()
                .filter(|threads| *threads > 0)
                .ok_or(ProgramError::Threads(text))?,
            (0, _) => 8,
            (threads, _) => threads,
        };
        for (option, value, min, max) in [
            ("--retry-wait", options.retry_wait, 0.0, 3600.0),
            ("--timeout", options.timeout, 0.001, 86400.0),
        ] {
            if !(min..=max).contains(&value) {
                return Err(ProgramError::Seconds { option, min, max });
            }
        }
        let soon = Duration::from_secs_f64(options.retry_wait);
        let error_rate = text("PEGASUS_TRANSFER_ERROR_RATE").and_then(|text| text.trim().parse().ok());
        Ok(Settings {
            full_disk_is_final: false,
            rounds: options.max_attempts,
            threads: threads.into(),
            symlink: options.symlink,
            base: None,
            waits: Waits {
                soon,
                later: soon * 30,
                ..Waits::default()
            },
            integrity_data: self.variable("KICKSTART_INTEGRITY_DATA"),
            known_checksums: options.checksums_from.clone(),
            keeps_directories: self.variable(pmc_calls::CLEAN_UP_VARIABLE).is_some(),
            temporary: ["TMPDIR", "TEMP", "TMP"]
                .iter()
                .find_map(|name| self.variable(name))
                .unwrap_or_else(|| PathBuf::from("/tmp")),
            error_rate: error_rate.unwrap_or(0),
            cancel: cancel.clone(),
        })
    }

    /// Rejects a file with passwords that other users can read.
    pub fn check_credentials(&self, log: &Log<'_>) -> Result<(), ProgramError> {
        let Some(path) = self.variable("PEGASUS_CREDENTIALS") else {
            return Ok(());
        };
        let name = shown::path(&path).to_string();
        log.line(Level::Debug, &format!("PEGASUS_CREDENTIALS is {name}"));
        let meta = fs::metadata(&path).map_err(|source| ProgramError::Credentials {
            name: name.clone(),
            source,
        })?;
        if meta.permissions().mode() & 0o077 != 0 {
            return Err(ProgramError::CredentialsMode(name));
        }
        Ok(())
    }

    /// Logs the origin of the specification.
    pub fn announce(&self, log: &Log<'_>) {
        match &self.options.file {
            Some(path) => log.info(&format!(
                "Reading transfer specification from {}",
                shown::path(path)
            )),
            None => log.info("Reading URL pairs from stdin"),
        }
    }

    /// Reads the specification from the file of the options, else from `stdin`.
    pub fn read(&self, stdin: &mut dyn Read) -> Result<Input, ProgramError> {
        let (name, bytes) = match &self.options.file {
            Some(path) => {
                let bytes = match self.options.part {
                    Some(part) => read_part(path, part),
                    None => {
                        pmc_files::open_input(path).and_then(|file| pmc_files::read_rest(&file, MAX_LIST))
                    }
                };
                (shown::path(path).to_string(), bytes)
            }
            None => ("stdin".to_owned(), pmc_files::read_at_most(stdin, MAX_LIST)),
        };
        match bytes {
            Ok(bytes) => Ok(Input { name, bytes }),
            Err(source) => Err(ProgramError::Read { name, source }),
        }
    }

    /// Parses a specification.
    pub fn parse(&self, input: &Input) -> Result<Vec<Work>, ProgramError> {
        let mut priority = || i64::from(random_priority());
        let parsed = spec::parse(&input.bytes, self.environment, &mut priority);
        parsed.map_err(|source| ProgramError::Specification {
            name: input.name.clone(),
            source,
        })
    }

    /// Returns the work of a list in the description of a job.
    pub fn work_of(&self, entries: Vec<pmc_job_files::Entry>) -> Result<Vec<Work>, ProgramError> {
        let mut priority = || i64::from(random_priority());
        let work = spec::work_of(entries, self.environment, &mut priority);
        work.map_err(|source| ProgramError::Specification {
            name: "the description of the job".to_owned(),
            source,
        })
    }

    /// Carries out the work and logs the result. Returns whether everything succeeded.
    pub fn carry_out(&self, registry: &Registry, work: &[Work], settings: &Settings, log: &Log<'_>) -> bool {
        self.carry_out_for(registry, work, settings, log).success()
    }

    /// As [`Self::carry_out`], but returns the report.
    pub fn carry_out_for(
        &self,
        registry: &Registry,
        work: &[Work],
        settings: &Settings,
        log: &Log<'_>,
    ) -> Report {
        log.info(&format!("{} transfers loaded", work.len()));
        let report = engine::run_with(registry, work, settings, log);
        self.write_checksums(&report, log);
        self.log_result(&report, log, &settings.cancel);
        report
    }

    /// Writes the published checksums into a metadata file. A failure gives a warning only: who needs a
    /// checksum reports that it is missing.
    fn write_checksums(&self, report: &Report, log: &Log<'_>) {
        let Some(file) = &self.options.checksums_to else {
            return;
        };
        let published = report.published.iter();
        let published = published.map(|(lfn, sha256)| (lfn.as_slice(), sha256.as_str()));
        if let Err(error) = integrity::write_metadata(file, published) {
            let name = shown::path(file);
            log.line(
                Level::Warning,
                &format!("cannot write the checksums into {name}: {error}"),
            );
        }
    }

    fn log_result(&self, report: &Report, log: &Log<'_>, cancel: &Cancel) {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs();
        if let Some(payload) = report.checks.monitoring_payload(now) {
            log.info(&payload);
        }
        if let Some(directory) = self.variable("PEGASUS_MULTIPART_DIR")
            && !report.attempts.is_empty()
            && let Err(error) = multipart::write(&directory, now, &report.attempts)
        {
            let name = shown::path(&directory);
            log.line(
                Level::Warning,
                &format!("cannot write the record of attempts into {name}: {error}"),
            );
        }
        log.rule();
        for failure in &report.failures {
            let attempts = match failure.attempts {
                1 => "1 attempt".to_owned(),
                number => format!("{number} attempts"),
            };
            log.line(
                Level::Error,
                &format!(
                    "Failed after {attempts}: {}: {}",
                    failure.description, failure.error
                ),
            );
        }
        for line in report.statistics(self.start.elapsed()) {
            log.info(&line);
        }
        if cancel.is_cancelled() {
            log.line(Level::Warning, "Stopped by a signal.");
        }
        if report.success() {
            log.info("All transfers completed successfully.");
        } else {
            log.line(
                Level::Critical,
                "Some transfers failed! See above, and possibly stderr.",
            );
        }
    }
}

/// Reads a part of a file. Fails if the file ends before the end of the part.
fn read_part(path: &Path, part: pmc_calls::Part) -> io::Result<Vec<u8>> {
    let mut file = pmc_files::open(path)?;
    file.seek(SeekFrom::Start(part.start))?;
    let bytes = pmc_files::read_at_most(file.take(part.length), MAX_LIST)?;
    if (bytes.len() as u64) < part.length {
        let message = format!(
            "the file ends before byte {}",
            part.start.saturating_add(part.length)
        );
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, message));
    }
    Ok(bytes)
}

/// Returns a priority for a source without one, so that alternatives share the load.
fn random_priority() -> u32 {
    use std::hash::{BuildHasher, Hasher};
    let random = std::collections::hash_map::RandomState::new()
        .build_hasher()
        .finish();
    u32::try_from(random % 100).unwrap_or(0) + 1
}
