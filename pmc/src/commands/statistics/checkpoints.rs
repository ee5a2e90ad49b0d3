//! The section `checkpoints`: what tasks have saved, and what part of their time that has taken.

use std::fmt::Write as _;

use pmc_checkpoint::{TaskUsage, Usage, task_name};
use serde_json::{Value, json};

use crate::table::{Align, Table};
use crate::text;

/// What the section says of a run whose tasks have saved nothing.
const NONE: &str = "  No task of this run has saved its state with `pmc checkpoint` or libtcsio.\n";

/// Returns the name of the task that has a directory.
pub fn name(directory: &str) -> String {
    let name = task_name(directory).unwrap_or_else(|| directory.as_bytes().to_vec());
    String::from_utf8_lossy(&name).into_owned()
}

/// Returns the part of its time that a task has spent on its checkpoints.
pub fn share(usage: &TaskUsage) -> String {
    format!("{:.1} %", usage.share() * 100.0)
}

/// Returns a warning for a task that spends too much time on its checkpoints.
pub fn warning(name: &str, usage: &TaskUsage) -> Option<String> {
    let seconds = usage.advised_interval()?;
    let share = share(usage);
    Some(format!(
        "{name} spends {share} of its time on checkpoints: with {seconds} s between two it would be 5 %"
    ))
}

/// Returns a line for each task.
pub(super) fn human(all: &Usage) -> String {
    let mut out = String::from("Checkpoints\n\n");
    if all.0.is_empty() {
        out.push_str(NONE);
        return out;
    }
    let mut table = Table::new(&[
        ("", Align::Left),
        ("series", Align::Right),
        ("written", Align::Right),
        ("read", Align::Right),
        ("errors", Align::Right),
        ("seconds", Align::Right),
        ("of its time", Align::Right),
    ]);
    let mut warnings = String::new();
    for (task, usage) in &all.0 {
        let name = name(task);
        table.row([
            name.clone(),
            usage.complete.to_string(),
            text::bytes(usage.bytes_written),
            text::bytes(usage.bytes_read),
            usage.errors.to_string(),
            format!("{:.3}", usage.blocked()),
            share(usage),
        ]);
        if let Some(warning) = warning(&name, usage) {
            let _ = writeln!(warnings, "  {warning}");
        }
    }
    out.push_str(&table.render("  "));
    if !warnings.is_empty() {
        out.push('\n');
        out.push_str(&warnings);
    }
    out
}

/// Returns a row for each task.
pub(super) fn csv(all: &Usage) -> Vec<Vec<String>> {
    let head = [
        "Task",
        "Series",
        "Files-Written",
        "Bytes-Written",
        "Files-Read",
        "Bytes-Read",
        "Errors",
        "Seconds",
        "Share",
    ];
    let row = |(task, usage): (&String, &TaskUsage)| {
        vec![
            name(task),
            usage.complete.to_string(),
            usage.written.to_string(),
            usage.bytes_written.to_string(),
            usage.read.to_string(),
            usage.bytes_read.to_string(),
            usage.errors.to_string(),
            format!("{:.3}", usage.blocked()),
            format!("{:.4}", usage.share()),
        ]
    };
    let head = head.map(str::to_owned).to_vec();
    std::iter::once(head).chain(all.0.iter().map(row)).collect()
}

/// Returns the figures of a task as an object.
pub fn object(task: &str, usage: &TaskUsage) -> Value {
    json!({
        "task": name(task),
        "complete_series": usage.complete,
        "newest_series": (usage.series > 0).then_some(usage.series),
        "newest_series_time": (usage.series > 0).then_some(usage.closed),
        "files_written": usage.written,
        "bytes_written": usage.bytes_written,
        "files_read": usage.read,
        "bytes_read": usage.bytes_read,
        "errors": usage.errors,
        "seconds": usage.blocked(),
        "share_of_time": usage.share(),
        "advised_interval_seconds": usage.advised_interval(),
    })
}
