//! Figures at the end of a run.

use std::ffi::OsStr;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::time::Duration;

use chrono::{DateTime, FixedOffset};
use monitord_compat::cluster_record::SummaryRecord;

use super::{MemoryExcess, Position, RunError};
use crate::protocol::Rank;
use crate::scheduler::Summary;
use crate::transport::Traffic;

/// Why a run was aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aborted {
    /// By a signal with this number.
    Signal(i32),
    /// The wall time was exceeded.
    WallTime,
    /// What is left would not end before the wall time.
    HeldBack,
    /// By the end of a task, as its option `--abort-on` says.
    Task {
        /// Exit code of the run.
        exit: u8,
    },
}

/// Results of a run.
#[derive(Clone, Debug)]
pub struct RunSummary {
    /// Numbers of tasks and attempts.
    pub figures: Summary,
    /// Why the run was aborted, if it was.
    pub aborted: Option<Aborted>,
    /// The signal that asked to drain, if tasks were left because of it. All started tasks have ended.
    pub drained: Option<i32>,
    /// Tasks whose latest attempt failed, in the order of the DAG file.
    pub failures: Vec<FailedTask>,
    /// A cycle of tasks that wait for each other and so can never run.
    pub cycle: Option<Position>,
    /// Number of workers; of those that come and go, the most that were there at a time.
    pub workers: u32,
    /// CPUs of all hosts of a run with agents. Otherwise 0: the original never fills it in.
    pub cpus: u32,
    /// Time from the start of the run to its end.
    pub wall_time: Duration,
    /// The part of the wall time in which tasks could run.
    pub makespan: Duration,
    /// Workers that were asked to exit and have not.
    pub unresponsive_workers: Vec<Rank>,
    /// Attempts that used more memory than requested, if there are any.
    pub memory_excess: Option<MemoryExcess>,
    /// Why the requested database is incomplete, if it is.
    pub database: Option<String>,
}

/// A task that did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedTask {
    /// Name of the task.
    pub name: Vec<u8>,
    /// Raw wait status of its latest attempt; see [`Outcome::status`](crate::protocol::Outcome::status).
    pub status: i32,
    /// Failed attempts in this run.
    pub attempts: u32,
}

#[derive(Default)]
pub(super) struct Failure {
    pub(super) status: i32,
    pub(super) attempts: u32,
}

impl RunSummary {
    /// True if all tasks are done, in this run or before, or if a task has ended the run with exit code 0.
    #[must_use]
    pub fn success(&self) -> bool {
        match self.aborted {
            None => self.figures.success,
            Some(Aborted::Task { exit }) => exit == 0,
            Some(Aborted::Signal(_) | Aborted::WallTime | Aborted::HeldBack) => false,
        }
    }
}

/// Writes the figures as log lines.
pub(super) fn log(summary: &RunSummary, traffic: Traffic, hit_rate: f64) {
    let minutes = |seconds: f64| format!("{seconds:.6} seconds ({:.6} minutes)", seconds / 60.0);
    let ratio = |a: f64, b: f64| if b > 0.0 { a / b } else { 0.0 };
    // What agents ran before this master counts as run time, but not as its wall time.
    let part = |a: f64, b: f64| ratio(a, b).min(1.0);
    let (runtime, wall, makespan) = (
        summary.figures.runtime.as_secs_f64(),
        summary.wall_time.as_secs_f64(),
        summary.makespan.as_secs_f64(),
    );
    let workers = f64::from(summary.workers);
    tracing::info!(
        "Resource utilization (with master): {:.6}",
        part(runtime, wall * (workers + 1.0))
    );
    tracing::info!(
        "Resource utilization (without master): {:.6}",
        part(runtime, wall * workers)
    );
    tracing::info!("Total runtime of tasks: {}", minutes(runtime));
    tracing::info!("Wall time: {}", minutes(wall));
    tracing::info!("Makespan: {}", minutes(makespan));
    let attempts = (summary.figures.succeeded + summary.figures.failed) as f64;
    tracing::info!("Throughput: {:.6} tasks/second", ratio(attempts, makespan));
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
        cpus: summary.cpus,
    }
    .write(&mut record);
    let mut stdout = std::io::stdout().lock();
    let written = stdout.write_all(&record).and_then(|()| stdout.flush());
    written.map_err(|error| RunError::system("Error writing cluster-summary", error))
}
