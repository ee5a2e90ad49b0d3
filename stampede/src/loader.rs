//! Turns the states of a run, in their order, into rows of the database.
//!
//! The caller reports the states from a log and decides when to commit. Only attempts that have not ended
//! are in memory; everything else is looked up in the database. So memory does not grow with the run, and a
//! restarted loader needs the database only. Of packed output, the loader knows where the entries are that
//! it has not read yet.

use std::path::{Path, PathBuf};

use pmc_packed::TaskOutput;
use rustc_hash::FxHashMap;

use crate::error::{LoadError, Notice};
use crate::rows::WorkflowState;
use crate::state_log::{JobLine, StateLog};
use crate::store::{Position, QueueMode, Store, StoreError};

mod attempt;
mod end;
mod job_set;
mod nested;
mod queue;

use attempt::Attempt;
use job_set::JobSet;
pub(crate) use nested::NestedStart;
use queue::{Queue, Queued};

/// Minimum difference, in seconds, between two states of the workflow: readers look for the last one.
const TICK: f64 = 0.001;

/// Facts of the workflow that rows repeat.
#[derive(Clone, Debug, Default)]
pub struct Workflow {
    /// Directory with the output files of the jobs; names in the database are relative to it.
    pub dir: PathBuf,
    /// The submit directory as planned.
    pub submit_dir: Option<String>,
    /// User who planned the workflow.
    pub user: Option<String>,
    /// True to store the output of the jobs.
    pub keep_output: bool,
}

impl Workflow {
    /// Returns a path whose name is relative to the submit directory, or was below it as planned.
    pub(crate) fn place(&self, name: &str) -> PathBuf {
        let planned = self.submit_dir.as_deref();
        let inside = planned.and_then(|planned| Path::new(name).strip_prefix(planned).ok());
        self.dir.join(inside.unwrap_or(Path::new(name)))
    }
}

/// How an attempt ended, for notifications.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct JobEnd {
    /// Raw wait status.
    pub(crate) status: i64,
    /// Names of the files with standard output and error, relative to the submit directory.
    pub(crate) files: [String; 2],
    /// Number, from 1, and raw wait status of each constituent.
    pub(crate) constituents: Vec<(i64, i64)>,
}

/// Loads the runs of one workflow, one after another.
pub struct Loader {
    store: Box<dyn Store>,
    log: StateLog,
    workflow: Workflow,
    output: TaskOutput,
    /// Attempts that have begun and not ended, by job.
    attempts: FxHashMap<String, Attempt>,
    /// `None` if the store takes attempts when they are submitted.
    queue: Option<Queue>,
    last_seq: i64,
    /// Number of the current or last run; -1 before the first.
    restart_count: i64,
    running: bool,
    last_time: f64,
    states: Vec<WorkflowState>,
    first_tasks: Option<FxHashMap<i64, i64>>,
    /// Jobs with an attempt. Only for those, the database is asked for earlier attempts.
    attempted: JobSet,
    jobs_ended: u64,
    /// Nested sub-workflows that have begun.
    nested: Vec<NestedStart>,
    /// The latest end, if ends are noted.
    end: Option<JobEnd>,
    notes_ends: bool,
}

impl std::fmt::Debug for Loader {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Loader")
            .field("store", &self.store)
            .finish_non_exhaustive()
    }
}

impl Loader {
    /// Continues from what the database holds: nothing, or the beginning of a run.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn new(store: Box<dyn Store>, log: StateLog, workflow: Workflow) -> Result<Self, StoreError> {
        let queue = match store.queue_mode() {
            QueueMode::None => None,
            QueueMode::Memory => Some(Queue::default()),
            QueueMode::Persistent => {
                let mut queue = Queue::default();
                store.read_queue(&mut |text| queue.read(text, |job, seq| store.has_attempt(job, seq)))?;
                Some(queue)
            }
        };
        let queued = queue.as_ref().map_or(0, Queue::last);
        let last_seq = store.last_sequence()?.max(queued);
        let states = store.workflow_states()?;
        let last = states.last();
        let mut attempted = JobSet::default();
        store.attempted_jobs(&mut |job| _ = attempted.insert(job))?;
        let nested = store.nested_attempts()?;
        let mut this = Self {
            attempted,
            attempts: FxHashMap::default(),
            queue,
            last_seq,
            restart_count: last.map_or(-1, |state| state.restart_count),
            running: last.is_some_and(|state| state.status.is_none()),
            last_time: last.map_or(f64::MIN, |state| state.timestamp),
            states,
            first_tasks: None,
            jobs_ended: 0,
            nested: Vec::new(),
            end: None,
            notes_ends: false,
            store,
            log,
            output: TaskOutput::new(&workflow.dir),
            workflow,
        };
        this.resume_nested(nested)?;
        Ok(this)
    }

    /// From now on, keeps how the latest attempt ended.
    pub(crate) fn note_ends(&mut self) {
        self.notes_ends = true;
    }

    /// Returns how an attempt has ended since the last call.
    pub(crate) fn take_end(&mut self) -> Option<JobEnd> {
        self.end.take()
    }

    /// Returns whether a run has begun and not ended.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.running
    }

    /// Returns whether any run has begun.
    #[must_use]
    pub fn was_started(&self) -> bool {
        self.restart_count >= 0
    }

    /// Number of runs that have begun.
    #[must_use]
    pub fn starts(&self) -> i64 {
        self.restart_count + 1
    }

    /// Sequence number of the last attempt.
    #[must_use]
    pub fn last_sequence(&self) -> i64 {
        self.last_seq
    }

    /// Number of attempts whose end this loader has seen.
    #[must_use]
    pub fn jobs_ended(&self) -> u64 {
        self.jobs_ended
    }

    /// All starts and ends of runs.
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

    /// Commits all rows with a position in the log. The length of the log of states is filled in here.
    ///
    /// # Errors
    /// No row of this transaction is in the database then.
    pub fn commit(&mut self, mut position: Position) -> Result<(), LoadError> {
        position.jobstate_bytes = self.log.flush().map_err(|source| LoadError::Write {
            path: self.log.path().to_owned(),
            source,
        })?;
        if let Some(queue) = &mut self.queue {
            if queue.is_stale() {
                self.store.clear_queue()?;
                queue.set_cleared();
            }
            if self.store.queue_mode() == QueueMode::Persistent
                && let Some(new) = queue.take_new()
            {
                self.store.save_queue(&new)?;
            }
        }
        self.store.commit(position)?;
        Ok(())
    }

    /// Inserts the attempts that have not begun. Call it when they cannot begin any more.
    ///
    /// # Errors
    /// The database cannot be written.
    pub fn insert_queued(&mut self, notice: &mut dyn FnMut(Notice)) -> Result<(), StoreError> {
        let queued = self.queue.as_mut().map(Queue::take_all).unwrap_or_default();
        for (job, queued) in queued {
            self.begin_attempt(&job, queued, notice)?;
        }
        Ok(())
    }

    /// A run begins. `id` is the HTCondor id of its master.
    ///
    /// # Errors
    /// The database cannot be written, here and below.
    pub fn start(&mut self, time: i64, id: &str, notice: &mut dyn FnMut(Notice)) -> Result<(), StoreError> {
        self.insert_queued(notice)?;
        if self.running {
            // The previous run died.
            self.insert_workflow_state("WORKFLOW_TERMINATED", time - 1, Some(2))?;
        }
        self.restart_count += 1;
        self.running = true;
        self.attempts.clear();
        self.insert_workflow_state("WORKFLOW_STARTED", time, None)?;
        self.log.internal(time, "DAGMAN_STARTED", id);
        Ok(())
    }

    /// A run ends.
    pub fn finish(
        &mut self,
        time: i64,
        status: i32,
        notice: &mut dyn FnMut(Notice),
    ) -> Result<(), StoreError> {
        self.insert_queued(notice)?;
        if self.running {
            self.running = false;
            self.attempts.clear();
            self.insert_workflow_state("WORKFLOW_TERMINATED", time, Some(i64::from(status)))?;
        }
        self.log.internal(time, "DAGMAN_FINISHED", &status.to_string());
        Ok(())
    }

    fn insert_workflow_state(
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
        self.store.insert_workflow_state(&state)?;
        self.states.push(state);
        Ok(())
    }

    /// A job is ready. `sched_id` identifies its attempt in the run, for instance `17.0`.
    pub fn submitted(
        &mut self,
        time: i64,
        job: &str,
        sched_id: &str,
        notice: &mut dyn FnMut(Notice),
    ) -> Result<(), StoreError> {
        if let Some(open) = self.attempts.get(job) {
            if open.is_prepared() {
                return self.submitted_nested(time, job, sched_id);
            }
            if open.sched_id == sched_id {
                return Ok(());
            }
        }
        // An earlier attempt that never ended keeps the rows that it has.
        self.attempts.remove(job);
        if let Some(queue) = &mut self.queue {
            if queue.get(job).is_some_and(|queued| *queued.sched_id == *sched_id) {
                return Ok(());
            }
            if let Some(earlier) = queue.take(job) {
                self.begin_attempt(job, earlier, notice)?;
            }
        }
        self.last_seq += 1;
        let queued = Queued {
            seq: self.last_seq,
            time,
            sched_id: sched_id.into(),
        };
        let line = JobLine {
            job,
            state: "SUBMIT",
            value: sched_id,
            site: "",
            seq: queued.seq,
        };
        self.log.job(time, &line);
        match &mut self.queue {
            Some(queue) => queue.insert(job, queued),
            None => {
                let attempt = self.begin_attempt(job, queued, notice)?;
                self.attempts.insert(job.to_owned(), attempt);
            }
        }
        Ok(())
    }

    /// A job is in another state, its end excepted: `EXECUTE`, `JOB_TERMINATED`, `JOB_HELD`, `JOB_EVICTED`…
    /// `JOB_ABORTED` ends the attempt as a failure without records.
    pub fn state(
        &mut self,
        time: i64,
        job: &str,
        state: &str,
        sched_id: &str,
        notice: &mut dyn FnMut(Notice),
    ) -> Result<(), StoreError> {
        let attempt = self.open_attempt(job, sched_id, notice)?;
        match state {
            "SUBMIT" => attempt.submitted = Some(time),
            "EXECUTE" => attempt.started = Some(time),
            "JOB_TERMINATED" | "JOB_ABORTED" => attempt.done = Some(time),
            _ => {}
        }
        attempt.states += 1;
        let (id, seq, states) = (attempt.id, attempt.seq, attempt.states);
        let site = attempt.site.clone();
        self.store.insert_state(id, state, time, states)?;
        let line = JobLine {
            job,
            state,
            value: sched_id,
            site: &site,
            seq,
        };
        self.log.job(time, &line);
        if state == "JOB_ABORTED" {
            self.aborted(time, job)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
