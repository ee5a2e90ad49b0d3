//! Limits on the running jobs of a category, as records of a DAG.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use pmc_dag::write;

use crate::diagnostic::Diagnostic;
use crate::error::PlanError;
use crate::profiles::{Namespace, Profiles};
use crate::tasks::requests::{MAX_JOBS, dagman};

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
        if dagman(profiles, &format!("{category}{MAX_JOBS}")).is_none()
            && let Some(limit) = NonZeroU32::new(limit)
            && let Err(error) = write::max_jobs(text, category, limit)
        {
            problems.push(Diagnostic::error(error.to_string()));
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
                    problems.push(Diagnostic::error(error.to_string()));
                }
            }
            Err(_) => problems.push(Diagnostic::error(format!(
                "the property dagman.{key} must be a whole number, not {value}"
            ))),
        }
    }
    PlanError::check_code(problems)
}
