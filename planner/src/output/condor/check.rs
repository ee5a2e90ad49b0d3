//! What HTCondor cannot run.

use rustc_hash::FxHashSet;

use crate::diagnostic::Diagnostic;
use crate::error::PlanError;
use crate::exec::Task;
use crate::model::Arguments;
use crate::profiles::parse_bool;
use crate::tasks::PlannedJob;
use crate::tasks::style::Style;

use super::super::common::job_problems::MAX_SHOWN;
use super::context::Context;

/// Styles of Pegasus that are not offered, and why.
const REFUSED: [(&str, &str); 5] = [
    ("globus", "HTCondor no longer submits to Globus GRAM"),
    ("cream", "HTCondor no longer submits to CREAM"),
    ("panda", "it needs a server of its own"),
    ("glidein", "use the style condor, which reaches glideins, too"),
    ("glideinwms", "use the style condor, which reaches glideins, too"),
];

/// Refuses jobs that cannot be submitted.
///
/// # Errors
/// The first problems.
pub(super) fn check(context: &Context<'_>) -> Result<(), PlanError> {
    let plan = context.plan;
    let mut problems = Vec::new();
    let mut seen = FxHashSet::default();
    let members = (0..plan.exec.members.len()).map(|position| plan.member(position));
    for id in plan.order.iter().copied().chain(members) {
        let job = plan.at(id);
        if seen.insert((job.setup_id(), job.site)) && !job.is_member() {
            problems.extend(style(job).map(Diagnostic::error));
        }
        problems.extend(open_quote(job).map(Diagnostic::error));
        if problems.len() > MAX_SHOWN {
            break;
        }
    }
    PlanError::check_code(problems)
}

/// Returns why the style of a job cannot be used.
fn style(job: PlannedJob<'_>) -> Option<String> {
    if job.style().is_some() {
        return None;
    }
    let site = &job.plan.sites.get(job.site).name;
    let offered = Style::NAMES;
    Some(match job.pegasus("style") {
        None => format!(
            "the site {site} of the job {} has no style, so nothing says how HTCondor reaches it: set the profile \
             pegasus::style of the site to one of {offered}",
            job.name
        ),
        Some(name) => {
            let known = REFUSED.iter().find(|(style, _)| style.eq_ignore_ascii_case(name));
            let why = known.map_or(String::new(), |(_, why)| format!(": {why}"));
            format!(
                "No class found corresponding to style {name} of the site {site}, for the job {}{why}; styles are {offered}",
                job.name
            )
        }
    })
}

/// Returns where the arguments of a job have a quote without an end.
fn open_quote(job: PlannedJob<'_>) -> Option<String> {
    let Task::Compute(n) = job.task else { return None };
    let Arguments::Raw(text) = &job.plan.workflow.jobs[n].arguments else {
        return None;
    };
    let quoting = job.setup.profiles.pegasus("condor.arguments.quote");
    if quoting.and_then(parse_bool) == Some(false) {
        return None;
    }
    let (quote, at) = unmatched(text)?;
    let kind = if quote == '"' { "Double" } else { "Single" };
    Some(format!(
        "CondorQuoting Problem Unmatched {kind} Quotes in string {text}: job {}, character {at} of its arguments",
        job.name
    ))
}

/// Returns the quote that has no end, and its position, counted from 1.
fn unmatched(text: &str) -> Option<(char, usize)> {
    let mut open = None;
    let mut chars = text.chars().enumerate();
    while let Some((at, c)) = chars.next() {
        match (c, open) {
            ('\\', None | Some(('"', _))) => {
                chars.next();
            }
            ('"' | '\'', None) => open = Some((c, at + 1)),
            (c, Some((quote, _))) if c == quote => open = None,
            _ => {}
        }
    }
    open
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_without_an_end_are_found() {
        for text in ["", "a 'b c' d", "\"it's\"", r"it\'s", "'\"'", r#""a\"b""#] {
            assert_eq!(unmatched(text), None, "{text}");
        }
        assert_eq!(unmatched("it's"), Some(('\'', 3)));
        assert_eq!(unmatched("a 'b' \"c"), Some(('"', 7)));
    }
}
