//! Tasks that are held back because the run ends before they would.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use pmc_dag::{Dag, TaskId};

use super::{Model, State};
use crate::protocol::SubmitId;

/// What a task says of its run time.
pub(super) struct Time {
    expected: Option<Duration>,
    transformation: Option<Vec<u8>>,
    /// It saves itself; with a signal, so long before the end.
    saves: Option<Option<Duration>>,
}

impl Time {
    pub(super) fn of(dag: &Dag, task: TaskId) -> Self {
        let saves = dag.checkpoint(task);
        Self {
            expected: dag.expected_time(task),
            transformation: dag.transformation(task).map(<[u8]>::to_vec),
            saves: saves.map(|checkpoint| checkpoint.signal.map(|signal| signal.lead)),
        }
    }
}

/// The end of the run, and the run times of tasks that have succeeded.
#[derive(Default)]
pub(super) struct Ends {
    at: Option<Duration>,
    run_times: BTreeMap<Vec<u8>, Vec<Duration>>,
    /// Tasks that were held back.
    pub(super) held: u64,
}

impl Model {
    /// Number of tasks that were held back.
    pub(in crate::scheduler::sim) fn held(&self) -> u64 {
        self.ends.held
    }

    /// Follows a new end of the run.
    pub(in crate::scheduler::sim) fn end_at(&mut self, end: Duration) {
        let before = self.ends.at.replace(end);
        if before.is_none_or(|before| before >= end) {
            return;
        }
        let late = |task: &TaskId| matches!(self.states[task.index()], State::Late(_));
        let mut late: Vec<TaskId> = self.tasks().filter(late).collect();
        late.sort_by_key(|task| Reverse(self.places.get(task).copied()));
        for task in late {
            self.avoid(task);
            if let State::Late(submit) = self.states[task.index()] {
                self.states[task.index()] = State::Queued(submit);
            }
            let (kind, key) = (self.kind(task), self.turn(task));
            self.queued.entry(kind).or_default().insert(key);
        }
    }

    /// Follows a task that is held back.
    pub(super) fn hold_back(&mut self, task: TaskId, submit: SubmitId) {
        self.starting = true;
        let state = self.states[task.index()];
        self.check(state == State::Queued(submit), || {
            format!("{task:?} is held back while {state:?}")
        });
        let is_late = self.is_late(task);
        self.check(is_late, || format!("{task:?} is held back, but would end"));
        let (kind, key) = (self.kind(task), self.turn(task));
        let was_queued = self
            .queued
            .get_mut(&kind)
            .is_some_and(|queued| queued.remove(&key));
        let may_start = self.may_start(&kind);
        self.check(was_queued && may_start, || {
            format!("{task:?} is held back, but could not start")
        });
        self.stop_avoiding(task);
        self.states[task.index()] = State::Late(submit);
        self.ends.held += 1;
    }

    /// Checks that a task which starts is expected to end before the run does.
    pub(super) fn check_in_time(&mut self, task: TaskId) {
        let is_late = self.is_late(task);
        let (now, end) = (self.avoidance.now(), self.ends.at);
        self.check(!is_late, || {
            format!("{task:?} starts at {now:?}, but would not end at {end:?}")
        });
    }

    pub(super) fn note_run_time(&mut self, task: TaskId, time: Duration) {
        if let Some(transformation) = &self.facts[task.index()].time.transformation {
            let known = self.ends.run_times.entry(transformation.clone()).or_default();
            known.push(time);
        }
    }

    fn is_late(&self, task: TaskId) -> bool {
        let Some(end) = self.ends.at else {
            return false;
        };
        let time = &self.fact(task).time;
        let learned = || {
            let known = self.ends.run_times.get(time.transformation.as_ref()?)?;
            // All attempts of these runs take the same time.
            (known.len() >= 5).then_some(known[0])
        };
        let whole = time.expected.or_else(learned);
        let needed = match time.saves {
            None => whole,
            Some(None) => None,
            Some(Some(lead)) => {
                let part = lead + lead.min(Duration::from_secs(30));
                Some(whole.map_or(part, |whole| whole.min(part)))
            }
        };
        needed.is_some_and(|needed| needed > end.saturating_sub(self.avoidance.now()))
    }
}
