//! History of all tasks and attempts, over all runs of a submit directory.
//!
//! [`History::open`] reads the whole directory, [`History::update`] only what was added. Memory is about a
//! hundred bytes per task and forty per attempt.

mod changes;
mod nested;
mod retried;
mod state;

use std::io;
use std::path::{Path, PathBuf};
use std::thread;

use monitord_compat::reason::Reason;
use monitord_compat::replacement;
use monitord_compat::run_end::{EndOfRun, RunEnd};
use monitord_compat::run_lock::is_locked;
use pmc_dag::reason;
use pmc_files::LineReader;
use rustc_hash::FxHashMap;

use crate::dir::RunDir;
use crate::events::{EventLog, Micros, SECOND, word};
use crate::kinds::Kind;
use crate::plan::{Plan, TaskNumber};
use crate::resources::{Host, Hosts};

pub use nested::Seen;
pub use retried::Retried;
pub use state::{Attempt, NEVER, Phase, Run, State, Tally, seconds};

const NO_ATTEMPT: u32 = u32::MAX;
/// A file of the run cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{}: {}", path.display(), reason(source))]
pub struct ReadError {
    /// The file.
    pub path: PathBuf,
    /// Why.
    pub source: io::Error,
}

/// Tasks, attempts, runs and hosts of a submit directory.
#[derive(Debug)]
pub struct History {
    /// Submit directory.
    pub dir: RunDir,
    /// Tasks.
    pub plan: Plan,
    /// Hosts.
    pub hosts: Hosts,
    /// All attempts, in the order of their starts.
    pub attempts: Vec<Attempt>,
    /// All runs.
    pub runs: Vec<Run>,
    states: Vec<State>,
    /// Index of the latest attempt of each task.
    latest: Vec<u32>,
    /// Time at which each task became ready.
    queued: Vec<Micros>,
    tallies: Vec<Tally>,
    events: Option<EventLog>,
    rescue: Option<LineReader>,
    /// Number of tasks that count: those of the plan, and others only if the plan is not complete.
    counted: usize,
    /// Process of the next run.
    process: Option<u32>,
    /// No executor had the DAG before the logs were read last.
    was_unlocked: bool,
    /// Tasks by submit number, in the current run.
    by_submit_number: Vec<TaskNumber>,
    /// Submit numbers of all attempts.
    submit_numbers: Vec<u32>,
    /// Why attempts ended, as far as the log says it.
    reasons: FxHashMap<u32, Reason>,
}

/// Maximum number of sub-workflows around a task, as in the executor.
pub const MAX_DEPTH: usize = 32;

impl History {
    /// Reads the whole directory.
    ///
    /// # Errors
    /// A file exists but cannot be read.
    pub fn open(dir: RunDir) -> Result<Self, ReadError> {
        let mut history = Self::empty(dir);
        history.plan = Plan::read(&history.dir.dag).map_err(read_error(&history.dir.dag))?;
        let tasks = history.plan.len();
        if tasks > 0 && history.dir.dir.join(replacement::REPLACED).is_dir() {
            // The log may have tasks of an earlier plan.
            history.counted = tasks;
        }
        history.states = vec![State::Waiting; tasks];
        history.latest = vec![NO_ATTEMPT; tasks];
        history.queued = vec![NEVER; tasks];
        history.attempts.reserve(tasks);
        history.count_all();
        history.update()?;
        Ok(history)
    }

    fn empty(dir: RunDir) -> Self {
        Self {
            dir,
            plan: Plan::default(),
            hosts: Hosts::default(),
            attempts: Vec::new(),
            runs: Vec::new(),
            states: Vec::new(),
            latest: Vec::new(),
            queued: Vec::new(),
            tallies: Vec::new(),
            events: None,
            rescue: None,
            counted: usize::MAX,
            process: None,
            was_unlocked: false,
            by_submit_number: Vec::new(),
            submit_numbers: Vec::new(),
            reasons: FxHashMap::default(),
        }
    }

    /// Returns the submit number of an attempt, unique in its run; 0 if the log does not tell.
    #[must_use]
    pub fn submit_number(&self, attempt: usize) -> u32 {
        self.submit_numbers.get(attempt).copied().unwrap_or_default()
    }

    /// Returns why an attempt ended, if more is known than its status says.
    #[must_use]
    pub fn reason(&self, attempt: usize) -> Option<Reason> {
        let number = u32::try_from(attempt).ok()?;
        if let Some(reason) = self.reasons.get(&number) {
            return Some(*reason);
        }
        let found = self.attempts.get(attempt)?;
        match (found.lost, found.worker_lost) {
            (true, true) => Some(Reason::Evicted),
            (true, false) => Some(Reason::CutOff),
            // A log of an earlier version does not say how many.
            (false, true) => Some(Reason::Lost { attempts: 1 }),
            (false, false) => None,
        }
    }

    /// Returns the index of the latest attempt of a task.
    #[must_use]
    pub fn latest(&self, task: TaskNumber) -> Option<usize> {
        let index = self.latest[task as usize];
        (index != NO_ATTEMPT).then_some(index as usize)
    }

    /// Returns why the latest attempt of a task ended, if more is known than its status says.
    #[must_use]
    pub fn latest_reason(&self, task: TaskNumber) -> Option<Reason> {
        self.reason(self.latest(task)?)
    }

    /// Returns whether another file has replaced one of the files, so that [`History::open`] must read the
    /// directory again: for instance, the workflow was planned again.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        self.events.as_ref().is_some_and(EventLog::was_replaced)
            || self.rescue.as_ref().is_some_and(LineReader::was_replaced)
            || (self.plan.is_empty() && self.dir.dag.exists())
    }

    /// Reads what was added to the logs. Returns the indices of the attempts that ended.
    ///
    /// # Errors
    /// A file exists but cannot be read.
    pub fn update(&mut self) -> Result<Vec<u32>, ReadError> {
        // A run that ends meanwhile writes its end before it gives up the lock.
        self.was_unlocked = self.is_unlocked();
        let dagman_out = self.dir.dagman_out();
        let mut events = match self.events.take() {
            Some(events) => Some(events),
            None => EventLog::open(&dagman_out, &self.dir.jobstate_log()).map_err(read_error(&dagman_out))?,
        };
        let mut ended = Vec::new();
        if let Some(events) = &mut events {
            events
                .read(|time, event| ended.extend(self.apply(time, event)))
                .map_err(read_error(&dagman_out))?;
        }
        self.events = events;
        self.read_others()?;
        Ok(ended)
    }

    /// Reads the log of free resources and the rescue file, in two threads.
    fn read_others(&mut self) -> Result<(), ReadError> {
        let path = self.dir.resource_log();
        let mut hosts = std::mem::take(&mut self.hosts);
        let mut attempts = std::mem::take(&mut self.attempts);
        let mut last_end = NEVER;
        let (read, rescue) = thread::scope(|scope| {
            let reader = thread::Builder::new().spawn_scoped(scope, || {
                hosts.read(&path, |found| {
                    let Some(attempt) = attempts.get_mut(found.attempt as usize) else {
                        return;
                    };
                    if found.start {
                        (attempt.host, attempt.start) = (found.host, found.time);
                    } else {
                        attempt.end = found.time;
                        last_end = found.time;
                    }
                })
            });
            let rescue = self.read_rescue();
            (reader.and_then(|reader| joined(reader.join())), rescue)
        });
        (self.hosts, self.attempts) = (hosts, attempts);
        self.refine_runs(last_end);
        rescue?;
        read.map_err(read_error(&path))
    }

    /// Refines times of runs. The main log has whole seconds, the log of free resources microseconds.
    fn refine_runs(&mut self, last_end: Micros) {
        let starts = self.hosts.take_run_starts();
        if !self.events.as_ref().is_some_and(EventLog::has_whole_seconds) {
            return;
        }
        let within = |whole: Micros, time: Micros| (whole..whole.saturating_add(SECOND)).contains(&time);
        for (start, time) in starts {
            let runs = self.runs.iter_mut().rev();
            if let Some(run) = runs
                .filter(|run| run.start == start)
                .find(|run| within(run.start, time))
            {
                run.start = time;
                run.last = run.last.max(time);
            }
        }
        if let Some(run) = self.runs.last_mut() {
            if let Some((end, _)) = &mut run.end
                && within(*end, last_end)
            {
                *end = last_end;
            }
            // The run may start and end in the same second.
            if let Some((end, _)) = &mut run.end {
                *end = (*end).max(run.start);
            }
        }
    }

    fn read_rescue(&mut self) -> Result<(), ReadError> {
        let path = self.dir.rescue();
        let mut reader = match self.rescue.take() {
            Some(reader) => reader,
            None => match LineReader::open(&path) {
                Ok(reader) => reader,
                Err(missing) if missing.kind() == io::ErrorKind::NotFound => return Ok(()),
                Err(other) => return Err(read_error(&path)(other)),
            },
        };
        let read = reader.read(|_, line| self.note_done(line));
        // The last record has no line feed. If it is still being written, it may name another task whose name
        // begins like its own. So it counts only if there are no logs, which would have that task's end, too.
        if self.runs.is_empty()
            && let Some(line) = reader.rest()
        {
            self.note_done(line);
        }
        self.rescue = Some(reader);
        read.map_err(read_error(&path))
    }

    /// Takes a line of the rescue file.
    fn note_done(&mut self, line: &[u8]) {
        let (keyword, name) = word(line);
        if keyword.starts_with(b"DONE")
            && let Some(task) = self.plan.find(name.trim_ascii_end())
        {
            self.set(task, State::Done);
        }
    }

    /// State of a task.
    #[must_use]
    pub fn state(&self, task: TaskNumber) -> State {
        self.states[task as usize]
    }

    /// Latest attempt of a task.
    #[must_use]
    pub fn latest_attempt(&self, task: TaskNumber) -> Option<&Attempt> {
        self.attempts.get(self.latest[task as usize] as usize)
    }

    /// Returns the tasks in a state.
    pub fn in_state(&self, state: State) -> impl Iterator<Item = TaskNumber> + '_ {
        (0..)
            .zip(&self.states)
            .take(self.counted)
            .filter(move |(_, other)| **other == state)
            .map(|(task, _)| task)
    }

    /// Counts of tasks by state, for each class of the plan.
    #[must_use]
    pub fn tallies(&self) -> &[Tally] {
        &self.tallies
    }

    /// Counts of tasks by state, for each kind in the plan.
    #[must_use]
    pub fn by_kind(&self) -> Vec<(Kind, Tally)> {
        let mut kinds: Vec<(Kind, Tally)> = Kind::ALL.iter().map(|kind| (*kind, Tally::default())).collect();
        for (class, tally) in self.plan.classes().iter().zip(&self.tallies) {
            if let Some((_, sum)) = kinds.iter_mut().find(|(kind, _)| *kind == class.kind) {
                sum.add(tally);
            }
        }
        kinds.retain(|(_, tally)| tally.total() > 0);
        kinds
    }

    /// Counts of all tasks by state.
    #[must_use]
    pub fn all(&self) -> Tally {
        let mut all = Tally::default();
        self.tallies.iter().for_each(|tally| all.add(tally));
        all
    }

    /// Returns the phase of the latest run. The executor locks the DAG while it runs. If the lock cannot be
    /// checked, a run without an end counts as running. If the DAG is gone, it counts as not locked. A run
    /// without a log has ended if it says how.
    #[must_use]
    pub fn phase(&self) -> Phase {
        let locked = || is_locked(&self.dir.dag);
        match self.runs.last() {
            None if locked() == Some(true) => Phase::Running,
            None => match EndOfRun::of(&self.dir.dag) {
                Some(EndOfRun { end, .. }) => Phase::Ended(i32::from(end != RunEnd::Success)),
                None => Phase::NotStarted,
            },
            Some(Run { end: Some(_), .. }) if locked() == Some(true) => Phase::Running,
            Some(Run {
                end: Some((_, status)),
                ..
            }) => Phase::Ended(*status),
            Some(_) if self.was_unlocked && self.is_unlocked() => Phase::CutOff,
            Some(_) => Phase::Running,
        }
    }

    /// Returns whether the run has begun and writes no log, or its log was removed. Then only the rescue file
    /// says what is done.
    #[must_use]
    pub fn has_no_log(&self) -> bool {
        let traces = [
            self.dir.rescue(),
            self.dir.resource_log(),
            RunEnd::path(&self.dir.dag),
        ];
        self.events.is_none() && (self.phase() == Phase::Running || traces.iter().any(|trace| trace.exists()))
    }

    fn is_unlocked(&self) -> bool {
        let is_gone = || matches!(self.dir.dag.try_exists(), Ok(false));
        is_locked(&self.dir.dag).map_or_else(is_gone, |is_locked| !is_locked)
    }

    /// Returns the DAG if it is missing and a run has no end in the log. Only the lock of the DAG would show
    /// whether that run is active.
    #[must_use]
    pub fn missing_dag(&self) -> Option<&Path> {
        let open = self.runs.last().is_some_and(|run| run.end.is_none());
        (open && matches!(self.dir.dag.try_exists(), Ok(false))).then_some(&*self.dir.dag)
    }

    /// Returns why the latest run ended before its work was done, if it says so; without a log, also that
    /// tasks have failed.
    #[must_use]
    pub fn run_end(&self) -> Option<RunEnd> {
        let all = self.all();
        if self.phase() == Phase::Running || all.get(State::Done) == all.total() {
            return None;
        }
        let end = EndOfRun::of(&self.dir.dag)?.end;
        // The log says more of the others.
        (end.is_early() || self.runs.is_empty()).then_some(end)
    }

    /// Returns the wall time of all runs in seconds, up to `now` for an active run.
    #[must_use]
    pub fn wall_seconds(&self, now: Micros) -> f64 {
        if self.runs.is_empty() {
            return EndOfRun::of(&self.dir.dag).map_or(0.0, |end| end.seconds as f64);
        }
        let last = self.runs.len() - 1;
        let running = self.phase() == Phase::Running;
        self.runs
            .iter()
            .enumerate()
            .map(|(number, run)| {
                let end = match run.end {
                    Some((end, _)) => end,
                    None if running && number == last => now,
                    None => run.last,
                };
                seconds(end - run.start)
            })
            .sum()
    }

    /// Time of the last event of the latest run.
    #[must_use]
    pub fn last_event(&self) -> Option<Micros> {
        self.runs.last().map(|run| run.last)
    }

    /// Returns the hosts and their use, up to the end of the latest run, or `now` if it is active.
    #[must_use]
    pub fn use_of_hosts(&self, now: Micros) -> Vec<Host> {
        let until = match self.runs.last() {
            Some(Run {
                end: Some((end, _)), ..
            }) => *end,
            Some(_) if self.phase() == Phase::Running => now,
            Some(run) => run.last,
            None => now,
        };
        self.hosts.used_until(until)
    }
}

/// Returns the result of a thread that reads a file.
fn joined<T>(ended: thread::Result<io::Result<T>>) -> io::Result<T> {
    ended.unwrap_or_else(|_| Err(io::Error::other("the reading thread panicked")))
}

fn read_error(path: &Path) -> impl FnOnce(io::Error) -> ReadError + use<> {
    let path = path.to_owned();
    move |source| ReadError { path, source }
}

#[cfg(test)]
pub(crate) mod tests;
