//! Statistics of every attempt.

use std::io;
use std::path::Path;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

use super::levels::Place;
use super::{Statistics, StatisticsError, host_names, index, open_untrusted};

/// Rows per batch.
const BATCH_SIZE: usize = 2048;
/// Maximum batches in the queue.
const MAX_QUEUED: usize = 4;

/// One attempt of a job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobAttempt {
    /// Name of the job.
    pub job: String,
    /// Number of the attempt of this job, from 1.
    pub number: u32,
    /// Site.
    pub site: Option<String>,
    /// Total time of its invocations.
    pub kickstart: Option<f64>,
    /// Factor for times.
    pub multiplier: i64,
    /// Total CPU time of its invocations.
    pub cpu_seconds: Option<f64>,
    /// Time from ready to start.
    pub queue_seconds: Option<f64>,
    /// Time as seen by the executor.
    pub runtime: Option<f64>,
    /// Time of the cluster of a clustered job.
    pub cluster: Option<f64>,
    /// Exit code, negative for a signal; `None` before the end.
    pub exit: Option<i64>,
    /// Host.
    pub host: Option<String>,
}

/// Values of attempts, indexed by their id in the database.
#[derive(Clone, Debug, Default)]
pub(super) struct Attempts {
    pub(super) kickstart: Vec<f64>,
    pub(super) cpu: Vec<f64>,
    pub(super) invocations: Vec<u16>,
    pub(super) exit: Vec<i32>,
    pub(super) submitted: Vec<u32>,
    pub(super) executed: Vec<u32>,
    pub(super) last: Vec<bool>,
    pub(super) host: Vec<u16>,
    /// Empty if all jobs are plain ones of one workflow.
    pub(super) places: Vec<Place>,
}

impl Attempts {
    pub(super) fn new(size: usize) -> Self {
        Self {
            kickstart: vec![0.0; size],
            cpu: vec![0.0; size],
            invocations: vec![0; size],
            exit: vec![0; size],
            submitted: vec![0; size],
            executed: vec![0; size],
            last: vec![false; size],
            host: vec![0; size],
            places: Vec::new(),
        }
    }
}

/// A batch of rows. All names are in one string.
#[derive(Default)]
struct Rows {
    rows: Vec<Row>,
    text: String,
}

struct Row {
    id: usize,
    number: u32,
    /// End of the job name in the text.
    job: usize,
    /// End of the site in the text.
    site: Option<usize>,
    multiplier: i64,
    runtime: Option<f64>,
    cluster: Option<f64>,
    ended: bool,
}

/// Reads the rows, until the receiver is dropped.
fn read(path: &Path, attempts: usize, jobs: usize, to: &SyncSender<Rows>) -> rusqlite::Result<()> {
    let connection = open_untrusted(path)?;
    let mut numbers = vec![0_u32; jobs];
    let mut statement = connection.prepare(
        "SELECT i.job_instance_id, i.job_id, j.exec_job_id, i.site, i.multiplier_factor,
             CAST(i.local_duration AS REAL), CAST(i.cluster_duration AS REAL), i.exitcode IS NOT NULL
         FROM job_instance i CROSS JOIN job j USING (job_id) ORDER BY i.job_instance_id",
    )?;
    let mut rows = statement.query(())?;
    let mut batch = Rows::default();
    while let Some(row) = rows.next()? {
        let id = index(row.get(0)?);
        let (Some(number), true) = (numbers.get_mut(index(row.get(1)?)), id < attempts) else {
            continue;
        };
        *number += 1;
        batch.text.push_str(row.get_ref(2)?.as_str().unwrap_or(""));
        let job = batch.text.len();
        let site = row.get_ref(3)?.as_str().ok().map(|site| {
            batch.text.push_str(site);
            batch.text.len()
        });
        batch.rows.push(Row {
            id,
            number: *number,
            job,
            site,
            multiplier: row.get(4)?,
            runtime: row.get(5)?,
            cluster: row.get(6)?,
            ended: row.get(7)?,
        });
        if batch.rows.len() == BATCH_SIZE {
            let full = Rows {
                rows: Vec::with_capacity(BATCH_SIZE),
                text: String::with_capacity(batch.text.len()),
            };
            if to.send(std::mem::replace(&mut batch, full)).is_err() {
                return Ok(());
            }
        }
    }
    // The receiver may be dropped.
    let _ = to.send(batch);
    Ok(())
}

impl Statistics {
    /// Calls `take` for all attempts in the order of their submission. Another thread reads them.
    ///
    /// # Errors
    /// The database cannot be read, or `take` returns an error.
    pub fn attempts(
        &self,
        path: &Path,
        mut take: impl FnMut(&JobAttempt) -> io::Result<()>,
    ) -> Result<io::Result<()>, StatisticsError> {
        let failed = |source| StatisticsError::Database {
            path: path.to_owned(),
            source,
        };
        let hosts = open_untrusted(path)
            .and_then(|connection| host_names(&connection))
            .map_err(failed)?;
        let (to, from) = sync_channel(MAX_QUEUED);
        let (attempts, jobs) = (self.attempts.last.len(), self.job_limit);
        let (read, taken) = thread::scope(|scope| {
            let reader = scope.spawn(move || read(path, attempts, jobs, &to));
            let mut attempt = JobAttempt::default();
            let taken = from.into_iter().try_for_each(|batch| {
                let mut start = 0;
                for row in &batch.rows {
                    self.fill(&mut attempt, row, &batch.text, &mut start, &hosts);
                    take(&attempt)?;
                }
                Ok(())
            });
            (reader.join(), taken)
        });
        read.unwrap_or(Err(rusqlite::Error::InvalidQuery))
            .map_err(failed)?;
        Ok(taken)
    }

    /// Fills `attempt` from a row, whose names start at `start` in the text.
    fn fill(
        &self,
        attempt: &mut JobAttempt,
        row: &Row,
        text: &str,
        start: &mut usize,
        hosts: &[Option<String>],
    ) {
        let mut name = |end: usize| {
            let name = text.get(*start..end).unwrap_or("");
            *start = end;
            name
        };
        let (attempts, id) = (&self.attempts, row.id);
        name(row.job).clone_into(&mut attempt.job);
        copy(&mut attempt.site, row.site.map(name));
        attempt.number = row.number;
        attempt.multiplier = row.multiplier;
        let counted = attempts.invocations[id] > 0;
        attempt.kickstart = counted.then_some(attempts.kickstart[id]);
        attempt.cpu_seconds = counted.then_some(attempts.cpu[id]);
        let (submitted, executed) = (attempts.submitted[id], attempts.executed[id]);
        attempt.queue_seconds =
            (submitted != 0 && executed != 0).then(|| f64::from(executed) - f64::from(submitted));
        attempt.runtime = row.runtime;
        attempt.cluster = row.cluster;
        attempt.exit = row.ended.then(|| exit_code(attempts.exit[id]));
        let host = hosts.get(usize::from(attempts.host[id]));
        copy(&mut attempt.host, host.and_then(Option::as_deref));
    }
}

/// Copies a text, reusing the memory of the old one.
fn copy(to: &mut Option<String>, from: Option<&str>) {
    match from {
        Some(text) => text.clone_into(to.get_or_insert_default()),
        None => *to = None,
    }
}

/// Decodes a raw wait status: the exit code, or a negative signal number.
fn exit_code(raw: i32) -> i64 {
    if raw < 0 {
        -128
    } else if raw & 0x7f != 0 {
        -i64::from(raw & 0x7f)
    } else {
        i64::from(raw >> 8)
    }
}
