//! `pegasus-rc-client` inside another process: same changes, messages and exit code, but no new process.
//!
//! [`run`] handles the calls of register jobs: it inserts or deletes the entries of a file. For everything
//! else it returns [`Outcome::NotHandled`]: nothing was changed or written, and the caller must start the
//! program.
//!
//! Relative paths start at the working directory of the calling thread. Files get the umask and the identity
//! of the process. The process itself stays unchanged. If it is killed, the catalog has all entries or none
//! of them. Only one invocation may run at a time.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};

use clap::Parser;

pub use crate::catalog::OpenDatabase;
use crate::program::{self, Args, Streams};

/// The inputs of the program.
pub struct Invocation<'a> {
    /// Arguments after the name of the program.
    pub arguments: &'a [OsString],
    /// Returns the value of an environment variable.
    pub environment: &'a dyn Fn(&str) -> Option<OsString>,
    /// Receives the messages. Each is one call of `write_all`.
    pub stderr: &'a mut dyn Write,
}

/// The outcome of an invocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing was done. The caller must start the program.
    NotHandled,
    /// The work ended, with this exit code of the program.
    Ended(u8),
}

/// Variables from which SQLite takes the directory of temporary files. It reads only those of this process.
const SQLITE_VARIABLES: [&str; 2] = ["SQLITE_TMPDIR", "TMPDIR"];

/// Runs an invocation of `pegasus-rc-client` in this process, if it inserts or deletes the lines of a file.
///
/// The catalog's database stays open in `database`.
pub fn run(invocation: Invocation<'_>, database: &mut OpenDatabase) -> Outcome {
    let Invocation {
        arguments,
        environment,
        stderr,
    } = invocation;
    if SQLITE_VARIABLES
        .iter()
        .any(|name| environment(name) != std::env::var_os(name))
    {
        return Outcome::NotHandled;
    }
    let words =
        std::iter::once(OsStr::new("pegasus-rc-client")).chain(arguments.iter().map(OsString::as_os_str));
    // The program itself reports invalid arguments.
    let Ok(args) = Args::try_parse_from(words) else {
        return Outcome::NotHandled;
    };
    // A pipe can be read only once, and may block.
    let is_special = |path: &std::path::Path| std::fs::metadata(path).is_ok_and(|meta| !meta.is_file());
    if args
        .files_of_change()
        .is_none_or(|mut files| files.any(is_special))
    {
        return Outcome::NotHandled;
    }
    let success = program::run(
        &args,
        database,
        &mut Streams {
            // Changes print nothing to standard output.
            stdout: &mut io::sink(),
            stderr,
        },
    );
    Outcome::Ended(u8::from(!success))
}
