//! `pmc-plan`: plans a Pegasus workflow into a submit directory for pegasus-mpi-cluster.

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use crate::again;
use crate::cli::{self, Invocation, OutputOptions};
use crate::diagnostic::Diagnostic;
use crate::error::{PlanError, readable};
use crate::plan::{Planned, plan, preview, wants_shell};
use crate::recipe;
use crate::request::{Environment, Request};
use crate::submit;

/// Runs the program: arguments, environment and exit status are those of the process.
#[must_use]
pub fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args_os()
        .map(|argument| argument.to_string_lossy().into_owned())
        .collect();
    let environment = match Environment::read() {
        Ok(environment) => environment,
        Err(e) => return fail(&format!("cannot find the working directory: {e}"), 1),
    };
    match cli::parse(&arguments, environment) {
        Ok(Invocation::Plan(request, output)) => plan_and_submit(*request, output),
        Ok(Invocation::Preview(request, output, jobs)) => print_preview(&request, None, &jobs, output),
        Ok(Invocation::Explain(dir, jobs)) => explain(&dir, &jobs),
        Ok(Invocation::Text(text)) => print(&text),
        Err(error) => {
            let message = error.to_string();
            fail(message.strip_prefix("error: ").unwrap_or(&message), 1)
        }
    }
}

/// Plans, prints the result, and submits or runs the plan if the user asks for it.
fn plan_and_submit(mut request: Request, output: OutputOptions) -> ExitCode {
    if output.submit && !wants_shell(&request) {
        match submit::prepare(&request.batch.schedulers, &request.environment.variables) {
            Ok(detected) => request.batch.detected = detected,
            Err(e) => return fail(&e.to_string(), 1),
        }
    }
    let planned = match plan(&request) {
        Ok(planned) => planned,
        Err(error) => return fail_plan(&error, output),
    };
    print_diagnostics(&planned.warnings, &planned.notes, output);
    if !output.json && output.level >= 0 {
        print(&cli::result_text(&planned));
    }
    if let Some(script) = &planned.shell {
        if output.json {
            print(&cli::result_json(&planned, None));
        }
        return if output.submit {
            run(script)
        } else {
            ExitCode::SUCCESS
        };
    }
    submit_plan(&planned, &request, output)
}

/// Submits the plan if the user asks for it, and prints the result.
fn submit_plan(planned: &Planned, request: &Request, output: OutputOptions) -> ExitCode {
    let mut submitted = None;
    if output.submit {
        match submit::submit(planned, &request.environment.variables) {
            Ok(job) => submitted = Some(job),
            Err(e) => return fail(&e.to_string(), 1),
        }
    }
    if output.json {
        return print(&cli::result_json(planned, submitted.as_ref()));
    }
    match submitted {
        // A script that submits needs the number even with -q.
        Some(job) if output.level < 0 => print(&format!("{}\n", job.job_id.unwrap_or_default())),
        Some(job) => print(&cli::submitted_text(&job)),
        None => ExitCode::SUCCESS,
    }
}

/// Plans in memory and prints figures or explanations.
fn print_preview(
    request: &Request,
    submit: Option<&Path>,
    jobs: &[String],
    output: OutputOptions,
) -> ExitCode {
    match preview(request, submit, jobs) {
        Ok(preview) => {
            print_diagnostics(&preview.warnings, &preview.notes, output);
            print(&cli::preview_text(&preview, output.json))
        }
        Err(error) => fail_plan(&error, output),
    }
}

/// Makes the plan in a submit directory again, and explains some of its jobs.
fn explain(dir: &Path, jobs: &[String]) -> ExitCode {
    let environment = match Environment::read() {
        Ok(environment) => environment,
        Err(e) => return fail(&format!("cannot find the working directory: {e}"), 1),
    };
    let request = match again::request(dir, environment) {
        Ok(request) => request,
        Err(e) => return fail(&e.to_string(), 1),
    };
    for file in recipe::changed(dir, &request) {
        eprintln!(
            "pmc-plan: warning: {} has changed since the plan was made: this is what a plan would be now",
            file.display()
        );
    }
    // Warnings were printed when the plan was made.
    let quiet = OutputOptions {
        level: -1,
        ..OutputOptions::default()
    };
    print_preview(&request, Some(dir), jobs, quiet)
}

/// Runs the script of the code generator Shell and returns its exit code.
fn run(script: &Path) -> ExitCode {
    match std::process::Command::new(script).status() {
        Ok(status) => ExitCode::from(
            status
                .code()
                .and_then(|code| u8::try_from(code).ok())
                .unwrap_or(1),
        ),
        Err(e) => fail(&format!("cannot run {}: {e}", script.display()), 1),
    }
}

/// Prints warnings, and notes with `-v`.
fn print_diagnostics(warnings: &[Diagnostic], notes: &[String], output: OutputOptions) {
    if output.level >= 0 {
        for warning in warnings {
            if output.json_diagnostics {
                eprintln!("{}", warning.json());
            } else {
                eprintln!("pmc-plan: warning: {}", readable(&warning.to_string()));
            }
        }
    }
    if output.level > 0 {
        for note in notes {
            eprintln!("pmc-plan: {note}");
        }
    }
}

fn fail_plan(error: &PlanError, output: OutputOptions) -> ExitCode {
    if !output.json_diagnostics {
        return fail(&error.to_string(), error.exit_code());
    }
    for diagnostic in error.diagnostics() {
        eprintln!("{}", diagnostic.json());
    }
    ExitCode::from(error.exit_code())
}

/// Prints a text. A closed pipe is not a failure, since the plan exists.
fn print(text: &str) -> ExitCode {
    let _ = std::io::stdout().write_all(text.as_bytes());
    ExitCode::SUCCESS
}

fn fail(message: &str, code: u8) -> ExitCode {
    eprintln!("pmc-plan: {}", readable(message));
    ExitCode::from(code)
}
