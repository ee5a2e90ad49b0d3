//! The states of a run, one after another, become rows.
//!
//! The caller gives what happened, in order, from a log or as it happens, and decides when to commit.
//! Only tries that have not ended are held in memory; all else is asked from the database, so that a
//! run of a million jobs needs no more than one of a thousand, and a loader that starts again needs
//! nothing but the database.

use std::path::PathBuf;

use monitord_compat::job_output_reader::JobOutput;
use rustc_hash::FxHashMap;

use crate::error::{LoadError, Notice};
use crate::facts::{Background, ErrorText, Facts};
use crate::outputs::{self, Known};
use crate::rows::{JobRow, WorkflowState};
use crate::state_log::StateLog;
use crate::store::{Position, Store, StoreError};

/// Two starts or ends in one second must differ, since readers take the last one.
const TICK: f64 = 0.001;

/// Facts of the workflow that rows repeat.
#[derive(Clone, Debug, Default)]
pub struct Workflow {
    /// Directory with the output files of the jobs, and base of the names in the database.
    pub dir: PathBuf,
    /// The submit directory as it was planned.
    pub submit_dir: Option<String>,
    /// Who planned it.
    pub user: Option<String>,
    /// Whether to store the output of the jobs.
    pub keep_output: bool,
}

/// A try that has not ended.
#[derive(Clone, Debug, Default)]
struct Try {
    row: i64,
    job_id: i64,
    seq: i64,
    number: String,
    states: i64,
    submitted: Option<i64>,
    started: Option<i64>,
    done: Option<i64>,
    /// The job has no try before.
    first: bool,
}

/// Loads one run after another of one workflow.
pub struct Loader {
    store: Box<dyn Store>,
    log: StateLog,
    workflow: Workflow,
    tries: FxHashMap<String, Try>,
    last_seq: i64,
    /// Of the run that is going on or was the last; -1 before the first.
    restart_count: i64,
    running: bool,
    last_time: f64,
    states: Vec<WorkflowState>,
    first_tasks: Option<FxHashMap<i64, i64>>,
    /// Jobs that have a try; only those are asked for what became of it.
    tried: Tried,
    jobs_ended: u64,
}

/// A set of job numbers, which count from 1 without gaps: a bit each.
#[derive(Clone, Debug, Default)]
struct Tried(Vec<u64>);

impl Tried {
    /// Adds a number; whether it was there.
    fn insert(&mut self, job: i64) -> bool {
        let Ok(job) = usize::try_from(job) else {
            return true;
        };
        if self.0.len() <= job / 64 {
            self.0.resize(job / 64 + 1, 0);
        }
        let (word, bit) = (&mut self.0[job / 64], 1 << (job % 64));
        let known = *word & bit != 0;
        *word |= bit;
        known
    }
}

impl std::fmt::Debug for Loader {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Loader")
            .field("store", &self.store)
            .finish_non_exhaustive()
    }
}

impl Loader {
    /// Goes on with what the database holds, nothing or the beginning of a run.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn new(store: Box<dyn Store>, log: StateLog, workflow: Workflow) -> Result<Self, StoreError> {
        let last_seq = store.last_sequence()?;
        let states = store.workflow_states()?;
        let last = states.last();
        let mut tried = Tried::default();
        store.jobs_tried(&mut |job| _ = tried.insert(job))?;
        Ok(Self {
            tried,
            tries: FxHashMap::default(),
            last_seq,
            restart_count: last.map_or(-1, |state| state.restart_count),
            running: last.is_some_and(|state| state.status.is_none()),
            last_time: last.map_or(f64::MIN, |state| state.timestamp),
            states,
            first_tasks: None,
            jobs_ended: 0,
            store,
            log,
            workflow,
        })
    }

    /// Whether a run was started and has not ended.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.running
    }

    /// Whether a run was ever started.
    #[must_use]
    pub fn was_started(&self) -> bool {
        self.restart_count >= 0
    }

    /// Number of starts.
    #[must_use]
    pub fn starts(&self) -> i64 {
        self.restart_count + 1
    }

    /// Number of the last try.
    #[must_use]
    pub fn last_sequence(&self) -> i64 {
        self.last_seq
    }

    /// Number of tries that this loader has seen ending.
    #[must_use]
    pub fn jobs_ended(&self) -> u64 {
        self.jobs_ended
    }

    /// All starts and ends so far.
    #[must_use]
    pub fn states(&self) -> &[WorkflowState] {
        &self.states
    }

    /// The database.
    #[must_use]
    pub fn store(&self) -> &dyn Store {
        &*self.store
    }

    /// Ends loading.
    #[must_use]
    pub fn into_store(self) -> Box<dyn Store> {
        self.store
    }

    /// The log of states.
    pub fn log(&mut self) -> &mut StateLog {
        &mut self.log
    }

    /// Writes everything to disk, with the position (without the length of the log of states, which is
    /// filled in).
    ///
    /// # Errors
    /// Nothing of it is in the database then.
    pub fn commit(&mut self, mut position: Position) -> Result<(), LoadError> {
        position.jobstate_bytes = self.log.flush().map_err(|source| LoadError::Write {
            path: self.log.path().to_owned(),
            source,
        })?;
        self.store.commit(position)?;
        Ok(())
    }

    /// Begins a transaction, unless one is open; to be called before rows are written.
    ///
    /// # Errors
    /// A reader holds the database for longer than a minute.
    pub fn store_begin(&self) -> Result<(), StoreError> {
        self.store.begin()
    }

    /// A run begins. `id` is the number of its master.
    ///
    /// # Errors
    /// The database cannot be written, here and below.
    pub fn start(&mut self, time: i64, id: &str) -> Result<(), StoreError> {
        if self.running {
            // The run before died without an end.
            self.workflow_state("WORKFLOW_TERMINATED", time - 1, Some(2))?;
        }
        self.restart_count += 1;
        self.running = true;
        self.tries.clear();
        self.workflow_state("WORKFLOW_STARTED", time, None)?;
        self.log.internal(time, "DAGMAN_STARTED", id);
        Ok(())
    }

    /// A run ends.
    pub fn finish(&mut self, time: i64, status: i32) -> Result<(), StoreError> {
        if self.running {
            self.running = false;
            self.tries.clear();
            self.workflow_state("WORKFLOW_TERMINATED", time, Some(i64::from(status)))?;
        }
        self.log.internal(time, "DAGMAN_FINISHED", &status.to_string());
        Ok(())
    }

    fn workflow_state(
        &mut self,
        state: &'static str,
        time: i64,
        status: Option<i64>,
    ) -> Result<(), StoreError> {
        #[expect(
            clippy::cast_precision_loss,
            reason = "seconds since the epoch are far below 2^53"
        )]
        let time = (time as f64).max(self.last_time + TICK);
        self.last_time = time;
        let state = WorkflowState {
            state,
            timestamp: time,
            restart_count: self.restart_count,
            status,
        };
        self.store.workflow_state(&state)?;
        self.states.push(state);
        Ok(())
    }

    /// A job is ready and has the number of its execution, such as `17.0`.
    pub fn submitted(
        &mut self,
        time: i64,
        job: &str,
        number: &str,
        notice: &mut dyn FnMut(Notice),
    ) -> Result<(), StoreError> {
        if self.tries.get(job).is_some_and(|known| known.number == number) {
            return Ok(());
        }
        self.new_try(job, number, notice)?;
        self.state(time, job, "SUBMIT", number, notice)
    }

    /// A job is in another state, its end excepted: `EXECUTE`, `JOB_TERMINATED`, `JOB_HELD`…
    pub fn state(
        &mut self,
        time: i64,
        job: &str,
        state: &str,
        number: &str,
        notice: &mut dyn FnMut(Notice),
    ) -> Result<(), StoreError> {
        let this = self.live(job, number, notice)?;
        match state {
            "SUBMIT" => this.submitted = Some(time),
            "EXECUTE" => this.started = Some(time),
            "JOB_TERMINATED" | "JOB_ABORTED" => this.done = Some(time),
            _ => {}
        }
        this.states += 1;
        let (row, seq, states) = (this.row, this.seq, this.states);
        self.store.state(row, state, time, states)?;
        self.log.job(time, job, state, number, "", seq);
        Ok(())
    }

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
        let Some(this) = self.tries.remove(job) else {
            return Ok(());
        };
        self.jobs_ended += 1;
        let status = i64::from(status);
        let (executable, arguments, submit_file) = self.store.job_facts(this.job_id)?;
        let (task, transformation) = self.task_of(job, this.job_id)?;
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
        let mut facts = self.read_output(job, &this, &known, notice)?;
        if !self.workflow.keep_output {
            facts.end.stdout_text = None;
            facts.end.stderr_text = None;
        }
        self.store_end(&this, &facts)?;
        if status == 0 && job.starts_with("register_") {
            self.registered(job, &submit_file, notice)?;
        }
        let state = if status == 0 { "JOB_SUCCESS" } else { "JOB_FAILURE" };
        self.store.state(this.row, state, time, this.states + 1)?;
        self.log
            .job(time, job, state, &status.to_string(), &facts.end.site, this.seq);
        Ok(())
    }

    fn store_end(&mut self, this: &Try, facts: &Facts) -> Result<(), StoreError> {
        let row = this.row;
        for invocation in &facts.invocations {
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
        self.store.end_try(row, &facts.end, host)
    }

    /// Reads the files of a try that ended.
    fn read_output(
        &self,
        job: &str,
        this: &Try,
        known: &Background,
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
        let of_log = Known {
            status: known.status,
            submitted: this.submitted,
        };
        let found = outputs::find(&self.workflow.dir, job, expected, consumed, of_log);
        let name = |stream| outputs::name(job, stream, found.number);
        let stdout_path = self.workflow.dir.join(name("out"));
        let (text, output) = match found.output {
            Ok((text, mut output)) => {
                for (line, source) in output.damage.drain(..) {
                    notice(Notice::Record {
                        path: stdout_path.clone(),
                        line,
                        source,
                    });
                }
                (Some(text), output)
            }
            Err(source) => {
                notice(Notice::Output {
                    path: stdout_path,
                    source,
                });
                (None, JobOutput::default())
            }
        };
        let stderr_path = self.workflow.dir.join(name("err"));
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
        let mut facts = Facts::new(text.as_deref(), output, errors, known);
        facts.end.stdout_file = name("out");
        facts.end.stderr_file = name("err");
        Ok(facts)
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

    /// The try that a state is about. One that began before an interruption is read from the database;
    /// one whose beginning is lost is made.
    fn live(
        &mut self,
        job: &str,
        number: &str,
        notice: &mut dyn FnMut(Notice),
    ) -> Result<&mut Try, StoreError> {
        if !self.tries.contains_key(job) {
            match self.recover(job, number)? {
                Some(found) => {
                    self.tries.insert(job.to_owned(), found);
                }
                None => self.new_try(job, number, notice)?,
            }
        }
        Ok(self
            .tries
            .get_mut(job)
            .expect("it is there or was inserted above"))
    }

    fn recover(&self, job: &str, number: &str) -> Result<Option<Try>, StoreError> {
        let Some(job_id) = self.store.job_id(job)? else {
            return Ok(None);
        };
        let last = self.store.last_try(job_id, i64::MAX)?;
        // The same number may come again in a later run, so only a try without an end is meant.
        let open = last.filter(|row| row.sched_id.as_deref() == Some(number) && row.stdout_file.is_none());
        let Some(row) = open else {
            return Ok(None);
        };
        let states = self.store.states(row.job_instance_id)?;
        let time = |name: &str| {
            states
                .iter()
                .find(|(state, _)| state == name)
                .map(|(_, time)| *time)
        };
        Ok(Some(Try {
            row: row.job_instance_id,
            job_id,
            seq: row.job_submit_seq,
            number: number.to_owned(),
            states: i64::try_from(states.len()).unwrap_or(i64::MAX),
            submitted: time("SUBMIT"),
            started: time("EXECUTE"),
            done: time("JOB_TERMINATED").or_else(|| time("JOB_ABORTED")),
            first: false,
        }))
    }

    fn new_try(&mut self, job: &str, number: &str, notice: &mut dyn FnMut(Notice)) -> Result<(), StoreError> {
        let job_id = match self.store.job_id(job)? {
            Some(id) => id,
            None => {
                notice(Notice::UnknownJob { job: job.to_owned() });
                self.store.job(&JobRow {
                    exec_job_id: job,
                    type_desc: "unknown",
                    ..JobRow::default()
                })?;
                self.store.job_id(job)?.unwrap_or_default()
            }
        };
        self.last_seq += 1;
        let row = self.store.new_try(job_id, self.last_seq, number)?;
        let new = Try {
            row,
            job_id,
            seq: self.last_seq,
            number: number.to_owned(),
            first: !self.tried.insert(job_id),
            ..Try::default()
        };
        self.tries.insert(job.to_owned(), new);
        Ok(())
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
