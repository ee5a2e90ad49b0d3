//! The states of a run, one after another, become rows.
//!
//! The caller gives what happened, in order, from a log or as it happens, and decides when to commit.
//! Only tries that have not ended are held in memory, little of those that have not begun; all else is asked from the
//! database, so that a run of a million jobs needs no more than one of a thousand, and a loader that starts again needs
//! nothing but the database.

use std::path::PathBuf;
use std::sync::Arc;

use pmc_dag::Dag;
use rustc_hash::FxHashMap;

use crate::error::{LoadError, Notice};
use crate::outcome_hints::OutcomeHints;
use crate::rows::{JobRow, WorkflowState};
use crate::state_log::StateLog;
use crate::static_part::OwnTask;
use crate::store::{JobFacts, Position, Queueing, Store, StoreError};
use crate::text;

mod end;
mod queue;

use queue::{Queue, Queued};

pub(crate) use end::{base_name, option_of_kickstart};

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

/// What is known of a job before its tries.
type Planned = (i64, JobFacts, Option<(String, String)>);

/// A try that has begun and not ended.
#[derive(Clone, Debug, Default)]
struct Try {
    row: i64,
    job_id: i64,
    /// What the plan says of the job, if it was read.
    facts: Option<JobFacts>,
    seq: i64,
    number: String,
    states: i64,
    submitted: Option<i64>,
    started: Option<i64>,
    done: Option<i64>,
    /// The job has no try before.
    first: bool,
    /// Task and transformation of the job, if they are known.
    task: Option<(String, String)>,
}

/// Loads one run after another of one workflow.
pub struct Loader {
    store: Box<dyn Store>,
    log: StateLog,
    workflow: Workflow,
    tries: FxHashMap<String, Try>,
    /// None if the store wants tries as they are submitted.
    queue: Option<Queue>,
    last_seq: i64,
    /// Of the run that is going on or was the last; -1 before the first.
    restart_count: i64,
    running: bool,
    last_time: f64,
    states: Vec<WorkflowState>,
    first_tasks: Option<FxHashMap<i64, i64>>,
    /// Jobs that have a try; only those are asked for what became of it.
    tried: Tried,
    /// Tries of a job after its first, counted only by a loader that has seen all of them.
    again: FxHashMap<i64, i64>,
    jobs_ended: u64,
    /// The DAG whose tasks are the jobs of the database, in its order.
    dag: Option<Arc<Dag>>,
    hints: Option<Arc<OutcomeHints>>,
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

    fn contains(&self, job: i64) -> bool {
        let job = usize::try_from(job).unwrap_or(usize::MAX);
        self.0
            .get(job / 64)
            .is_some_and(|word| word & (1 << (job % 64)) != 0)
    }

    /// The largest number, 0 if there is none.
    fn last(&self) -> usize {
        let last = self.0.iter().enumerate().rev().find(|(_, word)| **word != 0);
        last.map_or(0, |(at, word)| at * 64 + 63 - word.leading_zeros() as usize)
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
        let queue = match store.queueing() {
            Queueing::None => None,
            Queueing::Free => Some(Queue::default()),
            Queueing::Kept => {
                let mut queue = Queue::default();
                store.queued(&mut |text| queue.read(text, |seq| store.has_try(seq)))?;
                Some(queue)
            }
        };
        let queued = queue.as_ref().map_or(0, Queue::last);
        let last_seq = store.last_sequence()?.max(queued);
        let states = store.workflow_states()?;
        let last = states.last();
        let mut tried = Tried::default();
        store.jobs_tried(&mut |job| _ = tried.insert(job))?;
        Ok(Self {
            tried,
            tries: FxHashMap::default(),
            queue,
            again: FxHashMap::default(),
            last_seq,
            restart_count: last.map_or(-1, |state| state.restart_count),
            running: last.is_some_and(|state| state.status.is_none()),
            last_time: last.map_or(f64::MIN, |state| state.timestamp),
            states,
            first_tasks: None,
            jobs_ended: 0,
            dag: None,
            hints: None,
            store,
            log,
            workflow,
        })
    }

    /// Looks into this DAG instead of asking the database, which has just been made from it.
    pub(crate) fn know(&mut self, dag: Arc<Dag>) {
        self.dag = Some(dag);
    }

    /// Uses hints where there are any instead of reading the files of an attempt.
    pub(crate) fn use_hints(&mut self, hints: Arc<OutcomeHints>) {
        self.hints = Some(hints);
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

    /// Calls `take` for each job that was tried, with the number of its tries.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn tries_by_job(&self, take: &mut dyn FnMut(&str, i64)) -> Result<(), StoreError> {
        // A database made from this DAG has no try but those that this loader made.
        let dag = self.dag.as_deref();
        let Some(dag) = dag.filter(|dag| self.tried.last() <= dag.ids().len()) else {
            return self.store.tries_by_job(take);
        };
        for (job, id) in (1..).zip(dag.ids()) {
            if self.tried.contains(job) {
                let tries = 1 + self.again.get(&job).copied().unwrap_or(0);
                take(&text::lossy(dag.name(id)), tries);
            }
        }
        Ok(())
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
        if let Some(queue) = &mut self.queue {
            if queue.is_stale() {
                self.store.forget_queued()?;
                queue.forgotten();
            }
            if self.store.queueing() == Queueing::Kept
                && let Some(new) = queue.take_new()
            {
                self.store.keep_queued(&new)?;
            }
        }
        self.store.commit(position)?;
        Ok(())
    }

    /// Writes the tries that have not begun; nothing more is to come.
    ///
    /// # Errors
    /// The database cannot be written.
    pub fn settle(&mut self, notice: &mut dyn FnMut(Notice)) -> Result<(), StoreError> {
        let queued = self.queue.as_mut().map(Queue::take_all).unwrap_or_default();
        for (job, queued) in queued {
            self.begin_try(&job, queued, notice)?;
        }
        Ok(())
    }

    /// A run begins. `id` is the number of its master.
    ///
    /// # Errors
    /// The database cannot be written, here and below.
    pub fn start(&mut self, time: i64, id: &str, notice: &mut dyn FnMut(Notice)) -> Result<(), StoreError> {
        self.settle(notice)?;
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
    pub fn finish(
        &mut self,
        time: i64,
        status: i32,
        notice: &mut dyn FnMut(Notice),
    ) -> Result<(), StoreError> {
        self.settle(notice)?;
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
        // Another try of the job that never ended; it is forgotten, but for what is in the database.
        self.tries.remove(job);
        if let Some(queue) = &mut self.queue {
            if queue.get(job).is_some_and(|known| *known.number == *number) {
                return Ok(());
            }
            if let Some(before) = queue.take(job) {
                self.begin_try(job, before, notice)?;
            }
        }
        self.last_seq += 1;
        let queued = Queued {
            seq: self.last_seq,
            time,
            number: number.into(),
        };
        self.log.job(time, job, "SUBMIT", number, "", queued.seq);
        match &mut self.queue {
            Some(queue) => queue.insert(job, queued),
            None => {
                let new = self.begin_try(job, queued, notice)?;
                self.tries.insert(job.to_owned(), new);
            }
        }
        Ok(())
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

    /// The try that a state is about. One that began before an interruption is read from the database;
    /// one whose beginning is lost is made.
    fn live(
        &mut self,
        job: &str,
        number: &str,
        notice: &mut dyn FnMut(Notice),
    ) -> Result<&mut Try, StoreError> {
        if !self.tries.contains_key(job) {
            let queued = self.queue.as_mut().and_then(|queue| queue.take(job));
            let this = match queued {
                Some(queued) => self.begin_try(job, queued, notice)?,
                None => match self.recover(job, number)? {
                    Some(found) => found,
                    None => {
                        self.last_seq += 1;
                        self.new_try(job, self.last_seq, number, notice)?
                    }
                },
            };
            self.tries.insert(job.to_owned(), this);
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
            facts: None,
            seq: row.job_submit_seq,
            number: number.to_owned(),
            states: i64::try_from(states.len()).unwrap_or(i64::MAX),
            submitted: time("SUBMIT"),
            started: time("EXECUTE"),
            done: time("JOB_TERMINATED").or_else(|| time("JOB_ABORTED")),
            first: false,
            task: None,
        }))
    }

    /// Writes a try whose submission was told.
    fn begin_try(
        &mut self,
        job: &str,
        queued: Queued,
        notice: &mut dyn FnMut(Notice),
    ) -> Result<Try, StoreError> {
        let Queued { seq, time, number } = queued;
        let mut new = self.new_try(job, seq, &number, notice)?;
        self.store.state(new.row, "SUBMIT", time, 1)?;
        (new.submitted, new.states) = (Some(time), 1);
        Ok(new)
    }

    fn new_try(
        &mut self,
        job: &str,
        seq: i64,
        number: &str,
        notice: &mut dyn FnMut(Notice),
    ) -> Result<Try, StoreError> {
        let (job_id, facts, task) = match self.planned(job)? {
            Some((id, facts, task)) => (id, Some(facts), task),
            None => {
                notice(Notice::UnknownJob { job: job.to_owned() });
                self.store.job(&JobRow {
                    exec_job_id: job,
                    type_desc: "unknown",
                    ..JobRow::default()
                })?;
                (self.store.job_id(job)?.unwrap_or_default(), None, None)
            }
        };
        let row = self.store.new_try(job_id, seq, number)?;
        let known = self.tried.insert(job_id);
        if known {
            *self.again.entry(job_id).or_default() += 1;
        }
        Ok(Try {
            row,
            job_id,
            facts,
            seq,
            number: number.to_owned(),
            first: !known,
            task,
            ..Try::default()
        })
    }

    /// Number of a job, what the plan says of it, and its task with its transformation, if that is known, too.
    fn planned(&self, job: &str) -> Result<Option<Planned>, StoreError> {
        let of_dag = self.dag.as_ref().and_then(|dag| {
            let id = dag.find(job.as_bytes())?;
            let number = i64::try_from(id.index()).ok()? + 1;
            let own = OwnTask::of(dag, id);
            // A name of its own may be that of several.
            let task = match own.task {
                None => Some((job.to_owned(), own.transformation)),
                Some(_) => None,
            };
            Some((number, (own.program, own.argv, String::new()), task))
        });
        Ok(match of_dag {
            Some(found) => Some(found),
            None => self.store.find_job(job)?.map(|(id, facts)| (id, facts, None)),
        })
    }
}
