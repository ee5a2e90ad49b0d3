//! `pegasus-transfer` inside another process: same work, log and exit code, but no new process.
//!
//! ```no_run
//! use pegasus_transfer::inproc::{Invocation, Outcome, Stdin, run};
//! # fn start_the_program() -> u8 { 0 }
//! let arguments = ["-n".into(), "2".into()];
//! let environment = [("TMPDIR".into(), "/tmp".into())];
//! let mut log = std::io::stderr();
//! let outcome = run(Invocation {
//!     arguments: &arguments,       // without the name of the program
//!     environment: &environment,   // that of the task, not of this process
//!     stdin: Stdin::Bytes(b"[]"),
//!     stderr: &mut log,            // nothing is ever written to stdout
//!     cancel: Default::default(),  // set it where the program would get SIGTERM
//! });
//! let code = match outcome {
//!     Outcome::Ended(code) => code,
//!     Outcome::NotHandled => start_the_program(),
//! };
//! ```
//!
//! [`run`] handles local work with valid options. For everything else it returns [`Outcome::NotHandled`]:
//! nothing was read from standard input, changed or written, and the caller must start the program.
//!
//! Relative paths start at the working directory of the calling process. Files get its umask and its
//! identity. The process keeps its signal handlers, environment and descriptors. The calling thread processes
//! short lists of small files; for others the options set the number of threads, which have ended when
//! [`run`] returns.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::time::Instant;

use clap::Parser;

use crate::cancel::Cancel;
use crate::program::{Call, Log, Options};
use crate::protocol::Registry;
use crate::spec::{Location, Work};

/// The inputs of the program.
pub struct Invocation<'a> {
    /// Arguments after the name of the program.
    pub arguments: &'a [OsString],
    /// Names and values; the first of equal names is used.
    pub environment: &'a [(OsString, OsString)],
    /// Standard input.
    pub stdin: Stdin<'a>,
    /// Receives the log. Each line is one call of `write_all`.
    pub stderr: &'a mut (dyn Write + Send),
    /// Cancels the work, as SIGTERM does for the program: no partial files remain, exit code 1.
    pub cancel: Cancel,
}

/// Standard input of an invocation.
#[derive(Debug)]
pub enum Stdin<'a> {
    /// Bytes in memory.
    Bytes(&'a [u8]),
    /// A file, read from its current position. Only regular files are handled, not pipes.
    File(&'a File),
}

/// The outcome of an invocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing was done. The caller must start the program.
    NotHandled,
    /// The work ended, with this exit code of the program.
    Ended(u8),
}

/// Maximum size of a specification, in bytes; the program handles larger ones.
const MAX_SPECIFICATION_BYTES: u64 = 64 << 20;

/// Runs an invocation of `pegasus-transfer` in this process, if it is purely local.
pub fn run(invocation: Invocation<'_>) -> Outcome {
    let start = Instant::now();
    // The program itself reports all problems before the work.
    try_run(invocation, start).map_or(Outcome::NotHandled, |success| Outcome::Ended(u8::from(!success)))
}

/// Returns whether all work succeeded; `None` if it is not handled.
fn try_run(invocation: Invocation<'_>, start: Instant) -> Option<bool> {
    let Invocation {
        arguments,
        environment,
        stdin,
        stderr,
        cancel,
    } = invocation;
    let environment = |name: &str| {
        let pair = environment.iter().find(|(key, _)| key == name);
        pair.map(|(_, value)| value.clone())
    };
    // Log lines have local times, which are those of this process.
    if environment("TZ") != std::env::var_os("TZ") || environment("PEGASUS_CREDENTIALS").is_some() {
        return None;
    }
    let name = OsString::from("pegasus-transfer");
    let options = Options::try_parse_from(std::iter::once(&name).chain(arguments)).ok()?;
    let call = Call {
        options: &options,
        environment: &environment,
        start,
    };
    let settings = call.settings(&cancel).ok()?;
    let (input, end) = match (&options.file, stdin) {
        (None, Stdin::File(file)) => {
            let (bytes, end) = peek(file).ok()??;
            (call.read(&mut bytes.as_slice()).ok()?, Some((file, end)))
        }
        (None, Stdin::Bytes(mut bytes)) => (call.read(&mut bytes).ok()?, None),
        (Some(path), _) => {
            // The program could not read a pipe again.
            let is_regular = std::fs::metadata(path).ok()?.is_file();
            (is_regular.then(|| call.read(&mut io::empty()).ok())??, None)
        }
    };
    let work = call.parse(&input).ok()?;
    if !work.iter().all(is_local) {
        return None;
    }
    if let Some((mut file, end)) = end {
        file.seek(SeekFrom::Start(end)).ok()?;
    }
    let log = Log::new(stderr, options.debug);
    call.announce(&log);
    Some(call.carry_out(&Registry::default(), &work, &settings, &log))
}

/// Reads the rest of a regular file without moving its position. Returns the bytes and their end position;
/// `None` for other files.
fn peek(mut file: &File) -> io::Result<Option<(Vec<u8>, u64)>> {
    let meta = file.metadata()?;
    let start = file.stream_position()?;
    let left = meta.len().saturating_sub(start);
    if !meta.is_file() || left > MAX_SPECIFICATION_BYTES {
        return Ok(None);
    }
    let mut bytes = vec![0; usize::try_from(left).unwrap_or(0)];
    file.read_exact_at(&mut bytes, start)?;
    Ok(Some((bytes, start + left)))
}

fn is_local(work: &Work) -> bool {
    let local = |place: &Location| place.url.is_local() && place.image.is_none();
    match work {
        Work::Transfer(transfer) => transfer.sources.iter().all(local) && local(&transfer.destination),
        Work::Mkdir(place) | Work::Remove { target: place, .. } => local(place),
    }
}
