//! The program.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser};
use pmc_terminal::finish_early;

use crate::output::{self, base};
use crate::report::{self, Entry};
use crate::request;
use crate::verdict::{self, Rules};

/// Name of the program.
const NAME: &str = "pegasus-exitcode";
/// Exit code if the job has failed, or cannot be judged.
const FAILURE: u8 = 1;

/// Judges the end of a job by its output: exit code 0 if it has succeeded, else 1
#[derive(Debug, Parser)]
#[command(name = NAME, version)]
struct Options {
    /// Exit code of the job that DAGMan reports
    #[arg(short = 'r', long = "return", value_name = "CODE", allow_hyphen_values = true)]
    status: Option<i64>,
    /// Number of the retry that DAGMan reports
    #[arg(short = 'R', long = "retry", value_name = "NUMBER", default_value_t = 0)]
    retry: u32,
    /// After a failure, apply the expressions in the submit description of the job
    #[arg(short = 'U', long = "update-submit-file")]
    update: bool,
    /// Keep the names of the output files
    #[arg(short = 'n', long = "no-rename")]
    no_rename: bool,
    /// Write no file with metadata
    #[arg(short = 'N', long = "no-metadata")]
    no_metadata: bool,
    /// The output has no invocation records
    #[arg(short = 'I', long = "no-invocations")]
    no_invocations: bool,
    /// A text that only the output of a job that failed has; `+` stands for a blank
    #[arg(short = 'f', long = "failure-message", value_name = "TEXT")]
    failures: Vec<String>,
    /// A text that the output of each job that succeeded has; `+` stands for a blank
    #[arg(short = 's', long = "success-message", value_name = "TEXT")]
    successes: Vec<String>,
    /// Log that gets a line about the job, instead of standard output
    #[arg(short = 'l', long = "log", value_name = "FILE")]
    log: Option<PathBuf>,
    /// Log that gets the metadata of the files of all jobs
    #[arg(short = 'M', long = "metadata-log", value_name = "FILE")]
    metadata_log: Option<PathBuf>,
    /// Standard output of the job
    #[arg(value_name = "JOB.out")]
    file: PathBuf,
}

/// Returns the description of the command line.
#[must_use]
pub fn command() -> clap::Command {
    Options::command()
}

/// Runs the program. Returns its exit status.
#[must_use]
pub fn main() -> ExitCode {
    let options = match Options::try_parse() {
        Ok(options) => options,
        Err(error) => return finish_early(NAME, error.print(), error.use_stderr(), FAILURE),
    };
    let mut notes = String::new();
    let (exit_code, attempt) = run(&options, &mut notes);
    let name = options.file.display().to_string();
    let entry = Entry {
        name: &name,
        exit_code,
        status: options.status,
        attempt,
        retry: options.retry,
        notes: &notes,
    };
    let line = entry.line();
    let written = match &options.log {
        Some(log) => report::append(log, &line),
        None => {
            print!("{line}");
            Ok(())
        }
    };
    if let Err(error) = written {
        eprintln!("pegasus-exitcode: cannot write the log: {error}");
    }
    if exit_code != 0 {
        eprint!("{notes}");
    }
    ExitCode::from(exit_code)
}

/// Judges the job. Returns the exit code and the number of the attempt.
fn run(options: &Options, notes: &mut String) -> (u8, Option<u32>) {
    let mut note = |text: String| {
        notes.push_str(&text);
        notes.push('\n');
    };
    let output = match output::take(&options.file, !options.no_rename) {
        Ok(output) => output,
        Err(error) => {
            note(format!("{}: {error}", options.file.display()));
            return (FAILURE, None);
        }
    };
    let plain = |texts: &[String]| texts.iter().map(|text| text.replace('+', " ")).collect();
    let rules = Rules {
        status: options.status,
        failures: plain(&options.failures),
        successes: plain(&options.successes),
        has_no_records: options.no_invocations,
    };
    let judged = verdict::judge(&rules, &output.stdout, &output.stderr);
    let records = verdict::records(&output.stdout);
    let base = base(&options.file);
    if let Err(failed) = judged {
        note(failed.to_string());
        if options.update {
            match request::update(&base, records.first(), options.status, options.retry) {
                Ok(skipped) => skipped.into_iter().for_each(&mut note),
                Err(error) => note(format!("cannot change the submit description: {error}")),
            }
        }
        return (FAILURE, output.attempt);
    }
    let mut code = 0;
    if !options.no_metadata {
        let written = report::metadata(&base, &records);
        let logged = options
            .metadata_log
            .as_ref()
            .map_or(Ok(()), |log| report::append_metadata(log, &records));
        if let Err(error) = written.and(logged) {
            // Jobs that come wait for the file.
            note(format!("cannot write the metadata: {error}"));
            code = FAILURE;
        }
    }
    (code, output.attempt)
}
