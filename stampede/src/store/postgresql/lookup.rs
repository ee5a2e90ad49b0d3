//! Queries of the loader.

use rustc_hash::FxHashMap;
use tokio_postgres::Row;

use super::Postgresql;
use super::client::Parameters;
use super::rows::{ATTEMPT, END, JOB, SCHED_ID, STATE, TASK, TASK_JOB, WORKFLOW_STATE};
use crate::rows::{NestedAttempt, StoredAttempt, WorkflowState};
use crate::store::{JobFacts, Lookup, StoreError};

/// Jobs read with one lookup: those planned next, which are likely to run next.
const READ_AHEAD: i64 = 200;
/// Maximum jobs in the cache. When it is full, it is emptied.
const MAX_CACHED: usize = 20_000;

/// Facts of jobs that are likely to be looked up next. A round trip may take longer than all other work for a
/// job.
#[derive(Default)]
pub(super) struct JobCache {
    ids: FxHashMap<String, i64>,
    facts: FxHashMap<i64, JobFacts>,
    /// Transformation and job of each task whose id ends the name of its job.
    tasks: FxHashMap<String, (String, Option<i64>)>,
}

impl Lookup for Postgresql {
    fn workflow_states(&self) -> Result<Vec<WorkflowState>, StoreError> {
        self.send_if_any(&[WORKFLOW_STATE])?;
        let rows = self.with(false, |client| {
            client.query(
                "SELECT state = 'WORKFLOW_STARTED', timestamp::float8, restart_count::bigint, status::bigint
                 FROM workflowstate WHERE wf_id = $1 ORDER BY timestamp",
                &[&self.wf],
            )
        })?;
        let state = |row: &Row| WorkflowState {
            state: if row.get(0) {
                "WORKFLOW_STARTED"
            } else {
                "WORKFLOW_TERMINATED"
            },
            timestamp: row.get(1),
            restart_count: row.get(2),
            status: row.get(3),
        };
        Ok(rows.iter().map(state).collect())
    }

    fn job_id(&self, job: &str) -> Result<Option<i64>, StoreError> {
        self.send_if_any(&[JOB, TASK, TASK_JOB])?;
        if let Some(id) = self.jobs.borrow().ids.get(job) {
            return Ok(Some(*id));
        }
        let found = self.query(
            "SELECT j.exec_job_id, j.job_id, j.executable, j.argv, j.submit_file, t.abs_task_id, t.transformation, t.job_id
             FROM job j LEFT JOIN task t ON t.wf_id = $1 AND t.abs_task_id = substring(j.exec_job_id FROM '_([^_]*)$')
             WHERE j.wf_id = $1
                 AND j.job_id >= (SELECT job_id FROM job WHERE wf_id = $1 AND exec_job_id = $2)
             ORDER BY j.job_id LIMIT $3",
            &[&self.wf, &job, &READ_AHEAD],
        )?;
        let mut cache = self.jobs.borrow_mut();
        if cache.ids.len() >= MAX_CACHED {
            *cache = JobCache::default();
        }
        for row in &found {
            let id = row.get(1);
            cache.ids.insert(row.get(0), id);
            cache.facts.insert(id, (row.get(2), row.get(3), row.get(4)));
            if let Some(task) = row.get::<_, Option<String>>(5) {
                cache.tasks.insert(task, (row.get(6), row.get(7)));
            }
        }
        Ok(cache.ids.get(job).copied())
    }

    fn job_facts(&self, job_id: i64) -> Result<JobFacts, StoreError> {
        if let Some(facts) = self.jobs.borrow().facts.get(&job_id) {
            return Ok(facts.clone());
        }
        let found = self.query(
            "SELECT executable, argv, submit_file FROM job WHERE job_id = $1",
            &[&job_id],
        )?;
        Ok(found
            .first()
            .map_or_else(JobFacts::default, |row| (row.get(0), row.get(1), row.get(2))))
    }

    fn task_facts(&self, task: &str) -> Result<Option<(String, Option<i64>)>, StoreError> {
        self.send_if_any(&[TASK, TASK_JOB])?;
        if let Some(facts) = self.jobs.borrow().tasks.get(task) {
            return Ok(Some(facts.clone()));
        }
        let found = self.query(
            "SELECT transformation, job_id FROM task WHERE wf_id = $1 AND abs_task_id = $2",
            &[&self.wf, &task],
        )?;
        Ok(found.first().map(|row| (row.get(0), row.get(1))))
    }

    fn last_attempt(&self, job_id: i64, below: i64) -> Result<Option<StoredAttempt>, StoreError> {
        self.send_if_any(&[ATTEMPT, END, SCHED_ID])?;
        let found = self.query(
            "SELECT job_instance_id, job_submit_seq::bigint, sched_id, stdout_file FROM job_instance
             WHERE job_id = $1 AND job_submit_seq < $2::bigint ORDER BY job_submit_seq DESC LIMIT 1",
            &[&job_id, &below],
        )?;
        Ok(found.first().map(|row| StoredAttempt {
            job_instance_id: row.get(0),
            job_submit_seq: row.get(1),
            sched_id: row.get(2),
            stdout_file: row.get(3),
        }))
    }

    fn nested_attempts(&self) -> Result<Vec<NestedAttempt>, StoreError> {
        self.send_if_any(&[ATTEMPT, END, SCHED_ID])?;
        let rows = self.query(
            "SELECT exec_job_id, job_id, submit_file, job_instance_id, job_submit_seq::bigint, sched_id, stdout_file
             FROM job JOIN job_instance USING (job_id) WHERE wf_id = $1 AND type_desc = 'dax'
             ORDER BY job_id, job_submit_seq",
            &[&self.wf],
        )?;
        let nested = |row: &Row| NestedAttempt {
            exec_job_id: row.get(0),
            job_id: row.get(1),
            submit_file: row.get(2),
            attempt: StoredAttempt {
                job_instance_id: row.get(3),
                job_submit_seq: row.get(4),
                sched_id: row.get(5),
                stdout_file: row.get(6),
            },
        };
        Ok(rows.iter().map(nested).collect())
    }

    fn attempted_jobs(&self, take: &mut dyn FnMut(i64)) -> Result<(), StoreError> {
        self.send_if_any(&[ATTEMPT])?;
        self.with(false, |client| {
            client.each(
                "SELECT DISTINCT job_id FROM job_instance JOIN job USING (job_id) WHERE wf_id = $1",
                &[&self.wf],
                |row| take(row.get(0)),
            )
        })
    }

    fn last_sequence(&self) -> Result<i64, StoreError> {
        self.send_if_any(&[ATTEMPT])?;
        let found = self.query(
            "SELECT COALESCE(max(job_submit_seq), 0)::bigint FROM job_instance JOIN job USING (job_id) WHERE wf_id = $1",
            &[&self.wf],
        )?;
        Ok(found.first().map_or(0, |row| row.get(0)))
    }

    fn attempts_by_job(&self, take: &mut dyn FnMut(&str, i64)) -> Result<(), StoreError> {
        self.send_if_any(&[ATTEMPT])?;
        self.with(false, |client| {
            client.each(
                "SELECT exec_job_id, count(*) FROM job JOIN job_instance USING (job_id) WHERE wf_id = $1
                 GROUP BY job_id, exec_job_id ORDER BY job_id",
                &[&self.wf],
                |row| take(row.get(0), row.get(1)),
            )
        })
    }

    fn states(&self, attempt: i64) -> Result<Vec<(String, i64)>, StoreError> {
        self.send_if_any(&[STATE])?;
        let rows = self.query(
            "SELECT state, timestamp::bigint FROM jobstate WHERE job_instance_id = $1 ORDER BY jobstate_submit_seq",
            &[&attempt],
        )?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    }

    fn tasks_by_job(&self) -> Result<FxHashMap<i64, i64>, StoreError> {
        self.send_if_any(&[TASK, TASK_JOB])?;
        let rows = self.query(
            "SELECT job_id, min(task_id) FROM task WHERE wf_id = $1 AND job_id IS NOT NULL GROUP BY job_id",
            &[&self.wf],
        )?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    }

    fn task_by_id(&self, task_id: i64) -> Result<(String, String), StoreError> {
        let found = self.query(
            "SELECT abs_task_id, transformation FROM task WHERE task_id = $1",
            &[&task_id],
        )?;
        Ok(found
            .first()
            .map_or_else(Default::default, |row| (row.get(0), row.get(1))))
    }
}

impl Postgresql {
    /// Runs a query, which is prepared once.
    fn query(&self, sql: &'static str, parameters: Parameters<'_>) -> Result<Vec<Row>, StoreError> {
        self.with(false, |client| {
            let prepared = self.statements.borrow().get(sql).cloned();
            let statement = match prepared {
                Some(statement) => statement,
                None => {
                    let statement = client.prepare(sql)?;
                    self.statements.borrow_mut().insert(sql, statement.clone());
                    statement
                }
            };
            client.query(&statement, parameters)
        })
    }
}
