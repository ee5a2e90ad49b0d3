//! Statistics of `pegasus-statistics`, from the STAMPEDE database of a run.
//!
//! `pegasus-statistics` runs a query per figure, with joins over all attempts. Here each large table is
//! scanned once, and the values are collected in arrays indexed by the id of the attempt.

mod attempts;
mod conversion;
mod data;
mod invocations;
mod levels;
pub mod source;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::mpsc::sync_channel;

use monitord_compat::reason::Reason;
use pmc_sqlite::open_untrusted;
use rusqlite::Connection;
use rustc_hash::FxHashMap;

use crate::dir::RunDir;
use crate::events::{Event, EventLog, Micros, SECOND};
use crate::resources::{Change, Host, Hosts};

use attempts::Attempts;
pub use attempts::JobAttempt;
pub use data::DataAttempt;
pub use levels::Level;
use levels::{Levels, Place};

/// The database cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum StatisticsError {
    /// SQLite reports an error.
    #[error("{}: {source}", path.display())]
    Database {
        /// Database.
        path: std::path::PathBuf,
        /// Why.
        source: rusqlite::Error,
    },
    /// The log of free resources exists but cannot be read.
    #[error("{}: {}", path.display(), pmc_dag::reason(source))]
    Log {
        /// The log.
        path: std::path::PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The database has no workflow.
    #[error("{}: no workflow in this database", path.display())]
    Empty {
        /// Database.
        path: std::path::PathBuf,
    },
}

/// Counts of tasks or jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Succeeded in the last attempt.
    pub succeeded: u64,
    /// Failed in the last attempt.
    pub failed: u64,
    /// All.
    pub total: u64,
    /// Attempts after the first. One that the end of a run cut off is no retry of its own.
    pub retries: u64,
}

impl Counts {
    /// Number without a finished last attempt.
    #[must_use]
    pub fn incomplete(&self) -> u64 {
        self.total.saturating_sub(self.succeeded + self.failed)
    }

    /// Number of finished ones and retries.
    #[must_use]
    pub fn with_retries(&self) -> u64 {
        self.succeeded + self.failed + self.retries
    }

    /// Succeeded, failed, incomplete, all, retries, finished ones and retries.
    #[must_use]
    pub fn figures(&self) -> [u64; 6] {
        [
            self.succeeded,
            self.failed,
            self.incomplete(),
            self.total,
            self.retries,
            self.with_retries(),
        ]
    }
}

/// Count, minimum, maximum and sum of values.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spread {
    /// Number of values.
    pub count: u64,
    /// Minimum.
    pub min: f64,
    /// Maximum.
    pub max: f64,
    /// Sum.
    pub total: f64,
}

impl Spread {
    fn add(&mut self, value: f64) {
        if self.count == 0 {
            (self.min, self.max) = (value, value);
        }
        self.min = self.min.min(value);
        self.max = self.max.max(value);
        self.total += value;
        self.count += 1;
    }

    /// Mean; 0 without values.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.total / (self.count.max(1)) as f64
    }
}

/// Invocations of a transformation that succeeded, or that failed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Breakdown {
    /// Run time in seconds.
    pub seconds: Spread,
    /// Peak resident memory in MB.
    pub memory_mb: Spread,
    /// CPU time divided by run time; 1 for one fully used CPU.
    pub cpu: Spread,
}

/// Count and total time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Amount {
    /// Count.
    pub count: u64,
    /// Total time in seconds.
    pub seconds: f64,
}

impl Amount {
    fn add(&mut self, seconds: f64) {
        self.count += 1;
        self.seconds += seconds;
    }
}

/// Time unit of statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Day, UTC.
    Day,
    /// Hour, UTC.
    Hour,
}

impl Step {
    /// Length in seconds.
    #[must_use]
    pub fn seconds(self) -> i64 {
        match self {
            Step::Day => 86_400,
            Step::Hour => 3_600,
        }
    }
}

/// Amounts by day or hour since the epoch: the sum, and the amounts by host.
pub type OverTime = BTreeMap<i64, (Amount, BTreeMap<String, Amount>)>;

/// Checksums by type of work and type of file.
pub type Integrity = BTreeMap<(String, String), Amount>;

/// All statistics except those of single attempts.
#[derive(Clone, Debug, Default)]
pub struct Statistics {
    /// Name of the workflow.
    pub label: String,
    /// UUID of the workflow.
    pub uuid: String,
    /// Tasks of the abstract workflow, and of those nested in it.
    pub tasks: Counts,
    /// Jobs of the plans, auxiliary jobs included.
    pub jobs: Counts,
    /// Jobs that are nested sub-workflows.
    pub sub_workflows: Counts,
    /// The outermost workflow, then those nested in it, each without those in it.
    pub workflows: Vec<Level>,
    /// Attempts that were lost with their workers or ended by the batch system. They are no failures and no
    /// retries.
    pub lost_attempts: u64,
    /// Number of restarts.
    pub restarts: u64,
    /// Wall time of all runs; `None` if one has no end.
    pub wall_seconds: Option<f64>,
    /// Total time of invocations.
    pub job_seconds: f64,
    /// Total time of attempts as seen by the executor.
    pub submit_side_seconds: f64,
    /// Total time of failed invocations.
    pub badput_seconds: f64,
    /// Total time of failed attempts as seen by the executor.
    pub submit_side_badput_seconds: f64,
    /// Breakdown by transformation and success.
    pub breakdown: BTreeMap<(String, bool), Breakdown>,
    /// Attempts by start time.
    pub jobs_over_time: OverTime,
    /// Invocations by start time.
    pub invocations_over_time: OverTime,
    /// Checksums.
    pub integrity: Integrity,
    /// Jobs whose last attempt failed with a wrong checksum.
    pub integrity_failures: u64,
    /// Use of hosts, from the executor's log of free resources.
    pub hosts: Vec<Host>,
    runs: Vec<(i64, Option<i64>)>,
    attempts: Attempts,
    /// Upper limit of job ids in the database.
    job_limit: usize,
}

impl Statistics {
    /// Reads the database, and the use of hosts from the log beside the DAG.
    ///
    /// # Errors
    /// One of them exists but cannot be read, or the database has no workflow.
    pub fn read(path: &Path, step: Step, dir: &RunDir) -> Result<Self, StatisticsError> {
        let failed = |source| StatisticsError::Database {
            path: path.to_owned(),
            source,
        };
        let connection = open_untrusted(path).map_err(failed)?;
        let empty = || StatisticsError::Empty {
            path: path.to_owned(),
        };
        let mut statistics = Self::workflow(&connection).map_err(failed)?.ok_or_else(empty)?;
        let log = dir.resource_log();
        let hosts = statistics.count(&connection, path, step, &log).map_err(failed)?;
        statistics.hosts = hosts.map_err(|source| StatisticsError::Log { path: log, source })?;
        if statistics.lost_attempts > 0 {
            let taken_over = taken_over(dir).map_err(|source| StatisticsError::Log {
                path: dir.dagman_out(),
                source,
            })?;
            statistics.lost_attempts = statistics.lost_attempts.saturating_sub(taken_over);
        }
        Ok(statistics)
    }

    fn workflow(connection: &Connection) -> rusqlite::Result<Option<Self>> {
        let mut statistics = Self::default();
        let mut rows =
            connection.prepare("SELECT wf_uuid, dax_label FROM workflow ORDER BY wf_id LIMIT 1")?;
        let mut rows = rows.query(())?;
        let Some(row) = rows.next()? else {
            return Ok(None);
        };
        statistics.uuid = row.get(0)?;
        statistics.label = row.get::<_, Option<String>>(1)?.unwrap_or_default();
        Ok(Some(statistics))
    }

    /// Reads all statistics except the use of hosts, which it returns.
    fn count(
        &mut self,
        connection: &Connection,
        path: &Path,
        step: Step,
        log: &Path,
    ) -> rusqlite::Result<io::Result<Vec<Host>>> {
        let number = |sql: &str| connection.query_row(sql, (), |row| row.get::<_, Option<i64>>(0));
        self.read_runs(connection)?;
        let size = usize::try_from(number("SELECT max(job_instance_id) FROM job_instance")?.unwrap_or(0))
            .unwrap_or(0)
            + 1;
        let jobs = usize::try_from(number("SELECT max(job_id) FROM job")?.unwrap_or(0)).unwrap_or(0) + 1;
        self.attempts = Attempts::new(size);
        self.job_limit = jobs;
        let mut levels = Levels::read(connection, jobs)?;
        if !levels.is_flat() {
            self.attempts.places = vec![Place::default(); size];
        }
        self.tasks = levels.sum(|level| level.tasks);
        let hosts = host_names(connection)?;
        let runs = self.runs.clone();
        let (used, states, names, durations) = std::thread::scope(|scope| {
            // The three largest tables and the log are read in parallel.
            let (to, from) = sync_channel(invocations::MAX_QUEUED);
            let invocations = scope.spawn(move || invocations::read(path, &to));
            let states = scope.spawn(|| read_states(path, size));
            let used = scope.spawn(|| use_of_hosts(&runs, log));
            let durations = self.read_tries(connection, &mut levels).map(|durations| {
                let breakdown = self.add_invocations(from, &hosts, &mut levels, step);
                (durations, breakdown)
            });
            (used.join(), states.join(), invocations.join(), durations)
        });
        let (durations, breakdown) = durations?;
        self.name_breakdown(joined(names)?, &breakdown);
        self.tasks = levels.sum(|level| level.tasks);
        self.jobs = levels.sum(|level| level.jobs);
        self.sub_workflows = levels.sum(|level| level.sub_workflows);
        self.restarts = levels.all.first().map_or(0, |level| level.restarts);
        self.workflows = levels.all;
        (
            self.attempts.submitted,
            self.attempts.executed,
            self.lost_attempts,
        ) = joined(states)?;
        self.jobs_by_time(&durations, &hosts, step);
        self.read_integrity(connection)?;
        Ok(used.unwrap_or_else(|_| Err(io::Error::other("the reading thread panicked"))))
    }

    fn read_runs(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        let mut statement = connection.prepare(
            "SELECT state = 'WORKFLOW_STARTED', CAST(timestamp AS REAL) FROM workflowstate
             WHERE wf_id = (SELECT min(wf_id) FROM workflow) ORDER BY restart_count, state",
        )?;
        let mut rows = statement.query(())?;
        let (mut starts, mut ends, mut sum) = (0, 0, 0.0);
        while let Some(row) = rows.next()? {
            let time: f64 = row.get(1)?;
            let seconds = time as i64;
            if row.get::<_, bool>(0)? {
                starts += 1;
                sum -= time;
                self.runs.push((seconds, None));
            } else {
                ends += 1;
                sum += time;
                if let Some(run) = self.runs.last_mut() {
                    run.1 = Some(seconds);
                }
            }
        }
        self.wall_seconds = (starts == ends).then_some(sum);
        Ok(())
    }

    /// Reads all attempts. Returns their durations as seen by the executor; NaN for an unknown one.
    fn read_tries(&mut self, connection: &Connection, levels: &mut Levels) -> rusqlite::Result<Vec<f32>> {
        // Last attempt of each job, with its submit number.
        let mut last = vec![(0_u32, 0_u32); self.job_limit];
        let mut exits = vec![Exit::None; self.attempts.last.len()];
        let mut durations = vec![f32::NAN; self.attempts.last.len()];
        let mut statement = connection.prepare(
            "SELECT job_instance_id, job_id, job_submit_seq, host_id, CAST(local_duration AS REAL),
                 multiplier_factor, exitcode
             FROM job_instance",
        )?;
        let mut rows = statement.query(())?;
        while let Some(row) = rows.next()? {
            let (id, job): (usize, usize) = (index(row.get(0)?), index(row.get(1)?));
            let (Some(last), Some(exit)) = (last.get_mut(job), exits.get_mut(id)) else {
                continue;
            };
            let place = levels.of_job(job);
            if let Some(known) = self.attempts.places.get_mut(id) {
                *known = place;
            }
            let seq = u32::try_from(row.get::<_, i64>(2)?).unwrap_or(0);
            if last.1 <= seq {
                *last = (u32::try_from(id).unwrap_or(0), seq);
            }
            self.attempts.host[id] = u16::try_from(row.get::<_, Option<i64>>(3)?.unwrap_or(0)).unwrap_or(0);
            *exit = match row.get::<_, Option<i64>>(6)? {
                None => Exit::None,
                Some(0) => Exit::Good,
                Some(code) if code > 0 => Exit::Bad,
                Some(_) => Exit::Negative,
            };
            if *exit != Exit::None {
                // The last one, which is none, is taken off below.
                levels.jobs_at(place).retries += 1;
            }
            // The time of a sub-workflow is that of its jobs.
            if let Some(seconds) = row.get::<_, Option<f64>>(4)?.filter(|_| !place.is_nested) {
                durations[id] = seconds as f32;
                let seconds = seconds * row.get::<_, i64>(5)? as f64;
                self.submit_side_seconds += seconds;
                if *exit == Exit::Bad {
                    self.submit_side_badput_seconds += seconds;
                }
            }
        }
        for (job, (id, _)) in last.iter().enumerate().filter(|(_, (id, _))| *id > 0) {
            self.attempts.last[*id as usize] = true;
            let counts = levels.jobs_at(levels.of_job(job));
            match exits[*id as usize] {
                Exit::Good => counts.succeeded += 1,
                Exit::Bad | Exit::Negative => counts.failed += 1,
                // Nothing followed it, and it has not been counted.
                Exit::None => continue,
            }
            counts.retries -= 1;
        }
        Ok(durations)
    }

    fn jobs_by_time(&mut self, durations: &[f32], hosts: &[Option<String>], step: Step) {
        let mut over_time: FxHashMap<(i64, u16), Amount> = FxHashMap::default();
        for ((time, seconds), host) in self
            .attempts
            .executed
            .iter()
            .zip(durations)
            .zip(&self.attempts.host)
        {
            if *time != 0 && !seconds.is_nan() {
                let period = i64::from(*time).div_euclid(step.seconds());
                over_time
                    .entry((period, *host))
                    .or_default()
                    .add(f64::from(*seconds));
            }
        }
        self.jobs_over_time = by_host(over_time, hosts);
    }

    fn read_integrity(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        let mut statement = connection.prepare(
            "SELECT type, file_type, sum(count), CAST(sum(duration) AS REAL) FROM integrity
                      GROUP BY type, file_type",
        )?;
        let mut rows = statement.query(())?;
        while let Some(row) = rows.next()? {
            let key = (row.get(0)?, row.get::<_, Option<String>>(1)?.unwrap_or_default());
            let amount = Amount {
                count: u64::try_from(row.get::<_, i64>(2)?).unwrap_or(0),
                seconds: row.get(3)?,
            };
            self.integrity.insert(key, amount);
        }
        let mut statement = connection.prepare(
            "SELECT t.job_instance_id FROM tag t JOIN job_instance i USING (job_instance_id)
             WHERE t.name = 'int.error' AND i.exitcode <> 0",
        )?;
        let mut rows = statement.query(())?;
        while let Some(row) = rows.next()? {
            let last = self
                .attempts
                .last
                .get(index(row.get(0)?))
                .copied()
                .unwrap_or(false);
            self.integrity_failures += u64::from(last);
        }
        Ok(())
    }
}

/// Returns the number of attempts that were lost with a master, and with which the next one went on. The
/// database does not have them.
fn taken_over(dir: &RunDir) -> io::Result<u64> {
    let mut count = 0;
    if let Some(mut log) = EventLog::open(&dir.dagman_out(), &dir.jobstate_log())? {
        log.read(|_, event| {
            count += u64::from(matches!(event, Event::Reason(_, Reason::TakenOver)));
        })?;
    }
    Ok(count)
}

/// Returns the use of hosts in these runs.
fn use_of_hosts(runs: &[(i64, Option<i64>)], log: &Path) -> io::Result<Vec<Host>> {
    let mut hosts = Hosts::without_attempts();
    let mut last_end: Option<Micros> = None;
    for (start, end) in runs {
        hosts.expect(Change::Run {
            start: start * SECOND,
            before: last_end,
        });
        last_end = end.map(|end| end * SECOND);
    }
    hosts.read(log, |_| {})?;
    Ok(match last_end {
        Some(end) => hosts.used_until(end),
        None => hosts.all().to_vec(),
    })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Exit {
    None,
    Good,
    Bad,
    /// Negative.
    Negative,
}

/// Returns the result of a thread.
fn joined<T>(thread: std::thread::Result<rusqlite::Result<T>>) -> rusqlite::Result<T> {
    thread.unwrap_or(Err(rusqlite::Error::InvalidQuery))
}

fn index(id: i64) -> usize {
    usize::try_from(id).unwrap_or(usize::MAX)
}

/// Returns the names of hosts by their id.
fn host_names(connection: &Connection) -> rusqlite::Result<Vec<Option<String>>> {
    let mut names = Vec::new();
    let mut statement = connection.prepare("SELECT host_id, hostname FROM host")?;
    let mut rows = statement.query(())?;
    while let Some(row) = rows.next()? {
        let id = index(row.get(0)?);
        if id < usize::from(u16::MAX) {
            if names.len() <= id {
                names.resize(id + 1, None);
            }
            names[id] = Some(row.get(1)?);
        }
    }
    Ok(names)
}

/// Returns the submit and start times of attempts in seconds since the epoch, 0 for an unknown time, and the
/// number of attempts that were lost with their workers.
fn read_states(path: &Path, size: usize) -> rusqlite::Result<(Vec<u32>, Vec<u32>, u64)> {
    let connection = open_untrusted(path)?;
    let (mut submitted, mut executed, mut lost) = (vec![0; size], vec![0; size], 0);
    let mut statement = connection.prepare(
        "SELECT job_instance_id, state, CAST(timestamp AS INTEGER) FROM jobstate NOT INDEXED
         WHERE state IN ('SUBMIT', 'EXECUTE', 'JOB_EVICTED')",
    )?;
    let mut rows = statement.query(())?;
    while let Some(row) = rows.next()? {
        let times = match row.get_ref(1)?.as_str()? {
            "SUBMIT" => &mut submitted,
            "EXECUTE" => &mut executed,
            _ => {
                lost += 1;
                continue;
            }
        };
        if let Some(time) = times.get_mut(index(row.get(0)?)) {
            *time = u32::try_from(row.get::<_, i64>(2)?).unwrap_or(0);
        }
    }
    Ok((submitted, executed, lost))
}

fn by_host(amounts: FxHashMap<(i64, u16), Amount>, hosts: &[Option<String>]) -> OverTime {
    let mut over_time = OverTime::new();
    for ((period, host), amount) in amounts {
        let (sum, by_host) = over_time.entry(period).or_default();
        sum.count += amount.count;
        sum.seconds += amount.seconds;
        if let Some(Some(name)) = hosts.get(usize::from(host)) {
            let one = by_host.entry(name.clone()).or_default();
            one.count += amount.count;
            one.seconds += amount.seconds;
        }
    }
    over_time
}
