//! The end of an attempt: rows from its output files.

use std::path::Path;

use monitord_compat::job_output_reader::JobOutput;
use pmc_packed::Channel;

use super::{Attempt, JobEnd, Loader};
use crate::error::Notice;
use crate::facts::{Background, ErrorText, Facts};
use crate::job_command::{base_name, kickstart_option};
use crate::outputs::{self, LogFacts};
use crate::rows::AttemptEnd;
use crate::state_log::JobLine;
use crate::store::StoreError;

impl Loader {
    /// A job ended with this raw wait status; its output files are complete.
    pub fn ended(
        &mut self,
        time: i64,
        job: &str,
        sched_id: &str,
        status: i32,
        notice: &mut dyn FnMut(Notice),
    ) -> Result<(), StoreError> {
        self.open_attempt(job, sched_id, notice)?;
        let Some(mut attempt) = self.attempts.remove(job) else {
            return Ok(());
        };
        self.jobs_ended += 1;
        let status = i64::from(status);
        let (executable, arguments, submit_file) = match attempt.facts.take() {
            Some(facts) => facts,
            None => self.store.job_facts(attempt.job_id)?,
        };
        let arguments = arguments.as_deref().unwrap_or_default();
        let (task, transformation) = self.task_of(job, attempt.job_id)?.unzip();
        let background = Background {
            status,
            started: attempt.started,
            done: attempt.done.unwrap_or(time),
            user: self.workflow.user.clone(),
            submit_dir: self.workflow.submit_dir.clone(),
            site: kickstart_option(arguments, 'R'),
            transformation: transformation
                .or_else(|| kickstart_option(arguments, 'n'))
                .unwrap_or_else(|| base_name(&executable).to_owned()),
            executable,
            task,
        };
        let mut facts = match self.nested_facts(job, &attempt, &submit_file, &background)? {
            Some(facts) => facts,
            None => self.read_output(job, &attempt, background, notice)?,
        };
        if !self.workflow.keep_output {
            facts.end.stdout_text = None;
            facts.end.stderr_text = None;
        }
        let site = facts.end.site.clone();
        self.end = self.notes_ends.then(|| JobEnd {
            status,
            files: [facts.end.stdout_file.clone(), facts.end.stderr_file.clone()],
            constituents: facts
                .invocations
                .iter()
                .map(|invocation| (invocation.task_submit_seq, invocation.exitcode))
                .collect(),
        });
        self.insert_end(&attempt, facts)?;
        if status == 0 && job.starts_with("register_") {
            self.insert_replicas(job, &submit_file, notice)?;
        }
        let state = if status == 0 { "JOB_SUCCESS" } else { "JOB_FAILURE" };
        self.store
            .insert_state(attempt.id, state, time, attempt.states + 1)?;
        let line = JobLine {
            job,
            state,
            value: &status.to_string(),
            site: &site,
            seq: attempt.seq,
        };
        self.log.job(time, &line);
        Ok(())
    }

    /// The attempt of a job was aborted: by HTCondor, or because it was lost with its worker and its task has
    /// failed for that. It has no records, and its files are named as if there were no other attempts.
    pub(super) fn aborted(&mut self, time: i64, job: &str) -> Result<(), StoreError> {
        let Some(attempt) = self.attempts.remove(job) else {
            return Ok(());
        };
        self.jobs_ended += 1;
        let end = AttemptEnd {
            user: self.workflow.user.clone(),
            work_dir: self.workflow.submit_dir.clone(),
            local_duration: attempt.started.map(|started| time - started),
            stdout_file: format!("{job}.out"),
            stderr_file: format!("{job}.err"),
            exitcode: 1,
            ..AttemptEnd::default()
        };
        self.store.end_attempt(attempt.id, end, None)?;
        // It shares the number of the state before.
        self.store
            .insert_state(attempt.id, "JOB_FAILURE", time, attempt.states)
    }

    fn insert_end(&mut self, attempt: &Attempt, facts: Facts) -> Result<(), StoreError> {
        let id = attempt.id;
        for invocation in facts.invocations {
            self.store.insert_invocation(id, invocation)?;
        }
        for file in &facts.outputs {
            let timing = file.checksum_timing.as_ref().map(|timing| {
                let number = timing.parse::<f64>().map(|seconds| format!("{seconds:?}"));
                number.unwrap_or_else(|_| timing.clone())
            });
            let checksum = file.sha256.as_deref();
            let values = [
                ("user", file.user.as_deref()),
                ("size", file.size.as_deref()),
                ("ctime", file.ctime.as_deref()),
                ("checksum.type", checksum.map(|_| "sha256")),
                ("checksum.value", checksum),
                ("checksum.timing", timing.as_deref()),
            ];
            let present = values.map(|(key, value)| Some((key, value?)));
            let present: Vec<_> = present.into_iter().flatten().collect();
            self.store.set_file_meta(&file.lfn, &present)?;
        }
        let mut failed = 0_i64;
        for (kind, metric) in &facts.metrics {
            self.store.insert_integrity(id, *kind, *metric)?;
            failed = failed.saturating_add(metric.failed);
        }
        if failed > 0 {
            self.store.insert_integrity_errors(id, failed)?;
        }
        let host = match &facts.host {
            Some(host) => Some(self.store.host_id(host)?),
            None => None,
        };
        self.store.end_attempt(id, facts.end, host)
    }

    /// Reads the files of an attempt that ended.
    fn read_output(
        &mut self,
        job: &str,
        attempt: &Attempt,
        background: Background,
        notice: &mut dyn FnMut(Notice),
    ) -> Result<Facts, StoreError> {
        let (expected, last_used) = self.expected_file(attempt)?;
        let log = LogFacts {
            status: background.status,
            submitted: attempt.submitted,
        };
        let found = outputs::find(&mut self.output, job, expected, last_used, log);
        let name = |stream| outputs::name(job, stream, found.number);
        let (stdout_file, stderr_file) = (name("out"), name("err"));
        let errors = outputs::read_stream(&mut self.output, job, Channel::Err, found.number);
        let pack = self.output.pack(job.as_bytes(), found.number).map(Path::to_owned);
        self.output.forget(job.as_bytes(), found.number);
        let path = |file: &str| pack.clone().unwrap_or_else(|| self.workflow.dir.join(file));
        let (text, output) = match found.output {
            Ok((text, mut output)) => {
                // The executor's record follows all output of a task.
                if output.damage.is_empty() && output.tasks.iter().all(|task| task.name.is_none()) {
                    let path = path(&stdout_file);
                    notice(Notice::Torn { path });
                }
                for (line, source) in output.damage.drain(..) {
                    let path = path(&stdout_file);
                    notice(Notice::Record { path, line, source });
                }
                (Some(text), output)
            }
            Err(source) => {
                let path = path(&stdout_file);
                notice(Notice::Output { path, source });
                (None, JobOutput::default())
            }
        };
        let errors = match errors {
            Ok(text) => Some(ErrorText::read(&text)),
            Err(source) => {
                let path = path(&stderr_file);
                notice(Notice::Output { path, source });
                None
            }
        };
        let mut facts = Facts::new(text.as_deref(), output, errors, &background);
        facts.end.stdout_file = stdout_file;
        facts.end.stderr_file = stderr_file;
        Ok(facts)
    }

    /// Returns the number that the files of an attempt should have, and the last number that an earlier
    /// attempt used.
    pub(super) fn expected_file(&self, attempt: &Attempt) -> Result<(u32, Option<u32>), StoreError> {
        if attempt.is_first {
            return Ok((0, None));
        }
        // Attempts that never ended count, too: each had files.
        let mut expected = 0;
        let mut below = attempt.seq;
        while let Some(earlier) = self.store.last_attempt(attempt.job_id, below)? {
            if let Some(last) = earlier.stdout_file.as_deref().and_then(outputs::number_of) {
                return Ok((expected + last + 1, Some(last)));
            }
            expected += 1;
            below = earlier.job_submit_seq;
        }
        Ok((expected, None))
    }

    /// Inserts the replicas that a job registered, from the list beside its submit file.
    fn insert_replicas(
        &self,
        job: &str,
        submit_file: &str,
        notice: &mut dyn FnMut(Notice),
    ) -> Result<(), StoreError> {
        let sub = self.workflow.dir.join(submit_file);
        let list = sub.with_file_name(format!("{job}.in"));
        let text = match outputs::read(&list) {
            Ok(text) => text,
            Err(source) => {
                notice(Notice::Output { path: list, source });
                return Ok(());
            }
        };
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let mut words = line.split_whitespace();
            if let (Some(lfn), Some(pfn)) = (words.next(), words.next()) {
                let site = words.find_map(|word| {
                    let value = word
                        .strip_prefix("site=")
                        .or_else(|| word.strip_prefix("pool="))?;
                    Some(value.trim_matches('"'))
                });
                self.store.insert_replica(lfn, pfn, site)?;
            }
        }
        Ok(())
    }

    /// Returns id and transformation of the task of a job. Most jobs end with the id of their task, or have
    /// its name.
    fn task_of(&mut self, job: &str, job_id: i64) -> Result<Option<(String, String)>, StoreError> {
        let suffix = job.rsplit_once('_').map(|(_, id)| id);
        for id in suffix.into_iter().chain([job]) {
            if let Some((transformation, of)) = self.store.task_facts(id)?
                && of == Some(job_id)
            {
                return Ok(Some((id.to_owned(), transformation)));
            }
        }
        let tasks = match self.first_tasks.take() {
            Some(tasks) => tasks,
            None => self.store.tasks_by_job()?,
        };
        let task = tasks.get(&job_id).copied();
        self.first_tasks = Some(tasks);
        task.map(|task| self.store.task_by_id(task)).transpose()
    }
}
