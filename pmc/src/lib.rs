//! Plans and runs a Pegasus workflow on this machine, and shows its progress, failures and statistics.
//!
//! The program `pmc` calls [`main`]. [`command`] describes its command line, for manual pages and
//! completions.

mod cli;
mod clock;
mod commands;
mod condor;
mod executor;
mod exit;
mod failure;
mod killed_run;
mod kinds;
mod layout;
mod metrics;
mod programs;
mod progress;
mod reach;
mod recorded;
mod resume_command;
mod run_outcome;
mod session;
mod signals;
mod submit;
mod summary;
mod table;
mod text;
mod wfformat;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};
pub use commands::pegasus::scripts as pegasus_scripts;

/// Returns the command line of `pmc`.
#[must_use]
pub fn command() -> clap::Command {
    cli::Cli::command()
}

/// Runs `pmc-plan` with these words and arguments.
///
/// The first of the words is the name of the program in usage lines.
fn planner(words: &[&str], arguments: &cli::Planner) -> ExitCode {
    let words = words.iter().map(|word| (*word).to_owned());
    let arguments = arguments
        .arguments
        .iter()
        .map(|word| word.to_string_lossy().into_owned());
    pmc_plan::run(&words.chain(arguments).collect::<Vec<String>>())
}

/// Runs the command that the command line asks for.
#[must_use]
pub fn main() -> ExitCode {
    if std::env::args_os()
        .nth(1)
        .is_some_and(|word| word == pmc_wire::ranks::COMMAND)
    {
        return commands::pmix::ranks();
    }
    let cli = match cli::Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            return pmc_terminal::finish_early("pmc", error.print(), error.use_stderr(), exit::USAGE);
        }
    };
    if reach::is_reached() {
        pmc_terminal::is_passed_on();
    }
    let (result, json) = match cli.command {
        cli::Command::Init(arguments) => (commands::init::init(&arguments), false),
        cli::Command::Run(arguments) => (commands::run::run(&arguments), arguments.output.json),
        cli::Command::Plan(arguments) => return planner(&["pmc plan"], &arguments),
        cli::Command::Explain(arguments) => return planner(&["pmc", "explain"], &arguments),
        cli::Command::Resume(arguments) => (commands::resume::resume(&arguments), arguments.output.json),
        cli::Command::Status(arguments) => (commands::status::status(&arguments), false),
        cli::Command::Simulate(arguments) => (commands::simulate::simulate(&arguments), false),
        cli::Command::Analyzer(arguments) => (commands::analyzer::analyzer(&arguments), false),
        cli::Command::Statistics(arguments) => (commands::statistics::statistics(&arguments), false),
        cli::Command::Report(arguments) => (commands::report::report(&arguments), false),
        cli::Command::Log(arguments) => (commands::log::log(&arguments), false),
        cli::Command::Attach(arguments) => (commands::attach::attach(&arguments), false),
        cli::Command::Pmix(arguments) => (commands::pmix::pmix(&arguments), false),
        cli::Command::Mcp(arguments) => (commands::mcp::mcp(&arguments), false),
        cli::Command::Unpack(arguments) => (commands::unpack::unpack(&arguments), false),
        cli::Command::Nodes(arguments) => (commands::control::nodes(&arguments), false),
        cli::Command::Why(arguments) => (commands::control::why(&arguments), false),
        cli::Command::Stack(arguments) => (commands::stack::stack(&arguments), false),
        cli::Command::Launch(arguments) => (commands::launch::launch(&arguments), false),
        cli::Command::Kill(arguments) => (commands::control::kill(&arguments), false),
        cli::Command::Drain(arguments) => (commands::control::drain(&arguments), false),
        cli::Command::Submit(arguments) => (commands::control::submit(&arguments), false),
        cli::Command::Serve(arguments) => (commands::serve::serve(&arguments), false),
        cli::Command::Add(arguments) => (commands::add::add(&arguments), false),
        cli::Command::Wait(arguments) => (commands::wait::wait(&arguments), false),
        cli::Command::Cancel(arguments) => (commands::cancel::cancel(&arguments), false),
        cli::Command::Message(arguments) => (commands::message::message(&arguments), false),
        cli::Command::Checkpoint(arguments) => (commands::checkpoint::checkpoint(&arguments), false),
        cli::Command::Supervise(arguments) => (commands::supervise::supervise(&arguments), false),
        cli::Command::Pegasus(arguments) => (commands::pegasus::pegasus(&arguments), false),
    };
    match result {
        Ok(code) => pmc_terminal::finish("pmc", code),
        Err(failure) => {
            pmc_terminal::message(failure.render());
            if json {
                let text = summary::render_json_error(failure.code, &failure.error.to_string());
                pmc_terminal::print(&text);
            }
            pmc_terminal::finish("pmc", failure.code)
        }
    }
}
