//! Gangs join, run and leave.

use std::time::Duration;

use pmc_dag::TaskId;
use pmc_system::planted::{Planted, is_planted};

use crate::protocol::{EXECUTOR_FAILURE, EndCause, Outcome, Rank, SubmitId, TaskResult};
use crate::scheduler::gangs::{MAX_REFUSALS, Next, Part, RunningGang, Stage};
use crate::scheduler::gpus::GpuSet;
use crate::scheduler::run::{Master, Running};
use crate::scheduler::tasks::State;
use crate::scheduler::{Eviction, MasterError, Outbox, Record, Start};

impl Master {
    /// Counts a gang from now on, for limits and as running.
    pub(super) fn count_gang(&mut self, task: TaskId) {
        self.running += 1;
        self.enter_share(task);
        if let Some(category) = self.category_of(task) {
            self.enter_category(category);
        }
    }

    /// Counts a gang no more, because its command does not run.
    fn discount_gang(&mut self, submit: SubmitId) {
        let Some(gang) = self.gangs.running.get_mut(&submit).filter(|gang| gang.counts) else {
            return;
        };
        gang.counts = false;
        let task = gang.task;
        self.running -= 1;
        if let Some(category) = self.category_of(task) {
            self.leave_category(category);
        }
        self.leave_share(task);
    }

    /// Handles [`Event::Joined`](crate::scheduler::Event::Joined).
    pub(in crate::scheduler) fn joined(&mut self, rank: Rank, submit: SubmitId, out: &mut impl Outbox) {
        let Some((_, gang)) = self.gangs.of_mut(rank).filter(|(of, _)| *of == submit) else {
            return;
        };
        if let Some(part) = gang.part_mut(rank) {
            part.has_joined = true;
        }
        self.begin_if_joined(submit, out);
    }

    /// Handles [`Event::NotJoined`](crate::scheduler::Event::NotJoined).
    pub(in crate::scheduler) fn not_joined(
        &mut self,
        rank: Rank,
        submit: SubmitId,
        is_answer: bool,
        out: &mut impl Outbox,
    ) {
        let host = self
            .slots
            .get((rank.0 as usize).wrapping_sub(1))
            .map(|slot| slot.host);
        let Some((_, gang)) = self.gangs.of_mut(rank).filter(|(of, _)| *of == submit) else {
            return;
        };
        let (task, is_joining) = (gang.task, gang.stage == Stage::Joining);
        let has_joined = gang.part_mut(rank).is_some_and(|part| part.has_joined);
        if !is_joining || has_joined {
            // It was asked to leave, and will say that it has.
            return;
        }
        *self.gangs.refusals.entry(task).or_default() += 1;
        if let Some(host) = host {
            self.note_refusal(task, host);
        }
        if is_answer {
            // It holds nothing, and is not asked to leave: the next attempt has the same number.
            self.release_part(rank, submit, out);
        }
        self.disband(submit, Next::Refused, out);
        self.end_if_all_left(submit, out);
        self.leave_if_idle(rank, out);
    }

    /// Lets the command of a gang start, once all members have joined.
    pub(super) fn begin_if_joined(&mut self, submit: SubmitId, out: &mut impl Outbox) {
        let Some(gang) = self.gangs.running.get_mut(&submit) else {
            return;
        };
        let is_complete = gang.parts.iter().all(|part| part.has_joined) || is_planted(Planted::EarlyLead);
        let lead = gang.parts.iter().find(|part| Some(part.rank) == gang.lead);
        let (Some(lead), true) = (lead, is_complete && gang.stage == Stage::Joining) else {
            return;
        };
        let (task, rank, host, grant) = (gang.task, lead.rank, lead.host, lead.granted());
        let is_alone = gang.parts.len() == 1;
        gang.stage = Stage::Running;
        self.gangs.refusals.remove(&task);
        let start = Start {
            task,
            submit,
            rank,
            attempt: self.failures.get(&task).map_or(1, |failures| failures + 1),
            grant,
        };
        if !is_alone {
            // Its slot was taken before: as views see it, the command takes it now.
            self.record_slots_beside(task, host, 1, out);
        }
        self.gang_started(task, submit, (rank, host), out);
        out.start(start);
    }

    /// Records that the command of a gang runs.
    pub(super) fn gang_started(
        &mut self,
        task: TaskId,
        submit: SubmitId,
        (rank, host): (Rank, u32),
        out: &mut impl Outbox,
    ) {
        // Its parts hold the resources.
        let running = Running {
            task,
            submit,
            block: None,
            gpus: GpuSet::default(),
        };
        self.runs_on((rank, host), running, out);
    }

    /// Handles what a worker that has a part of a gang, or has left one, says of the end of an attempt.
    pub(in crate::scheduler) fn gang_finished(
        &mut self,
        rank: Rank,
        result: &TaskResult,
        out: &mut impl Outbox,
    ) -> Result<(), MasterError> {
        let submit = result.submit;
        let holds = self.gangs.part_of.get(&rank) == Some(&submit);
        let runs = self
            .running_on(rank)
            .is_some_and(|(_, running)| running == submit);
        match (holds, runs) {
            (true, true) => self.lead_ended(rank, result, out),
            // It was not adopted.
            (true, false) => self.part_left(rank, submit, out),
            _ if self.gangs.has_left(rank, submit) => {}
            _ => return Err(MasterError::NotRunning { rank, submit }),
        }
        Ok(())
    }

    /// Handles the end of the command of a gang.
    fn lead_ended(&mut self, rank: Rank, result: &TaskResult, out: &mut impl Outbox) {
        let Some(gang) = self.gangs.running.get(&result.submit) else {
            return;
        };
        let (task, submit, outcome) = (gang.task, result.submit, result.outcome);
        let is_alone = gang.parts.len() == 1;
        let is_lost = gang.stage == Stage::Leaving(Next::Lost);
        let host = self.slots[rank.0 as usize - 1].host;
        self.summary.runtime = self.summary.runtime.saturating_add(outcome.runtime);
        self.charge_share(task, outcome.runtime);
        self.lead_is_gone(rank, submit);
        let is_quiet = is_alone || outcome.succeeded();
        self.take_part_back(rank, submit);
        if let Some(gang) = self.gangs.running.get_mut(&submit) {
            gang.is_quiet = is_quiet;
        }
        if !is_quiet {
            self.record_beside(task, host, out);
        }
        if outcome.succeeded() {
            // Whatever becomes of the hosts.
            self.disband(submit, Next::Nothing, out);
            out.record(self.end_record(task, submit, rank, outcome));
            self.record_resources(host, out);
            self.cache_index.read(host, self.nodes[task.index()].inputs);
            self.note_run_time(task, outcome.runtime);
            self.note_success(task, host);
            self.succeeded(task);
        } else if !is_lost {
            let is_cut = outcome.cause == Some(EndCause::Cut);
            self.disband(
                submit,
                Next::Judge {
                    rank,
                    outcome,
                    is_cut,
                },
                out,
            );
        }
        self.end_if_all_left(submit, out);
        self.leave_if_idle(rank, out);
    }

    /// Notes that the command of a gang does not run any more.
    fn lead_is_gone(&mut self, rank: Rank, submit: SubmitId) {
        let running = &mut self.slots[rank.0 as usize - 1].running;
        if let Some(running) = running.take_if(|running| running.submit == submit) {
            self.nodes[running.task.index()].state = State::Leaving;
            self.discount_gang(submit);
        }
    }

    /// Lets all hosts of a gang leave; `next` comes then, instead of what was to come before.
    pub(super) fn disband(&mut self, submit: SubmitId, next: Next, out: &mut impl Outbox) {
        let Some(gang) = self.gangs.running.get_mut(&submit) else {
            return;
        };
        let before = std::mem::replace(&mut gang.stage, Stage::Leaving(next));
        if let Stage::Leaving(_) = before {
            return;
        }
        for part in &gang.parts {
            // The lead of a gang that joins was told nothing.
            let is_asked = before != Stage::Joining || Some(part.rank) != gang.lead;
            if is_asked && !is_planted(Planted::NoLeave) {
                out.leave(part.rank, submit);
            }
        }
        if before != Stage::Running {
            self.discount_gang(submit);
        }
        if before == Stage::Joining {
            self.release_lead(submit, out);
        }
    }

    /// Gives back the lead of a gang that has not begun.
    fn release_lead(&mut self, submit: SubmitId, out: &mut impl Outbox) {
        let lead = self.gangs.running.get(&submit).and_then(|gang| gang.lead);
        if let Some(lead) = lead {
            self.release_part(lead, submit, out);
            self.leave_if_idle(lead, out);
        }
    }

    /// Handles [`Event::Left`](crate::scheduler::Event::Left).
    pub(in crate::scheduler) fn left(
        &mut self,
        rank: Rank,
        submit: SubmitId,
        is_cut: bool,
        out: &mut impl Outbox,
    ) {
        if self.gangs.part_of.get(&rank) != Some(&submit) {
            return;
        }
        self.note_cut(submit, is_cut);
        self.part_left(rank, submit, out);
    }

    /// Notes whether a host of a gang was cut off, whose command may have failed because of that.
    fn note_cut(&mut self, submit: SubmitId, is_cut: bool) {
        let gang = self.gangs.running.get_mut(&submit);
        if let Some(Stage::Leaving(Next::Judge { is_cut: any_cut, .. })) = gang.map(|gang| &mut gang.stage) {
            *any_cut |= is_cut;
        }
    }

    /// Notes that nothing of a gang is left on a worker. If the gang was not asked to leave, it was lost.
    pub(super) fn part_left(&mut self, rank: Rank, submit: SubmitId, out: &mut impl Outbox) {
        let Some(gang) = self.gangs.running.get(&submit) else {
            return;
        };
        let next = match gang.stage {
            Stage::Leaving(_) => None,
            Stage::Joining => Some(Next::Queue),
            Stage::Adopting(_) => Some(Next::Ready),
            Stage::Running => Some(Next::Lost),
        };
        self.lead_is_gone(rank, submit);
        self.release_part(rank, submit, out);
        if let Some(next) = next {
            self.disband(submit, next, out);
        }
        self.end_if_all_left(submit, out);
        self.leave_if_idle(rank, out);
    }

    /// Handles the loss of a worker.
    pub(in crate::scheduler) fn part_lost(&mut self, rank: Rank, out: &mut impl Outbox) {
        let submit = self.gangs.part_of.get(&rank).copied();
        if let Some(submit) = submit.filter(|_| !is_planted(Planted::LostMember)) {
            // Its command may have failed because of that.
            self.note_cut(submit, true);
            self.part_left(rank, submit, out);
        }
    }

    /// Gives back a part.
    fn release_part(&mut self, rank: Rank, submit: SubmitId, out: &mut impl Outbox) {
        let task = self.gangs.running.get(&submit).map(|gang| gang.task);
        if let (Some(task), Some(host)) = (task, self.take_part_back(rank, submit)) {
            self.record_beside(task, host, out);
        }
    }

    /// Like [`Master::release_part`], without a record. Returns the host.
    fn take_part_back(&mut self, rank: Rank, submit: SubmitId) -> Option<u32> {
        let gang = self.gangs.running.get_mut(&submit)?;
        let at = gang.parts.iter().position(|part| part.rank == rank)?;
        let Part {
            host,
            request,
            block,
            gpus,
            ..
        } = gang.parts.swap_remove(at);
        self.gangs.part_of.remove(&rank);
        self.gangs.left.insert(rank, submit);
        let takes_tasks = self.slots[rank.0 as usize - 1].member.takes_tasks();
        let is_prepared = !self.preparing.contains_key(&host);
        let offered = (takes_tasks && is_prepared).then_some(rank);
        self.hosts.give_back_part(host, offered, &request, (block, gpus));
        Some(host)
    }

    /// Decides what follows once all have left.
    pub(super) fn end_if_all_left(&mut self, submit: SubmitId, out: &mut impl Outbox) {
        let gang = self.gangs.running.get(&submit);
        let has_left = |gang: &RunningGang| gang.parts.is_empty() || is_planted(Planted::EarlyNextAttempt);
        if !gang.is_some_and(|gang| has_left(gang) && !gang.is_active()) {
            return;
        }
        let Some(gang) = self.gangs.running.remove(&submit) else {
            return;
        };
        let (task, lead, is_quiet) = (gang.task, gang.lead.unwrap_or(Rank(0)), gang.is_quiet);
        let Stage::Leaving(next) = gang.stage else {
            return;
        };
        match next {
            Next::Nothing => {}
            Next::Lost => self.lose_gang(task, submit, (lead, is_quiet), out),
            Next::Judge {
                rank,
                outcome,
                is_cut,
            } => {
                if is_cut && !outcome.is_evicted() && !is_planted(Planted::CutIsFailure) {
                    self.lose_gang(task, submit, (rank, is_quiet), out);
                } else {
                    self.judge_gang(task, submit, (rank, is_quiet), &outcome, out);
                }
            }
            Next::Queue => self.queue_again(task),
            Next::Refused => {
                if self.gangs.refusals.get(&task).copied().unwrap_or(0) < MAX_REFUSALS {
                    self.queue_again(task);
                    return;
                }
                self.gangs.refusals.remove(&task);
                out.record(Record::Started(task, submit, lead));
                self.record_start_without_slot(task, lead, out);
                self.summary_of(task).submitted += 1;
                let outcome = Outcome::new(EXECUTOR_FAILURE, Duration::ZERO);
                self.judge_gang(task, submit, (lead, true), &outcome, out);
            }
            Next::Ready => {
                self.nodes[task.index()].state = State::Ready;
                self.ready.push(task);
            }
        }
    }

    /// Puts a task back into the queue whose gang did not come together.
    fn queue_again(&mut self, task: TaskId) {
        if self.is_withdrawn(task) {
            self.withdraw(task);
            return;
        }
        self.avoid(task);
        self.nodes[task.index()].state = State::Queued;
        self.queue.put_back(&mut self.nodes, task);
    }

    fn lose_gang(
        &mut self,
        task: TaskId,
        submit: SubmitId,
        (rank, is_quiet): (Rank, bool),
        out: &mut impl Outbox,
    ) {
        self.lose_attempt(task, submit, rank, out);
        self.record_end(task, (rank, is_quiet), out);
    }

    /// Ends an attempt that has not succeeded.
    fn judge_gang(
        &mut self,
        task: TaskId,
        submit: SubmitId,
        (rank, is_quiet): (Rank, bool),
        outcome: &Outcome,
        out: &mut impl Outbox,
    ) {
        let host = self.slots[rank.0 as usize - 1].host;
        self.cache_index.fails(host, self.nodes[task.index()].inputs);
        if outcome.is_evicted() {
            let record = Record::Evicted {
                task,
                submit,
                rank,
                why: Eviction::of(outcome),
            };
            self.evicted(task, record, out);
            self.record_end(task, (rank, is_quiet), out);
            return;
        }
        out.record(self.end_record(task, submit, rank, *outcome));
        self.record_end(task, (rank, is_quiet), out);
        self.note_failure(task, host, outcome);
        self.failed(task, outcome, out);
    }

    /// Records what is free on the host of a command that has ended. Unless `is_quiet`, its slot was given
    /// back before: as views see it, the command gives it back now.
    fn record_end(&self, task: TaskId, (rank, is_quiet): (Rank, bool), out: &mut impl Outbox) {
        let slot = (rank.0 as usize)
            .checked_sub(1)
            .and_then(|index| self.slots.get(index));
        if let Some(slot) = slot {
            if !is_quiet {
                self.record_slots_beside(task, slot.host, -1, out);
            }
            self.record_resources(slot.host, out);
        }
    }

    /// Records that a command starts that ends at once, as if it had a slot.
    fn record_start_without_slot(&self, task: TaskId, rank: Rank, out: &mut impl Outbox) {
        let host = self.slots[rank.0 as usize - 1].host;
        self.record_slots_beside(task, host, 1, out);
        self.record_resources(host, out);
        self.record_slots_beside(task, host, -1, out);
    }

    /// Ends what has not begun, because no more tasks start.
    pub(in crate::scheduler) fn stop_joining(&mut self, out: &mut impl Outbox) {
        let running = &self.gangs.running;
        let joining = running.iter().filter(|(_, gang)| gang.stage == Stage::Joining);
        let joining: Vec<SubmitId> = joining.map(|(submit, _)| *submit).collect();
        for submit in joining {
            self.disband(submit, Next::Queue, out);
            self.end_if_all_left(submit, out);
        }
    }

    /// Gangs that are to join, with the workers that have not: tasks of the run that wait for their hosts.
    pub fn joining(&self) -> impl Iterator<Item = (SubmitId, TaskId, Vec<Rank>)> + '_ {
        let joining = self.gangs.running.iter();
        let joining = joining.filter(|(_, gang)| matches!(gang.stage, Stage::Joining | Stage::Adopting(_)));
        joining.map(|(submit, gang)| {
            let missing = gang.parts.iter().filter(|part| !part.has_joined);
            (*submit, gang.task, missing.map(|part| part.rank).collect())
        })
    }
}
