//! `pegasus-integrity`: computes checksums of files, or compares files with known checksums.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::cancel::Cancel;
use crate::error::TransferError;
use crate::{integrity, multipart, shown};
use clap::{ArgGroup, CommandFactory, Parser};
use pmc_terminal::finish_early;

/// Computes SHA-256 checksums of files, or compares them with the *.meta files of the working directory.
///
/// A LIST is a sequence of PATH or NAME=PATH, separated by ";;;". NAME is the logical name.
#[derive(Debug, Parser)]
#[command(
    name = "pegasus-integrity",
    version,
    override_usage = "pegasus-integrity [--print-timings] ACTION LIST"
)]
#[command(group(ArgGroup::new("what").required(true).args(
    ["generate", "generate_yaml", "generate_fullstat_yaml", "generate_xmls", "generate_fullstat_xmls", "verify"]
)))]
struct Args {
    /// Print checksums in the format of sha256sum
    #[arg(long, value_name = "LIST")]
    generate: Option<OsString>,
    /// Print checksums as lines of an invocation record
    #[arg(long, value_name = "LIST")]
    generate_yaml: Option<OsString>,
    /// Append entries of an invocation record to the file in KICKSTART_INTEGRITY_DATA, or print them
    #[arg(long, value_name = "LIST")]
    generate_fullstat_yaml: Option<OsString>,
    /// Accepted, does nothing
    #[arg(long, value_name = "LIST", hide = true)]
    generate_xmls: Option<OsString>,
    /// Accepted, does nothing
    #[arg(long, value_name = "LIST", hide = true)]
    generate_fullstat_xmls: Option<OsString>,
    /// Compare files with the known checksums; "stdin" reads the list from standard input
    #[arg(long, value_name = "LIST")]
    verify: Option<OsString>,
    /// With --verify: write a record into the directory PEGASUS_MULTIPART_DIR
    #[arg(long)]
    print_timings: bool,
    /// Ignored
    #[arg(long)]
    debug: bool,
}

/// A file of a list.
struct Item {
    lfn: Option<Vec<u8>>,
    path: PathBuf,
}

impl Item {
    /// Returns the logical name, else the last part of the path.
    fn name(&self) -> &[u8] {
        match &self.lfn {
            Some(lfn) => lfn,
            None => self.path.file_name().unwrap_or_default().as_bytes(),
        }
    }

    /// Returns the logical name of a file that is compared: without one it is the path, since jobs start
    /// where names with directories lead to their files.
    fn name_to_compare(&self) -> &[u8] {
        match &self.lfn {
            Some(lfn) if !lfn.is_empty() => lfn,
            _ => self.path.as_os_str().as_bytes(),
        }
    }
}

/// An error that ends the program.
#[derive(Debug, thiserror::Error)]
enum ProgramError {
    #[error("stdin: {0}")]
    Stdin(io::Error),
    #[error("cannot write to standard output: {0}")]
    Stdout(io::Error),
    #[error("{}: {source}", shown::path(path))]
    File { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Hash(#[from] TransferError),
}

impl ProgramError {
    fn file(path: &Path) -> impl FnOnce(io::Error) -> Self {
        |source| Self::File {
            path: path.to_owned(),
            source,
        }
    }
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
        Err(error) => {
            return finish_early("pegasus-integrity", error.print(), error.use_stderr(), 1);
        }
    };
    let mut out = io::stdout().lock();
    let done = run(&args, &mut out).and_then(|good| {
        out.flush().map_err(ProgramError::Stdout)?;
        Ok(good)
    });
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let _ = writeln!(io::stderr(), "pegasus-integrity: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns whether all files have their expected checksums.
fn run(args: &Args, out: &mut dyn Write) -> Result<bool, ProgramError> {
    if let Some(list) = &args.verify {
        let items = if list == "stdin" {
            let bytes = pmc_files::read_at_most(io::stdin().lock(), pmc_files::MAX_LIST);
            let bytes = bytes.map_err(ProgramError::Stdin)?;
            parse_list(bytes.trim_ascii())
        } else {
            parse_list(list.as_bytes())
        };
        return verify(&items, args.print_timings, out);
    }
    let print = |out: &mut dyn Write, text: &[u8]| out.write_all(text).map_err(ProgramError::Stdout);
    if let Some(list) = &args.generate {
        for item in parse_list(list.as_bytes()) {
            let (sha256, _) = hash(&item.path)?;
            let line = [sha256.as_bytes(), b"  ", item.path.as_os_str().as_bytes(), b"\n"].concat();
            print(out, &line)?;
        }
    }
    if let Some(list) = &args.generate_yaml {
        for item in parse_list(list.as_bytes()) {
            let (sha256, duration) = hash(&item.path)?;
            let seconds = duration.as_secs_f64();
            print(
                out,
                format!("      sha256: {sha256}\n      checksum_timing: {seconds:.3}\n\n").as_bytes(),
            )?;
        }
    }
    if let Some(list) = &args.generate_fullstat_yaml {
        let file = env::var_os("KICKSTART_INTEGRITY_DATA").filter(|name| !name.is_empty());
        for item in parse_list(list.as_bytes()) {
            let clock = Instant::now();
            let sha256 = integrity::sha256(&item.path, &Cancel::new())?;
            let meta = fs::metadata(&item.path).map_err(ProgramError::file(&item.path))?;
            let block = integrity::record(item.name(), &item.path, &meta, &sha256, clock.elapsed());
            match &file {
                Some(file) => {
                    let file = Path::new(file);
                    integrity::append(file, &block).map_err(ProgramError::file(file))?;
                }
                None => print(out, format!("{block}\n").as_bytes())?,
            }
        }
    }
    Ok(true)
}

/// Parses a list of files.
fn parse_list(list: &[u8]) -> Vec<Item> {
    let mut rest = list;
    let mut items = Vec::new();
    while !rest.is_empty() {
        let end = rest
            .windows(3)
            .position(|part| part == b";;;")
            .unwrap_or(rest.len());
        let item = &rest[..end];
        rest = rest.get(end + 3..).unwrap_or_default();
        if item.is_empty() {
            continue;
        }
        let (lfn, path) = match item.iter().position(|byte| *byte == b'=') {
            Some(at) => (Some(item[..at].to_vec()), &item[at + 1..]),
            None => (None, item),
        };
        let path = OsString::from_vec(path.to_vec()).into();
        items.push(Item { lfn, path });
    }
    items
}

/// Returns the SHA-256 of a file in hexadecimal, and the time to compute it.
fn hash(path: &Path) -> Result<(String, Duration), TransferError> {
    let clock = Instant::now();
    let sha256 = integrity::sha256(path, &Cancel::new())?;
    Ok((integrity::hex(&sha256), clock.elapsed()))
}

/// Compares all files, even after a mismatch. Returns whether all are equal.
fn verify(items: &[Item], timings: bool, out: &mut dyn Write) -> Result<bool, ProgramError> {
    let clock = Instant::now();
    let known = integrity::known_checksums(Path::new("."));
    let mut comparisons = Vec::new();
    let mut good = true;
    for item in items {
        let result = integrity::verify(item.name_to_compare(), &item.path, &known, &Cancel::new());
        if let Err(error) = &result {
            good = false;
            writeln!(out, "Integrity check: {error}").map_err(ProgramError::Stdout)?;
        }
        let (sha256, expected) = match result {
            Ok(()) => (known.get(item.name_to_compare()).cloned(), None),
            Err(TransferError::ChecksumMismatch { expected, actual, .. }) => (Some(actual), Some(expected)),
            // Files that could not be compared count as neither.
            Err(_) => (None, None),
        };
        if let Some(sha256) = sha256 {
            comparisons.push(multipart::Comparison {
                lfn: item.name_to_compare().to_vec(),
                path: item.path.clone(),
                sha256,
                expected,
            });
        }
    }
    let directory = env::var_os("PEGASUS_MULTIPART_DIR").filter(|name| !name.is_empty());
    if let Some(directory) = directory.filter(|_| timings) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let text = multipart::comparisons(&comparisons, clock.elapsed());
        multipart::write_as(Path::new(&directory), now.as_secs(), "integrity", &text)
            .map_err(ProgramError::file(Path::new(&directory)))?;
    }
    Ok(good)
}
