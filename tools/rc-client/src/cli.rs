//! Process of `pegasus-rc-client`: command line and exit code.

use std::io;
use std::process::ExitCode;

use crate::catalog::OpenDatabase;
use crate::program::{self, Args, Streams};
use clap::{CommandFactory, Parser};
use pmc_terminal::finish_early;

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
            return finish_early("pegasus-rc-client", error.print(), error.use_stderr(), 2);
        }
    };
    let success = program::run(
        &args,
        &mut OpenDatabase::default(),
        &mut Streams {
            stdout: &mut io::stdout().lock(),
            stderr: &mut io::stderr().lock(),
        },
    );
    if success {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
