//! What a guard knows of its agent: the lease, the session, and how long it waits for a master. It has no
//! clock and no process.

use std::time::{Duration, Instant};

use pmc_system::planted::{Planted, is_planted};

/// Bytes of a message: epoch, session, milliseconds of the lease and of the patience.
pub const MESSAGE: usize = 32;

/// Time that tasks have after the lease, until the guard kills the agent. The agent itself needs half a
/// second, and the master waits a second longer than the lease, at least.
const MARGIN: Duration = Duration::from_millis(800);

/// How often an agent that was killed is started again, at most.
pub const MAX_RESTARTS: u32 = 10;

/// How often the guard looks at the lease.
pub const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// What the agent has said last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Guarded {
    /// Its session, if it has one: epoch and number.
    session: Option<(u64, u64)>,
    /// When its tasks must have ended.
    until: Option<Instant>,
    /// When it would no longer wait for a master, if it has said so.
    waits_until: Option<Instant>,
}

/// Encodes for how long tasks may run from now on, `None` if there are none, and for how long the agent waits
/// for a master that it does not reach.
#[must_use]
pub fn message(session: Option<(u64, u64)>, time: Option<Duration>, patience: Duration) -> [u8; MESSAGE] {
    let (epoch, session) = session.unwrap_or_default();
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let numbers = [epoch, session, time.map_or(u64::MAX, millis), millis(patience)];
    let mut message = [0; MESSAGE];
    for (part, number) in message.chunks_exact_mut(8).zip(numbers) {
        part.copy_from_slice(&number.to_le_bytes());
    }
    message
}

impl Guarded {
    /// Takes what the agent says.
    pub fn hear(&mut self, message: &[u8; MESSAGE], now: Instant) {
        let mut numbers = message.chunks_exact(8).map(|part| {
            let mut number = [0; 8];
            number.copy_from_slice(part);
            u64::from_le_bytes(number)
        });
        let mut next = || numbers.next().unwrap_or(0);
        let (epoch, session, time, patience) = (next(), next(), next(), next());
        if (epoch, session) != (0, 0) {
            self.session = Some((epoch, session));
        }
        self.until = (time != u64::MAX)
            .then(|| now.checked_add(Duration::from_millis(time) + MARGIN))
            .flatten();
        self.waits_until = now.checked_add(Duration::from_millis(patience));
    }

    /// True if the agent has let its lease pass: it must be killed.
    #[must_use]
    pub fn is_over(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now >= until) && !is_planted(Planted::PatientGuard)
    }

    /// When the tasks of the agent must have ended, if it has some.
    #[cfg(feature = "simulated")]
    #[must_use]
    pub fn ends_at(&self) -> Option<Instant> {
        self.until
    }

    /// Returns what is known of the next agent, after this one and all its tasks have ended.
    #[must_use]
    pub fn next(self) -> Self {
        Self { until: None, ..self }
    }

    /// The session whose tasks have ended.
    #[must_use]
    pub fn session(&self) -> Option<(u64, u64)> {
        self.session
    }

    /// For how long the agent would still wait for a master, if it has said so.
    #[must_use]
    pub fn patience(&self, now: Instant) -> Option<Duration> {
        self.waits_until.map(|until| until.saturating_duration_since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agent_is_killed_a_moment_after_its_lease() {
        let (mut guarded, now) = (Guarded::default(), Instant::now());
        assert!(!guarded.is_over(now), "it has no tasks");
        let second = Duration::from_secs(1);
        guarded.hear(&message(Some((1, 7)), Some(second), 5 * second), now);
        assert!(!guarded.is_over(now + second));
        assert!(guarded.is_over(now + second + MARGIN));
        // The tasks have ended.
        guarded.hear(&message(None, None, 4 * second), now + second);
        assert!(!guarded.is_over(now + 9 * second));
        let next = guarded.next();
        assert_eq!(next.session(), Some((1, 7)));
        assert_eq!(next.patience(now + 2 * second), Some(3 * second));
    }
}
