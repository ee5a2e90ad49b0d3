//! Data for the script in the page of a report. The format is private to the two.

use pmc_monitor::causes::{Cause, Diagnosis, diagnose};
use pmc_monitor::events::Micros;
use pmc_monitor::history::{History, NEVER, Phase, State};
use pmc_monitor::resources::Host;
use pmc_monitor::timeline::{Cell, Picture, Timeline};
use serde_json::{Value, json};

use crate::commands::analyzer::{by_hand, cannot_repeat, nested};
use crate::text;

/// Maximum hosts in the table.
const MAX_HOSTS: usize = 500;
/// Maximum causes to explain.
const MAX_CAUSES: usize = 12;
/// Maximum tasks and hosts to name per cause.
const MAX_NAMED: usize = 6;

/// How the run has ended, and why tasks have failed.
pub struct Verdict {
    text: Value,
    diagnosis: Diagnosis,
    /// Causes, those of the run before those of its sub-workflows.
    causes: Vec<Value>,
    /// Dependents that did not run.
    blocked: usize,
}

impl Verdict {
    /// Judges a run, and the sub-workflows that have failed in it.
    pub fn of(history: &History) -> Self {
        let diagnosis = diagnose(history);
        let nested = nested::all(history, MAX_CAUSES);
        let inner = nested
            .iter()
            .map(|failed| (failed.task.as_str(), &failed.history, &failed.diagnosis));
        let all = std::iter::once(("", history, &diagnosis)).chain(inner);
        let values = all.clone().flat_map(|(around, history, diagnosis)| {
            let causes = diagnosis.causes.iter();
            causes.map(move |cause| cause_value(history, cause, around))
        });
        Self {
            text: verdict_text(history, &diagnosis),
            causes: values.take(MAX_CAUSES).collect(),
            blocked: all
                .flat_map(|(_, _, diagnosis)| diagnosis.never_ran.values())
                .sum(),
            diagnosis,
        }
    }
}

/// Returns all data of the page. The history has the tasks of sub-workflows, too.
pub fn value(history: &History, timeline: &Timeline, verdict: &Verdict, now: Micros) -> Value {
    let all = history.all();
    let hosts = history.use_of_hosts(now);
    let (bars, cells) = picture(history, &timeline.picture);
    let ended = history.attempts.iter().filter(|attempt| attempt.end != NEVER);
    let failed = ended.clone().filter(|attempt| attempt.failed()).count();
    let lost = ended.clone().filter(|attempt| attempt.was_evicted()).count();
    let sum = |part: fn(&Host) -> f64| hosts.iter().map(part).sum::<f64>();
    let share = |used: f64, there: f64| (there > 0.0).then(|| round(used / there, 4));
    let points = f64::from(u32::try_from(timeline.cpus.len().max(1)).unwrap_or(1));
    let parallel: f64 = timeline
        .running
        .iter()
        .flatten()
        .map(|value| f64::from(*value))
        .sum::<f64>()
        / points;
    json!({
        "label": history.dir.label,
        "version": env!("CARGO_PKG_VERSION"),
        "directory": history.dir.dir.display().to_string(),
        "made": now / 1000,
        "begin": timeline.begin / 1000,
        "verdict": verdict.text,
        "seconds": round(timeline.seconds, 6),
        "restarts": timeline.restarts,
        "tasks": {"total": all.total(), "done": all.get(State::Done), "failed": all.get(State::Failed)},
        "tries": {"all": ended.count(), "failed": failed, "lost": lost},
        "blocked": verdict.blocked,
        "parallel": round(parallel, 3),
        "use": {"slots": share(sum(|host| host.slot_seconds), sum(|host| host.slot_seconds_there))},
        "capacity": {
            "slots": hosts.iter().map(|host| u64::from(host.capacity.slots)).sum::<u64>(),
            "cpus": hosts.iter().map(|host| u64::from(host.capacity.cpus)).sum::<u64>(),
            "memory": hosts.iter().map(|host| host.capacity.memory_mb).sum::<u64>(),
        },
        "classes": timeline.classes.iter().map(|class| json!({
            "name": class.name, "count": class.count, "seconds": round(class.seconds, 3),
        })).collect::<Vec<_>>(),
        "rows": timeline.rows.iter().map(|row| json!([row.host, row.slot])).collect::<Vec<_>>(),
        "hosts_left_out": timeline.hosts_left_out,
        "bars": bars,
        "cells": cells,
        "running": timeline.running.iter().map(|curve| points_of(curve)).collect::<Vec<_>>(),
        "cpus": points_of(&timeline.cpus),
        "memory": points_of(&timeline.memory_mb),
        "chain": timeline.chain.iter().map(|link| json!([
            history.plan.text_name(link.task), link.class,
            round(link.start, 3), round(link.seconds, 3), round(link.waited, 3),
        ])).collect::<Vec<_>>(),
        "lengths": {
            "low": timeline.shortest,
            "high": timeline.longest,
            "classes": timeline.run_times.iter().map(|times| json!({
                "cls": times.class, "count": times.count, "median": round(times.median, 4),
                "p95": round(times.p95, 4), "max": round(times.max, 4), "bars": times.bars,
            })).collect::<Vec<_>>(),
        },
        "hosts": hosts.iter().take(MAX_HOSTS).map(|host| json!({
            "name": host.name,
            "tasks": host.started,
            "slots": host.capacity.slots,
            "cpus": host.capacity.cpus,
            "memory_mb": host.capacity.memory_mb,
            "slot_use": share(host.slot_seconds, host.slot_seconds_there),
            "cpu_use": share(host.cpu_seconds, host.cpu_seconds_there),
            "memory_use": share(host.memory_seconds, host.memory_seconds_there),
        })).collect::<Vec<_>>(),
        "failures": verdict.causes,
        "remarks": verdict.diagnosis.remarks,
    })
}

fn verdict_text(history: &History, diagnosis: &Diagnosis) -> Value {
    let all = history.all();
    let (text, mood) = match diagnosis.phase {
        Phase::NotStarted => ("not started", ""),
        Phase::Running => ("running", ""),
        _ if all.get(State::Done) == all.total() && all.total() > 0 => ("succeeded", "good"),
        Phase::Ended(_) => ("failed", "bad"),
        Phase::CutOff => ("cut off", "bad"),
    };
    json!({"text": text, "mood": mood})
}

fn picture(history: &History, picture: &Picture) -> (Option<Value>, Option<Value>) {
    match picture {
        Picture::Exact(bars) => {
            let bar = |bar: &pmc_monitor::timeline::Bar| {
                let (start, seconds) = (round(bar.start, 4), round(bar.seconds, 4));
                let failed = u8::from(bar.failed);
                json!([
                    bar.row,
                    bar.class,
                    start,
                    seconds,
                    failed,
                    history.plan.text_name(bar.task)
                ])
            };
            (Some(bars.iter().map(bar).collect()), None)
        }
        Picture::Cells(rows) => (None, Some(rows.iter().map(|row| cells(row)).collect())),
    }
}

/// Encodes a row: one character per cell for the class, one for the use in 36 steps, and the failed cells.
fn cells(row: &[Cell]) -> Value {
    let class = |cell: &Cell| char::from(b'0' + u8::try_from(cell.class.min(9)).unwrap_or(9));
    let used = |cell: &Cell| {
        let step = (cell.used.clamp(0.0, 1.0) * 35.0).ceil() as u32;
        char::from_digit(step, 36).unwrap_or('0')
    };
    let failed: Vec<usize> = (0..)
        .zip(row)
        .filter(|(_, cell)| cell.failed)
        .map(|(at, _)| at)
        .collect();
    json!({
        "cls": row.iter().map(class).collect::<String>(),
        "used": row.iter().map(used).collect::<String>(),
        "failed": failed,
    })
}

/// Describes a cause. Names of tasks begin with that of the sub-workflow around them.
fn cause_value(history: &History, cause: &Cause, around: &str) -> Value {
    let mut tasks = cause.task_names(history, MAX_NAMED);
    if !around.is_empty() {
        tasks
            .iter_mut()
            .for_each(|task| *task = format!("{around}/{task}"));
    }
    let mut hosts: Vec<(&String, &usize)> = cause.hosts.iter().collect();
    hosts.sort_by_key(|(name, count)| (std::cmp::Reverse(**count), name.as_str()));
    let more = hosts.len().saturating_sub(MAX_NAMED);
    let mut hosts: Vec<String> = hosts
        .iter()
        .take(MAX_NAMED)
        .map(|(name, count)| format!("{name} ({count})"))
        .collect();
    if more > 0 {
        hosts.push(format!("{more} more"));
    }
    let example = &cause.example;
    let output = if example.stderr.is_empty() {
        &example.stdout
    } else {
        &example.stderr
    };
    let memory = cause.peak_kib.map(|peak| {
        let requested = match cause.request_mb {
            0 => "none requested".to_owned(),
            mb => format!("{} requested", text::bytes(mb.saturating_mul(1 << 20))),
        };
        format!(
            "Memory: peak {}, {requested}",
            text::bytes(peak.saturating_mul(1024))
        )
    });
    let known = cause.reason.map(|reason| reason.to_string()).into_iter();
    let command = (!example.command.is_empty()).then(|| {
        let impossible = cannot_repeat(example).map(|why| format!("cannot be repeated here: {why}"));
        impossible.unwrap_or_else(|| by_hand(example))
    });
    json!({
        "transformation": cause.transformation,
        "ending": cause.ending.to_string(),
        "count": cause.tasks.len(),
        "blocked": cause.blocked,
        "likely": known.chain(cause.reasons.iter().cloned()).collect::<Vec<_>>(),
        "tasks": tasks,
        "hosts": hosts,
        "memory": memory,
        "output": output.lines,
        "command": command,
    })
}

fn points_of(curve: &[f32]) -> Vec<f64> {
    curve.iter().map(|value| round(f64::from(*value), 3)).collect()
}

fn round(value: f64, digits: i32) -> f64 {
    let scale = 10_f64.powi(digits);
    (value * scale).round() / scale
}
