//! Task options and records for what DAGMan does: the end of the run by the exit code of a job, and limits on
//! the running jobs of a category.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::num::NonZeroU32;

use pmc_dag::write;

use crate::error::{Cause, PlanError, Problem};
use crate::exec::{JobId, Task};
use crate::profiles::{Namespace, Profiles};

use super::Plan;
use super::command::quote;

/// Suffix of the properties with the limits.
const MAX_JOBS: &str = ".maxjobs";

/// Appends the task options of a job.
///
/// # Errors
/// An invalid profile; the message names the job.
pub(crate) fn push_options(plan: &Plan<'_>, id: JobId, options: &mut String) -> Result<(), Problem> {
    let job = plan.job(id);
    let profiles = &plan.exec.setups[job.setup].profiles;
    let is_member = plan.is_member(id);
    if let Some(text) = value(profiles, "abort-dag-on") {
        let Some((code, exit)) = abort_on(text) else {
            return Err(Cause::Profile.problem(format!(
                "Invalid Value specified for abort-dag-on {text} for job {}: it must be CODE or CODE RETURN CODE",
                job.name
            )));
        };
        // Writing into a String cannot fail.
        let _ = match exit {
            // A run inside a cluster must fail with the code, so that the run around it sees it.
            Some(exit) if !is_member => write!(options, "--abort-on {code}={exit} "),
            _ => write!(options, "--abort-on {code} "),
        };
    }
    // The executor bounds nested sub-workflows itself.
    if !is_member
        && !plan.exec.is_nested(job)
        && let Some(category) = category(plan, job.task, profiles)
    {
        let _ = write!(options, "--category {} ", quote(&category));
    }
    Ok(())
}

/// Returns a value of the namespace `dagman` that is not empty.
fn value<'p>(profiles: &'p Profiles, key: &str) -> Option<&'p str> {
    let value = profiles.get(Namespace::Dagman, key)?.trim();
    (!value.is_empty()).then_some(value)
}

/// Parses `CODE [RETURN CODE]`.
fn abort_on(text: &str) -> Option<(u8, Option<u8>)> {
    let mut words = text.split_whitespace();
    let code = words.next()?.parse().ok()?;
    let exit = match words.next() {
        None => None,
        Some(word) if word.eq_ignore_ascii_case("return") => Some(words.next()?.parse().ok()?),
        Some(_) => return None,
    };
    words.next().is_none().then_some((code, exit))
}

/// Returns the category of a job if it has a limit: that of its profile, else that of its kind.
fn category(plan: &Plan<'_>, task: Task, profiles: &Profiles) -> Option<String> {
    let of_kind = match task {
        Task::StageIn(_) => "stagein",
        Task::StageOut(_) => "stageout",
        Task::InterSite(_) => "stageinter",
        Task::Register(_) => "registration",
        Task::CleanUp(_) | Task::RemoveDir => "cleanup",
        Task::Compute(_) | Task::Cluster(..) | Task::CreateDir | Task::Chmod(_) | Task::NoOp => "",
    };
    // Keys are stored in lower case.
    let category = value(profiles, "category").unwrap_or(of_kind).to_lowercase();
    if category.is_empty() {
        return None;
    }
    let is_limited = match value(&plan.settings.profiles, &format!("{category}{MAX_JOBS}")) {
        Some(limit) => limit != "0",
        None => plan.workflow.max_jobs.contains_key(&category),
    };
    is_limited.then_some(category)
}

/// Appends the limits on categories: those of the workflow, unless a property says otherwise, then those of
/// the properties.
///
/// # Errors
/// Limits that are no numbers, names that a DAG cannot express.
pub(crate) fn push_limits(
    of_workflow: &BTreeMap<String, u32>,
    profiles: &Profiles,
    text: &mut String,
) -> Result<(), PlanError> {
    let mut problems = Vec::new();
    for (category, &limit) in of_workflow {
        if value(profiles, &format!("{category}{MAX_JOBS}")).is_none()
            && let Some(limit) = NonZeroU32::new(limit)
            && let Err(error) = write::max_jobs(text, category, limit)
        {
            problems.push(error.to_string());
        }
    }
    for (key, value) in profiles.of(Namespace::Dagman) {
        let category = match key.strip_suffix(MAX_JOBS) {
            // The limit of the whole DAG.
            _ if key == "maxjobs" => "*",
            Some(name) if !name.is_empty() => name,
            _ => continue,
        };
        match value.trim().parse::<u32>().map(NonZeroU32::new) {
            // As with DAGMan, 0 is no limit.
            Ok(None) => {}
            Ok(Some(limit)) => {
                if let Err(error) = write::max_jobs(text, category, limit) {
                    problems.push(error.to_string());
                }
            }
            Err(_) => problems.push(format!(
                "the property dagman.{key} must be a whole number, not {value}"
            )),
        }
    }
    match problems.is_empty() {
        true => Ok(()),
        false => Err(PlanError::Code(problems)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_that_end_the_run() {
        assert_eq!(abort_on("3"), Some((3, None)));
        assert_eq!(abort_on(" 3  return 0 "), Some((3, Some(0))));
        for wrong in ["", "x", "3 RETURN", "3 0", "3 RETURN 0 1", "256"] {
            assert_eq!(abort_on(wrong), None, "{wrong}");
        }
    }
}
