//! Diagnosis as JSON. The format has a version: minor versions add fields.

use pmc_monitor::causes::{Cause, Diagnosis};
use pmc_monitor::ending::Ending;
use pmc_monitor::history::{History, State, seconds};
use serde_json::{Map, Value, json};

use crate::text::{reason_value, run_end_value};

use super::human::{by_hand, cannot_repeat};

/// Version of the format: major.minor.
pub const VERSION: &str = "1.4";
/// Maximum tasks to name per cause.
const MAX_NAMED: usize = 1000;

/// Returns the diagnosis as one object.
pub fn value(history: &History, diagnosis: &Diagnosis) -> Value {
    let all = history.all();
    let never_ran: Map<String, Value> = diagnosis
        .never_ran
        .iter()
        .map(|(kind, count)| (kind.key().to_owned(), json!(count)))
        .collect();
    json!({
        "format": "pmc-analyzer",
        "version": VERSION,
        "workflow": history.dir.label,
        "submit_directory": history.dir.dir.display().to_string(),
        "phase": diagnosis.phase.key(),
        "ended": diagnosis.run_end.as_ref().map(run_end_value),
        "tasks": {
            "total": all.total(),
            "done": all.get(State::Done),
            "failed": all.get(State::Failed),
            "left": diagnosis.left,
        },
        "causes": diagnosis.causes.iter().map(|cause| cause_value(history, cause)).collect::<Vec<_>>(),
        "retried": diagnosis.retried.iter().map(|cause| cause_value(history, cause)).collect::<Vec<_>>(),
        "never_ran": {"by_kind": never_ran, "first": diagnosis.never_ran_names},
        "cut_off": diagnosis.lost,
        "tries_repaired": diagnosis.repaired,
        "remarks": diagnosis.remarks,
        "batch_output": diagnosis.batch_output.iter().map(|output| json!({
            "file": output.path.display().to_string(),
            "lines": output.tail.lines,
        })).collect::<Vec<_>>(),
    })
}

fn cause_value(history: &History, cause: &Cause) -> Value {
    let example = &cause.example;
    let (exit_status, signal) = match cause.ending {
        Ending::Exit(status) => (Some(status), None),
        Ending::Signal(number) => (None, Some(number)),
        Ending::NotStarted => (None, None),
    };
    let tasks = cause.task_names(history, MAX_NAMED);
    json!({
        "transformation": cause.transformation,
        "kind": cause.kind.key(),
        "exit_status": exit_status,
        "signal": signal,
        "reason": cause.reason.map(reason_value),
        "message": cause.signature,
        "count": cause.tasks.len(),
        "not_read": cause.assumed,
        "tasks": tasks,
        "hosts": cause.hosts,
        "first_time": seconds(cause.first),
        "last_time": seconds(cause.last),
        "blocked": cause.blocked,
        "likely": cause.reasons,
        "cancelled": cause.cancelled,
        "peak_memory_kib": cause.peak_kib,
        "requested_memory_mb": cause.request_mb,
        "example": {
            "task": example.task,
            "host": example.host,
            "seconds": example.duration.map(|duration| duration.as_secs_f64()),
            "tries": example.attempts,
            "directory": example.directory,
            "environment": example.environment,
            "stdin": example.stdin,
            "command": example.command,
            "by_hand": by_hand(example),
            "cannot_repeat": cannot_repeat(example),
            "stderr": example.stderr.lines,
            "stdout": example.stdout.lines,
            "note": example.note,
            "output_file": example.output_file.as_ref().map(|path| path.display().to_string()),
        },
    })
}
