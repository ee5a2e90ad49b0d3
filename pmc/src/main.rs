//! Plans and runs a Pegasus workflow on this machine.

mod cli;
mod commands;
mod executor;
mod exit;
mod failure;
mod kinds;
mod layout;
mod programs;
mod progress;
mod record;
mod report;
mod signals;
mod submit;
mod summary;
mod text;

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    let result = match cli::Cli::parse().command {
        cli::Command::Run(arguments) => commands::run::run(&arguments),
        cli::Command::Resume(arguments) => commands::resume::resume(&arguments),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            eprintln!("{}", failure.render());
            ExitCode::from(failure.code)
        }
    }
}
