//! `pegasus-run`: starts a planned workflow and returns.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Context as _, anyhow};
use clap::Parser as _;

use super::{environment, open, start};
use crate::cli::{self, Cli};
use crate::commands::execute;
use crate::exit;
use crate::failure::{Failure, OrCode as _};
use crate::resume_command::submit_command;
use crate::submit::{MAX_BRAINDUMP, Submit};
use pmc_terminal::print;

/// Variables with the limits of this machine, and the options of `pmc` for them.
const LIMITS: [(&str, &str); 3] = [
    ("PMC_HOST_MEMORY", "--host-memory"),
    ("PMC_HOST_CPUS", "--host-cpus"),
    ("PMC_HOST_GPUS", "--host-gpus"),
];
const VARIABLES: &str = "PMC_HOST_MEMORY, PMC_HOST_CPUS and PMC_HOST_GPUS";

/// Starts a workflow. Returns the exit code.
pub fn run(options: &cli::pegasus::Run) -> Result<u8, Failure> {
    let submit = open(&options.dir)?;
    if options.foreground {
        return run_here(submit);
    }
    if let Some(description) = &submit.condor {
        let number =
            pmc_batch::condor::submit(&submit.dir, description, &environment()).or_code(exit::NOT_RUN)?;
        print(&match options.json {
            true => format!(
                "{}\n",
                serde_json::json!({"scheduler": "HTCondor", "job_id": number})
            ),
            false => format!("Submitted to HTCondor as job {number}; condor_q shows it\n"),
        });
        return Ok(exit::SUCCESS);
    }
    let started = start::start(&submit)?;
    if options.json {
        print(&format!("{}\n", json(&submit, &started)?));
    } else {
        print(&started.text(&submit));
    }
    Ok(exit::SUCCESS)
}

/// Returns the braindump, as the original prints it, and where the workflow runs.
fn json(submit: &Submit, started: &start::Started) -> Result<serde_json::Value, Failure> {
    let path = submit.dir.join("braindump.yml");
    let text = pmc_files::read_to_string(&path, MAX_BRAINDUMP)
        .with_context(|| format!("cannot read {}", path.display()))
        .or_code(exit::NOT_RUN)?;
    let mut values: BTreeMap<String, serde_json::Value> = serde_saphyr::from_str(&text)
        .with_context(|| format!("{} is damaged", path.display()))
        .or_code(exit::NOT_RUN)?;
    match started {
        start::Started::Here { process } => {
            values.insert("pid".into(), (*process).into());
        }
        start::Started::Submitted(job) => {
            values.insert("scheduler".into(), job.scheduler.name().into());
            values.insert("job_id".into(), job.job_id.clone().into());
        }
    }
    Ok(serde_json::json!(values))
}

/// Runs the workflow in this process, which has no terminal: what [`start::start`] starts.
fn run_here(submit: Submit) -> Result<u8, Failure> {
    // Fails only for the leader of a process group, which is one of its own already.
    let _ = nix::unistd::setsid();
    // Pegasus always writes its database, and two files for each attempt.
    let mut words = ["pmc", "resume", "--stampede", "--packed-output=never", "."]
        .map(str::to_owned)
        .to_vec();
    for (variable, option) in LIMITS {
        // As for the executor, an empty value and 0 mean what the machine has.
        let is_limit = |value: &std::ffi::OsString| !value.is_empty() && value != "0";
        if let Some(value) = std::env::var_os(variable).filter(is_limit) {
            words.push(format!("{option}={}", value.to_string_lossy()));
        }
    }
    let parsed = Cli::try_parse_from(words).map(|cli| cli.command);
    let defaults = match parsed {
        Ok(cli::Command::Resume(defaults)) => defaults,
        Ok(_) => return Err(Failure::new(exit::NOT_RUN, anyhow!("not a request to resume"))),
        Err(error) => {
            let text = error.to_string();
            let line = text
                .lines()
                .next()
                .unwrap_or_default()
                .trim_start_matches("error: ");
            let error = anyhow!("{line}: see {VARIABLES} in the environment of pegasus-run");
            return Err(Failure::new(exit::NOT_RUN, error));
        }
    };
    execute::execute(&execute::Request {
        name: submit.dir.clone(),
        // For `pmc resume`, as the summary prints it.
        here: submit_command(&submit.dag).is_some(),
        accept_incomplete: false,
        submit,
        execution: defaults.execution,
        limits: VARIABLES,
        output: defaults.output,
        start: Instant::now(),
    })
}
