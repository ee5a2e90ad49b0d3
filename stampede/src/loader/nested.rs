//! Nested sub-workflows: a PRE script plans each one, then its plan runs.
//!
//! The rows are those of Pegasus' monitoring: the attempt begins with its PRE script, and has an invocation
//! for the script and one for the run. The rows of the sub-workflow itself come from its own log.

use std::path::Path;

use monitord_compat::job_output_reader::JobOutput;

use super::{Attempt, Loader};
use crate::error::Notice;
use crate::facts::{Background, ErrorText, Facts};
use crate::outputs;
use crate::rows::{AttemptEnd, InvocationRow, NestedAttempt};
use crate::state_log::JobLine;
use crate::store::StoreError;
use crate::submit_description::SubmitDescription;

/// Number of the invocation of a PRE script.
const SCRIPT: i64 = -1;
/// Name of a PRE script as a transformation.
const SCRIPT_TRANSFORMATION: &str = "dagman::pre";
/// Option of the planner with the file of its messages, without the number of the attempt.
const PLANNER_LOG: &str = "-Dpegasus.log.*=";

/// An attempt of a nested sub-workflow whose plan begins to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NestedStart {
    /// Job.
    pub(crate) job: String,
    /// Sequence number of the attempt.
    pub(crate) seq: i64,
    /// Number of earlier attempts.
    pub(crate) number: u32,
    /// Its submit description, relative to the submit directory.
    pub(crate) submit_file: String,
}

impl Attempt {
    /// Returns whether its PRE script has begun and its main part has not.
    pub(super) fn is_prepared(&self) -> bool {
        self.script.is_some() && self.sched_id.is_empty()
    }
}

impl Loader {
    /// Returns the nested sub-workflows that have begun since the last call. After an interruption, these are
    /// all so far.
    pub(crate) fn take_nested(&mut self) -> Vec<NestedStart> {
        std::mem::take(&mut self.nested)
    }

    /// Takes over the attempts of nested sub-workflows of an earlier loader.
    pub(super) fn resume_nested(&mut self, attempts: Vec<NestedAttempt>) -> Result<(), StoreError> {
        let mut number = 0;
        let mut earlier = None;
        for row in attempts {
            number = if earlier == Some(row.job_id) {
                number + 1
            } else {
                0
            };
            earlier = Some(row.job_id);
            let NestedAttempt {
                exec_job_id: job,
                job_id,
                submit_file,
                attempt: stored,
            } = row;
            if stored.sched_id.is_some() {
                self.attempts.remove(&job);
                self.nested.push(NestedStart {
                    job,
                    seq: stored.job_submit_seq,
                    number,
                    submit_file,
                });
                continue;
            }
            let states = self.store.states(stored.job_instance_id)?;
            let attempt = Attempt {
                site: self.site_of(&submit_file),
                id: stored.job_instance_id,
                job_id,
                seq: stored.job_submit_seq,
                states: i64::try_from(states.len()).unwrap_or(i64::MAX),
                script: states.first().map(|(_, time)| *time),
                ..Attempt::default()
            };
            // The last one counts; those before have ended, or were cut off.
            match stored.stdout_file {
                Some(_) => self.attempts.remove(&job),
                None => self.attempts.insert(job, attempt),
            };
        }
        Ok(())
    }

    /// The PRE script of a job begins, and with it an attempt.
    ///
    /// # Errors
    /// The database cannot be written, here and below.
    pub fn script_started(
        &mut self,
        time: i64,
        job: &str,
        notice: &mut dyn FnMut(Notice),
    ) -> Result<(), StoreError> {
        self.last_seq += 1;
        let mut attempt = self.insert_attempt(job, self.last_seq, "", notice)?;
        attempt.script = Some(time);
        let (_, _, submit_file) = self.store.job_facts(attempt.job_id)?;
        attempt.site = self.site_of(&submit_file);
        self.attempts.insert(job.to_owned(), attempt);
        self.script_state(time, job, "PRE_SCRIPT_STARTED", "-")
    }

    /// The PRE script of a job has ended with this raw wait status. If it has failed, so has the attempt.
    pub fn script_ended(
        &mut self,
        time: i64,
        job: &str,
        status: i32,
        notice: &mut dyn FnMut(Notice),
    ) -> Result<(), StoreError> {
        if !self.attempts.get(job).is_some_and(Attempt::is_prepared) {
            self.script_started(time, job, notice)?;
        }
        self.script_state(time, job, "PRE_SCRIPT_TERMINATED", "-")?;
        let Some(attempt) = self.attempts.get(job) else {
            return Ok(());
        };
        let (id, started) = (attempt.id, attempt.script.unwrap_or(time));
        let (executable, arguments, _) = self.store.job_facts(attempt.job_id)?;
        #[expect(
            clippy::cast_precision_loss,
            reason = "seconds since the epoch are far below 2^53"
        )]
        let (start_time, seconds) = (started as f64, (time - started) as f64);
        let status = i64::from(status);
        let invocation = InvocationRow {
            task_submit_seq: SCRIPT,
            start_time,
            remote_duration: seconds,
            remote_cpu_time: Some(seconds),
            exitcode: status,
            transformation: SCRIPT_TRANSFORMATION.to_owned(),
            executable,
            ..InvocationRow::default()
        };
        self.store.insert_invocation(id, invocation)?;
        let (state, value) = match status {
            0 => ("PRE_SCRIPT_SUCCESS", "0".to_owned()),
            _ => ("PRE_SCRIPT_FAILURE", status.to_string()),
        };
        self.script_state(time, job, state, &value)?;
        if status != 0 {
            self.script_failed(job, status, arguments.as_deref().unwrap_or_default())?;
        }
        Ok(())
    }

    /// Ends the attempt of a job whose planner has failed: its output is that of the planner.
    fn script_failed(&mut self, job: &str, status: i64, arguments: &str) -> Result<(), StoreError> {
        let Some(attempt) = self.attempts.remove(job) else {
            return Ok(());
        };
        self.jobs_ended += 1;
        let (number, _) = self.expected_file(&attempt)?;
        let (_, _, submit_file) = self.store.job_facts(attempt.job_id)?;
        let log = arguments
            .split_whitespace()
            .find_map(|word| word.strip_prefix(PLANNER_LOG));
        let stdout_file = match log {
            Some(log) => format!("{log}.{number:03}"),
            None => outputs::name(job, "out", number),
        };
        let text = outputs::read(&self.workflow.place(&stdout_file)).ok();
        let background = Background {
            status,
            ..Background::default()
        };
        let facts = Facts::new(text.as_deref(), JobOutput::default(), None, &background);
        let end = AttemptEnd {
            site: attempt.site,
            user: self.workflow.user.clone(),
            work_dir: self.workflow.submit_dir.clone(),
            stdout_file,
            stdout_text: facts
                .end
                .stdout_text
                .filter(|text| !text.is_empty() && self.workflow.keep_output),
            stderr_file: beside(&submit_file, &format!("{job}.err")),
            exitcode: status,
            ..AttemptEnd::default()
        };
        self.store.end_attempt(attempt.id, end, None)
    }

    /// The main part of a job begins whose PRE script has succeeded.
    pub(super) fn submitted_nested(
        &mut self,
        time: i64,
        job: &str,
        sched_id: &str,
    ) -> Result<(), StoreError> {
        let Some(attempt) = self.attempts.get_mut(job) else {
            return Ok(());
        };
        sched_id.clone_into(&mut attempt.sched_id);
        attempt.submitted = Some(time);
        let attempt = attempt.clone();
        self.store.set_sched_id(attempt.id, sched_id)?;
        self.script_state(time, job, "SUBMIT", sched_id)?;
        let (_, _, submit_file) = self.store.job_facts(attempt.job_id)?;
        let (number, _) = self.expected_file(&attempt)?;
        self.nested.push(NestedStart {
            job: job.to_owned(),
            seq: attempt.seq,
            number,
            submit_file,
        });
        Ok(())
    }

    /// Inserts a state of an attempt with a PRE script.
    fn script_state(&mut self, time: i64, job: &str, state: &str, value: &str) -> Result<(), StoreError> {
        let Some(attempt) = self.attempts.get_mut(job) else {
            return Ok(());
        };
        attempt.states += 1;
        self.store.insert_state(attempt.id, state, time, attempt.states)?;
        let line = JobLine {
            job,
            state,
            value,
            site: &attempt.site,
            seq: attempt.seq,
        };
        self.log.job(time, &line);
        Ok(())
    }

    /// Returns the facts of the end of a nested sub-workflow. `None` if it has no submit description: then
    /// it is a job like any other.
    pub(super) fn nested_facts(
        &self,
        job: &str,
        attempt: &Attempt,
        submit_file: &str,
        background: &Background,
    ) -> Result<Option<Facts>, StoreError> {
        if attempt.script.is_none() {
            return Ok(None);
        }
        let Ok(Some(description)) = SubmitDescription::open(&self.workflow.dir.join(submit_file)) else {
            return Ok(None);
        };
        let (number, _) = self.expected_file(attempt)?;
        let file = |stream| beside(submit_file, &outputs::name(job, stream, number));
        let (stdout_file, stderr_file) = (file("out"), file("err"));
        let read = |file: &str| outputs::read(&self.workflow.dir.join(file)).ok();
        let background = Background {
            site: description.site,
            transformation: description
                .transformation
                .unwrap_or_else(|| background.transformation.clone()),
            executable: description
                .executable
                .unwrap_or_else(|| background.executable.clone()),
            task: description.task,
            ..background.clone()
        };
        let errors = read(&stderr_file).map(|text| ErrorText::read(&text));
        let text = read(&stdout_file);
        let mut facts = Facts::new(text.as_deref(), JobOutput::default(), errors, &background);
        if text.is_none() {
            facts.end.stdout_text = None;
        }
        facts.end.stdout_file = stdout_file;
        facts.end.stderr_file = stderr_file;
        Ok(Some(facts))
    }

    fn site_of(&self, submit_file: &str) -> String {
        let description = SubmitDescription::open(&self.workflow.dir.join(submit_file));
        description
            .ok()
            .flatten()
            .and_then(|found| found.site)
            .unwrap_or_default()
    }
}

/// Returns the name of a file beside another one.
fn beside(file: &str, name: &str) -> String {
    Path::new(file).with_file_name(name).display().to_string()
}
