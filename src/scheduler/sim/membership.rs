//! Workers that come, fall silent, come back, leave and are lost at random moments.

use pmc_dag::TaskId;
use testutils::Random;

use super::model::{Model, State};
use super::plans::random_worker;
use super::{Report, Slots};
use crate::protocol::{Rank, Registration, SubmitId};
use crate::scheduler::{Adoption, Event, Master, MasterError};

/// Submit numbers of an earlier master.
const EARLIER: u64 = 1000;

/// What may happen to the workers of a run.
#[derive(Default)]
pub(super) struct Membership {
    last_rank: u32,
    /// Attempts of an earlier master that may still run.
    earlier: Vec<(TaskId, SubmitId)>,
    /// Workers that may still come, apart from those without which the run could not end.
    joins_left: u32,
}

impl Membership {
    /// Some tasks may have been started by an earlier master.
    pub(super) fn expect_earlier(
        &mut self,
        master: &mut Master,
        model: &mut Model,
        random: &mut Random,
    ) -> Result<(), MasterError> {
        self.joins_left = 30;
        if random.one_in(2) {
            for (number, task) in (EARLIER..).zip(model.ready()) {
                if random.one_in(4) {
                    let submit = SubmitId(number);
                    model.expect(task, submit);
                    master.handle(Event::Expect(task, submit), model)?;
                    self.earlier.push((task, submit));
                }
            }
        }
        Ok(())
    }

    /// Causes a random event.
    pub(super) fn disturb(
        &mut self,
        master: &mut Master,
        model: &mut Model,
        at: &mut Slots,
        (now, random): (u64, &mut Random),
    ) -> Result<(), MasterError> {
        let rank = Rank(1 + random.below(u64::from(self.last_rank) + 1) as u32);
        let member = model.member(rank);
        match random.below(8) {
            0 | 1 if self.joins_left > 0 => {
                self.joins_left -= 1;
                let registration = random_worker(random);
                let rank = self.join(master, model, &registration, random)?;
                while random.one_in(2) && model.is_idle(rank) && !self.earlier.is_empty() {
                    self.adopt(master, model, at, rank, (now, random))?;
                }
            }
            2 if !self.earlier.is_empty() => {
                let (task, _) = self.earlier.remove(0);
                model.forget(task);
                master.handle(Event::Forget(task), model)?;
            }
            _ if member.gone => {}
            3 => {
                model.change(rank, |member| member.silent = true);
                master.handle(Event::Silent(rank), model)?;
            }
            4 => {
                model.change(rank, |member| member.silent = false);
                master.handle(Event::Back(rank), model)?;
            }
            5 | 6 => self.lose(master, model, at, rank)?,
            7 if random.one_in(3) => {
                model.change(rank, |member| member.leaving = true);
                master.handle(Event::Retire(rank), model)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Causes the event without which the run cannot go on.
    pub(super) fn help(
        &mut self,
        master: &mut Master,
        model: &mut Model,
        at: &mut Slots,
        random: &mut Random,
    ) -> Result<(), String> {
        let failed = |error: MasterError| error.to_string();
        if let Some((task, _)) = self.earlier.pop() {
            model.forget(task);
            return master.handle(Event::Forget(task), model).map_err(failed);
        }
        let stranded = master.stranded();
        if model.may_go_on() == stranded.is_some() {
            return Err(format!("{stranded:?} cannot go on, or can"));
        }
        if stranded.is_none() {
            let is_silent = |rank: &Rank| model.member(*rank).silent && !model.member(*rank).gone;
            let silent = (1..=self.last_rank).map(Rank).find(is_silent);
            let Some(rank) = silent else {
                return Err("the run does not go on, but no worker is silent".to_owned());
            };
            if random.one_in(2) {
                return self.lose(master, model, at, rank).map_err(failed);
            }
            model.change(rank, |member| member.silent = false);
            return master.handle(Event::Back(rank), model).map_err(failed);
        }
        let registration = Registration {
            host: format!("large{}", random.below(3)),
            memory_mb: 9000,
            threads: 16,
            cores: 16,
            sockets: 1,
            gpus: 4,
            away: false,
        };
        self.join(master, model, &registration, random)
            .map(|_| ())
            .map_err(failed)
    }

    pub(super) fn join(
        &mut self,
        master: &mut Master,
        model: &mut Model,
        registration: &Registration,
        random: &mut Random,
    ) -> Result<Rank, MasterError> {
        // Ranks need not come in order.
        self.last_rank += 1 + random.below(2) as u32;
        let rank = Rank(self.last_rank);
        model.join(rank, registration);
        master.handle(Event::Registered(rank, registration.clone()), model)?;
        Ok(rank)
    }

    fn adopt(
        &mut self,
        master: &mut Master,
        model: &mut Model,
        at: &mut Slots,
        rank: Rank,
        (now, random): (u64, &mut Random),
    ) -> Result<(), MasterError> {
        let Some((task, submit)) = self.earlier.pop() else {
            return Ok(());
        };
        let adoption = Adoption {
            task,
            submit,
            cpus: Vec::new(),
            gpus: Vec::new(),
        };
        match master.handle(Event::Adopt(rank, adoption), model) {
            Ok(()) => {
                at.run(rank, submit, now, random);
                Ok(())
            }
            Err(MasterError::NotAdopted { .. }) if model.state(task) == State::Expected => {
                model.forget(task);
                master.handle(Event::Forget(task), model)
            }
            Err(error) => Err(error),
        }
    }

    fn lose(
        &mut self,
        master: &mut Master,
        model: &mut Model,
        at: &mut Slots,
        rank: Rank,
    ) -> Result<(), MasterError> {
        model.change(rank, |member| member.gone = true);
        master.handle(Event::Lost(rank), model)?;
        model.leave(rank);
        at.lose(rank);
        // Saying it again changes nothing.
        master.handle(Event::Lost(rank), model)?;
        master.handle(Event::Back(rank), model)
    }
}

impl Slots {
    /// Takes the tasks of a lost worker. What it has sent may still arrive.
    fn lose(&mut self, rank: Rank) {
        self.of(rank).clear();
    }
}

impl Report {
    /// As an event, if it comes from a worker that is gone.
    pub(super) fn late(self, rank: Rank) -> Event {
        match self {
            Self::Ended(submit) => Event::Finished(rank, super::random_result(submit, 0, &mut Random(1))),
            Self::Retracted(submits) => Event::Retracted(rank, submits),
        }
    }
}
