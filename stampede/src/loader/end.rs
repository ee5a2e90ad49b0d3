//! The end of a try: what its output tells.

use monitord_compat::job_output_reader::JobOutput;

use super::{Loader, Try};
use crate::error::Notice;
use crate::facts::{Background, ErrorText, Facts};
use crate::outcome_hints::OutcomeHint;
use crate::outputs::{self, Known};
use crate::store::StoreError;

impl Loader {
    /// A job ended with this raw wait status; its output is complete.
    pub fn ended(
        &mut self,
        time: i64,
        job: &str,
        number: &str,
        status: i32,
        notice: &mut dyn FnMut(Notice),
    ) -> Result<(), StoreError> {
        self.live(job, number, notice)?;
        let Some(mut this) = self.tries.remove(job) else {
            return Ok(());
        };
        self.jobs_ended += 1;
        let status = i64::from(status);
        let (executable, arguments, submit_file) = match this.facts.take() {
            Some(facts) => facts,
            None => self.store.job_facts(this.job_id)?,
        };
        let (task, transformation) = match this.task.take() {
            Some((task, transformation)) => (Some(task), Some(transformation)),
            None => self.task_of(job, this.job_id)?,
        };
        let site = arguments
            .as_deref()
            .and_then(|text| option_of_kickstart(text, "-R"));
        let known = Background {
            status,
            started: this.started,
            done: this.done.unwrap_or(time),
            user: self.workflow.user.clone(),
            submit_dir: self.workflow.submit_dir.clone(),
            site,
            transformation: transformation
                .or_else(|| option_of_kickstart(arguments.as_deref()?, "-n"))
                .unwrap_or_else(|| base_name(&executable).to_owned()),
            executable,
            task,
        };
        let mut facts = self.read_output(job, &this, known, notice)?;
        if !self.workflow.keep_output {
            facts.end.stdout_text = None;
            facts.end.stderr_text = None;
        }
        let site = facts.end.site.clone();
        self.store_end(&this, facts)?;
        if status == 0 && job.starts_with("register_") {
            self.registered(job, &submit_file, notice)?;
        }
        let state = if status == 0 { "JOB_SUCCESS" } else { "JOB_FAILURE" };
        self.store.state(this.row, state, time, this.states + 1)?;
        self.log
            .job(time, job, state, &status.to_string(), &site, this.seq);
        Ok(())
    }

    fn store_end(&mut self, this: &Try, facts: Facts) -> Result<(), StoreError> {
        let row = this.row;
        for invocation in facts.invocations {
            self.store.invocation(row, invocation)?;
        }
        for file in &facts.outputs {
            let timing = file.checksum_timing.as_ref().map(|timing| {
                let number = timing.parse::<f64>().map(|seconds| format!("{seconds:?}"));
                number.unwrap_or_else(|_| timing.clone())
            });
            let sum = file.sha256.as_deref();
            let values = [
                ("user", file.user.as_deref()),
                ("size", file.size.as_deref()),
                ("ctime", file.ctime.as_deref()),
                ("checksum.type", sum.map(|_| "sha256")),
                ("checksum.value", sum),
                ("checksum.timing", timing.as_deref()),
            ];
            let known = values.map(|(key, value)| Some((key, value?)));
            let known: Vec<_> = known.into_iter().flatten().collect();
            self.store.file(&file.lfn, &known)?;
        }
        let mut failed = 0_i64;
        for ((kind, files), metric) in &facts.metrics {
            self.store
                .integrity(row, kind, files, metric.count, metric.seconds)?;
            failed = failed.saturating_add(metric.failed);
        }
        if failed > 0 {
            self.store.integrity_errors(row, failed)?;
        }
        let host = match &facts.host {
            Some(host) => Some(self.store.host(host)?),
            None => None,
        };
        self.store.end_try(row, facts.end, host)
    }

    /// Reads the files of a try that ended.
    fn read_output(
        &self,
        job: &str,
        this: &Try,
        known: Background,
        notice: &mut dyn FnMut(Notice),
    ) -> Result<Facts, StoreError> {
        let before = if this.first {
            None
        } else {
            self.store.last_try(this.job_id, this.seq)?
        };
        // A try that never ended counts, too: it had a number of its own.
        let (mut expected, mut consumed) = (0, None);
        let mut below = before;
        while let Some(row) = below {
            if let Some(last) = row.stdout_file.as_deref().and_then(outputs::number_of) {
                consumed = Some(last);
                expected += last + 1;
                break;
            }
            expected += 1;
            below = self.store.last_try(this.job_id, row.job_submit_seq)?;
        }
        if let Some(hint) = self.hint_for(job, this, expected) {
            let mut facts = Facts::from_hint(&hint, known);
            facts.end.stdout_file = outputs::name(job, "out", expected);
            facts.end.stderr_file = outputs::name(job, "err", expected);
            return Ok(facts);
        }
        let of_log = Known {
            status: known.status,
            submitted: this.submitted,
        };
        let found = outputs::find(&self.workflow.dir, job, expected, consumed, of_log);
        let name = |stream| outputs::name(job, stream, found.number);
        let (stdout_file, stderr_file) = (name("out"), name("err"));
        let path = |file: &str| self.workflow.dir.join(file);
        let (text, output) = match found.output {
            Ok((text, mut output)) => {
                // The executor writes its record behind all that a task prints.
                if output.damage.is_empty() && output.tasks.iter().all(|task| task.name.is_none()) {
                    notice(Notice::Torn {
                        path: path(&stdout_file),
                    });
                }
                for (line, source) in output.damage.drain(..) {
                    notice(Notice::Record {
                        path: path(&stdout_file),
                        line,
                        source,
                    });
                }
                (Some(text), output)
            }
            Err(source) => {
                notice(Notice::Output {
                    path: path(&stdout_file),
                    source,
                });
                (None, JobOutput::default())
            }
        };
        let stderr_path = path(&stderr_file);
        let errors = match outputs::read_if_any(&stderr_path) {
            Ok(text) => Some(ErrorText::read(&text)),
            Err(source) => {
                notice(Notice::Output {
                    path: stderr_path,
                    source,
                });
                None
            }
        };
        let mut facts = Facts::new(text.as_deref(), output, errors, &known);
        facts.end.stdout_file = stdout_file;
        facts.end.stderr_file = stderr_file;
        Ok(facts)
    }

    /// Returns the hint for an attempt, if there is one; `file` is the number of its files.
    fn hint_for(&self, job: &str, this: &Try, file: u32) -> Option<OutcomeHint> {
        let number = this.number.strip_suffix(".0")?.parse().ok()?;
        self.hints.as_ref()?.take(number, job, file)
    }

    /// Replicas that a job registered, from its list beside the submit file.
    fn registered(
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
                self.store.replica(lfn, pfn, site)?;
            }
        }
        Ok(())
    }

    /// Id and transformation of the task of a job: most jobs carry the task in their name.
    fn task_of(&mut self, job: &str, job_id: i64) -> Result<(Option<String>, Option<String>), StoreError> {
        if let Some((_, id)) = job.rsplit_once('_')
            && let Some((transformation, of)) = self.store.task_facts(id)?
            && of == Some(job_id)
        {
            return Ok((Some(id.to_owned()), Some(transformation)));
        }
        let tasks = match self.first_tasks.take() {
            Some(tasks) => tasks,
            None => self.store.tasks_by_job()?,
        };
        let task = tasks.get(&job_id).copied();
        self.first_tasks = Some(tasks);
        match task {
            Some(task) => {
                let (id, transformation) = self.store.task_by_id(task)?;
                Ok((Some(id), Some(transformation)))
            }
            None => Ok((None, None)),
        }
    }
}

/// The value of an option in the arguments of a job that kickstart runs.
pub(crate) fn option_of_kickstart(arguments: &str, option: &str) -> Option<String> {
    let mut words = arguments.split_whitespace();
    while let Some(word) = words.next() {
        if word == option {
            return words.next().map(str::to_owned);
        }
        // Other options take a word each; the first that is none begins the job's own command.
        if !word.starts_with('-') {
            return None;
        }
        if !matches!(word, "-f" | "-H" | "-q" | "-c" | "-F" | "-X") {
            words.next();
        }
    }
    None
}

/// Last part of a path.
pub(crate) fn base_name(path: &str) -> &str {
    match path.rsplit('/').next() {
        None | Some("") => "unknown",
        Some(name) => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_kickstart() {
        let arguments = " -f -n split -N ID1 -R local  -w /x /bin/app -R other";
        assert_eq!(option_of_kickstart(arguments, "-R").as_deref(), Some("local"));
        assert_eq!(option_of_kickstart(arguments, "-n").as_deref(), Some("split"));
        assert_eq!(option_of_kickstart("-w /x /bin/app -R other", "-R"), None);
        assert_eq!(base_name("/a/b"), "b");
        assert_eq!(base_name("a/"), "unknown");
    }
}
