//! What an event changes.

use super::{History, NEVER, NO_TRY, Run, State, Tally, Try};
use crate::events::{Event, Micros, Name};
use crate::plan::TaskNumber;
use crate::resources::{Change, NO_HOST};

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
        let tally = &mut self.tallies[self.plan.class_index(task)].0;
        tally[before.index()] -= 1;
        tally[state.index()] += 1;
    }

    fn task(&mut self, name: Name<'_>) -> Option<TaskNumber> {
        let number = name.number as usize;
        if name.name.is_empty() {
            return self
                .numbered
                .get(number)
                .copied()
                .filter(|task| (*task as usize) < self.states.len());
        }
        if let Some(task) = self.numbered.get(number).copied().filter(|_| number > 0)
            && (task as usize) < self.states.len()
            && self.plan.name(task) == name.name
        {
            return Some(task);
        }
        let task = self.plan.find_or_add(name.hash, name.name);
        if number == self.numbered.len() {
            self.numbered.push(task.unwrap_or(TaskNumber::MAX));
        }
        let task = task?;
        if task as usize == self.states.len() {
            self.states.push(State::Waiting);
            self.latest.push(NO_TRY);
            self.queued.push(NEVER);
            self.tallies.resize(self.plan.classes().len(), Tally::default());
            self.tallies[self.plan.class_index(task)].0[State::Waiting.index()] += 1;
        }
        Some(task)
    }

    /// Gives the number of the try that ended with this event.
    pub(super) fn event(&mut self, time: Micros, event: Event<'_>) -> Option<u32> {
        if let Some(run) = self.runs.last_mut()
            && !matches!(event, Event::Process(_) | Event::RunStart)
        {
            run.last = run.last.max(time);
        }
        match event {
            Event::Process(process) => self.process = Some(process),
            Event::RunStart => {
                let before = self
                    .runs
                    .last()
                    .map(|run| run.end.map_or(run.last, |(end, _)| end));
                self.give_up(before.unwrap_or(time));
                self.runs.push(Run {
                    start: time,
                    end: None,
                    last: time,
                    process: self.process.take(),
                });
                self.hosts.expect(Change::Run { start: time, before });
                // Numbers count from 1.
                self.numbered.clear();
                self.numbered.push(0);
            }
            Event::RunEnd(status) => {
                if let Some(run) = self.runs.last_mut() {
                    run.end = Some((time, status));
                }
                self.give_up(time);
            }
            Event::Queued(name) => {
                let task = self.task(name)?;
                self.queued[task as usize] = time;
                self.set(task, State::Ready);
            }
            Event::Started(name) => {
                let task = self.task(name)?;
                let number = u32::try_from(self.tries.len())
                    .ok()
                    .filter(|number| *number != NO_TRY)?;
                let queued = match self.queued[task as usize] {
                    NEVER => time,
                    queued => queued,
                };
                self.tries.push(Try {
                    task,
                    status: 0,
                    queued,
                    start: time,
                    end: NEVER,
                    host: NO_HOST,
                    lost: false,
                });
                self.latest[task as usize] = number;
                self.set(task, State::Running);
                self.hosts.expect(Change::Start(number));
            }
            Event::Ended(name, status) => {
                let task = self.task(name)?;
                let number = self.latest[task as usize];
                let state = if status == 0 { State::Done } else { State::Failed };
                let running = self.states[task as usize] == State::Running;
                self.set(task, state);
                let one = self.tries.get_mut(number as usize).filter(|_| running)?;
                (one.status, one.end) = (status, time);
                self.hosts.expect(Change::End(number));
                return Some(number);
            }
        }
        None
    }

    /// A run is over: what it has not brought to an end waits for the next.
    fn give_up(&mut self, time: Micros) {
        let unfinished = self
            .tallies
            .iter()
            .any(|tally| tally.get(State::Running) + tally.get(State::Ready) > 0);
        if !unfinished {
            return;
        }
        for task in 0..self.states.len() {
            #[expect(clippy::cast_possible_truncation, reason = "tasks are numbered in 32 bits")]
            let number = task as TaskNumber;
            match self.states[task] {
                State::Running => {
                    if let Some(one) = self.tries.get_mut(self.latest[task] as usize) {
                        (one.end, one.lost) = (time, true);
                    }
                }
                State::Ready => {}
                _ => continue,
            }
            self.set(number, State::Waiting);
        }
    }
}
