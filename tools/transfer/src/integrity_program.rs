//! `pegasus-integrity`: computes checksums of files, or compares files with known ones.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::cancel::Cancel;
use crate::error::TransferError;
use crate::{integrity, multipart, shown};
use clap::{ArgGroup, CommandFactory, Parser};

/// Computes SHA-256 checksums of files, or compares files with those in the *.meta files of the working directory.
///
/// A LIST has ";;;" between its files; each is PATH or NAME=PATH, with the logical name before the "=".
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
    /// Print checksums as sha256sum does
    #[arg(long, value_name = "LIST")]
    generate: Option<OsString>,
    /// Print checksums as lines of an invocation record
    #[arg(long, value_name = "LIST")]
    generate_yaml: Option<OsString>,
    /// Append whole entries of an invocation record to the file of KICKSTART_INTEGRITY_DATA, or print them
    #[arg(long, value_name = "LIST")]
    generate_fullstat_yaml: Option<OsString>,
    /// Accepted, does nothing
    #[arg(long, value_name = "LIST", hide = true)]
    generate_xmls: Option<OsString>,
    /// Accepted, does nothing
    #[arg(long, value_name = "LIST", hide = true)]
    generate_fullstat_xmls: Option<OsString>,
    /// Compare files with the known checksums; "stdin": the list comes from standard input
    #[arg(long, value_name = "LIST")]
    verify: Option<OsString>,
    /// With --verify: leave a record in the directory of PEGASUS_MULTIPART_DIR
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
    /// The logical name; without one the last part of the path.
    fn name(&self) -> &[u8] {
        match &self.lfn {
            Some(lfn) => lfn,
            None => self.path.file_name().unwrap_or_default().as_bytes(),
        }
    }
}

/// Returns the description of the command line.
#[must_use]
pub fn command() -> clap::Command {
    Args::command()
}

/// Runs the program: arguments, environment and exit status are those of the process.
#[must_use]
pub fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            // Nothing else to do if the message cannot be printed.
            let _ = error.print();
            return if error.use_stderr() {
                ExitCode::FAILURE
            } else {
                ExitCode::SUCCESS
            };
        }
    };
    let mut out = io::stdout().lock();
    let done = run(&args, &mut out).and_then(|good| {
        out.flush()
            .map_err(|error| format!("cannot write to standard output: {error}"))?;
        Ok(good)
    });
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            let _ = writeln!(io::stderr(), "pegasus-integrity: {message}");
            ExitCode::FAILURE
        }
    }
}

/// Whether all files are as they should be, or why nothing more was done.
fn run(args: &Args, out: &mut dyn Write) -> Result<bool, String> {
    if let Some(list) = &args.verify {
        let items = if list == "stdin" {
            let mut bytes = Vec::new();
            let read = io::stdin().lock().read_to_end(&mut bytes);
            read.map_err(|error| format!("stdin: {error}"))?;
            items(bytes.trim_ascii())
        } else {
            items(list.as_bytes())
        };
        return verify(&items, args.print_timings, out);
    }
    let print = |out: &mut dyn Write, text: &[u8]| {
        out.write_all(text)
            .map_err(|error| format!("cannot write to standard output: {error}"))
    };
    if let Some(list) = &args.generate {
        for item in items(list.as_bytes()) {
            let (sha256, _) = hash(&item.path)?;
            let line = [sha256.as_bytes(), b"  ", item.path.as_os_str().as_bytes(), b"\n"].concat();
            print(out, &line)?;
        }
    }
    if let Some(list) = &args.generate_yaml {
        for item in items(list.as_bytes()) {
            let (sha256, took) = hash(&item.path)?;
            let took = took.as_secs_f64();
            print(
                out,
                format!("      sha256: {sha256}\n      checksum_timing: {took:.3}\n\n").as_bytes(),
            )?;
        }
    }
    if let Some(list) = &args.generate_fullstat_yaml {
        let file = env::var_os("KICKSTART_INTEGRITY_DATA").filter(|name| !name.is_empty());
        for item in items(list.as_bytes()) {
            let clock = Instant::now();
            let sha256 = digest(&item.path)?;
            let meta = fs::metadata(&item.path).map_err(|error| named(&item.path, &error))?;
            let block = integrity::record(item.name(), &item.path, &meta, &sha256, clock.elapsed());
            match &file {
                Some(file) => {
                    let file = Path::new(file);
                    integrity::append(file, &block).map_err(|error| named(file, &error))?;
                }
                None => print(out, format!("{block}\n").as_bytes())?,
            }
        }
    }
    Ok(true)
}

fn named(path: &Path, error: &io::Error) -> String {
    format!("{}: {error}", shown::path(path))
}

/// The files of a list.
fn items(list: &[u8]) -> Vec<Item> {
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

fn digest(path: &Path) -> Result<[u8; 32], String> {
    match integrity::sha256(path, &Cancel::new()) {
        Ok(sha256) => Ok(sha256),
        Err(error) => Err(error.to_string()),
    }
}

fn hash(path: &Path) -> Result<(String, Duration), String> {
    let clock = Instant::now();
    let sha256 = digest(path)?;
    Ok((integrity::hex(&sha256), clock.elapsed()))
}

/// Compares all files, also after one that differs; whether all are right.
fn verify(items: &[Item], timings: bool, out: &mut dyn Write) -> Result<bool, String> {
    let clock = Instant::now();
    let known = integrity::known_checksums(Path::new("."));
    let mut comparisons = Vec::new();
    let mut good = true;
    for item in items {
        let result = integrity::verify(item.name(), &item.path, &known, &Cancel::new());
        if let Err(error) = &result {
            good = false;
            writeln!(out, "Integrity check: {error}")
                .map_err(|error| format!("cannot write to standard output: {error}"))?;
        }
        let (sha256, expected) = match result {
            Ok(()) => (known.get(item.name()).cloned(), None),
            Err(TransferError::ChecksumMismatch { expected, actual, .. }) => (Some(actual), Some(expected)),
            // What could not be compared counts as neither.
            Err(_) => (None, None),
        };
        if let Some(sha256) = sha256 {
            comparisons.push(multipart::Comparison {
                lfn: item.name().to_vec(),
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
            .map_err(|error| named(Path::new(OsStr::new(&directory)), &error))?;
    }
    Ok(good)
}
