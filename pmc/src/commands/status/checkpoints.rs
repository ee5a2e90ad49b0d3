//! What running tasks have saved, and what they say of their progress.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use pmc_checkpoint::{Store, TaskUsage, Usage, task_directory};
use serde_json::Value;

use crate::commands::statistics::checkpoints::{object, share, warning};
use crate::table::{Align, Table};
use crate::text;

/// A running task that has saved something, or has said something.
pub struct Saved {
    name: String,
    directory: String,
    /// It has saved or read something.
    has_used: bool,
    usage: TaskUsage,
    message: Option<String>,
}

/// Looks at these tasks of a DAG. What cannot be read is left out.
pub fn of<'a>(dag: &Path, tasks: impl Iterator<Item = &'a [u8]>) -> Vec<Saved> {
    let store = Store::open(dag).ok().flatten();
    let mut usage = Usage::read(dag).unwrap_or_default();
    if store.is_none() && usage.0.is_empty() {
        return Vec::new();
    }
    let look = |task: &[u8]| {
        let directory = task_directory(task).ok()?;
        let files = store.as_ref().and_then(|store| store.task(task).ok());
        let message = files.and_then(|files| files.message());
        let usage = usage.0.remove(&directory);
        if usage.is_none() && message.is_none() {
            return None;
        }
        Some(Saved {
            name: String::from_utf8_lossy(task).into_owned(),
            directory,
            has_used: usage.is_some(),
            usage: usage.unwrap_or_default(),
            message,
        })
    };
    tasks.filter_map(look).collect()
}

/// Writes a line for each task that has saved or read something. `now` are the seconds since 1970. Messages
/// have lines of their own.
pub fn human(out: &mut String, all: &[Saved], now: f64) {
    let all: Vec<&Saved> = all.iter().filter(|saved| saved.has_used).collect();
    if all.is_empty() {
        return;
    }
    let mut table = Table::new(&[
        ("checkpoints", Align::Left),
        ("series", Align::Right),
        ("ago", Align::Right),
        ("written", Align::Right),
        ("of its time", Align::Right),
    ]);
    for Saved { name, usage, .. } in &all {
        let ago = Duration::try_from_secs_f64(now - usage.closed).unwrap_or_default();
        let has_saved = usage.series > 0;
        let or_dash = |text: String| if has_saved { text } else { "-".to_owned() };
        table.row([
            name.clone(),
            or_dash(usage.series.to_string()),
            or_dash(text::duration(ago)),
            or_dash(text::bytes(usage.bytes_written)),
            or_dash(share(usage)),
        ]);
    }
    let _ = write!(out, "\n{}", table.render("  "));
    let warnings = all.iter().filter_map(|saved| warning(&saved.name, &saved.usage));
    warnings.for_each(|warning| {
        let _ = writeln!(out, "  {warning}");
    });
}

/// Returns an object for each task.
pub fn json(all: &[Saved]) -> Vec<Value> {
    let value = |saved: &Saved| {
        let mut value = object(&saved.directory, &saved.usage);
        value["message"] = saved.message.clone().into();
        value
    };
    all.iter().map(value).collect()
}
