//! Applies events to the history.

use monitord_compat::reason::Reason;

use super::{Attempt, History, NEVER, NO_ATTEMPT, Run, State, Tally};
use crate::events::{Event, Micros, TaskRef};
use crate::plan::TaskNumber;
use crate::resources::{Change, NO_HOST};

/// Status of an attempt whose task failed because too many of its workers were lost.
const ABANDONED: i32 = 256;

impl History {
    pub(super) fn count_all(&mut self) {
        self.tallies = vec![Tally::default(); self.plan.classes().len()];
        for (task, state) in (0..).zip(&self.states) {
            self.tallies[self.plan.class_index(task)].0[state.index()] += 1;
        }
    }

    pub(super) fn set(&mut self, task: TaskNumber, state: State) {
        let at = task as usize;
        let before = std::mem::replace(&mut self.states[at], state);
        if at >= self.counted {
            return;
        }
        let tally = &mut self.tallies[self.plan.class_index(task)].0;
        tally[before.index()] -= 1;
        tally[state.index()] += 1;
    }

    /// Returns the task of an event. Adds it if the DAG does not have it.
    fn task(&mut self, task: TaskRef<'_>) -> Option<TaskNumber> {
        let submit_number = task.submit_number as usize;
        // Only the first event of an attempt needs a look-up by name.
        if let Some(known) = self.by_submit_number.get(submit_number).copied()
            && submit_number > 0
            && self.plan.name(known) == task.name
        {
            return Some(known);
        }
        let number = self.plan.find_or_add(task.name)?;
        if submit_number == self.by_submit_number.len() {
            self.by_submit_number.push(number);
        }
        if number as usize == self.states.len() {
            self.states.push(State::Waiting);
            self.latest.push(NO_ATTEMPT);
            self.queued.push(NEVER);
            self.tallies.resize(self.plan.classes().len(), Tally::default());
            if (number as usize) < self.counted {
                self.tallies[self.plan.class_index(number)].0[State::Waiting.index()] += 1;
            }
        }
        Some(number)
    }

    /// Applies an event. Returns the index of the attempt that ended with it.
    pub(super) fn apply(&mut self, time: Micros, event: Event<'_>) -> Option<u32> {
        if let Some(run) = self.runs.last_mut()
            && !matches!(event, Event::Process(_) | Event::RunStart)
        {
            run.last = run.last.max(time);
        }
        match event {
            Event::Process(process) => self.process = Some(process),
            Event::RunStart => self.start_run(time),
            Event::RunEnd(status) => {
                if let Some(run) = self.runs.last_mut() {
                    run.end = Some((time, status));
                }
                self.reset_unfinished(time);
            }
            Event::Queued(task) => {
                let task = self.task(task)?;
                self.queued[task as usize] = time;
                self.set(task, State::Ready);
            }
            Event::Started(task) => {
                let number = task.submit_number;
                let task = self.task(task)?;
                self.start_attempt(task, number, time)?;
            }
            Event::Unplanned(task, status) => {
                let task = self.task(task)?;
                return self.fail_unplanned(task, time, status);
            }
            Event::Reason(task, Reason::TakenOver) => {
                self.take_over(task);
            }
            Event::Reason(task, reason) => {
                let task = self.task(task)?;
                if self.states[task as usize] == State::Running {
                    self.reasons.insert(self.latest[task as usize], reason);
                }
            }
            Event::Ended(task, status) => {
                let task = self.task(task)?;
                return self.end_attempt(task, time, status, false);
            }
            Event::Lost(task) => {
                let task = self.task(task)?;
                return self.lose_attempt(task, time);
            }
            Event::Abandoned(task) => {
                let task = self.task(task)?;
                return self.end_attempt(task, time, ABANDONED, true);
            }
        }
        None
    }

    fn start_run(&mut self, time: Micros) {
        let before = self
            .runs
            .last()
            .map(|run| run.end.map_or(run.last, |(end, _)| end));
        self.reset_unfinished(before.unwrap_or(time));
        self.runs.push(Run {
            start: time,
            end: None,
            last: time,
            process: self.process.take(),
        });
        self.hosts.expect(Change::Run { start: time, before });
        // Submit numbers count from 1.
        self.by_submit_number.clear();
        self.by_submit_number.push(0);
    }

    fn start_attempt(&mut self, task: TaskNumber, submit_number: u32, time: Micros) -> Option<()> {
        let index = self.add_attempt(task, submit_number, time)?;
        self.set(task, State::Running);
        self.hosts.expect(Change::Start(index));
        Some(())
    }

    /// The command that makes a sub-workflow has failed. The log of free resources does not count it among
    /// the attempts.
    fn fail_unplanned(&mut self, task: TaskNumber, time: Micros, status: i32) -> Option<u32> {
        let start = match self.queued[task as usize] {
            NEVER => time,
            queued => queued,
        };
        let index = self.add_attempt(task, 0, start)?;
        self.set(task, State::Failed);
        let attempt = &mut self.attempts[index as usize];
        (attempt.status, attempt.end) = (status, time);
        Some(index)
    }

    fn add_attempt(&mut self, task: TaskNumber, submit_number: u32, time: Micros) -> Option<u32> {
        let index = u32::try_from(self.attempts.len())
            .ok()
            .filter(|index| *index != NO_ATTEMPT)?;
        let queued = match self.queued[task as usize] {
            NEVER => time,
            queued => queued,
        };
        self.attempts.push(Attempt {
            task,
            status: 0,
            queued,
            start: time,
            end: NEVER,
            host: NO_HOST,
            lost: false,
            worker_lost: false,
        });
        self.submit_numbers.push(submit_number);
        self.latest[task as usize] = index;
        Some(index)
    }

    fn end_attempt(&mut self, task: TaskNumber, time: Micros, status: i32, worker_lost: bool) -> Option<u32> {
        let index = self.latest[task as usize];
        let state = if status == 0 { State::Done } else { State::Failed };
        let running = self.states[task as usize] == State::Running;
        self.set(task, state);
        let attempt = self.attempts.get_mut(index as usize).filter(|_| running)?;
        (attempt.status, attempt.end, attempt.worker_lost) = (status, time, worker_lost);
        self.hosts.expect(Change::End(index));
        Some(index)
    }

    /// The worker of an attempt was lost.
    fn lose_attempt(&mut self, task: TaskNumber, time: Micros) -> Option<u32> {
        let index = self.latest[task as usize];
        let running = self.states[task as usize] == State::Running;
        self.set(task, State::Waiting);
        let attempt = self.attempts.get_mut(index as usize).filter(|_| running)?;
        (attempt.end, attempt.lost, attempt.worker_lost) = (time, true, true);
        self.hosts.expect(Change::End(index));
        Some(index)
    }

    /// An attempt that ended with its master goes on. It is submitted again with its number.
    fn take_over(&mut self, task: TaskRef<'_>) {
        let latest = self.plan.find(task.name).and_then(|task| self.latest(task));
        let Some(index) = latest.filter(|index| self.submit_number(*index) == task.submit_number) else {
            return;
        };
        if let Some(attempt) = self.attempts.get_mut(index).filter(|attempt| attempt.lost) {
            attempt.worker_lost = false;
            self.reasons
                .extend(u32::try_from(index).map(|index| (index, Reason::TakenOver)));
        }
    }

    /// Resets tasks that are ready or running when a run ends: they wait for the next run.
    fn reset_unfinished(&mut self, time: Micros) {
        let unfinished = self.states.len() > self.counted
            || self
                .tallies
                .iter()
                .any(|tally| tally.get(State::Running) + tally.get(State::Ready) > 0);
        if !unfinished {
            return;
        }
        for task in 0..self.states.len() {
            match self.states[task] {
                State::Running => {
                    if let Some(attempt) = self.attempts.get_mut(self.latest[task] as usize) {
                        (attempt.end, attempt.lost) = (time, true);
                    }
                }
                State::Ready => {}
                _ => continue,
            }
            self.set(task as TaskNumber, State::Waiting);
        }
    }
}
