//! What an agent knows about a master that it cannot reach, and how long its tasks may go on.
//!
//! If nobody listens where the master was, it has died. No master has given the tasks of this agent to others
//! until then, if they were its own, and the next one waits for a lease before it does. So they may go on for
//! a lease from the beginning of that attempt to connect. Each further attempt gives them another lease, but
//! not one that begins after the last lease is over: meanwhile, there may have been a master.

use std::time::{Duration, Instant};

use pmc_system::clock;

pub(super) struct Absence {
    /// `None` while there is a connection.
    since: Option<Instant>,
    /// When the last attempt to connect began.
    tried_at: Instant,
    /// At that time, the tasks of this agent were its own.
    was_held: bool,
    /// At that time, there was no endpoint of a next master.
    pub(super) is_alone: bool,
    /// When the last attempt began that has shown that the master has died.
    dead_at: Option<Instant>,
}

impl Absence {
    pub(super) fn new() -> Self {
        let now = clock::now();
        Self {
            since: Some(now),
            tried_at: now,
            was_held: false,
            is_alone: false,
            dead_at: None,
        }
    }

    /// The master is there.
    pub(super) fn end(&mut self) {
        (self.since, self.dead_at) = (None, None);
    }

    /// For how long it cannot be reached.
    pub(super) fn waited(&self) -> Duration {
        self.since.map_or(Duration::ZERO, clock::elapsed)
    }

    /// An attempt to connect begins, while so much is left of the lease that the master has given.
    pub(super) fn try_again(&mut self, left: Duration, lease: Duration) {
        let now = clock::now();
        self.was_held = !left.is_zero() || !self.hold(now, lease).is_zero();
        (self.tried_at, self.is_alone) = (now, false);
    }

    /// Notes that the master has died, as the last attempt has shown. Returns whether that is new.
    pub(super) fn note_death(&mut self) -> bool {
        let is_new = self.was_held && self.dead_at.is_none();
        if self.was_held {
            self.dead_at = Some(self.tried_at);
        }
        is_new
    }

    /// For how long tasks may go on because the master has died.
    pub(super) fn hold(&self, now: Instant, lease: Duration) -> Duration {
        let waited = self.dead_at.map(|at| now.saturating_duration_since(at));
        waited.map_or(Duration::ZERO, |waited| lease.saturating_sub(waited))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(3600);

    #[test]
    fn tasks_go_on_for_a_lease_from_the_attempt_that_has_found_nobody() {
        let mut absence = Absence::new();
        let hold = |absence: &Absence, after| absence.hold(absence.tried_at + after, LEASE);
        assert!(hold(&absence, Duration::ZERO).is_zero());
        absence.try_again(LEASE, LEASE);
        assert!(absence.note_death());
        assert_eq!(hold(&absence, Duration::ZERO), LEASE);
        assert_eq!(hold(&absence, LEASE / 4), LEASE / 4 * 3);
        assert!(hold(&absence, LEASE).is_zero());
        // The lease of the master itself is over, but not this one.
        absence.try_again(Duration::ZERO, LEASE);
        assert!(!absence.note_death(), "it is known");
        assert_eq!(absence.dead_at, Some(absence.tried_at));
    }

    /// The host stood still: there may have been a master since.
    #[test]
    fn tasks_whose_lease_is_over_do_not_go_on() {
        let mut absence = Absence::new();
        absence.try_again(Duration::ZERO, LEASE);
        assert!(!absence.note_death());
        assert_eq!(absence.dead_at, None);
        absence.dead_at = absence.tried_at.checked_sub(LEASE);
        absence.try_again(Duration::ZERO, LEASE);
        absence.note_death();
        assert!(absence.hold(absence.tried_at, LEASE).is_zero());
    }
}
