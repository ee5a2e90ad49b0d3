//! Statistics as JSON. The format has a version: minor versions add fields.

use pmc_monitor::statistics::{Counts, Level, OverTime, Spread};
use serde_json::{Map, Value, json};

use super::{Figures, accounting, checkpoints, data, human};
use crate::cli::Section;
use crate::exit;
use crate::failure::{Failure, OrCode as _};

/// Version of the format: major.minor.
pub const VERSION: &str = "1.4";

/// Returns the sections as one object.
pub fn value(figures: &Figures<'_>, sections: &[Section]) -> Result<Value, Failure> {
    let statistics = &figures.statistics;
    let mut all = Map::new();
    all.insert("format".into(), "pmc-statistics".into());
    all.insert("version".into(), VERSION.into());
    all.insert("workflow".into(), statistics.label.clone().into());
    all.insert("wf_uuid".into(), statistics.uuid.clone().into());
    for section in sections {
        match section {
            Section::Summary | Section::All => {
                all.insert("summary".into(), summary(figures));
            }
            Section::Workflow => {
                all.insert("summary".into(), summary(figures));
                all.insert("workflows".into(), workflows(figures));
            }
            Section::Breakdown => {
                all.insert("breakdown".into(), breakdown(figures));
            }
            Section::Time => {
                all.insert(
                    "time".into(),
                    json!({
                        "step": human::unit(figures.step),
                        "jobs": over_time(figures, &statistics.jobs_over_time),
                        "invocations": over_time(figures, &statistics.invocations_over_time),
                    }),
                );
            }
            Section::Integrity => {
                let rows: Vec<Value> = statistics
                    .integrity
                    .iter()
                    .map(|((kind, file), sum)| {
                        json!({"type": kind, "file_type": file, "count": sum.count, "seconds": sum.seconds})
                    })
                    .collect();
                all.insert("integrity".into(), rows.into());
            }
            Section::Hosts => {
                all.insert("hosts".into(), hosts(figures));
            }
            Section::Jobs => {
                all.insert("jobs".into(), jobs(figures)?);
            }
            Section::Checkpoints => {
                let tasks = figures.checkpoints.0.iter();
                let rows: Vec<Value> = tasks
                    .map(|(task, usage)| checkpoints::object(task, usage))
                    .collect();
                all.insert("checkpoints".into(), rows.into());
            }
            Section::Accounting => {
                all.insert("accounting".into(), accounting::json(&figures.costs));
            }
            Section::Data => {
                all.insert("data".into(), data::json(figures)?);
            }
        }
    }
    Ok(Value::Object(all))
}

fn counts(counts: Counts) -> Value {
    json!({
        "succeeded": counts.succeeded,
        "failed": counts.failed,
        "incomplete": counts.incomplete(),
        "total": counts.total,
        "retries": counts.retries,
        "total_with_retries": counts.with_retries(),
    })
}

fn workflows(figures: &Figures<'_>) -> Value {
    let level = |level: &Level| {
        json!({
            "workflow": level.label,
            "wf_uuid": level.uuid,
            "tasks": counts(level.tasks),
            "jobs": counts(level.jobs),
            "sub_workflows": counts(level.sub_workflows),
            "restarts": level.restarts,
        })
    };
    figures.statistics.workflows.iter().map(level).collect()
}

fn summary(figures: &Figures<'_>) -> Value {
    let statistics = &figures.statistics;
    json!({
        "tasks": counts(statistics.tasks),
        "jobs": counts(statistics.jobs),
        "sub_workflows": counts(statistics.sub_workflows),
        "lost_attempts": statistics.lost_attempts,
        "restarts": statistics.restarts,
        "wall_seconds": statistics.wall_seconds,
        "job_seconds": statistics.job_seconds,
        "job_seconds_seen_by_executor": statistics.submit_side_seconds,
        "badput_seconds": statistics.badput_seconds,
        "badput_seconds_seen_by_executor": statistics.submit_side_badput_seconds,
        "integrity_failures": statistics.integrity_failures,
    })
}

fn spread(spread: &Spread) -> Value {
    if spread.count == 0 {
        return Value::Null;
    }
    json!({"min": spread.min, "max": spread.max, "mean": spread.mean(), "total": spread.total})
}

fn breakdown(figures: &Figures<'_>) -> Value {
    let rows = figures.statistics.breakdown.iter();
    rows.map(|((name, well), sums)| {
        json!({
            "transformation": name,
            "successful": well,
            "count": sums.seconds.count,
            "seconds": spread(&sums.seconds),
            "memory_mb": spread(&sums.memory_mb),
            "cpu": spread(&sums.cpu),
        })
    })
    .collect()
}

fn over_time(figures: &Figures<'_>, over_time: &OverTime) -> Value {
    over_time
        .iter()
        .map(|(piece, (sum, hosts))| {
            let hosts: Map<String, Value> = hosts
                .iter()
                .map(|(host, sum)| (host.clone(), json!({"count": sum.count, "seconds": sum.seconds})))
                .collect();
            json!({
                "date": human::date(figures.step, *piece),
                "count": sum.count,
                "seconds": sum.seconds,
                "hosts": hosts,
            })
        })
        .collect()
}

fn hosts(figures: &Figures<'_>) -> Value {
    let share = |used: f64, there: f64| (there > 0.0).then(|| used / there);
    let rows = figures.statistics.hosts.iter();
    rows.map(|host| {
        json!({
            "host": host.name,
            "slots": host.capacity.slots,
            "cpus": host.capacity.cpus,
            "memory_mb": host.capacity.memory_mb,
            "seconds": host.seconds,
            "tasks": host.started,
            "slot_use": share(host.slot_seconds, host.slot_seconds_there),
            "cpu_use": share(host.cpu_seconds, host.cpu_seconds_there),
            "memory_use": share(host.memory_seconds, host.memory_seconds_there),
            "peak_slots": host.peak_slots,
            "peak_cpus": host.peak_cpus,
            "peak_memory_mb": host.peak_memory_mb,
        })
    })
    .collect()
}

fn jobs(figures: &Figures<'_>) -> Result<Value, Failure> {
    let mut rows = Vec::new();
    let done = figures.statistics.attempts(figures.database, |attempt| {
        rows.push(json!({
            "job": attempt.job,
            "try": attempt.number,
            "site": attempt.site,
            "seconds": attempt.kickstart,
            "multiplier": attempt.multiplier,
            "cpu_seconds": attempt.cpu_seconds,
            "queue_seconds": attempt.queue_seconds,
            "seconds_seen_by_executor": attempt.runtime,
            "cluster_seconds": attempt.cluster,
            "exit": attempt.exit,
            "host": attempt.host,
        }));
        Ok(())
    });
    done.or_code(exit::NOT_RUN)?.or_code(exit::NOT_RUN)?;
    Ok(rows.into())
}
