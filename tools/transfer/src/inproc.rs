//! The program inside another process: the same work, log and exit code as `pegasus-transfer`, without starting it.
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
//! [`Outcome::NotHandled`] is the answer to everything but lists of local work with usable options: nothing has
//! been touched or written then, standard input included, and the program itself must be started.
//!
//! Relative paths start at the working directory of the calling process; files are made with its umask and its
//! identity. Nothing of the process is changed: no signal handlers, no environment, no descriptors left. Short lists
//! of small files are done by the calling thread, others by as many threads as the options say, which have ended when
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

/// What the program would be started with.
pub struct Invocation<'a> {
    /// Arguments after the name of the program.
    pub arguments: &'a [OsString],
    /// Names and values; of equal names the first counts.
    pub environment: &'a [(OsString, OsString)],
    /// Standard input.
    pub stdin: Stdin<'a>,
    /// Where the log goes. Each line is one call of `write_all`.
    pub stderr: &'a mut (dyn Write + Send),
    /// Ends the work early, as SIGTERM does with the program: nothing partial stays, exit code 1.
    pub cancel: Cancel,
}

/// Standard input of an invocation.
#[derive(Debug)]
pub enum Stdin<'a> {
    /// It holds these bytes.
    Bytes(&'a [u8]),
    /// A file, to be read from where it stands. Only regular files are read; pipes are not handled.
    File(&'a File),
}

/// What came of an invocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing was done: start the program.
    NotHandled,
    /// Everything was done or has failed, as the log says; the exit code of the program.
    Ended(u8),
}

/// Larger specifications are left to the program, bytes.
const LONGEST: u64 = 64 << 20;

/// Runs an invocation of `pegasus-transfer` in this process, if it is purely local.
pub fn run(invocation: Invocation<'_>) -> Outcome {
    let start = Instant::now();
    // Anything unusual on the way is for the program to explain.
    work(invocation, start).map_or(Outcome::NotHandled, |success| Outcome::Ended(u8::from(!success)))
}

/// Whether all work succeeded; `None` if it is not handled.
fn work(invocation: Invocation<'_>, start: Instant) -> Option<bool> {
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
    // Log lines have local times, and the clock knows the time zone of this process only.
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
            // A pipe could be read only once.
            let regular = std::fs::metadata(path).ok()?.is_file();
            (call.read(&mut io::empty()).ok().filter(|_| regular)?, None)
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

/// The rest of a regular file and where it ends; the file stays where it is. `None` for anything else.
fn peek(mut file: &File) -> io::Result<Option<(Vec<u8>, u64)>> {
    let meta = file.metadata()?;
    let start = file.stream_position()?;
    let left = meta.len().saturating_sub(start);
    if !meta.is_file() || left > LONGEST {
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
