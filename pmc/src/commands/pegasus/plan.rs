//! `pegasus-plan`: calls `pmc-plan`, which has the same options, and starts the workflow with `--submit`.

use std::process::{Command, Stdio};

use anyhow::{Context as _, anyhow};
use pmc_plan::cli::{Invocation, OutputOptions, parse};
use pmc_plan::request::Environment;

use super::{open, own_program, replace_by, start};
use crate::exit;
use crate::failure::{Failure, OrCode as _};
use pmc_terminal::print;

/// Plans. Returns the exit code.
pub fn plan(words: &[String]) -> Result<u8, Failure> {
    let planner = own_program("pmc-plan")?;
    let submits = |words: &[String]| submit_options(words).filter(|output| output.submit);
    let rest: Vec<String> = words
        .iter()
        .filter(|word| !matches!(word.as_str(), "-S" | "--submit"))
        .cloned()
        .collect();
    let output = match submits(words) {
        Some(output) if submits(&rest).is_none() => output,
        _ => return Err(replace_by(&planner, words)),
    };
    let planned = Command::new(&planner)
        .args(&rest)
        .args((!output.json).then_some("--json"))
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot run {}", planner.display()))
        .or_code(exit::NOT_RUN)?;
    if !planned.status.success() {
        return Ok(exit::TASKS_FAILED);
    }
    let plan: serde_json::Value = serde_json::from_slice(&planned.stdout)
        .context("pmc-plan printed no JSON")
        .or_code(exit::NOT_RUN)?;
    let text = |key: &str| plan.get(key).and_then(serde_json::Value::as_str);
    let dir = text("submit_dir")
        .ok_or_else(|| anyhow!("pmc-plan named no submit directory"))
        .or_code(exit::NOT_RUN)?;
    let submit = open(dir.as_ref())?;
    let started = start::start(&submit)?;
    if output.json {
        print(&String::from_utf8_lossy(&planned.stdout));
    } else if output.level >= 0 {
        print(text("message").unwrap_or_default());
        print(&started.text(&submit));
    }
    Ok(exit::SUCCESS)
}

/// Returns how the result of a plan is printed. `None` if the command line makes no plan.
fn submit_options(words: &[String]) -> Option<OutputOptions> {
    let line: Vec<String> = std::iter::once("pegasus-plan".to_owned())
        .chain(words.iter().cloned())
        .collect();
    match parse(&line, Environment::read().ok()?) {
        Ok(Invocation::Plan(_, output)) => Some(output),
        _ => None,
    }
}
