//! Diagnostics: what the planner reports to its user, with the place in the input file if there is one.

use std::fmt;
use std::path::PathBuf;

use rustc_hash::FxHashMap;

use crate::error::{HINT, InputError, PlanError, Position, Problem, split_hint};
use crate::keys::is_without_effect;

/// How bad a diagnostic is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Prevents the plan.
    Error,
    /// The plan exists, but may not be what the user wants.
    Warning,
}

/// One error or warning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// How bad it is.
    pub severity: Severity,
    /// Input file, if the problem is in one.
    pub file: Option<PathBuf>,
    /// Position in the file, if known.
    pub span: Option<Position>,
    /// What is wrong.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
}

impl Diagnostic {
    /// A diagnostic from its printed form without a file: the message, and its hint if it has one.
    pub fn new(severity: Severity, text: impl Into<String>) -> Self {
        let (message, hint) = split_hint(text.into());
        Diagnostic {
            severity,
            file: None,
            span: None,
            message,
            hint,
        }
    }

    /// A problem in an input file.
    pub fn in_file(severity: Severity, error: &InputError) -> Self {
        Diagnostic {
            severity,
            file: Some(error.file.clone()),
            span: error.position,
            message: error.message.clone(),
            hint: error.hint.clone(),
        }
    }

    /// A JSON object with the keys `severity`, `file`, `line`, `column`, `message` and `hint`. Unknown values
    /// are `null`.
    pub fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "severity": match self.severity {
                Severity::Error => "error",
                Severity::Warning => "warning",
            },
            "file": self.file.as_ref().map(|file| file.display().to_string()),
            "line": self.span.map(|span| span.line),
            "column": self.span.map(|span| span.column).filter(|&column| column > 0),
            "message": self.message,
            "hint": self.hint,
        })
    }
}

impl From<String> for Diagnostic {
    /// A warning.
    fn from(text: String) -> Self {
        Diagnostic::new(Severity::Warning, text)
    }
}

impl From<&Problem> for Diagnostic {
    /// An error.
    fn from(problem: &Problem) -> Self {
        Diagnostic {
            severity: Severity::Error,
            file: None,
            span: None,
            message: problem.message.clone(),
            hint: problem.hint.clone(),
        }
    }
}

impl From<&InputError> for Diagnostic {
    /// A warning.
    fn from(problem: &InputError) -> Self {
        Diagnostic::in_file(Severity::Warning, problem)
    }
}

impl fmt::Display for Diagnostic {
    /// `FILE:LINE:COLUMN: message`, and the hint on its own line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.file {
            write!(f, "{}:", file.display())?;
            if let Some(Position { line, column }) = self.span {
                write!(f, "{line}:")?;
                if column > 0 {
                    write!(f, "{column}:")?;
                }
            }
            f.write_str(" ")?;
        }
        f.write_str(&self.message)?;
        match &self.hint {
            Some(hint) => write!(f, "{HINT}{hint}"),
            None => Ok(()),
        }
    }
}

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
        brief.push(Diagnostic::from(format!(
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

impl PlanError {
    /// Returns each problem as a diagnostic.
    pub fn diagnostics(&self) -> Vec<Diagnostic> {
        let error = |text: &String| Diagnostic::new(Severity::Error, text.as_str());
        match self {
            PlanError::Input(errors) | PlanError::BadXml(errors) => errors
                .problems()
                .iter()
                .map(|problem| Diagnostic::in_file(Severity::Error, problem))
                .collect(),
            PlanError::Refinement(problems) => problems.iter().map(Diagnostic::from).collect(),
            PlanError::Code(problems) => problems.iter().map(error).collect(),
            PlanError::Unsupported(_) | PlanError::Io { .. } | PlanError::Template { .. } => {
                vec![error(&self.to_string())]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn diagnostics_print_like_input_errors() {
        let error =
            InputError::at(Path::new("w.yml"), Position { line: 3, column: 7 }, "wrong").with_hint("right");
        let diagnostic = Diagnostic::from(&error);
        assert_eq!(diagnostic.to_string(), error.to_string());
        let json = diagnostic.json();
        assert_eq!(
            (json["line"].as_u64(), json["hint"].as_str()),
            (Some(3), Some("right"))
        );
    }

    #[test]
    fn what_is_said_of_many_jobs_is_said_once() {
        let said = |job: &str, what: &str| Diagnostic::from(format!("the job {job}: {what} are ignored"));
        let other = Diagnostic::from("no site x".to_owned());
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

    #[test]
    fn hints_are_separated_from_messages() {
        let diagnostic = Diagnostic::from("no site x\n  hint: add it".to_owned());
        assert_eq!(
            (diagnostic.message.as_str(), diagnostic.hint.as_deref()),
            ("no site x", Some("add it"))
        );
        assert_eq!(diagnostic.to_string(), "no site x\n  hint: add it");
    }
}
