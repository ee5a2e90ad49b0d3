//! Status as JSON. The format has a version: minor versions add fields.

use pmc_monitor::ending::Ending;
use pmc_monitor::history::{History, Phase, State, Tally, seconds};
use pmc_monitor::plan::TaskNumber;
use pmc_monitor::progress::{FailedTask, METHOD, Progress};
use serde_json::{Value, json};

use crate::text::{reason_value, run_end_value};

use super::{Guest, checkpoints, guests, unfinished};

/// Version of the format: major.minor.
pub const VERSION: &str = "1.5";

fn failed_task(history: &History, task: &FailedTask) -> Value {
    let (exit_status, signal) = ending(task.ending);
    json!({
        "task": history.plan.text_name(task.task),
        "transformation": history.plan.class(task.task).transformation,
        "exit_status": exit_status,
        "signal": signal,
        "reason": task.reason.map(reason_value),
        "host": task.host,
        "time": seconds(task.time),
        "tries": task.attempts,
    })
}

/// Returns the status as one object, with at most `lines` running and failed tasks.
pub fn value(history: &History, progress: &Progress, lines: usize) -> Value {
    let kinds: serde_json::Map<String, Value> = progress
        .kinds
        .iter()
        .map(|(kind, counts)| (kind.key().to_owned(), tally(counts)))
        .collect();
    let name = |task| history.plan.text_name(task);
    let running: Vec<Value> = progress
        .running
        .iter()
        .take(lines)
        .map(|task| {
            json!({
                "task": name(task.task),
                "transformation": history.plan.class(task.task).transformation,
                "host": task.host,
                "seconds": task.seconds,
            })
        })
        .collect();
    let list = |tasks: &[FailedTask]| -> Vec<Value> {
        let shown = tasks.iter().take(lines);
        shown.map(|task| failed_task(history, task)).collect()
    };
    let exit_status = match progress.phase {
        Phase::Ended(status) => Some(status),
        Phase::NotStarted | Phase::Running | Phase::CutOff => None,
    };
    let mut value = json!({
        "format": "pmc-status",
        "version": VERSION,
        "workflow": history.dir.label,
        "submit_directory": history.dir.dir.display().to_string(),
        "phase": progress.phase.key(),
        "ended": progress.run_end.as_ref().map(run_end_value),
        "exit_status": exit_status,
        "runs": progress.runs,
        "wall_seconds": progress.wall_seconds,
        "seconds_since_last_event": progress.silent_seconds,
        "tasks": tally(&progress.all),
        "by_kind": kinds,
        "blocked": progress.blocked,
        "tries": {"ended": progress.attempts, "failed": progress.failed_attempts, "lost": progress.lost_attempts},
        "rate": progress.rate.map(|rate| json!({
            "window_seconds": rate.window_seconds,
            "tasks_per_minute": rate.per_minute,
            "tasks_per_minute_of_run": rate.per_minute_of_run,
            "running_on_average": rate.parallel,
        })),
        "estimate": progress.estimate.map(|estimate| json!({
            "seconds": estimate.seconds,
            "at_least_seconds": estimate.at_least,
            "work_seconds": estimate.work,
            "longest_chain_seconds": estimate.chain,
            "tasks": estimate.tasks,
            "tasks_guessed": estimate.guessed,
            "method": METHOD,
        })),
        "running": running,
        "failed": list(&progress.failed),
        "retried": list(&progress.retried),
        "sub_workflows": nested(history, lines),
        "handed_over": handed_over(history, lines),
    });
    let tasks = progress.running.iter().take(lines);
    let saved = checkpoints::of(&history.dir.dag, tasks.map(|task| history.plan.name(task.task)));
    if !saved.is_empty() {
        value["checkpoints"] = checkpoints::json(&saved).into();
    }
    if let Some(dag) = &progress.missing_dag {
        value["missing_dag"] = json!(dag.display().to_string());
    }
    value
}

/// Sub-workflows that run or have failed.
fn nested(history: &History, lines: usize) -> Vec<Value> {
    let value = |(task, run): (TaskNumber, History)| {
        json!({
            "task": history.plan.text_name(task),
            "submit_directory": run.dir.dir.display().to_string(),
            "tasks": tally(&run.all()),
        })
    };
    unfinished(history).take(lines).map(value).collect()
}

/// Workflows that were handed to the run.
fn handed_over(history: &History, lines: usize) -> Vec<Value> {
    let value = |Guest { weight, history }: Guest| {
        json!({
            "submit_directory": history.dir.dir.display().to_string(),
            "weight": weight,
            "tasks": tally(&history.all()),
        })
    };
    guests(history).take(lines).map(value).collect()
}

/// Returns the exit status or the number of the signal.
fn ending(ending: Ending) -> (Option<i32>, Option<i32>) {
    match ending {
        Ending::Exit(status) => (Some(status), None),
        Ending::Signal(number) => (None, Some(number)),
        Ending::NotStarted => (None, None),
    }
}

fn tally(tally: &Tally) -> Value {
    json!({
        "total": tally.total(),
        "done": tally.get(State::Done),
        "running": tally.get(State::Running),
        "ready": tally.get(State::Ready),
        "waiting": tally.get(State::Waiting),
        "failed": tally.get(State::Failed),
    })
}
