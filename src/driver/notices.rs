//! Tasks that save themselves: who is told when, and what the end of such an attempt means.

use std::time::{Duration, Instant};

use pmc_dag::{Checkpoint, Dag, TaskId};
use pmc_system::planted::{Planted, is_planted};
use rustc_hash::{FxHashMap, FxHashSet};
use signal_hook::consts::SIGTERM;

use super::{Run, RunError};
use crate::protocol::{EndCause, Outcome, Rank, SubmitId, TaskResult};
use crate::scheduler::Event;
use crate::transport::MasterTransport;

/// An attempt that saves itself earlier than this, and was not asked to, has probably done nothing.
const MIN_PROGRESS: Duration = Duration::from_secs(10);

/// Number of such attempts in a row after which the task has failed.
const MAX_QUICK: u8 = 2;

/// Who was told to save itself, or to end.
#[derive(Debug, Default)]
pub(super) struct Notices {
    /// Signals that attempts were sent.
    sent: FxHashMap<SubmitId, i32>,
    /// Attempts that were asked to end because the time is over.
    stopped: FxHashSet<SubmitId>,
    /// Attempts that an earlier master started: it may have asked them to end.
    earlier: FxHashSet<SubmitId>,
    /// Attempts that have saved themselves.
    pub(super) saved: u64,
    /// There are tasks that save themselves.
    are_some: bool,
    /// How long before the end of the time tasks are told, the longest time first.
    leads: Vec<Duration>,
    /// Number of those whose time has come.
    passed: usize,
    /// Tasks have saved themselves because the time is nearly over: they rest until then.
    pub(super) held: Vec<TaskId>,
    /// Tasks whose latest attempts saved themselves at once, and the number of these attempts.
    quick: FxHashMap<TaskId, u8>,
}

/// What the end of an attempt means for a task that saves itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    /// What its status says.
    Plain,
    /// It has saved itself.
    Saved,
    /// It was ended before it could.
    Interrupted,
    /// It has saved itself again and again, and done nothing.
    Idle,
}

impl Notices {
    /// Learns how the tasks of a DAG are told.
    pub(super) fn learn(&mut self, dag: &Dag) {
        self.are_some |= dag.has_checkpoints();
        self.leads.extend(dag.checkpoint_leads());
        self.leads.sort_unstable_by(|a, b| b.cmp(a));
        self.leads.dedup();
        self.passed = 0;
    }

    /// Notes an attempt that an earlier master started.
    pub(super) fn note_earlier(&mut self, submit: SubmitId) {
        self.earlier.insert(submit);
    }

    /// Looks at all times again: the end of the time has moved.
    pub(super) fn reset(&mut self) {
        self.passed = 0;
    }

    /// Returns when tasks are told next, if the time is over at `stop_at`.
    pub(super) fn next(&self, stop_at: Option<Instant>) -> Option<Instant> {
        let (lead, stop_at) = (self.leads.get(self.passed)?, stop_at?);
        Some(stop_at.checked_sub(*lead).unwrap_or(stop_at))
    }

    /// Returns the lead of the tasks that are to be told now: those with at least this one.
    fn due(&mut self, now: Instant, stop_at: Option<Instant>) -> Option<Duration> {
        let mut due = None;
        while self.next(stop_at).is_some_and(|at| at <= now) {
            due = self.leads.get(self.passed).copied();
            self.passed += 1;
        }
        due
    }

    /// True if tasks with this lead were told that the time is nearly over.
    fn has_told(&self, lead: Duration) -> bool {
        self.leads.iter().take(self.passed).any(|told| *told == lead)
    }

    /// Judges the end of an attempt, and forgets it.
    fn judge(&mut self, task: TaskId, submit: SubmitId, outcome: &Outcome, how: Checkpoint) -> Meaning {
        let (asked, stopped) = (self.sent.remove(&submit), self.stopped.remove(&submit));
        let stopped = stopped || (self.earlier.remove(&submit) && outcome.is_terminated());
        if outcome.succeeded() || outcome.has_own_cause() {
            self.quick.remove(&task);
            return Meaning::Plain;
        }
        if how.is_saved(outcome.status) {
            let is_quick = asked.is_none() && !stopped && outcome.runtime < MIN_PROGRESS;
            if !is_quick {
                self.quick.remove(&task);
                return Meaning::Saved;
            }
            let quick = self.quick.entry(task).or_default();
            *quick += 1;
            if *quick < MAX_QUICK {
                return Meaning::Saved;
            }
            self.quick.remove(&task);
            return Meaning::Idle;
        }
        let is_ended = |signal| outcome.is_ended_by(signal);
        if stopped || asked.is_some_and(is_ended) {
            return Meaning::Interrupted;
        }
        Meaning::Plain
    }
}

impl<T: MasterTransport> Run<'_, T> {
    /// Returns how a task saves itself.
    fn checkpoint(&mut self, task: TaskId) -> Option<Checkpoint> {
        let (segment, local) = self.out.dags.locate(task);
        self.out.dags.get(segment)?.dag.checkpoint(local)
    }

    /// Tells running tasks to save themselves: those of these workers, or all, whose lead is at least that.
    pub(super) fn notify_tasks(&mut self, workers: Option<&[Rank]>, min_lead: Duration) {
        if self.notices.leads.is_empty() {
            return;
        }
        let running: Vec<_> = match workers {
            None => self.master.assignments().collect(),
            Some(ranks) => {
                let of = |rank: &Rank| {
                    self.master
                        .running_on(*rank)
                        .map(|(task, submit)| (*rank, task, submit))
                };
                ranks.iter().filter_map(of).collect()
            }
        };
        for (rank, task, submit) in running {
            let signal = self.checkpoint(task).and_then(|checkpoint| checkpoint.signal);
            let Some(signal) = signal.filter(|signal| signal.lead >= min_lead) else {
                continue;
            };
            if self.notices.sent.insert(submit, signal.number).is_none() {
                let name = self.out.dags.name(task);
                tracing::info!("Task {name} is to save itself: sending signal {}", signal.number);
                self.notify(rank, submit, signal.number);
            }
        }
    }

    /// Tells the tasks to save themselves whose time for that has come.
    pub(super) fn notify_before_end(&mut self, now: Instant) {
        if let Some(lead) = self.notices.due(now, self.time.stop_at()) {
            self.notify_tasks(None, lead);
        }
    }

    /// Asks all tasks that run to end.
    pub(super) fn terminate_tasks(&mut self) {
        let running: Vec<_> = self.master.assignments().collect();
        for (rank, _, submit) in running {
            if self.notices.stopped.insert(submit) {
                self.signal(rank, submit, SIGTERM);
            }
        }
    }

    /// Lets a task rest to the end of the run that has just saved itself because its time is nearly over.
    pub(super) fn hold_saved(&mut self, task: TaskId) -> Result<(), RunError> {
        let signal = self.checkpoint(task).and_then(|checkpoint| checkpoint.signal);
        if signal.is_some_and(|signal| self.notices.has_told(signal.lead)) {
            self.notices.held.push(task);
            self.handle(Event::Rest(task))?;
        }
        Ok(())
    }

    /// Marks the result of an attempt that has not failed: it has saved itself, or the run has ended it.
    pub(super) fn note_saved(&mut self, from: Rank, mut result: TaskResult) -> TaskResult {
        let has_asked = !self.notices.stopped.is_empty() || !self.notices.earlier.is_empty();
        if !self.notices.are_some && !has_asked {
            return result;
        }
        let Some((task, submit)) = self.master.running_on(from) else {
            return result;
        };
        if submit != result.submit {
            return result;
        }
        let how = self.checkpoint(task);
        match self
            .notices
            .judge(task, submit, &result.outcome, how.unwrap_or_default())
        {
            Meaning::Plain => {}
            Meaning::Saved if is_planted(Planted::SavedIsFailure) => {}
            Meaning::Saved => {
                self.notices.saved += 1;
                result.outcome.cause = Some(EndCause::Saved);
            }
            Meaning::Interrupted => result.outcome.cause = Some(EndCause::Interrupted),
            Meaning::Idle => tracing::error!(
                "Task {} has ended with its checkpoint exit code again within {} s: it has failed",
                self.out.dags.name(task),
                MIN_PROGRESS.as_secs()
            ),
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOW: Checkpoint = Checkpoint {
        signal: None,
        exit: Some(85),
    };

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn ended(status: i32, after: u64) -> Outcome {
        Outcome::new(status, seconds(after))
    }

    #[test]
    fn a_task_that_saves_itself_at_once_again_and_again_has_failed() {
        let mut notices = Notices::default();
        let (task, mut submit) = (TaskId(3), 0);
        let mut judge = |outcome| {
            submit += 1;
            notices.judge(task, SubmitId(submit), &outcome, HOW)
        };
        assert_eq!(judge(ended(85 << 8, 1)), Meaning::Saved);
        assert_eq!(judge(ended(85 << 8, 60)), Meaning::Saved);
        assert_eq!(judge(ended(85 << 8, 1)), Meaning::Saved);
        assert_eq!(judge(ended(85 << 8, 1)), Meaning::Idle);
        // After a retry, it has the same chance again.
        assert_eq!(judge(ended(85 << 8, 1)), Meaning::Saved);
        assert_eq!(judge(ended(0, 1)), Meaning::Plain);
        assert_eq!(judge(ended(85 << 8, 1)), Meaning::Saved);
        assert_eq!(judge(ended(1 << 8, 1)), Meaning::Plain);
    }

    #[test]
    fn what_the_run_has_asked_for_is_no_failure() {
        let mut notices = Notices::default();
        let mut judge = |outcome: Outcome, asked: Option<i32>, stopped: bool| {
            let submit = SubmitId(7);
            if let Some(signal) = asked {
                notices.sent.insert(submit, signal);
            }
            if stopped {
                notices.stopped.insert(submit);
            }
            let meaning = notices.judge(TaskId(0), submit, &outcome, HOW);
            assert!(notices.sent.is_empty() && notices.stopped.is_empty());
            meaning
        };
        for _ in 0..3 {
            assert_eq!(judge(ended(85 << 8, 1), Some(10), false), Meaning::Saved);
        }
        // Its handler was not there yet. Under kickstart, the status is an exit code.
        assert_eq!(judge(ended(10, 1), Some(10), false), Meaning::Interrupted);
        assert_eq!(judge(ended(138 << 8, 1), Some(10), false), Meaning::Interrupted);
        assert_eq!(judge(ended(10, 1), None, false), Meaning::Plain);
        assert_eq!(judge(ended(1 << 8, 1), Some(10), false), Meaning::Plain);
        assert_eq!(judge(ended(1 << 8, 1), None, true), Meaning::Interrupted);
        assert_eq!(judge(ended(0, 1), Some(10), true), Meaning::Plain);
    }

    #[test]
    fn an_earlier_master_may_have_asked_an_attempt_to_end() {
        let mut notices = Notices::default();
        let mut judge = |outcome: Outcome| {
            notices.note_earlier(SubmitId(7));
            let meaning = notices.judge(TaskId(0), SubmitId(7), &outcome, HOW);
            assert!(notices.earlier.is_empty());
            meaning
        };
        assert_eq!(judge(ended(SIGTERM, 1)), Meaning::Interrupted);
        assert_eq!(judge(ended(1 << 8, 1)), Meaning::Plain);
        assert_eq!(judge(ended(0, 1)), Meaning::Plain);
    }

    #[test]
    fn tasks_are_told_before_the_end() {
        let dag = "TASK a --checkpoint-signal USR1@60 x\nTASK b --checkpoint-signal TERM@5 x\nTASK c x\n";
        let mut notices = Notices::default();
        notices.learn(&Dag::parse(dag.as_bytes().to_vec()).unwrap());
        let now = Instant::now();
        let stop = Some(now + seconds(100));
        assert_eq!(notices.next(stop), Some(now + seconds(40)));
        assert_eq!(notices.due(now + seconds(39), stop), None);
        assert_eq!(notices.due(now + seconds(40), stop), Some(seconds(60)));
        assert_eq!(notices.next(stop), Some(now + seconds(95)));
        assert_eq!(
            (notices.due(now + seconds(99), stop), notices.next(stop)),
            (Some(seconds(5)), None)
        );
        notices.reset();
        assert_eq!(notices.next(None), None);
        assert_eq!(notices.next(Some(now + seconds(200))), Some(now + seconds(140)));
    }
}
