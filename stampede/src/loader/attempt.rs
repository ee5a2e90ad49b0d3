//! Attempts that have begun and not ended.

use super::{Loader, Queue, Queued};
use crate::error::Notice;
use crate::rows::JobRow;
use crate::store::{JobFacts, StoreError};

/// An attempt that has begun and not ended.
#[derive(Clone, Debug, Default)]
pub(super) struct Attempt {
    /// Its id in the database.
    pub id: i64,
    pub job_id: i64,
    /// Facts of its job, if they were looked up.
    pub facts: Option<JobFacts>,
    pub seq: i64,
    /// Empty before its main part begins.
    pub sched_id: String,
    /// Its site, if it has a PRE script.
    pub site: String,
    /// Start of its PRE script, if it has one.
    pub script: Option<i64>,
    /// Number of its states so far.
    pub states: i64,
    pub submitted: Option<i64>,
    pub started: Option<i64>,
    pub done: Option<i64>,
    /// True for the first attempt of its job.
    pub is_first: bool,
}

impl Loader {
    /// Returns the attempt that a state belongs to. After an interruption it is read from the database; it is
    /// inserted if its beginning is lost.
    pub(super) fn open_attempt(
        &mut self,
        job: &str,
        sched_id: &str,
        notice: &mut dyn FnMut(Notice),
    ) -> Result<&mut Attempt, StoreError> {
        if !self.attempts.contains_key(job) {
            let queued = self.queue.as_mut().and_then(|queue: &mut Queue| queue.take(job));
            let attempt = match queued {
                Some(queued) => self.begin_attempt(job, queued, notice)?,
                None => match self.recover(job, sched_id)? {
                    Some(attempt) => attempt,
                    None => {
                        self.last_seq += 1;
                        self.insert_attempt(job, self.last_seq, sched_id, notice)?
                    }
                },
            };
            self.attempts.insert(job.to_owned(), attempt);
        }
        Ok(self
            .attempts
            .get_mut(job)
            .expect("it is there or was inserted above"))
    }

    /// Reads an attempt that began before an interruption.
    fn recover(&self, job: &str, sched_id: &str) -> Result<Option<Attempt>, StoreError> {
        let Some(job_id) = self.store.job_id(job)? else {
            return Ok(None);
        };
        let last = self.store.last_attempt(job_id, i64::MAX)?;
        // Later runs use the same ids again, so only an attempt without an end can be meant.
        let open = last.filter(|row| row.sched_id.as_deref() == Some(sched_id) && row.stdout_file.is_none());
        let Some(row) = open else {
            return Ok(None);
        };
        let states = self.store.states(row.job_instance_id)?;
        let time = |name: &str| {
            let state = states.iter().find(|(state, _)| state == name);
            state.map(|(_, time)| *time)
        };
        Ok(Some(Attempt {
            id: row.job_instance_id,
            job_id,
            seq: row.job_submit_seq,
            sched_id: sched_id.to_owned(),
            states: i64::try_from(states.len()).unwrap_or(i64::MAX),
            script: time("PRE_SCRIPT_STARTED"),
            submitted: time("SUBMIT"),
            started: time("EXECUTE"),
            done: time("JOB_TERMINATED").or_else(|| time("JOB_ABORTED")),
            ..Attempt::default()
        }))
    }

    /// Inserts an attempt and its submission.
    pub(super) fn begin_attempt(
        &mut self,
        job: &str,
        queued: Queued,
        notice: &mut dyn FnMut(Notice),
    ) -> Result<Attempt, StoreError> {
        let Queued { seq, time, sched_id } = queued;
        let mut attempt = self.insert_attempt(job, seq, &sched_id, notice)?;
        self.store.insert_state(attempt.id, "SUBMIT", time, 1)?;
        (attempt.submitted, attempt.states) = (Some(time), 1);
        Ok(attempt)
    }

    pub(super) fn insert_attempt(
        &mut self,
        job: &str,
        seq: i64,
        sched_id: &str,
        notice: &mut dyn FnMut(Notice),
    ) -> Result<Attempt, StoreError> {
        let (job_id, facts) = match self.store.find_job(job)? {
            Some((id, facts)) => (id, Some(facts)),
            None => {
                notice(Notice::UnknownJob { job: job.to_owned() });
                self.store.insert_job(&JobRow {
                    exec_job_id: job,
                    type_desc: "unknown",
                    ..JobRow::default()
                })?;
                (self.store.job_id(job)?.unwrap_or_default(), None)
            }
        };
        Ok(Attempt {
            id: self.store.insert_attempt(job_id, seq, sched_id)?,
            job_id,
            facts,
            seq,
            sched_id: sched_id.to_owned(),
            is_first: self.attempted.insert(job_id),
            ..Attempt::default()
        })
    }
}
