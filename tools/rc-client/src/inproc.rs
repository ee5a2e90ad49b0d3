//! The program inside another process: the same changes of the catalog, messages and exit code as `pegasus-rc-client`,
//! without starting it.
//!
//! Only what register jobs ask for is done so: entries of a file that are inserted or deleted. [`Outcome::NotHandled`] is
//! the answer to everything else: nothing has been touched or written then, and the program itself must be started.
//!
//! Relative paths start at the working directory of the calling thread; files are made with the umask and the identity of
//! the process. Nothing of the process is changed. A process that ends in the middle leaves what the program would leave:
//! a catalog with all entries or with none of them. There must be one invocation at a time.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};

use clap::Parser;

pub use crate::catalog::OpenDatabase;
use crate::program::{self, Args, Streams};

/// What the program would be started with.
pub struct Invocation<'a> {
    /// Arguments after the name of the program.
    pub arguments: &'a [OsString],
    /// The value of an environment variable.
    pub environment: &'a dyn Fn(&str) -> Option<OsString>,
    /// Where messages go. Each is one call of `write_all`.
    pub stderr: &'a mut dyn Write,
}

/// What came of an invocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing was done: start the program.
    NotHandled,
    /// Everything was done or has failed, as the messages say; the exit code of the program.
    Ended(u8),
}

/// Variables that tell SQLite where to put temporary files; it sees those of this process only.
const NOTICED: [&str; 2] = ["SQLITE_TMPDIR", "TMPDIR"];

/// Runs an invocation of `pegasus-rc-client` in this process, if it changes a catalog by the lines of a file.
///
/// The catalog's database stays open in `database`.
pub fn run(invocation: Invocation<'_>, database: &mut OpenDatabase) -> Outcome {
    let Invocation {
        arguments,
        environment,
        stderr,
    } = invocation;
    if NOTICED
        .iter()
        .any(|name| environment(name) != std::env::var_os(name))
    {
        return Outcome::NotHandled;
    }
    let words =
        std::iter::once(OsStr::new("pegasus-rc-client")).chain(arguments.iter().map(OsString::as_os_str));
    // Anything unusual is for the program to explain.
    let Ok(args) = Args::try_parse_from(words) else {
        return Outcome::NotHandled;
    };
    // Pipes could be read only once, and keep the process waiting.
    let unusual = |path: &std::path::Path| std::fs::metadata(path).is_ok_and(|meta| !meta.is_file());
    if args.files_of_change().is_none_or(|mut files| files.any(unusual)) {
        return Outcome::NotHandled;
    }
    let done = program::run(
        &args,
        database,
        &mut Streams {
            // Changes print nothing there.
            stdout: &mut io::sink(),
            stderr,
        },
    );
    Outcome::Ended(u8::from(!done))
}
