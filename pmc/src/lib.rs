//! Plans and runs a Pegasus workflow on this machine, and shows its progress, failures and statistics.
//!
//! The program `pmc` calls [`main`]. [`command`] describes its command line, for manual pages and
//! completions.

mod again;
mod cli;
mod commands;
mod executor;
mod exit;
mod failure;
mod kinds;
mod layout;
mod output;
mod programs;
mod progress;
mod report;
mod signals;
mod submit;
mod summary;
mod table;
mod text;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};

/// Returns the command line of `pmc`.
#[must_use]
pub fn command() -> clap::Command {
    cli::Cli::command()
}

/// Runs the command that the command line asks for.
#[must_use]
pub fn main() -> ExitCode {
    let (result, json) = match cli::Cli::parse().command {
        cli::Command::Run(arguments) => (commands::run::run(&arguments), arguments.output.json),
        cli::Command::Resume(arguments) => (commands::resume::resume(&arguments), arguments.output.json),
        cli::Command::Status(arguments) => (commands::status::status(&arguments), false),
        cli::Command::Analyzer(arguments) => (commands::analyzer::analyzer(&arguments), false),
        cli::Command::Statistics(arguments) => (commands::statistics::statistics(&arguments), false),
        cli::Command::Report(arguments) => (commands::report::report(&arguments), false),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            eprintln!("{}", failure.render());
            if json {
                print!(
                    "{}",
                    summary::render_json_error(failure.code, &failure.error.to_string())
                );
            }
            ExitCode::from(failure.code)
        }
    }
}
