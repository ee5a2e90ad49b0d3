//! Progress of a run: counts, rate and estimated end.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};

use monitord_compat::reason::Reason;
use monitord_compat::run_end::RunEnd;

use crate::ending::Ending;
use crate::events::{Micros, SECOND};
use crate::history::{History, NEVER, Phase, State, Tally, seconds};
use crate::kinds::Kind;
use crate::plan::{Children, Plan, TaskNumber};

/// Minimum time over which the rate is measured.
const MIN_WINDOW: Micros = 60 * SECOND;
/// Maximum time over which the rate is measured.
const MAX_WINDOW: Micros = 600 * SECOND;

/// Progress of a run.
#[derive(Clone, Debug)]
pub struct Progress {
    /// Phase of the latest run.
    pub phase: Phase,
    /// The DAG if it is missing, so that the latest run may be active or cut off.
    pub missing_dag: Option<PathBuf>,
    /// Why the latest run ended before its work was done, if it says so.
    pub run_end: Option<RunEnd>,
    /// The run has begun and writes no log: it is only known what is done.
    pub without_log: bool,
    /// Number of runs.
    pub runs: usize,
    /// Wall time of all runs.
    pub wall_seconds: f64,
    /// Seconds since the last line of the log.
    pub silent_seconds: Option<f64>,
    /// Tasks by kind.
    pub kinds: Vec<(Kind, Tally)>,
    /// All tasks.
    pub all: Tally,
    /// Tasks that depend on a failed task.
    pub blocked: usize,
    /// Ended attempts.
    pub attempts: usize,
    /// Attempts that did not succeed.
    pub failed_attempts: usize,
    /// Attempts that were lost with their workers or ended by the batch system. They are no failures.
    pub lost_attempts: usize,
    /// Running tasks, longest first.
    pub running: Vec<RunningTask>,
    /// Tasks whose last attempt failed, the latest first.
    pub failed: Vec<FailedTask>,
    /// Tasks whose last attempt failed and that are tried again, the latest failure first. They count failed
    /// attempts only.
    pub retried: Vec<FailedTask>,
    /// Rate of an active run.
    pub rate: Option<Rate>,
    /// Estimated end, if known.
    pub estimate: Option<Estimate>,
}

impl Progress {
    /// Returns whether no run is active that has begun.
    #[must_use]
    pub fn is_over(&self) -> bool {
        match self.phase {
            Phase::Ended(_) | Phase::CutOff => true,
            Phase::NotStarted => self.without_log,
            Phase::Running => false,
        }
    }
}

/// A running task.
#[derive(Clone, Debug, PartialEq)]
pub struct RunningTask {
    /// Task.
    pub task: TaskNumber,
    /// Host, if known.
    pub host: Option<String>,
    /// Time since its start.
    pub seconds: f64,
}

/// A failed task.
#[derive(Clone, Debug, PartialEq)]
pub struct FailedTask {
    /// Task.
    pub task: TaskNumber,
    /// Ending of its last attempt.
    pub ending: Ending,
    /// Why it failed, if more is known than the ending.
    pub reason: Option<Reason>,
    /// Host, if known.
    pub host: Option<String>,
    /// End of its last attempt.
    pub time: Micros,
    /// Number of attempts.
    pub attempts: usize,
}

/// Speed of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// Length of the window before now, in seconds.
    pub window_seconds: f64,
    /// Attempts that ended in a minute of that time.
    pub per_minute: f64,
    /// Attempts that ended in a minute of the whole run.
    pub per_minute_of_run: f64,
    /// Mean number of running tasks in the window.
    pub parallel: f64,
}

/// Estimated end of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Seconds from now.
    pub seconds: f64,
    /// Lower bound in seconds from now.
    pub at_least: f64,
    /// Remaining work in seconds.
    pub work: f64,
    /// Length of the longest remaining chain of tasks in seconds.
    pub chain: f64,
    /// Remaining tasks.
    pub tasks: usize,
    /// Remaining tasks of transformations without a finished sample. Their time is the mean of all tasks, or
    /// twice the time of the longest running task of the transformation, if that is more.
    pub guessed: usize,
    /// The longest chain limits the end: more hosts would not help.
    pub by_chain: bool,
}

/// Description of the estimate.
pub const METHOD: &str = "remaining work (tasks × mean time of their transformation) divided by the mean number \
                          of running tasks; at least the longest remaining chain of tasks";

/// Derives progress from a history. Caches what does not change.
#[derive(Debug)]
pub struct Observer {
    tasks: usize,
    children: OnceCell<Children>,
    order: OnceCell<Vec<TaskNumber>>,
}

impl Observer {
    /// Makes an observer for the plan of a history.
    #[must_use]
    pub fn new(plan: &Plan) -> Self {
        Self {
            tasks: plan.len(),
            children: OnceCell::new(),
            order: OnceCell::new(),
        }
    }

    fn children(&self, plan: &Plan) -> &Children {
        self.children.get_or_init(|| Children::new(plan))
    }

    /// Returns the progress at a time.
    #[must_use]
    pub fn progress(&mut self, history: &History, now: Micros) -> Progress {
        if self.tasks != history.plan.len() {
            // The log has tasks that the DAG does not have.
            *self = Self::new(&history.plan);
        }
        let phase = history.phase();
        let failed = failed(history);
        let blocked = if failed.is_empty() {
            Vec::new()
        } else {
            self.blocked(history)
        };
        let rate = (phase == Phase::Running).then(|| rate(history, now)).flatten();
        let estimate = rate.and_then(|rate| self.estimate(history, &blocked, rate, now));
        let ended = history.attempts.iter().filter(|attempt| attempt.end != NEVER);
        let (mut attempts, mut failed_attempts, mut lost_attempts) = (0, 0, 0);
        for attempt in ended {
            attempts += 1;
            failed_attempts += usize::from(attempt.failed());
            lost_attempts += usize::from(attempt.was_evicted());
        }
        Progress {
            phase,
            missing_dag: history.missing_dag().map(Path::to_owned),
            run_end: history.run_end(),
            without_log: history.has_no_log(),
            runs: history.runs.len(),
            wall_seconds: history.wall_seconds(now),
            silent_seconds: history.last_event().map(|last| seconds(now - last)),
            kinds: history.by_kind(),
            all: history.all(),
            blocked: blocked.iter().filter(|blocked| **blocked).count() - failed.len().min(blocked.len()),
            attempts,
            failed_attempts,
            lost_attempts,
            running: running(history, now),
            failed,
            retried: retried(history),
            rate,
            estimate,
        }
    }

    /// Returns for each task whether it failed or depends on a failed task.
    fn blocked(&self, history: &History) -> Vec<bool> {
        let children = self.children(&history.plan);
        let mut blocked = vec![false; history.plan.len()];
        let mut open: Vec<TaskNumber> = history.in_state(State::Failed).collect();
        for task in &open {
            blocked[*task as usize] = true;
        }
        while let Some(task) = open.pop() {
            for child in children.of(task) {
                let is_blocked = &mut blocked[*child as usize];
                if !*is_blocked && history.state(*child) != State::Done {
                    *is_blocked = true;
                    open.push(*child);
                }
            }
        }
        blocked
    }

    fn estimate(&self, history: &History, blocked: &[bool], rate: Rate, now: Micros) -> Option<Estimate> {
        let means = Means::new(history, now)?;
        let children = self.children(&history.plan);
        let order = self.order.get_or_init(|| children.topological_order());
        let left = |task: TaskNumber| {
            let blocked = blocked.get(task as usize).copied().unwrap_or(false);
            !blocked && !matches!(history.state(task), State::Done | State::Failed)
        };
        let mut chain = vec![0.0_f64; history.plan.len()];
        let (mut work, mut tasks, mut guessed, mut longest) = (0.0, 0, 0, 0.0_f64);
        for &task in order.iter().rev() {
            if !left(task) {
                continue;
            }
            let (mean, known) = means.of(history.plan.class_index(task));
            let age = match (history.state(task), history.latest_attempt(task)) {
                (State::Running, Some(attempt)) => seconds(now - attempt.start),
                _ => 0.0,
            };
            let own = (mean - age).max(0.0);
            let behind = children.of(task).iter().map(|child| chain[*child as usize]);
            let length = own + behind.fold(0.0, f64::max);
            chain[task as usize] = length;
            longest = longest.max(length);
            work += own;
            tasks += 1;
            guessed += usize::from(!known);
        }
        let slots: f64 = history
            .hosts
            .all()
            .iter()
            .map(|host| f64::from(host.capacity.slots))
            .sum();
        let parallel = if slots > 0.0 {
            rate.parallel.min(slots)
        } else {
            rate.parallel
        };
        let by_work = work / parallel.max(0.05);
        let widest = slots.max(parallel).max(1.0);
        Some(Estimate {
            seconds: by_work.max(longest),
            at_least: (work / widest).max(longest),
            work,
            chain: longest,
            tasks,
            guessed,
            by_chain: longest >= by_work,
        })
    }
}

/// Mean time of an attempt by class.
struct Means {
    by_class: Vec<(f64, u32)>,
    all: f64,
    /// Time of the longest running task by class.
    running: Vec<f64>,
}

impl Means {
    fn new(history: &History, now: Micros) -> Option<Self> {
        let mut by_class = vec![(0.0, 0); history.plan.classes().len()];
        for attempt in history.attempts.iter().filter(|attempt| attempt.succeeded()) {
            let sum = &mut by_class[history.plan.class_index(attempt.task)];
            sum.0 += seconds(attempt.duration().unwrap_or(0));
            sum.1 += 1;
        }
        let (sum, count) = by_class
            .iter()
            .fold((0.0, 0), |(sum, count), class| (sum + class.0, count + class.1));
        if count == 0 {
            return None;
        }
        let mut running = vec![0.0_f64; by_class.len()];
        for task in history.in_state(State::Running) {
            if let Some(attempt) = history.latest_attempt(task) {
                let longest = &mut running[history.plan.class_index(task)];
                *longest = longest.max(seconds(now - attempt.start));
            }
        }
        Some(Self {
            by_class,
            all: sum / f64::from(count),
            running,
        })
    }

    /// Returns the mean time of a class, and whether it comes from finished samples.
    fn of(&self, class: usize) -> (f64, bool) {
        match self.by_class.get(class) {
            Some((sum, count)) if *count > 0 => (sum / f64::from(*count), true),
            // A task that runs without other information is assumed to be half done.
            _ => {
                let age = self.running.get(class).copied().unwrap_or_default();
                (self.all.max(2.0 * age), false)
            }
        }
    }
}

fn running(history: &History, now: Micros) -> Vec<RunningTask> {
    let mut running: Vec<RunningTask> = history
        .in_state(State::Running)
        .filter_map(|task| {
            let attempt = history.latest_attempt(task)?;
            Some(RunningTask {
                task,
                host: history.hosts.name(attempt.host).map(str::to_owned),
                seconds: seconds(now - attempt.start),
            })
        })
        .collect();
    running.sort_by(|a, b| b.seconds.total_cmp(&a.seconds).then(a.task.cmp(&b.task)));
    running
}

fn failed(history: &History) -> Vec<FailedTask> {
    let mut failed: Vec<FailedTask> = history
        .in_state(State::Failed)
        .filter_map(|task| {
            let attempt = history.latest_attempt(task)?;
            Some(FailedTask {
                task,
                ending: Ending::from_wait_status(attempt.status),
                reason: history.latest_reason(task),
                host: history.hosts.name(attempt.host).map(str::to_owned),
                time: attempt.end,
                attempts: 0,
            })
        })
        .collect();
    if !failed.is_empty() {
        let mut counts = rustc_hash::FxHashMap::default();
        failed.iter().for_each(|task| {
            counts.insert(task.task, 0);
        });
        for attempt in &history.attempts {
            if let Some(count) = counts.get_mut(&attempt.task) {
                *count += 1;
            }
        }
        failed
            .iter_mut()
            .for_each(|task| task.attempts = counts[&task.task]);
    }
    failed.sort_by_key(|task| (std::cmp::Reverse(task.time), task.task));
    failed
}

fn retried(history: &History) -> Vec<FailedTask> {
    let failures = history.retried().into_iter().map(|retried| {
        let attempt = &history.attempts[retried.attempt];
        FailedTask {
            task: attempt.task,
            ending: Ending::from_wait_status(attempt.status),
            reason: history.reason(retried.attempt),
            host: history.hosts.name(attempt.host).map(str::to_owned),
            time: attempt.end,
            attempts: retried.failures,
        }
    });
    failures.collect()
}

fn rate(history: &History, now: Micros) -> Option<Rate> {
    let run = history.runs.last()?;
    let age = now - run.start;
    if age <= 0 {
        return None;
    }
    let window = (age / 10).clamp(MIN_WINDOW, MAX_WINDOW).min(age);
    let from = now - window;
    let (mut busy, mut ended, mut in_run) = (0, 0_u32, 0_u32);
    for attempt in &history.attempts {
        let running = attempt.end == NEVER;
        let end = if running { now } else { attempt.end };
        busy += (end.min(now) - attempt.start.max(from)).max(0);
        ended += u32::from(!running && end >= from);
        in_run += u32::from(!running && end >= run.start);
    }
    let per_minute = |count: u32, time: Micros| f64::from(count) * 60.0 / seconds(time);
    Some(Rate {
        window_seconds: seconds(window),
        per_minute: per_minute(ended, window),
        per_minute_of_run: per_minute(in_run, age),
        parallel: busy as f64 / window as f64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::tests::{DAG, TestRun};

    fn progress_of(run: &TestRun, now: i64) -> Progress {
        let history = run.open();
        Observer::new(&history.plan).progress(&history, now * SECOND)
    }

    #[test]
    fn a_run_that_has_not_started() {
        let progress = progress_of(&TestRun::new(DAG), 100);
        assert_eq!(
            (progress.phase, progress.all.total(), progress.blocked),
            (Phase::NotStarted, 4, 0)
        );
        assert_eq!((progress.rate, progress.estimate), (None, None));
        let progress = progress_of(&TestRun::new(""), 100);
        assert_eq!((progress.all.total(), progress.kinds), (0, Vec::new()));
    }

    #[test]
    fn failures_block_their_dependents() {
        let run = TestRun::new(DAG);
        run.append(
            "jobstate.log",
            "100 INTERNAL *** PMC_STARTED ***\n100 stage_in_0 EXECUTE 1.0 - - 1\n\
             101 stage_in_0 JOB_SUCCESS 0 - - 1\n\
             102 a EXECUTE 2.0 - - 2\n103 a JOB_FAILURE 9 - - 2\n\
             103 a EXECUTE 3.0 - - 2\n104 a JOB_FAILURE 9 - - 2\n\
             110 INTERNAL *** PMC_FINISHED 1 ***\n",
        );
        let progress = progress_of(&run, 120);
        assert_eq!(
            (progress.blocked, progress.attempts, progress.failed_attempts),
            (1, 3, 2)
        );
        assert_eq!(
            (progress.failed[0].attempts, progress.failed[0].ending),
            (2, Ending::Signal(9))
        );
        assert_eq!(progress.silent_seconds, Some(10.0));
        assert!(progress.running.is_empty());
    }

    #[test]
    fn the_end_is_estimated() {
        let run = TestRun::new(DAG);
        run.append(
            "jobstate.log",
            "100 INTERNAL *** PMC_STARTED ***\n100 stage_in_0 EXECUTE 1.0 - - 1\n\
             110 stage_in_0 JOB_SUCCESS 0 - - 1\n\
             110 a EXECUTE 2.0 - - 2\n110 b EXECUTE 3.0 - - 3\n130 a JOB_SUCCESS 0 - - 2\n",
        );
        let history = run.open();
        let now = 135 * SECOND;
        let mut observer = Observer::new(&history.plan);
        // The phase depends on a lock, so test the parts.
        let rate = rate(&history, now).unwrap();
        assert_eq!(rate.window_seconds, 35.0);
        assert!((rate.parallel - 55.0 / 35.0).abs() < 1e-9, "{rate:?}");
        let estimate = observer.estimate(&history, &[], rate, now).unwrap();
        // b should have ended. c has no sample and counts as the mean of the others: 15 s.
        assert_eq!((estimate.tasks, estimate.guessed), (2, 1));
        assert!((estimate.work - 15.0).abs() < 1e-9, "{estimate:?}");
        assert!(
            estimate.by_chain && (estimate.seconds - 15.0).abs() < 1e-9,
            "{estimate:?}"
        );
        assert_eq!(observer.progress(&history, now).running[0].seconds, 25.0);

        // c runs longer than the mean: assumed to be half done.
        run.append(
            "jobstate.log",
            "135 b JOB_SUCCESS 0 - - 3\n135 c EXECUTE 4.0 - - 4\n",
        );
        let history = run.open();
        let now = 165 * SECOND;
        let rate = super::rate(&history, now).unwrap();
        let estimate = observer.estimate(&history, &[], rate, now).unwrap();
        assert_eq!((estimate.tasks, estimate.guessed), (1, 1));
        assert!((estimate.chain - 30.0).abs() < 1e-9, "{estimate:?}");
    }
}
