//! The figures at the end of a run.

use std::ffi::OsStr;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::time::Duration;

use chrono::{DateTime, FixedOffset};
use monitord_compat::cluster_record::SummaryRecord;

use super::{Position, RunError};
use crate::protocol::Rank;
use crate::scheduler::Summary;
use crate::transport::Traffic;

/// Why a run was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aborted {
    /// Somebody asked for it; the number of the signal.
    Signal(i32),
    /// The wall time has passed.
    WallTime,
}

/// How a run went.
#[derive(Clone, Debug)]
pub struct RunSummary {
    /// Numbers of tasks and tries.
    pub figures: Summary,
    /// Why the run was given up, if it was.
    pub aborted: Option<Aborted>,
    /// The signal because of which nothing new was started, if tasks are left that could have been.
    /// The running ones have ended.
    pub drained: Option<i32>,
    /// Tasks whose latest try failed, in the order of the DAG file.
    pub failures: Vec<FailedTask>,
    /// Tasks that can never run because they wait for each other: where, and which.
    pub cycle: Option<Position>,
    /// Number of workers.
    pub workers: u32,
    /// From the start of the run to its end.
    pub wall_time: Duration,
    /// The part of it in which tasks could run.
    pub makespan: Duration,
    /// Workers that have not ended although they were asked to.
    pub silent_workers: Vec<Rank>,
    /// Why the database that was wanted is not whole, if so.
    pub database: Option<String>,
}

/// A task that did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedTask {
    /// Its name.
    pub name: Vec<u8>,
    /// Raw wait status of its latest try; 256 for failures of the executor itself.
    pub status: i32,
    /// Tries in this run.
    pub tries: u32,
}

#[derive(Default)]
pub(super) struct Failure {
    pub(super) status: i32,
    pub(super) tries: u32,
}

impl RunSummary {
    /// All tasks have succeeded, in this run or before.
    #[must_use]
    pub fn success(&self) -> bool {
        self.aborted.is_none() && self.figures.success
    }
}

/// Writes the figures as log lines.
pub(super) fn log(summary: &RunSummary, traffic: Traffic, hit_rate: f64) {
    let minutes = |seconds: f64| format!("{seconds:.6} seconds ({:.6} minutes)", seconds / 60.0);
    let ratio = |a: f64, b: f64| if b > 0.0 { a / b } else { 0.0 };
    let (runtime, wall, makespan) = (
        summary.figures.runtime.as_secs_f64(),
        summary.wall_time.as_secs_f64(),
        summary.makespan.as_secs_f64(),
    );
    let workers = f64::from(summary.workers);
    tracing::info!(
        "Resource utilization (with master): {:.6}",
        ratio(runtime, wall * (workers + 1.0))
    );
    tracing::info!(
        "Resource utilization (without master): {:.6}",
        ratio(runtime, wall * workers)
    );
    tracing::info!("Total runtime of tasks: {}", minutes(runtime));
    tracing::info!("Wall time: {}", minutes(wall));
    tracing::info!("Makespan: {}", minutes(makespan));
    let tries = (summary.figures.succeeded + summary.figures.failed) as f64;
    tracing::info!("Throughput: {:.6} tasks/second", ratio(tries, makespan));
    tracing::info!("Bytes sent to workers: {}", traffic.sent);
    tracing::info!("Bytes received from workers: {}", traffic.received);
    tracing::info!("File descriptor cache hit rate: {hit_rate:.6}");
}

/// Prints the summary record.
pub(super) fn print_record(
    summary: &RunSummary,
    start: DateTime<FixedOffset>,
    app: &OsStr,
) -> Result<(), RunError> {
    let mut record = Vec::new();
    let figures = &summary.figures;
    SummaryRecord {
        success: summary.success(),
        tasks: figures.tasks as u64,
        submitted: figures.submitted,
        succeeded: figures.succeeded,
        failed: figures.failed,
        start,
        duration: summary.wall_time,
        pid: std::process::id(),
        app: app.as_bytes(),
        runtime: figures.runtime,
        slots: summary.workers,
    }
    .write(&mut record);
    let mut stdout = std::io::stdout().lock();
    let written = stdout.write_all(&record).and_then(|()| stdout.flush());
    written.map_err(|error| RunError::system("Error writing cluster-summary", error))
}
