//! Failed sub-workflows inside of the diagnosis, each by itself.

use std::fmt::Write as _;
use std::path::Path;

use pmc_monitor::causes::{Diagnosis, diagnose};
use pmc_monitor::history::{History, MAX_DEPTH, Seen, State};
use serde_json::Value;

use super::{human, json};
use crate::cli;
use crate::text;

/// A failed sub-workflow.
pub struct Failed {
    /// The task that it is.
    pub task: String,
    /// Its history.
    pub history: History,
    /// Why it has failed.
    pub diagnosis: Diagnosis,
}

/// Returns the first failed sub-workflows of a run that have begun, in the order of the plan.
fn failed(history: &History, most: usize, seen: &mut Seen) -> Vec<Failed> {
    let begun = history.plan.subdags().filter_map(|task| {
        if history.state(task) != State::Failed {
            return None;
        }
        let nested = history.nested(task, seen)?;
        let diagnosis = diagnose(&nested);
        // If its planner has failed again, that is the cause, which the task around it shows.
        (!diagnosis.causes.is_empty()).then(|| Failed {
            task: history.plan.text_name(task),
            history: nested,
            diagnosis,
        })
    });
    begun.take(most).collect()
}

/// Returns failed sub-workflows at any depth, the outer ones first, at most `most` of each workflow. Each is
/// named like its tasks in the history of the whole run.
pub fn all(history: &History, most: usize) -> Vec<Failed> {
    let mut seen = Seen::default();
    let mut found = failed(history, most, &mut seen);
    let mut next = 0;
    while let Some(around) = found.get(next) {
        let mut inner = failed(&around.history, most, &mut seen);
        for nested in &mut inner {
            nested.task = format!("{}/{}", around.task, nested.task);
        }
        found.append(&mut inner);
        next += 1;
    }
    found
}

/// Appends the diagnosis of failed sub-workflows, indented by their depth.
pub fn render(out: &mut String, history: &History, arguments: &cli::Analyzer, cwd: &Path) {
    render_below(out, history, (arguments, cwd), 1, &mut Seen::default());
}

fn render_below(
    out: &mut String,
    history: &History,
    (arguments, cwd): (&cli::Analyzer, &Path),
    depth: usize,
    seen: &mut Seen,
) {
    if depth > MAX_DEPTH {
        return;
    }
    let indent = "  ".repeat(depth);
    let one_more = arguments.causes.saturating_add(1);
    for (number, nested) in failed(history, one_more, seen).into_iter().enumerate() {
        if number == arguments.causes {
            let _ = writeln!(out, "\n{indent}and more failed sub-workflows (-n shows more)");
            return;
        }
        let dir = text::path(&nested.history.dir.dir, cwd);
        let _ = writeln!(out, "\n{indent}Sub-workflow {}, in {dir}:", nested.task);
        let text = human::render(&nested.history, &nested.diagnosis, arguments, None, cwd);
        for line in text.lines() {
            let _ = match line {
                "" => writeln!(out),
                line => writeln!(out, "{indent}{line}"),
            };
        }
        render_below(out, &nested.history, (arguments, cwd), depth + 1, seen);
    }
}

/// Returns the diagnosis of failed sub-workflows, at most `count` of each workflow.
pub fn values(history: &History, count: usize) -> Vec<Value> {
    values_below(history, count, 1, &mut Seen::default())
}

fn values_below(history: &History, count: usize, depth: usize, seen: &mut Seen) -> Vec<Value> {
    if depth > MAX_DEPTH {
        return Vec::new();
    }
    let failed = failed(history, count, seen);
    let value = |nested: Failed| {
        let mut value = json::value(&nested.history, &nested.diagnosis);
        value["task"] = nested.task.into();
        value["sub_workflows"] = values_below(&nested.history, count, depth + 1, seen).into();
        value
    };
    failed.into_iter().map(value).collect()
}
