//! `pmc-plan`: plans a Pegasus workflow into a submit directory for pegasus-mpi-cluster.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::OnceLock;

use pmc_batch::submit::{SubmitError, find_scheduler, submit_script};
use pmc_files::Owner;
use pmc_terminal::message;

use crate::budget;
use crate::cli::{self, Invocation, OutputOptions};
use crate::diagnostic::Diagnostic;
use crate::error::{PlanError, readable};
use crate::plan::{Planned, Prepared, plan, prepare, preview, wants_scheduler};
use crate::request::{Environment, Request};
use crate::saved_request;
use crate::syntax::text;
use crate::warnings::in_brief;

/// Name in messages.
const NAME: &str = "pmc-plan";

/// Runs the program: arguments, environment and exit status are those of the process.
#[must_use]
pub fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args_os()
        .map(|argument| argument.to_string_lossy().into_owned())
        .collect();
    run(&arguments)
}

/// Runs the program with these arguments, which start with its name.
#[must_use]
pub fn run(arguments: &[String]) -> ExitCode {
    pmc_terminal::finish(NAME, execute(arguments))
}

fn execute(arguments: &[String]) -> u8 {
    let environment = match Environment::read() {
        Ok(environment) => environment,
        Err(e) => return fail(&format!("cannot find the working directory: {e}"), 1),
    };
    let log = cli::log_file(arguments);
    match cli::parse(arguments, environment) {
        Ok(Invocation::Plan(request, output)) if request.deferred => plan_deferred(&request, output, log),
        Ok(Invocation::Plan(request, output)) => plan_and_submit(*request, output),
        Ok(Invocation::Preview(request, output, jobs)) => print_preview(&request, None, &jobs, output),
        Ok(Invocation::Explain(dir, jobs)) => explain(&dir, &jobs),
        Ok(Invocation::Text(text)) => print(&text),
        Err(error) => {
            let message = error.to_string();
            let message = message.strip_prefix("error: ").unwrap_or(&message);
            append_log(log, &format!("{NAME}: {message}\n"));
            fail(message, 1)
        }
    }
}

/// Plans a nested sub-workflow, unless its plan can be kept.
fn plan_deferred(request: &Request, output: OutputOptions, log: Option<&Path>) -> u8 {
    let text = match prepare(request) {
        Err(error) => {
            append_log(log, &format!("{NAME}: {error}\n"));
            return fail_plan(&error, output);
        }
        Ok(Prepared::Kept(dir)) => format!("Kept the plan in {}: nothing has changed\n", dir.display()),
        Ok(Prepared::Planned(planned)) => {
            let shown = match output.level > 0 {
                true => planned.warnings.clone(),
                false => in_brief(&planned.warnings, true),
            };
            print_diagnostics(&shown, &planned.notes, output);
            let warning = |warning: &Diagnostic| format!("{NAME}: warning: {warning}\n");
            let warnings: String = planned.warnings.iter().map(warning).collect();
            append_log(log, &warnings);
            match output.json {
                true => cli::result_json(&planned, None, &request.environment.variables),
                false => cli::result_text(&planned, &request.environment.variables),
            }
        }
    };
    append_log(log, &text);
    if output.level >= 0 { print(&text) } else { 0 }
}

/// Appends messages to the log of the planning of a sub-workflow: `LOG.000`, or the next number for the next
/// planning. It is a copy for monitoring, so that a log that cannot be written stops nothing.
fn append_log(log: Option<&Path>, text: &str) {
    static FILE: OnceLock<Option<File>> = OnceLock::new();
    let Some(log) = log else { return };
    let create = || {
        let name = |number| PathBuf::from(format!("{}.{number:03}", log.display()));
        (0..1000).find_map(|number| File::create_new(name(number)).ok())
    };
    if let Some(mut file) = FILE.get_or_init(create).as_ref() {
        let _ = file.write_all(text.as_bytes());
    }
}

/// Plans, prints the result, and submits or runs the plan if the user asks for it.
fn plan_and_submit(mut request: Request, output: OutputOptions) -> u8 {
    if output.submit && wants_scheduler(&request) {
        match find_scheduler(&request.batch.schedulers, &request.environment.variables) {
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
        print(&cli::result_text(&planned, &request.environment.variables));
    }
    if let Some(script) = &planned.shell {
        if output.json {
            print(&cli::result_json(&planned, None, &request.environment.variables));
        }
        return if output.submit { run_script(script) } else { 0 };
    }
    match &planned.condor {
        Some(description) => submit_to_condor(&planned, description, &request, output),
        None => submit_plan(&planned, &request, output),
    }
}

/// Submits the run of DAGMan if the user asks for it, and prints the result.
fn submit_to_condor(planned: &Planned, description: &Path, request: &Request, output: OutputOptions) -> u8 {
    if output.json {
        print(&cli::result_json(planned, None, &request.environment.variables));
    }
    if !output.submit {
        return 0;
    }
    let variables = &request.environment.variables;
    match pmc_batch::condor::submit(&planned.submit_dir, description, variables) {
        Ok(number) if output.level < 0 => print(&format!("{number}\n")),
        Ok(_) if output.json => 0,
        Ok(number) => print(&format!("Submitted:        HTCondor job {number}\n")),
        Err(error) => fail(&error.to_string(), 1),
    }
}

/// Submits the plan if the user asks for it, and prints the result.
fn submit_plan(planned: &Planned, request: &Request, output: OutputOptions) -> u8 {
    let mut submitted = None;
    if output.submit {
        // The preferred scheduler comes first.
        let script = planned.scripts.first().ok_or(SubmitError::NoScheduler);
        let variables = &request.environment.variables;
        match script.and_then(|script| submit_script(script, &planned.submit_dir, variables)) {
            Ok(job) => submitted = Some(job),
            Err(e) => return fail(&e.to_string(), 1),
        }
    }
    if output.json {
        return print(&cli::result_json(
            planned,
            submitted.as_ref(),
            &request.environment.variables,
        ));
    }
    match submitted {
        // A script that submits needs the number even with -q.
        Some(job) if output.level < 0 => print(&format!("{}\n", job.job_id.unwrap_or_default())),
        Some(job) => print(&cli::submitted_text(&job)),
        None => 0,
    }
}

/// Plans in memory and prints figures or explanations.
fn print_preview(request: &Request, submit: Option<&Path>, jobs: &[String], output: OutputOptions) -> u8 {
    match preview(request, submit, jobs) {
        Ok(preview) => {
            print_diagnostics(&preview.warnings, &preview.notes, output);
            print(&cli::preview_text(&preview, output.json))
        }
        Err(error) => fail_plan(&error, output),
    }
}

/// Makes the plan in a submit directory again, and explains some of its jobs.
fn explain(dir: &Path, jobs: &[String]) -> u8 {
    let dir = &saved_request::submit_dir(dir);
    let mut environment = match Environment::read() {
        Ok(environment) => environment,
        Err(e) => return fail(&format!("cannot find the working directory: {e}"), 1),
    };
    let is_of_other = !saved_request::owner(dir).is_ok_and(|owner| owner == Owner::User);
    if is_of_other {
        environment = environment.for_plan_of_other();
        text::open_only_regular_files();
        let shown = dir.display().to_string();
        if let Err(e) = budget::start(move |what| fail(&format!("{shown}: {what}"), 1)) {
            return fail(&format!("cannot start a thread: {e}"), 1);
        }
    }
    let request = match cli::saved::request(dir, environment) {
        Ok(request) => request,
        Err(e) => return fail(&e.to_string(), 1),
    };
    if is_of_other {
        message(format_args!(
            "{NAME}: note: another user has made this plan; it is explained without your variables and properties, \
             so it may be another one"
        ));
    }
    for file in saved_request::changed(dir, &request) {
        message(format_args!(
            "{NAME}: warning: {} has changed since the plan was made: this is what a plan would be now",
            file.display()
        ));
    }
    // Warnings were printed when the plan was made.
    let quiet = OutputOptions {
        level: -1,
        ..OutputOptions::default()
    };
    print_preview(&request, Some(dir), jobs, quiet)
}

/// Runs the script of the code generator Shell and returns its exit code.
fn run_script(script: &Path) -> u8 {
    match std::process::Command::new(script).status() {
        Ok(status) => status
            .code()
            .and_then(|code| u8::try_from(code).ok())
            .unwrap_or(1),
        Err(e) => fail(&format!("cannot run {}: {e}", script.display()), 1),
    }
}

/// Prints warnings, and notes with `-v`.
fn print_diagnostics(warnings: &[Diagnostic], notes: &[String], output: OutputOptions) {
    if output.level >= 0 {
        let brief;
        let warnings = match output.level > 0 || output.json_diagnostics {
            true => warnings,
            false => {
                brief = in_brief(warnings, false);
                &brief
            }
        };
        for warning in warnings {
            if output.json_diagnostics {
                message(warning.json());
            } else {
                message(format_args!(
                    "{NAME}: warning: {}",
                    readable(&warning.to_string())
                ));
            }
        }
    }
    if output.level > 0 {
        for note in notes {
            message(format_args!("{NAME}: {note}"));
        }
    }
}

fn fail_plan(error: &PlanError, output: OutputOptions) -> u8 {
    if !output.json_diagnostics {
        return fail(&error.to_string(), error.exit_code());
    }
    for diagnostic in error.diagnostics() {
        message(diagnostic.json());
    }
    error.exit_code()
}

/// Prints a text and returns the exit code.
fn print(text: &str) -> u8 {
    pmc_terminal::print(text);
    0
}

fn fail(message: &str, code: u8) -> u8 {
    pmc_terminal::message(format_args!("{NAME}: {}", readable(message)));
    code
}
