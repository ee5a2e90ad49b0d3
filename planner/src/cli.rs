//! The command line of `pmc-plan`: options, requests, and the text of results.

mod options;
mod print;
mod resolve;
pub mod saved;

use std::path::{Path, PathBuf};

use clap::builder::styling::Styles;
use clap::{CommandFactory as _, Parser};

use crate::error::UsageError;
use crate::request::{Environment, Request};
use crate::saved_request::{PROPERTIES, submit_dir};

use options::Options;
pub use print::{preview_text, result_json, result_text, submitted_text};
pub use resolve::{log_file, parse_subworkflow_options, shown_arguments};

/// What the command line asks for.
#[derive(Clone, Debug)]
pub enum Invocation {
    /// A plan.
    Plan(Box<Request>, OutputOptions),
    /// A plan in memory, with explanations of these jobs.
    Preview(Box<Request>, OutputOptions, Vec<String>),
    /// Explanations of jobs of the plan in a submit directory.
    Explain(PathBuf, Vec<String>),
    /// A text, printed with exit code 0.
    Text(String),
}

/// How results are printed, and whether the plan is submitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutputOptions {
    /// Print the result as JSON.
    pub json: bool,
    /// Print errors and warnings as JSON, one object per line.
    pub json_diagnostics: bool,
    /// Hand the batch script to the scheduler.
    pub submit: bool,
    /// -1: errors only; 0: result and warnings; more: decisions too.
    pub level: i16,
}

/// Returns all options and commands, for man pages and completions.
pub fn command() -> clap::Command {
    Options::command().subcommand(explain_command("pmc-plan").name("explain"))
}

/// Parses a command line; `arguments` start with the name of the program.
///
/// # Errors
/// A command line that is not understood.
pub fn parse(arguments: &[String], environment: Environment) -> Result<Invocation, UsageError> {
    if let [program, command, ..] = arguments
        && command == "explain"
    {
        return explain(explain_command(program), &arguments[1..], &environment);
    }
    let options = match parse_options::<Options>(Options::command(), arguments)? {
        Ok(options) => options,
        Err(help) => return Ok(Invocation::Text(help)),
    };
    if options.version {
        return Ok(Invocation::Text(format!(
            "pmc-plan {} (plans like Pegasus Release Version {})\n",
            env!("CARGO_PKG_VERSION"),
            crate::output::common::records::COMPATIBLE_VERSION
        )));
    }
    let output = OutputOptions {
        json: options.json,
        json_diagnostics: options.diagnostics == options::DiagnosticFormat::Json,
        submit: options.submit,
        level: i16::from(options.verbose) - i16::from(options.quiet),
    };
    let jobs = options.explain.clone();
    let is_preview = options.dry_run || !jobs.is_empty();
    if is_preview && options.submit {
        return Err(UsageError(
            "--submit needs a plan that is written: leave out --dry-run and --explain".into(),
        ));
    }
    let request = Box::new(resolve::request(options, arguments, environment)?);
    Ok(if is_preview {
        Invocation::Preview(request, output, jobs)
    } else {
        Invocation::Plan(request, output)
    })
}

/// The command `explain`.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "pmc-plan explain",
    styles = Styles::plain(),
    about = "Explains jobs of a plan, or prints its figures",
    after_help = "The plan is made again in memory, with the command line that made it. Before there is a plan: \
                  pmc-plan --explain JOB …"
)]
struct ExplainOptions {
    /// Names of jobs in the plan or ids in the workflow, then the submit directory or the directory of a run,
    /// if it is not the working directory. Without jobs: the figures of the plan
    #[arg(value_name = "JOB")]
    words: Vec<String>,
}

/// Returns the command `explain` of a program, which its usage line names.
fn explain_command(program: &str) -> clap::Command {
    let program = Path::new(program).file_name().unwrap_or_default().display();
    ExplainOptions::command().override_usage(format!("{program} explain [JOB]... [DIR]"))
}

fn explain(
    command: clap::Command,
    arguments: &[String],
    environment: &Environment,
) -> Result<Invocation, UsageError> {
    let options = match parse_options::<ExplainOptions>(command, arguments)? {
        Ok(options) => options,
        Err(help) => return Ok(Invocation::Text(help)),
    };
    let mut jobs = options.words;
    let directory = |word: &String| environment.working_dir.join(word);
    match jobs.last().map(directory) {
        Some(dir) if names_directory(&jobs, &dir, &environment.working_dir) => {
            jobs.pop();
            Ok(Invocation::Explain(dir.components().collect(), jobs))
        }
        _ => Ok(Invocation::Explain(environment.working_dir.clone(), jobs)),
    }
}

/// Returns whether the last word is a directory, right or wrong, and not a job. No job has a slash in its
/// name.
fn names_directory(words: &[String], dir: &Path, working_dir: &Path) -> bool {
    let is_path = words.last().is_some_and(|word| word.contains('/'));
    is_path || dir.is_dir() && (words.len() > 1 || is_plan(dir) || !is_plan(working_dir))
}

/// Returns whether a directory has a plan. A job may have the name of another directory.
fn is_plan(dir: &Path) -> bool {
    submit_dir(dir).join(PROPERTIES).is_file()
}

/// Parses options. The inner error is the help text, if the user asks for it.
fn parse_options<T: Parser>(
    command: clap::Command,
    arguments: &[String],
) -> Result<Result<T, String>, UsageError> {
    let parsed = command.try_get_matches_from(arguments);
    match parsed.and_then(|matches| T::from_arg_matches(&matches)) {
        Ok(options) => Ok(Ok(options)),
        Err(e) if e.kind() == clap::error::ErrorKind::DisplayHelp => Ok(Err(e.to_string())),
        Err(e) => Err(UsageError(e.to_string().trim_end().to_owned())),
    }
}

#[cfg(test)]
mod tests;
