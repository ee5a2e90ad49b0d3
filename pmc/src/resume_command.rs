//! How to start a plan again: by `pmc resume`, or by its batch script.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use pmc_batch::Scheduler;
use pmc_batch::submit::{command_line, is_installed};
use pmc_calls::shell::shell_quote;
use pmc_plan::fingerprint::Facts;

/// Returns the command that submits a plan for a batch system; `None` for a plan for this machine.
pub fn submit_command(dag: &Path) -> Option<String> {
    let (scheduler, script) = script(dag)?;
    Some(command_line(scheduler, &script))
}

/// Returns the command that resumes a run, for people; `None` for a DAG without a plan, whose options nothing
/// here knows. `dir` is the directory as the user named it.
pub fn resume_command(dag: &Path, dir: &Path) -> Option<String> {
    if !dag.with_file_name("braindump.yml").is_file() {
        return None;
    }
    let dir = shell_quote(&dir.display().to_string()).into_owned();
    Some(match script(dag) {
        None => format!("pmc resume {dir}"),
        Some((scheduler, script)) if is_here(scheduler) => command_line(scheduler, &script),
        Some(_) => format!("pmc resume --here {dir}"),
    })
}

/// Returns whether a plan for this scheduler can be submitted on this machine.
fn is_here(scheduler: Scheduler) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    is_installed(scheduler, &BTreeMap::from([("PATH".to_owned(), path)]))
}

fn script(dag: &Path) -> Option<(Scheduler, PathBuf)> {
    let facts = Facts::read(dag).filter(|facts| facts.cluster)?;
    let dir = dag.parent().map(Path::to_owned).unwrap_or_default();
    let path = std::env::var("PATH").ok();
    facts.script(&dir, path.as_deref())
}
