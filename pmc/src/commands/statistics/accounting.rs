//! The section `accounting`: what the batch jobs of a run have cost.

use std::io;
use std::path::Path;

use anyhow::{Context as _, anyhow};
use monitord_compat::{batch_jobs, run_lock};
use pmc_checkpoint::{FileRecord, Use, task_name};
use pmc_files::LineReader;
use pmc_monitor::accounting::{Checkpoint, JobCost, account};
use pmc_monitor::dir::RunDir;
use pmc_monitor::history::History;
use serde_json::{Value, json};

use super::table::number;
use crate::clock;
use crate::exit;
use crate::failure::{Failure, OrCode as _};
use crate::recorded::{self, Recorded};
use crate::table::{Align, Table};

use Align::{Left, Right};

/// The property with the most seconds of lost time that are not charged for a job.
const MAX_LOST: &str = "pegasus.accounting.max.lost";

/// What the jobs of a run have cost.
#[derive(Debug, Default)]
pub struct Costs {
    jobs: Vec<JobCost>,
    max_lost: Option<f64>,
}

/// The sums over all jobs.
struct Sums {
    used: f64,
    restoring: f64,
    lost: f64,
    slot_seconds: f64,
    charge: f64,
}

impl Costs {
    /// Reads ledger and logs of a run.
    pub fn read(dir: &RunDir) -> Result<Self, Failure> {
        let max_lost = max_lost(dir)?;
        let is_running = run_lock::is_locked(&dir.dag) == Some(true);
        let history = History::open(dir.clone()).or_code(exit::NOT_RUN)?;
        let ledger = batch_jobs::read(&dir.dag);
        let checkpoints = checkpoints(&dir.dag)
            .context("cannot read the statistics of checkpoints")
            .or_code(exit::NOT_RUN)?;
        let jobs = account(&history, &ledger, &checkpoints, clock::now(), is_running);
        Ok(Self { jobs, max_lost })
    }

    fn sums(&self) -> Sums {
        let sum = |of: fn(&JobCost) -> f64| self.jobs.iter().map(of).sum();
        Sums {
            used: sum(|job| job.used),
            restoring: sum(|job| job.restoring),
            lost: sum(|job| job.lost),
            slot_seconds: sum(|job| job.slot_seconds),
            charge: self.jobs.iter().map(|job| job.charge(self.max_lost)).sum(),
        }
    }
}

/// Reads which checkpoints were complete, and for which files tasks have waited. Torn lines are left out.
fn checkpoints(dag: &Path) -> io::Result<Vec<Checkpoint>> {
    let mut all = Vec::new();
    let mut add = |line: &[u8]| {
        let Some(record) = FileRecord::parse(line).filter(|record| record.errors == 0) else {
            return;
        };
        let is_restored = record.usage == Use::Read;
        if let Some(task) = task_name(&record.task).filter(|_| is_restored || record.complete) {
            all.push(Checkpoint {
                task,
                closed: record.closed,
                waited: record.seconds(),
                is_restored,
            });
        }
    };
    match LineReader::open(&FileRecord::path(dag)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(all),
        reader => reader?.read(|_, line| add(line))?,
    }
    Ok(all)
}

/// Returns the most seconds of lost time that are not charged, if the properties of the plan say it.
fn max_lost(dir: &RunDir) -> Result<Option<f64>, Failure> {
    let Some(Recorded { value, file }) = recorded::property(dir, MAX_LOST) else {
        return Ok(None);
    };
    let seconds = value.parse::<f64>().ok();
    match seconds.filter(|seconds| seconds.is_finite() && *seconds >= 0.0) {
        Some(seconds) => Ok(Some(seconds)),
        None => Err(Failure::new(
            exit::USAGE,
            anyhow!(
                "{}: {MAX_LOST} must be a number of seconds, not {value}",
                file.display()
            ),
        )),
    }
}

/// Returns a line for each job, and the sums.
pub fn human(costs: &Costs) -> String {
    let mut out = "Cost of the batch jobs\n\n".to_owned();
    if costs.jobs.is_empty() {
        out.push_str("  The run has not begun.\n");
        return out;
    }
    let mut table = Table::new(&[
        ("job", Left),
        ("end", Left),
        ("nodes", Right),
        ("slots", Right),
        ("used s", Right),
        ("restoring s", Right),
        ("lost s", Right),
        ("slot-seconds", Right),
        ("charge, node-seconds", Right),
    ]);
    for job in &costs.jobs {
        table.row([
            job.job.clone(),
            job.end.clone(),
            job.nodes.to_string(),
            job.slots.to_string(),
            number(job.used),
            number(job.restoring),
            number(job.lost),
            number(job.slot_seconds),
            number(job.charge(costs.max_lost)),
        ]);
    }
    let sums = costs.sums();
    table.row([
        "all".to_owned(),
        String::new(),
        String::new(),
        String::new(),
        number(sums.used),
        number(sums.restoring),
        number(sums.lost),
        number(sums.slot_seconds),
        number(sums.charge),
    ]);
    out.push_str(&table.render("  "));
    if let Some(max) = costs.max_lost {
        out.push_str(&format!(
            "\n  At most {} s of the lost time of a job are not charged ({MAX_LOST}).\n",
            number(max)
        ));
    }
    out
}

/// Returns a row for each job.
pub fn csv(costs: &Costs) -> Vec<Vec<String>> {
    let head = [
        "Job",
        "End",
        "Nodes",
        "Slots",
        "Begin",
        "Used",
        "Restoring",
        "Lost",
        "Slot-Seconds",
        "Charge",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(costs.jobs.iter().map(|job| {
        vec![
            job.job.clone(),
            job.end.clone(),
            job.nodes.to_string(),
            job.slots.to_string(),
            number(job.begin),
            number(job.used),
            number(job.restoring),
            number(job.lost),
            number(job.slot_seconds),
            number(job.charge(costs.max_lost)),
        ]
    }));
    rows
}

/// Returns an object with an object for each job, and the sums.
pub fn json(costs: &Costs) -> Value {
    let jobs = costs.jobs.iter().map(|job| {
        json!({
            "job": job.job,
            "end": job.end,
            "nodes": job.nodes,
            "slots": job.slots,
            "begin": job.begin,
            "used_seconds": job.used,
            "restoring_seconds": job.restoring,
            "lost_seconds": job.lost,
            "slot_seconds": job.slot_seconds,
            "charge_node_seconds": job.charge(costs.max_lost),
        })
    });
    let sums = costs.sums();
    json!({
        "jobs": jobs.collect::<Vec<_>>(),
        "used_seconds": sums.used,
        "restoring_seconds": sums.restoring,
        "lost_seconds": sums.lost,
        "slot_seconds": sums.slot_seconds,
        "charge_node_seconds": sums.charge,
        "max_lost_seconds": costs.max_lost,
    })
}
