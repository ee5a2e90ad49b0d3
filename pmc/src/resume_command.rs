//! How to start a plan again: by `pmc resume`, or by its batch script.

use std::path::{Path, PathBuf};

use pmc_batch::submit::command_line;
use pmc_calls::shell::shell_quote;
use pmc_plan::fingerprint::Facts;

/// Returns the command that submits a plan for a batch system; `None` for a plan for this machine.
pub fn submit_command(dag: &Path) -> Option<String> {
    let facts = Facts::read(dag).filter(|facts| facts.cluster)?;
    let dir = dag.parent().map(Path::to_owned).unwrap_or_default();
    let path = std::env::var("PATH").ok();
    let (scheduler, script): (_, PathBuf) = facts.script(&dir, path.as_deref())?;
    Some(command_line(scheduler, &script))
}

/// Returns the command that resumes a run, for people. `dir` is the directory as the user named it.
pub fn resume_command(dag: &Path, dir: &Path) -> String {
    let here = || format!("pmc resume {}", shell_quote(&dir.display().to_string()));
    submit_command(dag).unwrap_or_else(here)
}
