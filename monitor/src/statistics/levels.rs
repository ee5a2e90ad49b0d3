//! The workflows of a database: the outermost one, and those nested in it.

use rusqlite::Connection;
use rustc_hash::FxHashMap;

use super::{Counts, index};

/// Counts of one workflow, without those nested in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Level {
    /// Name of the workflow.
    pub label: String,
    /// UUID of the workflow.
    pub uuid: String,
    /// Number of restarts.
    pub restarts: u64,
    /// Tasks of the abstract workflow.
    pub tasks: Counts,
    /// Jobs of the plan, sub-workflows excluded.
    pub jobs: Counts,
    /// Jobs that are nested sub-workflows.
    pub sub_workflows: Counts,
}

/// Which workflow a job belongs to, and whether it is a sub-workflow itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    pub level: u32,
    pub is_nested: bool,
}

/// The workflows, the outermost one first.
#[derive(Clone, Debug, Default)]
pub(super) struct Levels {
    pub all: Vec<Level>,
    /// Place of each job by its id; empty if all jobs are plain ones of one workflow.
    of_jobs: Vec<Place>,
}

impl Levels {
    /// Reads the workflows, and the total numbers of their tasks and jobs. `jobs` is the limit of job ids.
    pub fn read(connection: &Connection, jobs: usize) -> rusqlite::Result<Self> {
        let mut this = Self::default();
        let mut numbers: FxHashMap<i64, u32> = FxHashMap::default();
        let mut statement = connection.prepare(
            "SELECT wf_id, wf_uuid, dax_label,
                 (SELECT max(restart_count) FROM workflowstate s WHERE s.wf_id = w.wf_id)
             FROM workflow w ORDER BY wf_id",
        )?;
        let mut rows = statement.query(())?;
        while let Some(row) = rows.next()? {
            numbers.insert(row.get(0)?, u32::try_from(this.all.len()).unwrap_or(u32::MAX));
            this.all.push(Level {
                uuid: row.get(1)?,
                label: row.get::<_, Option<String>>(2)?.unwrap_or_default(),
                restarts: u64::try_from(row.get::<_, Option<i64>>(3)?.unwrap_or(0)).unwrap_or(0),
                ..Level::default()
            });
        }
        let count = |sql: &str| connection.query_row(sql, (), |row| row.get::<_, i64>(0));
        let nested = count("SELECT EXISTS (SELECT 1 FROM job WHERE type_desc IN ('dax', 'dag'))")?;
        if let ([only], 0) = (&mut this.all[..], nested) {
            let count = |sql: &str| count(sql).map(|count| u64::try_from(count).unwrap_or(0));
            only.tasks.total = count("SELECT count(*) FROM task WHERE job_id IS NOT NULL")?;
            only.jobs.total = count("SELECT count(*) FROM job")?;
            return Ok(this);
        }
        this.of_jobs = vec![Place::default(); jobs];
        let mut statement =
            connection.prepare("SELECT job_id, wf_id, type_desc IN ('dax', 'dag') FROM job")?;
        let mut rows = statement.query(())?;
        while let Some(row) = rows.next()? {
            let Some(&level) = numbers.get(&row.get(1)?) else {
                continue;
            };
            let place = Place {
                level,
                is_nested: row.get(2)?,
            };
            if let Some(known) = this.of_jobs.get_mut(index(row.get(0)?)) {
                *known = place;
            }
            this.jobs_at(place).total += 1;
        }
        let mut statement = connection.prepare(
            "SELECT wf_id, count(*) FROM task WHERE job_id IS NOT NULL AND type_desc NOT IN ('dax', 'dag')
             GROUP BY wf_id",
        )?;
        let mut rows = statement.query(())?;
        while let Some(row) = rows.next()? {
            if let Some(level) = numbers.get(&row.get(0)?) {
                this.all[*level as usize].tasks.total = u64::try_from(row.get::<_, i64>(1)?).unwrap_or(0);
            }
        }
        Ok(this)
    }

    /// Returns whether all jobs are plain ones of one workflow.
    pub fn is_flat(&self) -> bool {
        self.of_jobs.is_empty()
    }

    /// Returns the place of a job.
    pub fn of_job(&self, job: usize) -> Place {
        self.of_jobs.get(job).copied().unwrap_or_default()
    }

    /// Returns the counts of jobs at a place.
    pub fn jobs_at(&mut self, place: Place) -> &mut Counts {
        let level = &mut self.all[place.level as usize];
        match place.is_nested {
            true => &mut level.sub_workflows,
            false => &mut level.jobs,
        }
    }

    /// Returns the sum over all workflows.
    pub fn sum(&self, counts: fn(&Level) -> Counts) -> Counts {
        let add = |sum: Counts, one: Counts| Counts {
            succeeded: sum.succeeded + one.succeeded,
            failed: sum.failed + one.failed,
            total: sum.total + one.total,
            retries: sum.retries + one.retries,
        };
        self.all.iter().map(counts).fold(Counts::default(), add)
    }
}
