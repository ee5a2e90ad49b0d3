//! Summary as JSON. The format has a version: minor versions add fields, and readers ignore fields that
//! they do not know.

use serde_json::{Value, json};

use crate::text::reason_value;

use super::{Ending, FailedTask, Status, Summary};

/// Version of the format: major.minor.
pub const VERSION: &str = "1.1";

/// Renders the summary as one pretty-printed JSON object with a final line feed.
pub fn render(summary: &Summary) -> String {
    let all = summary.all();
    let kinds: serde_json::Map<String, Value> = summary
        .tallies
        .iter()
        .map(|(kind, tally)| {
            let not_run = tally.total.saturating_sub(tally.done + tally.failed);
            let value =
                json!({"total": tally.total, "done": tally.done, "failed": tally.failed, "not_run": not_run});
            (kind.key().to_owned(), value)
        })
        .collect();
    let (status, signal) = match summary.status {
        Status::Success => ("success", None),
        Status::Failed => ("failed", None),
        Status::Drained => ("drained", None),
        Status::Interrupted(signal) => ("interrupted", Some(signal)),
    };
    let outputs = summary.outputs.as_ref().map(|outputs| {
        let files: Vec<Value> = outputs
            .files
            .iter()
            .map(|(name, size)| json!({"name": name, "bytes": size}))
            .collect();
        json!({"directory": outputs.directory.display().to_string(), "files": files})
    });
    let resume = if summary.status == Status::Success {
        None
    } else {
        Some(&summary.resume)
    };
    let value = json!({
        "format": "pmc-run-summary",
        "version": VERSION,
        "workflow": summary.label,
        "status": status,
        "signal": signal,
        "exit_code": summary.exit_code,
        "wall_seconds": summary.wall.as_secs_f64(),
        "tasks": {
            "total": all.total,
            "done": all.done,
            "done_before": summary.done_before,
            "failed": all.failed,
            "not_run": all.total.saturating_sub(all.done + all.failed),
            "by_kind": kinds,
        },
        "max_failures_reached": summary.max_failures_reached,
        "failures": summary.failures.iter().map(failure).collect::<Vec<_>>(),
        "outputs": outputs,
        "submit_directory": summary.submit_dir.display().to_string(),
        "resume": resume,
    });
    format!("{value:#}\n")
}

/// Renders the summary of a command that failed before a run started.
pub fn render_error(exit_code: u8, message: &str) -> String {
    let value = json!({
        "format": "pmc-run-summary",
        "version": VERSION,
        "status": "error",
        "exit_code": exit_code,
        "message": message,
    });
    format!("{value:#}\n")
}

fn failure(failure: &FailedTask) -> Value {
    let (exit_status, signal) = match failure.ending {
        Ending::Exit(status) => (Some(status), None),
        Ending::Signal(number) => (None, Some(number)),
        Ending::NotStarted => (None, None),
    };
    json!({
        "task": failure.task,
        "transformation": failure.transformation,
        "command": failure.command,
        "exit_status": exit_status,
        "signal": signal,
        "seconds": failure.duration.map(|duration| duration.as_secs_f64()),
        "tries": failure.attempts,
        "host": failure.host,
        "stderr": failure.stderr.lines,
        "stdout": failure.stdout.lines,
        "reason": failure.reason.map(reason_value),
        "note": failure.note,
        "output_file": failure.output_file.as_ref().map(|path| path.display().to_string()),
    })
}

#[cfg(test)]
mod tests {
    use super::super::fixture;
    use super::*;

    #[test]
    fn the_fields_are_stable() {
        insta::assert_snapshot!(render(&fixture::failed()));
    }
}
