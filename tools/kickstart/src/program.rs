//! `pegasus-kickstart`: runs one program and prints its invocation record.

use std::borrow::Cow;
use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Instant, SystemTime};

use crate::cache::InvocationCache;
use crate::context::{Context, Inherited, current_directory};
use crate::interrupts::ProcessSignals;
use crate::machine::Host;
use crate::{cli, exit};

/// Runs the program: arguments, environment and exit status are those of the process.
#[must_use]
pub fn main() -> ExitCode {
    let start = (SystemTime::now(), Instant::now());
    let mut words = std::env::args_os();
    let name = words.next().unwrap_or_default();
    let executable = std::env::current_exe().unwrap_or_else(|_| name.into());
    match ProcessSignals::install() {
        Ok(signals) => run(start, words, executable, signals).into(),
        Err(error) => {
            cli::notice(io::stderr().as_fd(), &format!("ERROR: cannot begin: {error}"));
            exit::INITIALISATION.into()
        }
    }
}

fn run(
    start: (SystemTime, Instant),
    words: impl IntoIterator<Item = OsString>,
    executable: PathBuf,
    mut signals: ProcessSignals,
) -> u8 {
    let inherited = Inherited::of_process(executable);
    let cache = InvocationCache::default();
    let context = Context {
        start,
        ..Context::of_process(inherited, current_directory(), &cache)
    };
    let host = |machine| Cow::Owned(Host::gather(machine));
    cli::run(words, context, host, &mut signals).code
}
