//! Command line, environment and exit status.

use std::fs;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Parser;
use pegasus_transfer::cancel::Cancel;
use pegasus_transfer::engine::{self, Settings, Waits};
use pegasus_transfer::protocol::Registry;
use pegasus_transfer::{multipart, report::Report, shown, spec};

use crate::log::{Level, Log};

/// Copies, links, makes and removes files and directories as a specification in JSON says.
#[derive(Debug, Parser)]
#[command(name = "pegasus-transfer", version)]
struct Args {
    /// Read the specification from FILE instead of stdin
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Read only LENGTH bytes of FILE, from byte START on: large plans keep the specifications of all tasks in one file
    #[arg(long, value_name = "START:LENGTH", requires = "file")]
    part: Option<Part>,
    /// Try every transfer up to N times
    #[arg(short, long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    max_attempts: u32,
    /// Transfer N files at a time [default: PEGASUS_TRANSFER_THREADS, else 8]
    #[arg(
        short = 'n',
        long,
        value_name = "N",
        default_value_t = 0,
        hide_default_value = true
    )]
    threads: u16,
    /// Make symbolic links instead of copies where source and destination are local files
    #[arg(short, long)]
    symlink: bool,
    /// Wait SECONDS (after a network error: 30 times as long) before the second attempt, four times as long before the third, …
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0)]
    retry_wait: f64,
    /// Give up a connection that is silent for SECONDS
    #[arg(long, value_name = "SECONDS", default_value_t = 300.0)]
    timeout: f64,
    /// Log more
    #[arg(short, long)]
    debug: bool,
    /// Ignored
    #[arg(hide = true)]
    rest: Vec<std::ffi::OsString>,
}

/// A part of a file.
#[derive(Clone, Copy, Debug)]
struct Part {
    start: u64,
    length: u64,
}

impl std::str::FromStr for Part {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        text.split_once(':')
            .and_then(|(start, length)| {
                Some(Part {
                    start: start.parse().ok()?,
                    length: length.parse().ok()?,
                })
            })
            .ok_or_else(|| "two whole numbers with a colon between them are expected".to_owned())
    }
}

/// Reads a part of a file, which must be there as a whole.
fn read_part(path: &Path, part: Part) -> io::Result<Vec<u8>> {
    let mut file = fs::File::open(path)?;
    file.seek(SeekFrom::Start(part.start))?;
    let mut bytes = Vec::new();
    file.take(part.length).read_to_end(&mut bytes)?;
    if (bytes.len() as u64) < part.length {
        let message = format!(
            "the file ends before byte {}",
            part.start.saturating_add(part.length)
        );
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, message));
    }
    Ok(bytes)
}

pub fn main() -> ExitCode {
    let start = Instant::now();
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            let failed = error.use_stderr();
            // Nothing else to do if the message cannot be printed.
            let _ = error.print();
            return if failed {
                ExitCode::FAILURE
            } else {
                ExitCode::SUCCESS
            };
        }
    };
    let log = Log { debug: args.debug };
    match run(&args, &log, start) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            log.line(Level::Critical, &message);
            ExitCode::FAILURE
        }
    }
}

/// Does it all; whether everything succeeded, or why nothing was done.
fn run(args: &Args, log: &Log, start: Instant) -> Result<bool, String> {
    let settings = settings(args)?;
    check_credentials(log)?;
    let (name, input) = read_input(args, log)?;
    let mut priority = || i64::from(random_priority());
    let work = spec::parse(&input, &|name| std::env::var_os(name), &mut priority)
        .map_err(|error| format!("{name}: {error}"))?;
    log.info(&format!("{} transfers loaded", work.len()));
    stop_on_signals(&settings.cancel)?;
    let report = engine::run_with(&registry(args, &settings.cancel), &work, &settings, log);
    finish(&report, log, start, &settings.cancel);
    Ok(report.success())
}

/// The handlers of all protocols that this program was built with.
#[cfg(feature = "remote")]
fn registry(args: &Args, cancel: &Cancel) -> Registry {
    use pegasus_transfer::remote::{self, Surroundings, http::Patience};
    let program = std::env::current_exe().ok();
    let directory = program.and_then(|program| Some(program.parent()?.to_owned()));
    let mut surroundings = Surroundings::new(std::env::vars_os(), directory);
    surroundings.debug = args.debug;
    let silence = Duration::from_secs_f64(args.timeout);
    let patience = Patience {
        silence,
        connect: Patience::default().connect.min(silence),
    };
    remote::registry(surroundings, patience, cancel)
}

#[cfg(not(feature = "remote"))]
fn registry(_: &Args, _: &Cancel) -> Registry {
    Registry::default()
}

/// The first signal asks the run to stop and clean up; the second ends the program at once.
fn stop_on_signals(cancel: &Cancel) -> Result<(), String> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    use signal_hook::flag::{register, register_conditional_shutdown};
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        register_conditional_shutdown(signal, 1, cancel.flag())
            .and_then(|_| register(signal, cancel.flag()))
            .map_err(|error| format!("cannot listen to signals: {error}"))?;
    }
    Ok(())
}

fn settings(args: &Args) -> Result<Settings, String> {
    let threads = match (args.threads, std::env::var("PEGASUS_TRANSFER_THREADS")) {
        (0, Ok(text)) if !text.trim().is_empty() => text
            .trim()
            .parse::<u16>()
            .ok()
            .filter(|threads| *threads > 0)
            .ok_or_else(|| {
                format!("PEGASUS_TRANSFER_THREADS is '{text}', but must be a whole number above 0")
            })?,
        (0, _) => 8,
        (threads, _) => threads,
    };
    if !(0.0..=3600.0).contains(&args.retry_wait) {
        return Err("--retry-wait must be between 0 and 3600 seconds".to_owned());
    }
    if !(0.001..=86400.0).contains(&args.timeout) {
        return Err("--timeout must be between 0.001 and 86400 seconds".to_owned());
    }
    let soon = Duration::from_secs_f64(args.retry_wait);
    let error_rate = std::env::var("PEGASUS_TRANSFER_ERROR_RATE")
        .ok()
        .and_then(|text| text.trim().parse().ok());
    let data = std::env::var_os("KICKSTART_INTEGRITY_DATA").filter(|name| !name.is_empty());
    Ok(Settings {
        rounds: args.max_attempts,
        threads: threads.into(),
        symlink: args.symlink,
        base: None,
        waits: Waits {
            soon,
            later: soon * 30,
            ..Waits::default()
        },
        integrity_data: data.map(PathBuf::from),
        temporary: ["TMPDIR", "TEMP", "TMP"]
            .iter()
            .find_map(|name| std::env::var_os(name).filter(|value| !value.is_empty()))
            .map_or_else(|| PathBuf::from("/tmp"), PathBuf::from),
        error_rate: error_rate.unwrap_or(0),
        cancel: Cancel::new(),
    })
}

/// A priority for sources that have none, so that alternatives share the load.
fn random_priority() -> u32 {
    use std::hash::{BuildHasher, Hasher};
    let random = std::collections::hash_map::RandomState::new()
        .build_hasher()
        .finish();
    u32::try_from(random % 100).unwrap_or(0) + 1
}

/// A file with passwords that others can read is refused.
fn check_credentials(log: &Log) -> Result<(), String> {
    let Some(path) = std::env::var_os("PEGASUS_CREDENTIALS")
        .filter(|name| !name.is_empty())
        .map(PathBuf::from)
    else {
        return Ok(());
    };
    let name = shown::path(&path).to_string();
    log.line(Level::Debug, &format!("PEGASUS_CREDENTIALS is {name}"));
    let meta = fs::metadata(&path).map_err(|error| format!("credentials file {name}: {error}"))?;
    if meta.permissions().mode() & 0o077 != 0 {
        return Err(format!(
            "Permissions of credentials file {name} are too liberal; run: chmod 600 {name}"
        ));
    }
    Ok(())
}

/// The specification and its name for messages.
fn read_input(args: &Args, log: &Log) -> Result<(String, Vec<u8>), String> {
    match &args.file {
        Some(path) => {
            let name = shown::path(path).to_string();
            log.info(&format!("Reading transfer specification from {name}"));
            let input = match args.part {
                Some(part) => read_part(path, part),
                None => fs::read(path),
            };
            let input = input.map_err(|error| format!("{name}: {error}"))?;
            Ok((name, input))
        }
        None => {
            log.info("Reading URL pairs from stdin");
            let mut input = Vec::new();
            io::stdin()
                .lock()
                .read_to_end(&mut input)
                .map_err(|error| format!("stdin: {error}"))?;
            Ok(("stdin".to_owned(), input))
        }
    }
}

fn finish(report: &Report, log: &Log, start: Instant, cancel: &Cancel) {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs();
    if let Some(payload) = report.checks.monitoring_payload(now) {
        log.info(&payload);
    }
    if let Some(directory) = std::env::var_os("PEGASUS_MULTIPART_DIR").filter(|name| !name.is_empty())
        && !report.attempts.is_empty()
    {
        let directory = PathBuf::from(directory);
        if let Err(error) = multipart::write(&directory, now, &report.attempts) {
            let name = shown::path(&directory);
            log.line(
                Level::Warning,
                &format!("cannot write the record of attempts into {name}: {error}"),
            );
        }
    }
    log.rule();
    for failure in &report.failures {
        let attempts = match failure.attempts {
            1 => "1 attempt".to_owned(),
            number => format!("{number} attempts"),
        };
        log.line(
            Level::Error,
            &format!("Failed after {attempts}: {}: {}", failure.what, failure.error),
        );
    }
    for line in report.statistics(start.elapsed()) {
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
