//! Standard input of jobs that is not a file of the workflow: the profile `pmc_stdin`.

use std::fmt::Write as _;

use crate::exec::{JobId, Task};

use super::Plan;
use super::command::quote;

/// Returns what the profile of a compute job says.
pub(crate) fn of<'p>(plan: &'p Plan<'_>, id: JobId) -> Option<&'p str> {
    let job = plan.job(id);
    if !matches!(job.task, Task::Compute(_)) {
        return None;
    }
    let setup = &plan.exec.setups[job.setup];
    let value = setup.profiles.pegasus("pmc_stdin").map(str::trim)?;
    (!value.is_empty()).then_some(value)
}

/// Appends the task option.
///
/// # Errors
/// Why the job cannot have such an input.
pub(crate) fn push_option(
    plan: &Plan<'_>,
    id: JobId,
    has_own: bool,
    options: &mut String,
) -> Result<(), String> {
    let Some(value) = of(plan, id) else {
        return Ok(());
    };
    let job = plan.job(id);
    let refuse = |why| {
        Err(format!(
            "the profile pegasus::pmc_stdin of the job {} cannot take effect: {why}",
            job.name
        ))
    };
    if has_own {
        return refuse("the workflow names a file for its standard input");
    }
    if plan.is_member(id) {
        return refuse("the job is a part of a clustered job");
    }
    if plan.exec.is_lite(job) {
        return refuse("the job has a directory of its own on its node");
    }
    // Writing into a String cannot fail.
    let _ = write!(options, "--stdin {} ", quote(value));
    Ok(())
}
