//! What a user sees of the warnings about a plan.

use std::path::PathBuf;

use rustc_hash::FxHashMap;

use crate::diagnostic::Diagnostic;
use crate::keys::is_without_effect;

/// Returns the warnings that a user sees who does not ask for more: several about keys without effect become
/// one, and none for the plan of a sub-workflow, whose keys are mostly those of the workflow around it. What
/// is said of several jobs in the same words is said once.
pub fn in_brief(warnings: &[Diagnostic], is_nested: bool) -> Vec<Diagnostic> {
    let warnings = &once_for_all_jobs(warnings);
    let is_idle = |warning: &&Diagnostic| is_without_effect(&warning.message);
    let idle = warnings.iter().filter(is_idle).count();
    if idle < 2 && !is_nested {
        return warnings.to_vec();
    }
    let others = warnings.iter().filter(|warning| !is_idle(warning)).cloned();
    let mut brief: Vec<Diagnostic> = others.collect();
    if let Some(first) = warnings.iter().find(is_idle).filter(|_| !is_nested) {
        let name = first.message.split(" has no effect: ").next().unwrap_or_default();
        brief.push(Diagnostic::warning(format!(
            "{idle} keys have no effect, for example {name}: -v names them with the reasons"
        )));
    }
    brief
}

/// Start of a warning about a job, before its name and a colon.
const OF_JOB: &str = "the job ";

/// A warning about a job, taken apart.
struct OfJob<'a> {
    job: &'a str,
    /// Equal for warnings that say the same.
    said: (Option<&'a PathBuf>, &'a str, Option<&'a str>),
}

impl<'a> OfJob<'a> {
    fn of(warning: &'a Diagnostic) -> Option<Self> {
        let (job, said) = warning.message.strip_prefix(OF_JOB)?.split_once(": ")?;
        let said = (warning.file.as_ref(), said, warning.hint.as_deref());
        Some(OfJob { job, said })
    }
}

/// Returns warnings in which those that differ only in their job are one, which names the first and counts
/// the others.
fn once_for_all_jobs(warnings: &[Diagnostic]) -> Vec<Diagnostic> {
    let mut counts = FxHashMap::default();
    for part in warnings.iter().filter_map(OfJob::of) {
        *counts.entry(part.said).or_insert(0usize) += 1;
    }
    let mut all = Vec::new();
    for warning in warnings {
        let Some(part) = OfJob::of(warning) else {
            all.push(warning.clone());
            continue;
        };
        // The first takes the count.
        if let Some(count) = counts.remove(&part.said) {
            let mut once = warning.clone();
            if count > 1 {
                once.message = format!("{OF_JOB}{} and {} more: {}", part.job, count - 1, part.said.1);
            }
            all.push(once);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_many_jobs_is_said_once() {
        let said = |job: &str, what: &str| Diagnostic::warning(format!("the job {job}: {what} are ignored"));
        let other = Diagnostic::warning("no site x");
        let all = [
            said("S1", "hooks"),
            other,
            said("S2", "arguments"),
            said("S2", "hooks"),
            said("S3", "hooks"),
        ];
        let brief: Vec<_> = in_brief(&all, false).iter().map(Diagnostic::to_string).collect();
        assert_eq!(
            brief,
            [
                "the job S1 and 2 more: hooks are ignored",
                "no site x",
                "the job S2: arguments are ignored"
            ]
        );
    }
}
