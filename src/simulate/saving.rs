//! Tasks of simulated runs that save their state: what an attempt takes, and what of it outlives the loss of
//! its node.

use std::time::Duration;

use super::{Time, micros};

/// How tasks save their state. Each does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Saving {
    /// Work from one save to the next; longer than nothing.
    pub every: Duration,
    /// Time of a save, in which the task does nothing else. Reading it in the next attempt takes as long.
    pub cost: Duration,
}

/// An attempt of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Attempt {
    /// Work that is left to do.
    work: Time,
    /// Time before the work, in which the task reads what it has saved.
    reading: Time,
    every: Time,
    cost: Time,
}

impl Attempt {
    /// The attempt of a task that has this much work, and has saved some of it in earlier attempts.
    pub(super) fn new(saving: Option<Saving>, work: Time, saved: Time) -> Self {
        let (every, cost) = saving.map_or((Time::MAX, 0), |saving| {
            (micros(saving.every).max(1), micros(saving.cost))
        });
        Self {
            work: work - saved,
            reading: if saved > 0 { cost } else { 0 },
            every,
            cost,
        }
    }

    /// Saves until the end of the work. At the end, there is none.
    fn saves(&self) -> Time {
        self.work.saturating_sub(1) / self.every
    }

    /// Time in which it saves and reads, if it is not lost.
    pub(super) fn extra(&self) -> Time {
        self.reading
            .saturating_add(self.saves().saturating_mul(self.cost))
    }

    /// Time until its end, if it is not lost.
    pub(super) fn time(&self) -> Time {
        self.work.saturating_add(self.extra())
    }

    /// Saves until this time since its start.
    fn saves_until(&self, ran: Time) -> Time {
        let round = self.every.saturating_add(self.cost);
        (ran.saturating_sub(self.reading) / round).min(self.saves())
    }

    /// Work that is saved when it is lost after this time.
    pub(super) fn saved(&self, ran: Time) -> Time {
        self.saves_until(ran).saturating_mul(self.every)
    }

    /// Time in which it has saved and read, if it is lost after this time.
    pub(super) fn extra_until(&self, ran: Time) -> Time {
        let saves = self.saves_until(ran).saturating_mul(self.cost);
        saves.saturating_add(self.reading.min(ran))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Time = 1_000_000;

    fn attempt(work: u64, saved: u64) -> Attempt {
        let saving = Saving {
            every: Duration::from_secs(10),
            cost: Duration::from_secs(2),
        };
        Attempt::new(Some(saving), work * SECOND, saved * SECOND)
    }

    #[test]
    fn an_attempt_takes_its_work_and_its_saves() {
        let times = [0, 1, 10, 11, 35].map(|work| attempt(work, 0).time() / SECOND);
        assert_eq!(times, [0, 1, 10, 13, 41]);
        // It reads what it has saved, and does the rest.
        assert_eq!(attempt(35, 20).time() / SECOND, 2 + 15 + 2);
        assert_eq!(Attempt::new(None, 35, 0).time(), 35);
    }

    #[test]
    fn whole_saves_outlive_an_attempt() {
        let saved = |ran: u64| attempt(35, 0).saved(ran * SECOND) / SECOND;
        assert_eq!([0, 11, 12, 23, 24, 40].map(saved), [0, 0, 10, 10, 20, 30]);
        let again = |ran: u64| attempt(35, 20).saved(ran * SECOND) / SECOND;
        assert_eq!([0, 13, 14, 18].map(again), [0, 0, 10, 10]);
        assert_eq!(Attempt::new(None, 35, 0).saved(30), 0);
        let extra = |ran: u64| attempt(35, 20).extra_until(ran * SECOND) / SECOND;
        assert_eq!([0, 1, 13, 14, 18].map(extra), [0, 1, 2, 4, 4]);
    }
}
