//! `pmc resume`: resumes a run that failed or was interrupted, with the plan as it is or with a new one.

use std::collections::HashSet;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, anyhow};
use pmc_dag::{Dag, rescue};
use pmc_plan::error::PlanError;
use pmc_plan::fingerprint::{Changes, FingerprintError, Fingerprints};
use pmc_plan::plan::{ReplanError, ReplanOptions, Replanned, finish_replacement, replan};
use pmc_plan::request::Environment;
use pmc_terminal::{message, print};

use crate::cli;
use crate::commands::execute;
use crate::exit;
use crate::failure::{Failure, OrCode as _};
use crate::layout;
use crate::resume_command::submit_command;
use crate::submit::Submit;
use crate::text;
use pmc_files::with_suffix;

/// Maximum names in a message.
const MAX_NAMED: usize = 5;

/// Runs the tasks that the rescue file does not list. Returns the exit code.
pub fn resume(arguments: &cli::Resume) -> Result<u8, Failure> {
    let start = Instant::now();
    let named = layout::given_or_latest(
        arguments.dir.as_deref(),
        arguments.output.quiet || arguments.output.json,
    );
    let dir = layout::find_submit(&named)
        .or_code(exit::USAGE)
        .map_err(|failure| failure.hint("give the directory that `pmc run` printed at its end"))?;
    let submit = Submit::open(&dir).or_code(exit::NOT_RUN)?;
    finish_replacement(&submit.dir, &submit.dag).map_err(replan_failure)?;
    let plans_again = arguments.replan || !arguments.rerun.is_empty();
    if plans_again {
        let replanned = plan_again(&submit, arguments)?;
        if !arguments.output.quiet {
            report(&replanned);
        }
    } else if !arguments.output.quiet {
        report_changes(&submit.dag);
    }
    let elsewhere = submit_command(&submit.dag).filter(|_| !arguments.here);
    if let Some(command) = &elsewhere {
        if plans_again {
            print(&format!("To run it:  {command}\n"));
            return Ok(exit::SUCCESS);
        }
        let error = anyhow!("{}: this plan is for a batch system", named.display());
        let hint = format!("submit it again: {command}\n        --here runs it on this machine");
        return Err(Failure::new(exit::NOT_RUN, error).hint(hint));
    }
    note_versions(&submit.dag);
    let request = execute::Request {
        here: submit_command(&submit.dag).is_some(),
        submit,
        name: named,
        accept_incomplete: arguments.accept_incomplete,
        execution: arguments.execution.clone(),
        limits: execute::LIMITS,
        output: arguments.output,
        start,
    };
    execute::execute(&request)
}

/// Replaces the plan.
fn plan_again(submit: &Submit, arguments: &cli::Resume) -> Result<Replanned, Failure> {
    let environment = Environment::read()
        .context("cannot determine the working directory")
        .or_code(exit::NOT_RUN)?;
    let request = pmc_plan::cli::saved::request(&submit.dir, environment).or_code(exit::NOT_PLANNED)?;
    let options = ReplanOptions {
        take_changes: arguments.replan,
        rerun: arguments.rerun.clone(),
        with_dependents: arguments.with_dependents,
    };
    let replanned = replan(&request, &submit.dir, &submit.dag, &options).map_err(replan_failure)?;
    if !arguments.output.quiet {
        for warning in &replanned.planned.warnings {
            message(format_args!("pmc: warning: {warning}"));
        }
    }
    Ok(replanned)
}

fn replan_failure(error: ReplanError) -> Failure {
    let hint = match &error {
        ReplanError::PlanChanged { .. } => Some("--replan takes the changes"),
        ReplanError::UnknownJob { .. } => {
            Some("give names of tasks as `pmc status` shows them, or ids in the workflow")
        }
        _ => None,
    };
    let code = match &error {
        ReplanError::UnknownJob { .. } => exit::USAGE,
        ReplanError::PlanChanged { .. } | ReplanError::Fingerprints(FingerprintError::Absent { .. }) => {
            exit::NOT_PLANNED
        }
        ReplanError::Plan(PlanError::Io { .. }) => exit::NOT_RUN,
        ReplanError::Plan(_) => exit::NOT_PLANNED,
        _ => exit::NOT_RUN,
    };
    let failure = Failure::new(code, error);
    match hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

/// Prints what the new plan keeps.
fn report(replanned: &Replanned) {
    let again = replanned.again.len();
    message(format_args!(
        "pmc: planned again: {} of {} stay done",
        replanned.kept,
        text::count(replanned.planned.counts.total, "task")
    ));
    if again > 0 {
        let names = replanned.again.get(..MAX_NAMED).unwrap_or(&replanned.again);
        let more = match again - names.len() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        message(format_args!("pmc: to run again: {}{more}", names.join(", ")));
    }
    if replanned.added + replanned.removed > 0 {
        message(format_args!(
            "pmc: new: {}, gone: {}",
            replanned.added, replanned.removed
        ));
    }
}

/// Returns the names of the tasks that are done.
fn done(dag: &Path) -> Option<HashSet<Vec<u8>>> {
    let read = Dag::open(dag).ok()?;
    let done = rescue::read(&with_suffix(dag, ".rescue"), &read).ok()?;
    Some(done.ids().map(|task| read.name(task).to_owned()).collect())
}

/// Prints what has changed since the plan was made; nothing for a plan without fingerprints.
fn report_changes(dag: &Path) {
    let Ok(prints) = Fingerprints::read(dag) else {
        return;
    };
    // Problems with these files are reported when they are used.
    let Some(done) = done(dag) else { return };
    let Changes { inputs, files } = prints.changes(|name| done.contains(name.as_bytes()));
    if inputs.is_empty() && files.is_empty() {
        return;
    }
    let mut names: Vec<String> = inputs.iter().map(|path| path.display().to_string()).collect();
    names.extend(files.iter().map(|(path, tasks)| {
        format!(
            "{} ({} used it before)",
            path.display(),
            text::count(*tasks, "done task")
        )
    }));
    let all = names.len();
    names.truncate(MAX_NAMED);
    if all > MAX_NAMED {
        names.push(format!("and {} more", all - MAX_NAMED));
    }
    message(format_args!(
        "pmc: changed since the plan was made: {}",
        names.join(", ")
    ));
    message(format_args!(
        "pmc: the plan stays as it was; --replan plans again and keeps what has not changed"
    ));
}

/// Notes the present versions of programs and inputs for the tasks that run now.
fn note_versions(dag: &Path) {
    let (Ok(mut prints), Some(done)) = (Fingerprints::read(dag), done(dag)) else {
        return;
    };
    if prints.refresh(|name| done.contains(name.as_bytes())) {
        // Without the note, these tasks would run once more after `--replan`.
        let _ = prints.write(dag);
    }
}
