//! Every try of every job.

use std::io;
use std::path::Path;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

use super::{Statistics, StatisticsError, host_names, index, open};

/// Rows that one thread hands to the other at a time.
const ROWS: usize = 2048;
/// How often it may do so before the other has taken them.
const AHEAD: usize = 4;

/// One try of a job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobTry {
    /// Job.
    pub job: String,
    /// Which try of this job, from 1.
    pub number: u32,
    /// Site.
    pub site: Option<String>,
    /// Seconds of its invocations.
    pub kickstart: Option<f64>,
    /// What seconds are multiplied with.
    pub multiplier: i64,
    /// CPU seconds of its invocations.
    pub cpu_seconds: Option<f64>,
    /// Seconds from ready to started.
    pub queue_seconds: Option<f64>,
    /// Seconds as the executor saw them.
    pub runtime: Option<f64>,
    /// Seconds of the cluster, if it is one.
    pub cluster: Option<f64>,
    /// Exit code, negative for a signal; `None` if it has not ended.
    pub exit: Option<i64>,
    /// Host.
    pub host: Option<String>,
}

/// Figures of tries by their number in the database.
#[derive(Clone, Debug, Default)]
pub(super) struct Tries {
    pub(super) kickstart: Vec<f64>,
    pub(super) cpu: Vec<f64>,
    pub(super) invocations: Vec<u16>,
    pub(super) exit: Vec<i32>,
    pub(super) submitted: Vec<u32>,
    pub(super) executed: Vec<u32>,
    pub(super) last: Vec<bool>,
    pub(super) host: Vec<u16>,
}

impl Tries {
    pub(super) fn with(size: usize) -> Self {
        Self {
            kickstart: vec![0.0; size],
            cpu: vec![0.0; size],
            invocations: vec![0; size],
            exit: vec![0; size],
            submitted: vec![0; size],
            executed: vec![0; size],
            last: vec![false; size],
            host: vec![0; size],
        }
    }
}

/// Rows of the database, and the names in them one behind the other.
#[derive(Default)]
struct Rows {
    rows: Vec<Row>,
    text: String,
}

struct Row {
    id: usize,
    number: u32,
    /// Where the name of the job and the site end in the text.
    job: usize,
    site: Option<usize>,
    multiplier: i64,
    runtime: Option<f64>,
    cluster: Option<f64>,
    ended: bool,
}

/// Reads the rows. Ends early when nobody wants them any more.
fn read(path: &Path, tries: usize, jobs: usize, to: &SyncSender<Rows>) -> rusqlite::Result<()> {
    let connection = open(path)?;
    let mut numbers = vec![0_u32; jobs];
    let mut statement = connection.prepare(
        "SELECT i.job_instance_id, i.job_id, j.exec_job_id, i.site, i.multiplier_factor, CAST(i.local_duration AS REAL),
             CAST(i.cluster_duration AS REAL), i.exitcode IS NOT NULL
         FROM job_instance i CROSS JOIN job j USING (job_id) ORDER BY i.job_instance_id",
    )?;
    let mut rows = statement.query(())?;
    let mut some = Rows::default();
    while let Some(row) = rows.next()? {
        let id = index(row.get(0)?);
        let (Some(number), true) = (numbers.get_mut(index(row.get(1)?)), id < tries) else {
            continue;
        };
        *number += 1;
        some.text.push_str(row.get_ref(2)?.as_str().unwrap_or(""));
        let job = some.text.len();
        let site = row.get_ref(3)?.as_str().ok().map(|site| {
            some.text.push_str(site);
            some.text.len()
        });
        some.rows.push(Row {
            id,
            number: *number,
            job,
            site,
            multiplier: row.get(4)?,
            runtime: row.get(5)?,
            cluster: row.get(6)?,
            ended: row.get(7)?,
        });
        if some.rows.len() == ROWS {
            let full = Rows {
                rows: Vec::with_capacity(ROWS),
                text: String::with_capacity(some.text.len()),
            };
            if to.send(std::mem::replace(&mut some, full)).is_err() {
                return Ok(());
            }
        }
    }
    // Nobody may want the last ones either.
    let _ = to.send(some);
    Ok(())
}

impl Statistics {
    /// Gives all tries to `take`, in the order in which they were submitted. Another thread reads them.
    ///
    /// # Errors
    /// The database cannot be read, or `take` wants an end.
    pub fn tries(
        &self,
        path: &Path,
        mut take: impl FnMut(&JobTry) -> io::Result<()>,
    ) -> Result<io::Result<()>, StatisticsError> {
        let failed = |source| StatisticsError::Database {
            path: path.to_owned(),
            source,
        };
        let hosts = open(path)
            .and_then(|connection| host_names(&connection))
            .map_err(failed)?;
        let (to, from) = sync_channel(AHEAD);
        let (tries, jobs) = (self.tries.last.len(), self.job_numbers);
        let (read, taken) = thread::scope(|scope| {
            let reader = scope.spawn(move || read(path, tries, jobs, &to));
            let mut one = JobTry::default();
            let taken = from.into_iter().try_for_each(|some| {
                let mut begin = 0;
                for row in &some.rows {
                    self.fill(&mut one, row, &some.text, &mut begin, &hosts);
                    take(&one)?;
                }
                Ok(())
            });
            (reader.join(), taken)
        });
        read.unwrap_or(Err(rusqlite::Error::InvalidQuery))
            .map_err(failed)?;
        Ok(taken)
    }

    /// Makes `one` that of a row, whose names begin in the text at `begin`.
    fn fill(&self, one: &mut JobTry, row: &Row, text: &str, begin: &mut usize, hosts: &[Option<String>]) {
        let mut name = |end: usize| {
            let name = text.get(*begin..end).unwrap_or("");
            *begin = end;
            name
        };
        let (tries, id) = (&self.tries, row.id);
        name(row.job).clone_into(&mut one.job);
        copy(&mut one.site, row.site.map(name));
        one.number = row.number;
        one.multiplier = row.multiplier;
        let counted = tries.invocations[id] > 0;
        one.kickstart = counted.then_some(tries.kickstart[id]);
        one.cpu_seconds = counted.then_some(tries.cpu[id]);
        let (submitted, executed) = (tries.submitted[id], tries.executed[id]);
        one.queue_seconds =
            (submitted != 0 && executed != 0).then(|| f64::from(executed) - f64::from(submitted));
        one.runtime = row.runtime;
        one.cluster = row.cluster;
        one.exit = row.ended.then(|| exit_code(tries.exit[id]));
        let host = hosts.get(usize::from(tries.host[id]));
        copy(&mut one.host, host.and_then(Option::as_deref));
    }
}

/// Copies a text into the room of the one before.
fn copy(to: &mut Option<String>, from: Option<&str>) {
    match from {
        Some(text) => text.clone_into(to.get_or_insert_default()),
        None => *to = None,
    }
}

/// What a program would have returned to its caller; negative for a signal.
fn exit_code(raw: i32) -> i64 {
    if raw < 0 {
        -128
    } else if raw & 0x7f != 0 {
        -i64::from(raw & 0x7f)
    } else {
        i64::from(raw >> 8)
    }
}
