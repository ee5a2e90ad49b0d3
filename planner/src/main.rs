//! `pmc-plan`: plans a Pegasus workflow into a submit directory for pegasus-mpi-cluster.

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use pmc_plan::cli::{self, Voice, Wish};
use pmc_plan::error::readable;
use pmc_plan::plan::{Preview, plan, preview, wants_shell};
use pmc_plan::recipe::{self, Recipe};
use pmc_plan::request::Environment;
use pmc_plan::submit;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args_os()
        .map(|argument| argument.to_string_lossy().into_owned())
        .collect();
    let environment = match Environment::read() {
        Ok(environment) => environment,
        Err(e) => return fail(&format!("cannot find out the working directory: {e}"), 1),
    };
    let (mut request, voice) = match cli::parse(&arguments, environment) {
        Ok(Wish::Plan(request, voice)) => (*request, voice),
        Ok(Wish::Look(request, voice, jobs)) => {
            return match preview(&request, None, &jobs) {
                Ok(preview) => tell_preview(&preview, voice),
                Err(e) => fail(&e.to_string(), e.exit_code()),
            };
        }
        Ok(Wish::Explain(dir, jobs)) => return explain(&dir, &jobs),
        Ok(Wish::Text(text)) => return say(&text),
        Err(message) => return fail(message.strip_prefix("error: ").unwrap_or(&message), 1),
    };
    if voice.submit && !wants_shell(&request) {
        match submit::prepare(&request.batch.schedulers, &request.environment.variables) {
            Ok(detected) => request.batch.detected = detected,
            Err(e) => return fail(&e.to_string(), 1),
        }
    }
    match plan(&request) {
        Ok(planned) => {
            if voice.level >= 0 {
                for warning in &planned.warnings {
                    eprintln!("pmc-plan: warning: {}", readable(warning));
                }
            }
            if voice.level > 0 {
                for note in &planned.notes {
                    eprintln!("pmc-plan: {note}");
                }
            }
            if !voice.json && voice.level >= 0 {
                say(&cli::tell(&planned));
            }
            if let Some(script) = &planned.shell {
                if voice.json {
                    say(&cli::tell_json(&planned, None));
                }
                return if voice.submit {
                    run(script)
                } else {
                    ExitCode::SUCCESS
                };
            }
            let mut submitted = None;
            if voice.submit {
                match submit::submit(&planned, &request.environment.variables) {
                    Ok(job) => submitted = Some(job),
                    Err(e) => return fail(&e.to_string(), 1),
                }
            }
            if voice.json {
                return say(&cli::tell_json(&planned, submitted.as_ref()));
            }
            match submitted {
                // A script that submits wants the number in any case.
                Some(job) if voice.level < 0 => say(&format!("{}\n", job.job_id.unwrap_or_default())),
                Some(job) => say(&cli::tell_submitted(&job)),
                None => ExitCode::SUCCESS,
            }
        }
        Err(e) => fail(&e.to_string(), e.exit_code()),
    }
}

fn tell_preview(preview: &Preview, voice: Voice) -> ExitCode {
    if voice.level >= 0 {
        for warning in &preview.warnings {
            eprintln!("pmc-plan: warning: {}", readable(warning));
        }
    }
    if voice.level > 0 {
        for note in &preview.notes {
            eprintln!("pmc-plan: {note}");
        }
    }
    say(&cli::tell_preview(preview, voice.json))
}

/// Makes the plan in a submit directory again, and tells about some of its jobs.
fn explain(dir: &Path, jobs: &[String]) -> ExitCode {
    let recipe = match Recipe::read(dir) {
        Ok(recipe) => recipe,
        Err(e) => return fail(&e.to_string(), 1),
    };
    let environment = match Environment::read() {
        Ok(environment) => Environment {
            working_dir: recipe.directory,
            user: recipe.user,
            uuid: recipe.uuid,
            ..environment
        },
        Err(e) => return fail(&format!("cannot find out the working directory: {e}"), 1),
    };
    let mut line = vec!["pmc-plan".to_owned()];
    line.extend(recipe.arguments);
    let mut request = match cli::parse(&line, environment) {
        Ok(Wish::Plan(request, _)) => *request,
        Ok(_) => return fail("the recorded command line is none that plans", 1),
        Err(message) => return fail(&message, 1),
    };
    request.pictures.clear();
    let copy = request.workflow.file_name().map(|name| dir.join(name));
    if let Some(copy) = copy.filter(|copy| !request.workflow.is_file() && copy.is_file()) {
        request.workflow = copy;
    }
    for file in recipe::changed(dir, &request) {
        eprintln!(
            "pmc-plan: warning: {} has changed since the plan was made: this is what a plan would be now",
            file.display()
        );
    }
    match preview(&request, Some(dir), jobs) {
        Ok(preview) => say(&cli::tell_preview(&preview, false)),
        Err(e) => fail(&e.to_string(), e.exit_code()),
    }
}

/// Runs the script of the code generator Shell; ends as it does.
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

/// Prints; a closed pipe is no failure, since the plan is there.
fn say(text: &str) -> ExitCode {
    let _ = std::io::stdout().write_all(text.as_bytes());
    ExitCode::SUCCESS
}

fn fail(message: &str, code: u8) -> ExitCode {
    eprintln!("pmc-plan: {}", readable(message));
    ExitCode::from(code)
}
