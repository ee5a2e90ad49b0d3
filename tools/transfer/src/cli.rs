//! The process of `pegasus-transfer`: arguments, environment, signals and exit status.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use crate::cancel::Cancel;
use crate::program::{Call, Level, Log, Options, ProgramError};
use crate::protocol::Registry;
use clap::{CommandFactory, Parser};
use pmc_terminal::finish_early;

/// Returns the description of the command line.
#[must_use]
pub fn command() -> clap::Command {
    Options::command()
}

/// Runs the program with the arguments and the environment of the process. Returns its exit status.
#[must_use]
pub fn main() -> ExitCode {
    let start = Instant::now();
    let options = match Options::try_parse() {
        Ok(options) => options,
        Err(error) => {
            return finish_early("pegasus-transfer", error.print(), error.use_stderr(), 1);
        }
    };
    let mut stderr = io::stderr();
    let log = Log::new(&mut stderr, options.debug);
    let call = Call {
        options: &options,
        environment: &|name| std::env::var_os(name),
        start,
    };
    match run(&call, &log) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            log.line(Level::Critical, &error.to_string());
            ExitCode::FAILURE
        }
    }
}

/// Runs the program and returns whether everything succeeded. Errors are those before any work.
fn run(call: &Call<'_>, log: &Log<'_>) -> Result<bool, ProgramError> {
    let cancel = Cancel::new();
    let settings = call.settings(&cancel)?;
    call.check_credentials(log)?;
    call.announce(log);
    let input = call.read(&mut io::stdin())?;
    let work = call.parse(&input)?;
    stop_on_signals(&cancel)?;
    let program = std::env::current_exe().ok();
    let programs = program.and_then(|program| Some(program.parent()?.to_owned()));
    let registry = registry(std::env::vars_os(), programs, call.options, &cancel);
    Ok(call.carry_out(&registry, &work, &settings, log))
}

/// Creates the handlers of all protocols of this build, for an environment. Other programs of this
/// installation are looked for in the directory `programs` first.
#[cfg(feature = "remote")]
#[must_use]
pub fn registry(
    variables: impl IntoIterator<Item = (OsString, OsString)>,
    programs: Option<PathBuf>,
    options: &Options,
    cancel: &Cancel,
) -> Registry {
    use crate::remote::{self, Environment, http::Timeouts};
    use std::time::Duration;
    let mut environment = Environment::new(variables, programs);
    environment.debug = options.debug;
    let idle = Duration::from_secs_f64(options.timeout);
    let timeouts = Timeouts {
        idle,
        connect: Timeouts::default().connect.min(idle),
        lowest_rate: options.min_rate,
    };
    remote::registry(environment, timeouts, cancel)
}

/// Creates the handlers of local files.
#[cfg(not(feature = "remote"))]
#[must_use]
pub fn registry(
    _: impl IntoIterator<Item = (OsString, OsString)>,
    _: Option<PathBuf>,
    _: &Options,
    _: &Cancel,
) -> Registry {
    Registry::default()
}

/// Installs signal handlers: the first signal cancels the run, the second ends the program at once.
fn stop_on_signals(cancel: &Cancel) -> Result<(), ProgramError> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    use signal_hook::flag::{register, register_conditional_shutdown};
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        register_conditional_shutdown(signal, 1, cancel.flag())
            .and_then(|_| register(signal, cancel.flag()))
            .map_err(ProgramError::Signals)?;
    }
    Ok(())
}
