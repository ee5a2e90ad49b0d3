//! Queries of the loader.
//!
//! The frequent ones begin a transaction: outside of one, SQLite locks and unlocks the database for each
//! query, which takes longer than the query itself.

use rusqlite::OptionalExtension as _;
use rustc_hash::FxHashMap;

use super::Sqlite;
use crate::rows::{NestedAttempt, StoredAttempt, WorkflowState};
use crate::store::{JobFacts, Lookup, StoreError};

impl Lookup for Sqlite {
    fn workflow_states(&self) -> Result<Vec<WorkflowState>, StoreError> {
        let read = || {
            let mut statement = self.connection.prepare(
                "SELECT state = 'WORKFLOW_STARTED', timestamp, restart_count, status FROM workflowstate
                 WHERE wf_id = ?1 ORDER BY timestamp",
            )?;
            let rows = statement.query_map([self.wf], |row| {
                Ok(WorkflowState {
                    state: if row.get(0)? {
                        "WORKFLOW_STARTED"
                    } else {
                        "WORKFLOW_TERMINATED"
                    },
                    timestamp: row.get(1)?,
                    restart_count: row.get(2)?,
                    status: row.get(3)?,
                })
            })?;
            rows.collect::<rusqlite::Result<_>>()
        };
        read().map_err(|source| self.error(source))
    }

    fn job_id(&self, job: &str) -> Result<Option<i64>, StoreError> {
        self.flush_plan()?;
        self.query_id(
            "SELECT job_id FROM job WHERE wf_id = ?1 AND exec_job_id = ?2",
            (self.wf, job),
        )
    }

    fn find_job(&self, job: &str) -> Result<Option<(i64, JobFacts)>, StoreError> {
        self.flush_plan()?;
        self.begin()?;
        let read = || {
            self.connection
                .prepare_cached(
                    "SELECT job_id, executable, argv, submit_file FROM job WHERE wf_id = ?1 AND exec_job_id = ?2",
                )?
                .query_row((self.wf, job), |row| {
                    Ok((row.get(0)?, (row.get(1)?, row.get(2)?, row.get(3)?)))
                })
                .optional()
        };
        read().map_err(|source| self.error(source))
    }

    fn job_facts(&self, job_id: i64) -> Result<JobFacts, StoreError> {
        self.begin()?;
        let read = || {
            self.connection
                .prepare_cached("SELECT executable, argv, submit_file FROM job WHERE job_id = ?1")?
                .query_row([job_id], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        };
        read().map_err(|source| self.error(source))
    }

    fn task_facts(&self, task: &str) -> Result<Option<(String, Option<i64>)>, StoreError> {
        self.flush_plan()?;
        self.begin()?;
        let read = || {
            self.connection
                .prepare_cached(
                    "SELECT transformation, job_id FROM task WHERE wf_id = ?1 AND abs_task_id = ?2",
                )?
                .query_row((self.wf, task), |row| Ok((row.get(0)?, row.get(1)?)))
                .optional()
        };
        read().map_err(|source| self.error(source))
    }

    fn last_attempt(&self, job_id: i64, below: i64) -> Result<Option<StoredAttempt>, StoreError> {
        self.flush()?;
        self.begin()?;
        let read = || {
            self.connection
                .prepare_cached(
                    "SELECT job_instance_id, job_submit_seq, sched_id, stdout_file FROM job_instance
                     WHERE job_id = ?1 AND job_submit_seq < ?2 ORDER BY job_submit_seq DESC LIMIT 1",
                )?
                .query_row((job_id, below), |row| {
                    Ok(StoredAttempt {
                        job_instance_id: row.get(0)?,
                        job_submit_seq: row.get(1)?,
                        sched_id: row.get(2)?,
                        stdout_file: row.get(3)?,
                    })
                })
                .optional()
        };
        read().map_err(|source| self.error(source))
    }

    fn read_queue(&self, take: &mut dyn FnMut(&str) -> Result<(), StoreError>) -> Result<(), StoreError> {
        let read = || {
            let mut statement = self
                .connection
                .prepare("SELECT tries FROM pmc_queued WHERE wf_id = ?1")?;
            let texts = statement.query_map([self.wf], |row| row.get(0))?;
            texts.collect::<rusqlite::Result<Vec<String>>>()
        };
        let texts = read().map_err(|source| self.error(source))?;
        texts.iter().try_for_each(|text| take(text))
    }

    fn has_attempt(&self, job: &str, seq: i64) -> Result<bool, StoreError> {
        let found = self.query_id(
            "SELECT 1 FROM job_instance WHERE job_submit_seq = ?1
                 AND job_id = (SELECT job_id FROM job WHERE wf_id = ?2 AND exec_job_id = ?3)",
            (seq, self.wf, job),
        )?;
        Ok(found.is_some())
    }

    fn nested_attempts(&self) -> Result<Vec<NestedAttempt>, StoreError> {
        if self.is_new {
            return Ok(Vec::new());
        }
        let read = || {
            let mut statement = self.connection.prepare(
                "SELECT exec_job_id, job_id, submit_file, job_instance_id, job_submit_seq, sched_id, stdout_file
                 FROM job JOIN job_instance USING (job_id) WHERE wf_id = ?1 AND type_desc = 'dax'
                 ORDER BY job_id, job_submit_seq",
            )?;
            let rows = statement.query_map([self.wf], |row| {
                Ok(NestedAttempt {
                    exec_job_id: row.get(0)?,
                    job_id: row.get(1)?,
                    submit_file: row.get(2)?,
                    attempt: StoredAttempt {
                        job_instance_id: row.get(3)?,
                        job_submit_seq: row.get(4)?,
                        sched_id: row.get(5)?,
                        stdout_file: row.get(6)?,
                    },
                })
            })?;
            rows.collect::<rusqlite::Result<_>>()
        };
        read().map_err(|source| self.error(source))
    }

    fn attempted_jobs(&self, take: &mut dyn FnMut(i64)) -> Result<(), StoreError> {
        if self.is_new {
            return Ok(());
        }
        self.flush()?;
        let mut read = || {
            let mut statement = self.connection.prepare(
                "SELECT DISTINCT job_id FROM job JOIN job_instance USING (job_id) WHERE wf_id = ?1",
            )?;
            let mut rows = statement.query([self.wf])?;
            while let Some(row) = rows.next()? {
                take(row.get(0)?);
            }
            Ok(())
        };
        read().map_err(|source| self.error(source))
    }

    fn last_sequence(&self) -> Result<i64, StoreError> {
        if self.is_new {
            return Ok(0);
        }
        self.flush()?;
        let last = self.query_id(
            "SELECT max(job_submit_seq) FROM job JOIN job_instance USING (job_id) WHERE wf_id = ?1",
            [self.wf],
        )?;
        Ok(last.unwrap_or(0))
    }

    fn attempts_by_job(&self, take: &mut dyn FnMut(&str, i64)) -> Result<(), StoreError> {
        self.flush()?;
        let mut read = || {
            let mut statement = self.connection.prepare(
                // In the order of the index of attempts, so that each table is read once.
                "SELECT exec_job_id, count(*) FROM job_instance i CROSS JOIN job j ON j.job_id = i.job_id AND wf_id = ?1
                 GROUP BY i.job_id",
            )?;
            let mut rows = statement.query([self.wf])?;
            while let Some(row) = rows.next()? {
                take(row.get_ref(0)?.as_str()?, row.get(1)?);
            }
            Ok(())
        };
        read().map_err(|source| self.error(source))
    }

    fn states(&self, attempt: i64) -> Result<Vec<(String, i64)>, StoreError> {
        self.flush()?;
        let read = || {
            let mut statement = self.connection.prepare_cached(
                "SELECT state, timestamp FROM jobstate WHERE job_instance_id = ?1 ORDER BY jobstate_submit_seq",
            )?;
            let rows = statement.query_map([attempt], |row| Ok((row.get(0)?, row.get(1)?)))?;
            rows.collect::<rusqlite::Result<_>>()
        };
        read().map_err(|source| self.error(source))
    }

    fn tasks_by_job(&self) -> Result<FxHashMap<i64, i64>, StoreError> {
        self.flush_plan()?;
        let read = || {
            let mut statement = self
                .connection
                .prepare("SELECT job_id, task_id FROM task WHERE wf_id = ?1 AND job_id IS NOT NULL")?;
            let mut rows = statement.query([self.wf])?;
            let mut first: FxHashMap<i64, i64> = FxHashMap::default();
            while let Some(row) = rows.next()? {
                let task = row.get(1)?;
                let known = first.entry(row.get(0)?).or_insert(task);
                *known = task.min(*known);
            }
            Ok(first)
        };
        read().map_err(|source| self.error(source))
    }

    fn task_by_id(&self, task_id: i64) -> Result<(String, String), StoreError> {
        self.begin()?;
        let read = || {
            self.connection
                .prepare_cached("SELECT abs_task_id, transformation FROM task WHERE task_id = ?1")?
                .query_row([task_id], |row| Ok((row.get(0)?, row.get(1)?)))
        };
        read().map_err(|source| self.error(source))
    }
}
