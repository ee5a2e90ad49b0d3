//! Tools that wait for the ends of tasks.

use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use pmc_control::{Answer, EndState, Ends, MAX_ENDS, TaskEnd};
use pmc_dag::TaskId;
use pmc_system::clock;

use super::{Run, Serving};
use crate::control::Reply;
use crate::protocol::Outcome;
use crate::transport::MasterTransport;

/// Stands for no end.
const NONE: u32 = u32::MAX;

/// Time after which a tool hears that nothing has ended. It asks again.
const FOLLOW_TIME: Duration = Duration::from_secs(3);

/// The end of a task in this run. There are as many as tasks.
#[derive(Debug)]
pub(super) struct End {
    task: TaskId,
    seconds: f32,
    how: How,
}

#[derive(Debug)]
enum How {
    Done,
    Failed(Box<Outcome>),
    NotRun,
    Cancelled,
}

impl End {
    fn of(task: TaskId, outcome: Outcome) -> Self {
        let how = match outcome.succeeded() {
            true => How::Done,
            false => How::Failed(Box::new(outcome)),
        };
        Self {
            task,
            seconds: outcome.runtime.as_secs_f32(),
            how,
        }
    }

    fn not_run(task: TaskId) -> Self {
        Self {
            task,
            seconds: 0.0,
            how: How::NotRun,
        }
    }

    pub(super) fn cancelled(task: TaskId) -> Self {
        Self {
            how: How::Cancelled,
            ..Self::not_run(task)
        }
    }
}

/// A tool that waits for the next end.
pub(super) struct Follower {
    from: usize,
    pub(super) until: Instant,
    answer: SyncSender<Reply>,
}

impl Serving {
    /// Notes the tasks among these that have ended for good, and those that will not run because of it.
    pub(super) fn note<T: MasterTransport>(&mut self, run: &Run<'_, T>, attempts: Vec<(TaskId, Outcome)>) {
        for (task, outcome) in attempts {
            let has_failed = run.master.has_failed(task);
            if !has_failed && !run.master.is_done(task) {
                continue;
            }
            self.end(End::of(task, outcome));
            if has_failed {
                self.note_children(run, task);
            }
        }
    }

    /// Notes the children of edges that were added, if their parents have failed or will not run.
    pub(super) fn note_unreachable<T: MasterTransport>(
        &mut self,
        run: &Run<'_, T>,
        edges: &[(TaskId, TaskId)],
    ) {
        for (parent, child) in edges {
            let is_blocked = run.master.has_no_more_attempts(*parent) || self.unreachable.contains(parent);
            if is_blocked && self.unreachable.insert(*child) {
                self.end(End::not_run(*child));
                self.note_children(run, *child);
            }
        }
    }

    /// Notes that what comes after a task will not run. Each task is looked at once.
    pub(super) fn note_children<T: MasterTransport>(&mut self, run: &Run<'_, T>, task: TaskId) {
        let dag = run.own_dag();
        let mut blocked = vec![task];
        while let Some(parent) = blocked.pop() {
            for child in dag.children(parent) {
                // An earlier run may have done it.
                if !run.master.is_done(*child) && self.unreachable.insert(*child) {
                    blocked.push(*child);
                    self.end(End::not_run(*child));
                }
            }
        }
    }

    /// Returns whether a task that has not ended in this run is done.
    fn was_done_before<T: MasterTransport>(&self, run: &Run<'_, T>, task: TaskId) -> bool {
        // Of what has ended in this run, the record may not be written yet.
        run.master.is_done(task) && run.out.finals.iter().all(|(ended, _)| *ended != task)
    }

    pub(super) fn end(&mut self, end: End) {
        self.left = self.left.saturating_sub(1);
        let at = end.task.index();
        if self.end_of.len() <= at {
            self.end_of.resize(at + 1, NONE);
        }
        // There are no more ends than tasks.
        self.end_of[at] = self.ends.len() as u32;
        self.ends.push(end);
    }

    /// Answers a tool that asks for the ends of tasks.
    pub(in crate::driver) fn ends_of<T: MasterTransport>(
        &self,
        run: &Run<'_, T>,
        names: &[String],
    ) -> Answer {
        let dag = run.own_dag();
        let mut ends = Vec::new();
        for name in names {
            let Some(task) = dag.find(name.as_bytes()) else {
                return Answer::Refused(format!("the run has no task {name}"));
            };
            let known = self.end_of.get(task.index()).filter(|at| **at != NONE);
            match known.and_then(|at| self.ends.get(*at as usize)) {
                Some(end) => ends.push(describe(run, end)),
                None if self.was_done_before(run, task) => ends.push(TaskEnd {
                    seconds: None,
                    ..describe(run, &End::of(task, Outcome::new(0, Duration::ZERO)))
                }),
                None => {}
            }
        }
        Answer::Ends(self.answer_with(ends, self.ends.len()))
    }

    /// Answers a tool that asks for the ends from one on, now or when there is one.
    pub(in crate::driver) fn follow<T: MasterTransport>(
        &mut self,
        run: &Run<'_, T>,
        from: Option<u64>,
        answer: SyncSender<Reply>,
    ) {
        let all = self.ends.len();
        let Some(from) = from else {
            self.told_at = Some(clock::now());
            let ends = self.answer_with(Vec::new(), all);
            let _ = answer.send(Reply::Answer(Answer::Ends(ends)));
            return;
        };
        let until = clock::now() + FOLLOW_TIME;
        self.followers.push(Follower {
            from: usize::try_from(from).unwrap_or(usize::MAX).min(all),
            until,
            answer,
        });
        self.tell(run);
    }

    /// Tells the tools that wait what has ended.
    pub(super) fn tell<T: MasterTransport>(&mut self, run: &Run<'_, T>) {
        let now = clock::now();
        for follower in std::mem::take(&mut self.followers) {
            let end = self.ends.len().min(follower.from + MAX_ENDS);
            if end == follower.from && now < follower.until {
                self.followers.push(follower);
                continue;
            }
            let new = self.ends.get(follower.from..end).unwrap_or_default();
            let ends = new.iter().map(|end| describe(run, end)).collect();
            let answer = self.answer_with(ends, end);
            self.told_at = Some(now);
            // A tool that has gone needs no answer.
            let _ = follower.answer.send(Reply::Answer(Answer::Ends(answer)));
        }
    }

    /// Tells the tools that wait that the run ends. They know all ends.
    pub(super) fn tell_that_it_ends(&mut self) {
        for follower in std::mem::take(&mut self.followers) {
            let mut answer = self.answer_with(Vec::new(), follower.from);
            answer.is_over = true;
            let _ = follower.answer.send(Reply::Answer(Answer::Ends(answer)));
        }
    }

    fn answer_with(&self, ends: Vec<TaskEnd>, next: usize) -> Ends {
        Ends {
            ends,
            next: next as u64,
            left: self.left as u64,
            is_over: false,
        }
    }
}

/// Returns what tools are told of an end.
fn describe<T: MasterTransport>(run: &Run<'_, T>, end: &End) -> TaskEnd {
    let id = String::from_utf8_lossy(run.own_dag().name(end.task)).into_owned();
    let seconds = Some(f64::from(end.seconds));
    let (state, exit_code, signal, seconds, reason) = match &end.how {
        How::Done => (EndState::Done, Some(0), None, seconds, None),
        How::NotRun => {
            let reason = "a task before it has failed or was cancelled".to_owned();
            (EndState::NotRun, None, None, None, Some(reason))
        }
        How::Cancelled => (
            EndState::NotRun,
            None,
            None,
            None,
            Some("it was cancelled".to_owned()),
        ),
        How::Failed(outcome) => {
            let signal = Some(outcome.status & 0x7f).filter(|signal| *signal != 0);
            let exit_code = signal.is_none().then_some(outcome.status >> 8 & 0xff);
            let reason = outcome.reason().map(|reason| reason.to_string());
            (EndState::Failed, exit_code, signal, seconds, reason)
        }
    };
    TaskEnd {
        id,
        state,
        exit_code,
        signal,
        seconds,
        reason,
    }
}
