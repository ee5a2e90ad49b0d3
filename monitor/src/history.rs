//! What happened to each task, over all runs of a submit directory.
//!
//! [`History::open`] reads everything there is; [`History::update`] reads on from there. Memory is about a
//! hundred bytes a task and forty a try.

mod changes;
mod state;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::thread;

use monitord_compat::run_lock::is_locked;
use pmc_dag::reason;

use crate::dir::RunDir;
use crate::events::{Batch, EventLog, Micros, SECOND};
use crate::kinds::Kind;
use crate::lines::{LineReader, word};
use crate::plan::{Names, Plan, TOGETHER, TaskNumber};
use crate::resources::{Host, Hosts};

pub use state::{NEVER, Phase, Run, State, Tally, Try, seconds};

const NO_TRY: u32 = u32::MAX;
/// Events that are handed over at a time.
const BATCH: usize = 1 << 12;
/// Batches of events that wait for the plan: some fifty megabytes.
const AHEAD: usize = 1 << 9;

/// A file of the run cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{}: {}", path.display(), reason(source))]
pub struct ReadError {
    /// The file.
    pub path: PathBuf,
    /// Why.
    pub source: io::Error,
}

/// What happened.
#[derive(Debug)]
pub struct History {
    /// The directory.
    pub dir: RunDir,
    /// The tasks.
    pub plan: Plan,
    /// The hosts.
    pub hosts: Hosts,
    /// All tries, in the order of their starts.
    pub tries: Vec<Try>,
    /// All runs.
    pub runs: Vec<Run>,
    states: Vec<State>,
    latest: Vec<u32>,
    /// When tasks became ready that have not started.
    queued: Vec<Micros>,
    tallies: Vec<Tally>,
    events: Option<EventLog>,
    rescue: Option<LineReader>,
    process: Option<u32>,
    /// Tasks by the number of their try in this run.
    numbered: Vec<TaskNumber>,
}

impl History {
    /// Reads what is there.
    ///
    /// # Errors
    /// A file is there but cannot be read.
    pub fn open(dir: RunDir) -> Result<Self, ReadError> {
        let dagman_out = dir.dagman_out();
        let log = EventLog::open(&dagman_out, &dir.jobstate_log()).map_err(error(&dagman_out))?;
        let mut history = Self::empty(dir);
        if let Some(mut log) = log {
            // The log is read ahead while the plan is.
            let (ahead, batches) = sync_channel::<Batch>(AHEAD);
            let (back, empty) = sync_channel::<Batch>(AHEAD);
            let log = thread::scope(|scope| {
                let read = move || {
                    let read = log.read_batches(BATCH, |batch| {
                        ahead.send(batch).ok()?;
                        Some(empty.try_recv().unwrap_or_default())
                    });
                    // The channel closes with the thread's end of it.
                    drop(ahead);
                    read.map(|()| log)
                };
                let reader = thread::Builder::new().spawn_scoped(scope, read);
                let reader = reader.map_err(error(&dagman_out))?;
                history.read_plan()?;
                for batch in batches {
                    history.plan.look_ahead(batch.hashes());
                    batch.each(|time, event| {
                        history.event(time, event);
                    });
                    // Whoever reads the log may need none any more.
                    let _ = back.try_send(batch);
                }
                joined(reader.join()).map_err(error(&dagman_out))
            })?;
            history.events = Some(log);
        } else {
            history.read_plan()?;
        }
        history.read_others()?;
        Ok(history)
    }

    fn empty(dir: RunDir) -> Self {
        Self {
            dir,
            plan: Plan::default(),
            hosts: Hosts::default(),
            tries: Vec::new(),
            runs: Vec::new(),
            states: Vec::new(),
            latest: Vec::new(),
            queued: Vec::new(),
            tallies: Vec::new(),
            events: None,
            rescue: None,
            process: None,
            numbered: Vec::new(),
        }
    }

    fn read_plan(&mut self) -> Result<(), ReadError> {
        self.plan = Plan::read(&self.dir.dag).map_err(error(&self.dir.dag))?;
        let tasks = self.plan.len();
        self.states = vec![State::Waiting; tasks];
        self.latest = vec![NO_TRY; tasks];
        self.queued = vec![NEVER; tasks];
        self.tries.reserve(tasks);
        self.count_all();
        Ok(())
    }

    /// Whether a file was replaced by another, so that all has to be read again with [`History::open`]; for
    /// instance a directory was planned anew, or its plan was not complete.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        self.events.as_ref().is_some_and(EventLog::was_replaced)
            || self.rescue.as_ref().is_some_and(LineReader::was_replaced)
            || (self.plan.is_empty() && self.dir.dag.exists())
    }

    /// Reads what was added since. Gives the numbers of the tries that ended.
    ///
    /// # Errors
    /// A file is there but cannot be read.
    pub fn update(&mut self) -> Result<Vec<u32>, ReadError> {
        let dagman_out = self.dir.dagman_out();
        let mut events = match self.events.take() {
            Some(events) => Some(events),
            None => EventLog::open(&dagman_out, &self.dir.jobstate_log()).map_err(error(&dagman_out))?,
        };
        let mut ended = Vec::new();
        if let Some(events) = &mut events {
            events
                .read(|time, event| ended.extend(self.event(time, event)))
                .map_err(error(&dagman_out))?;
        }
        self.events = events;
        self.read_others()?;
        Ok(ended)
    }

    /// Reads on in the logs that complete the first one, both at the same time.
    fn read_others(&mut self) -> Result<(), ReadError> {
        let path = self.dir.resource_log();
        let mut hosts = std::mem::take(&mut self.hosts);
        let mut tries = std::mem::take(&mut self.tries);
        let mut last_end = NEVER;
        let (read, rescue) = thread::scope(|scope| {
            let reader = thread::Builder::new().spawn_scoped(scope, || {
                hosts.read(&path, |found| {
                    let Some(one) = tries.get_mut(found.try_number as usize) else {
                        return;
                    };
                    if found.start {
                        (one.host, one.start) = (found.host, found.time);
                    } else {
                        one.end = found.time;
                        last_end = found.time;
                    }
                })
            });
            let rescue = self.read_rescue();
            (reader.and_then(|reader| joined(reader.join())), rescue)
        });
        (self.hosts, self.tries) = (hosts, tries);
        self.refine_runs(last_end);
        rescue?;
        read.map_err(error(&path))
    }

    /// The first log counts whole seconds, the other one knows when in that second something happened.
    fn refine_runs(&mut self, last_end: Micros) {
        let begun = self.hosts.begun();
        if !self.events.as_ref().is_some_and(EventLog::counts_seconds) {
            return;
        }
        let within = |whole: Micros, time: Micros| (whole..whole.saturating_add(SECOND)).contains(&time);
        for (start, time) in begun {
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
            // All in one second.
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
                Err(other) => return Err(error(&path)(other)),
            },
        };
        let mut names = Names::default();
        let read = reader.read(|_, line| {
            let (keyword, name) = word(line);
            if keyword.starts_with(b"DONE") {
                names.push(name.trim_ascii_end());
            }
            if names.len() == TOGETHER {
                self.set_done(&mut names);
            }
        });
        self.set_done(&mut names);
        self.rescue = Some(reader);
        read.map_err(error(&path))
    }

    fn set_done(&mut self, names: &mut Names) {
        let mut tasks = Vec::with_capacity(TOGETHER);
        self.plan.find_all(names, |task| tasks.extend(task));
        for task in tasks {
            self.set(task, State::Done);
        }
    }

    /// State of a task.
    #[must_use]
    pub fn state(&self, task: TaskNumber) -> State {
        self.states[task as usize]
    }

    /// The latest try of a task.
    #[must_use]
    pub fn latest_try(&self, task: TaskNumber) -> Option<&Try> {
        self.tries.get(self.latest[task as usize] as usize)
    }

    /// Tasks in a state.
    pub fn in_state(&self, state: State) -> impl Iterator<Item = TaskNumber> + '_ {
        (0..)
            .zip(&self.states)
            .filter(move |(_, its)| **its == state)
            .map(|(task, _)| task)
    }

    /// Tasks by state for each class of the plan.
    #[must_use]
    pub fn tallies(&self) -> &[Tally] {
        &self.tallies
    }

    /// Tasks by state for each kind that there is.
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

    /// All tasks by state.
    #[must_use]
    pub fn all(&self) -> Tally {
        let mut all = Tally::default();
        self.tallies.iter().for_each(|tally| all.add(tally));
        all
    }

    /// How the latest run stands. The executor locks the DAG as long as it runs; where nobody can tell whether a
    /// file is locked, a run without an end goes on. A DAG that is not there any more has nobody who works on it.
    #[must_use]
    pub fn phase(&self) -> Phase {
        let gone = || matches!(self.dir.dag.try_exists(), Ok(false));
        let locked = || is_locked(&self.dir.dag).or_else(|| gone().then_some(false));
        match self.runs.last() {
            None if locked() == Some(true) => Phase::Running,
            None => Phase::NotStarted,
            Some(Run { end: Some(_), .. }) if locked() == Some(true) => Phase::Running,
            Some(Run {
                end: Some((_, status)),
                ..
            }) => Phase::Ended(*status),
            Some(_) if locked() == Some(false) => Phase::Cut,
            Some(_) => Phase::Running,
        }
    }

    /// The DAG, if it is not there any more and a run has no end in the log: whether that goes on could only be seen from
    /// the DAG's lock.
    #[must_use]
    pub fn missing_dag(&self) -> Option<&Path> {
        let open = self.runs.last().is_some_and(|run| run.end.is_none());
        (open && matches!(self.dir.dag.try_exists(), Ok(false))).then_some(&*self.dir.dag)
    }

    /// Seconds in which runs went on, up to `now` for one that goes on.
    #[must_use]
    pub fn wall_seconds(&self, now: Micros) -> f64 {
        let last = self.runs.len().saturating_sub(1);
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

    /// The last that was heard of the latest run.
    #[must_use]
    pub fn last_heard(&self) -> Option<Micros> {
        self.runs.last().map(|run| run.last)
    }

    /// Hosts and how they were used, up to the end of the latest run, or `now` if it goes on.
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

/// What a thread that reads a file brings.
fn joined<T>(ended: thread::Result<io::Result<T>>) -> io::Result<T> {
    ended.unwrap_or_else(|_| Err(io::Error::other("its reader failed")))
}

fn error(path: &Path) -> impl FnOnce(io::Error) -> ReadError + use<> {
    let path = path.to_owned();
    move |source| ReadError { path, source }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs;
    use std::io::Write as _;

    use super::*;

    /// A submit directory made by hand.
    pub(crate) struct Place {
        pub(crate) dir: tempfile::TempDir,
    }

    impl Place {
        pub(crate) fn new(dag: &str) -> Self {
            let dir = tempfile::tempdir().unwrap();
            fs::write(dir.path().join("w.dag"), dag).unwrap();
            Self { dir }
        }

        pub(crate) fn append(&self, name: &str, text: &str) {
            let path = self.dir.path().join(name);
            let mut file = fs::OpenOptions::new()
                .create(true)
                .append(true)
                .open(path)
                .unwrap();
            file.write_all(text.as_bytes()).unwrap();
        }

        pub(crate) fn open(&self) -> History {
            History::open(RunDir::open(self.dir.path()).unwrap()).unwrap()
        }
    }

    pub(crate) const DAG: &str = "\
#@ 1 pegasus::transfer null \nTASK stage_in_0 -c 1 t\n\
#@ 2 work A \nTASK a -c 2 -m 100 w\n#@ 3 work B \nTASK b -c 2 -m 100 w\n#@ 4 last C \nTASK c w\n\
EDGE stage_in_0 a\nEDGE stage_in_0 b\nEDGE a c\nEDGE b c\n";

    #[test]
    fn a_run_that_goes_on() {
        let place = Place::new(DAG);
        let mut history = place.open();
        assert_eq!(history.phase(), Phase::NotStarted);
        assert_eq!(history.all().get(State::Waiting), 4);
        place.append(
            "jobstate.log",
            "100.0 INTERNAL *** PMC_STARTED ***\n100.5 stage_in_0 SUBMIT 1.0 - - 1\n100.5 stage_in_0 EXECUTE 1.0 - - 1\n",
        );
        place.append(
            "w.dag.resource",
            "100.400000,2,4,1000,n1\n100.500000,1,3,1000,n1\n",
        );
        assert_eq!(history.update().unwrap(), Vec::<u32>::new());
        assert_eq!(history.state(0), State::Running);
        assert_eq!(history.hosts.name(history.tries[0].host), Some("n1"));
        place.append(
            "jobstate.log",
            "101.0 stage_in_0 JOB_TERMINATED 1.0 - - 1\n101.0 stage_in_0 JOB_SUCCESS 0 - - 1\n\
             101.0 a SUBMIT 2.0 - - 2\n101.0 b SUBMIT 3.0 - - 3\n101.0 a EXECUTE 2.0 - - 2\n\
             109.0 a JOB_TERMINATED 2.0 - - 2\n109.0 a JOB_FAILURE 768 - - 2\n109.0 b EXECUTE 3.0 - - 3\n",
        );
        assert_eq!(history.update().unwrap(), [0, 1]);
        assert!(history.tries[0].succeeded() && !history.tries[1].succeeded());
        let states: Vec<_> = (0..4).map(|task| history.state(task)).collect();
        assert_eq!(
            states,
            [State::Done, State::Failed, State::Running, State::Waiting]
        );
        // The DAG is not locked: whoever wrote the log is gone.
        assert_eq!(history.phase(), Phase::Cut);
        place.append(
            "jobstate.log",
            "200.0 INTERNAL *** PMC_STARTED ***\n200.1 a SUBMIT 1.0 - - 1\n200.2 a EXECUTE 1.0 - - 1\n\
             201.0 a JOB_SUCCESS 0 - - 1\n201.0 INTERNAL *** PMC_FINISHED 1 ***\n",
        );
        history.update().unwrap();
        assert_eq!(history.phase(), Phase::Ended(1));
        assert!(history.tries[2].lost, "its run was killed");
        assert_eq!(history.tries[2].end, 109_000_000);
        assert_eq!(history.state(2), State::Waiting);
        assert!((history.wall_seconds(0) - 10.0).abs() < 1e-9);
        assert_eq!(
            history
                .by_kind()
                .iter()
                .map(|(kind, tally)| (*kind, tally.total()))
                .collect::<Vec<_>>(),
            [(Kind::Compute, 3), (Kind::StageIn, 1)]
        );
    }

    #[test]
    fn a_run_begins_within_its_second() {
        use monitord_compat::dagman_out::{self, Stamp};
        let place = Place::new(DAG);
        let day = chrono::NaiveDate::from_ymd_opt(2026, 3, 4).unwrap();
        let at = |second| Stamp::new(day.and_hms_opt(5, 6, second).unwrap());
        let mut log = Vec::new();
        dagman_out::start(&mut log, &at(7), 42, b"w.dag");
        dagman_out::queued(&mut log, &at(7), b"a", 1);
        dagman_out::started(&mut log, &at(7), b"a", 1);
        dagman_out::ended(&mut log, &at(8), b"a", 1, 0);
        dagman_out::finish(&mut log, &at(8), 42, true);
        place.append("w.dag.dagman.out", &String::from_utf8(log).unwrap());
        let second = place.open().runs[0].start / SECOND;
        let line = |micros: i64, free: &str| {
            let time = second * SECOND + micros;
            format!("{}.{:06},{free},n1\n", time / SECOND, time % SECOND)
        };
        let lines = [
            line(700_000, "2,4,1000"),
            line(750_000, "1,4,1000"),
            line(1_250_000, "2,4,1000"),
        ];
        place.append("w.dag.resource", &lines.concat());
        let history = place.open();
        assert_eq!(history.runs[0].start % SECOND, 700_000);
        assert!(
            (history.wall_seconds(0) - 0.55).abs() < 1e-9,
            "{:?}",
            history.runs
        );
        assert_eq!(history.tries[0].duration(), Some(500_000));
    }

    #[test]
    fn done_before_and_unknown_names() {
        let place = Place::new(DAG);
        place.append("w.dag.rescue", "DONE stage_in_0\nDONE nobody\n");
        place.append("jobstate.log", "1.0 strange EXECUTE 1.0 - - 1\nnonsense\n");
        let mut history = place.open();
        assert_eq!(history.state(0), State::Done);
        assert_eq!((history.plan.len(), history.all().get(State::Running)), (5, 1));
        assert!(!history.is_stale());
        place.append("w.dag.rescue", "DONE a\n");
        history.update().unwrap();
        assert_eq!(history.all().get(State::Done), 2);
        fs::write(place.dir.path().join("jobstate.log"), "").unwrap();
        assert!(history.is_stale());
    }
}
