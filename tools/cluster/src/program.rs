//! `pegasus-cluster`: runs a list of commands as one job.

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::sync::Arc;

use crate::children::Children;
use crate::options::{Args, Options};
use crate::{exit, run};
use clap::Parser as _;
use pmc_terminal::finish_early;

/// Runs the program: arguments, environment and exit status are those of the process.
#[must_use]
pub fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            return finish_early("pegasus-cluster", error.print(), error.use_stderr(), exit::USAGE);
        }
    };
    let options = Options::new(args, |name| std::env::var_os(name));
    let program = std::env::args_os()
        .next()
        .unwrap_or_else(|| "pegasus-cluster".into());
    for warning in &options.warnings {
        warn(warning);
    }
    let children = Arc::new(Children::default());
    if let Err(error) = children.stop_at_signals() {
        warn(&format!("cannot handle signals: {error}"));
        return exit::SYSTEM.into();
    }
    match run(&options, &program, &children, &warn) {
        Ok(code) => code.into(),
        Err(error) => {
            warn(&error.to_string());
            error.exit_code().into()
        }
    }
}

/// Prints a message for the user.
fn warn(text: &str) {
    // There is no other place to report this.
    let _ = writeln!(io::stderr(), "pegasus-cluster: {text}");
}
