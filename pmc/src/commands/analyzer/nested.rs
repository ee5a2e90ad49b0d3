//! Failed sub-workflows inside of the diagnosis, each by itself.

use std::fmt::Write as _;
use std::path::Path;

use pmc_monitor::causes::{Diagnosis, diagnose};
use pmc_monitor::history::{History, MAX_DEPTH, State};
use serde_json::Value;

use super::{human, json};
use crate::cli;
use crate::text;

/// A failed sub-workflow.
struct Failed {
    task: String,
    history: History,
    diagnosis: Diagnosis,
}

/// Returns the failed sub-workflows of a run that have begun, in the order of the plan.
fn failed(history: &History) -> impl Iterator<Item = Failed> + '_ {
    history.plan.subdags().filter_map(|task| {
        if history.state(task) != State::Failed {
            return None;
        }
        let nested = history.nested(task)?;
        let diagnosis = diagnose(&nested);
        // If its planner has failed again, that is the cause, which the task around it shows.
        (!diagnosis.causes.is_empty()).then(|| Failed {
            task: history.plan.text_name(task),
            history: nested,
            diagnosis,
        })
    })
}

/// Appends the diagnosis of failed sub-workflows, indented by their depth.
pub fn render(out: &mut String, history: &History, arguments: &cli::Analyzer, cwd: &Path) {
    render_below(out, history, arguments, cwd, 1);
}

fn render_below(out: &mut String, history: &History, arguments: &cli::Analyzer, cwd: &Path, depth: usize) {
    if depth > MAX_DEPTH {
        return;
    }
    let indent = "  ".repeat(depth);
    for (number, nested) in failed(history).enumerate() {
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
        render_below(out, &nested.history, arguments, cwd, depth + 1);
    }
}

/// Returns the diagnosis of failed sub-workflows, at most `count` of each workflow.
pub fn values(history: &History, count: usize) -> Vec<Value> {
    values_below(history, count, 1)
}

fn values_below(history: &History, count: usize, depth: usize) -> Vec<Value> {
    if depth > MAX_DEPTH {
        return Vec::new();
    }
    let value = |nested: Failed| {
        let mut value = json::value(&nested.history, &nested.diagnosis);
        value["task"] = nested.task.into();
        value["sub_workflows"] = values_below(&nested.history, count, depth + 1).into();
        value
    };
    failed(history).take(count).map(value).collect()
}
