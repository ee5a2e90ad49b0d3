//! Answers tools that redirect the output of the task: in portions, one for each request.

use std::time::{Duration, Instant};

use super::kill::KillSwitch;
use crate::bell::Bell;
use crate::protocol::{By, Redirect, Redirected};
use crate::transport::local::StopTask as _;

/// Time after which a request is answered if nothing has come.
const PATIENCE: Duration = Duration::from_millis(500);
/// Time after an answer in which the tool may ask again.
const BUSY: Duration = Duration::from_millis(20);

/// Requests that wait for output.
#[derive(Debug, Default)]
pub(super) struct Redirects {
    waiting: Vec<(Redirect, Instant)>,
    busy_until: Option<Instant>,
}

impl Redirects {
    /// Returns whether a tool waits for an answer, or may ask soon.
    pub(super) fn is_busy(&self) -> bool {
        !self.waiting.is_empty() || self.busy_until.is_some_and(|until| Instant::now() < until)
    }

    /// Takes a request.
    pub(super) fn begin(&mut self, redirect: Redirect) {
        let now = Instant::now();
        let until = if redirect.may_wait { now + PATIENCE } else { now };
        self.waiting.push((redirect, until));
    }

    /// Returns the answers that are due, in the order of the requests. The bell rings when a task writes for
    /// which a request waits.
    pub(super) fn answers(&mut self, kill: &KillSwitch, bell: Option<&Bell>) -> Vec<Redirected> {
        let mut answers = Vec::new();
        let now = Instant::now();
        // Redirects with a request that still waits. Output that comes now is for that request: the run takes
        // the answers in the order of its requests.
        let mut held = Vec::new();
        self.waiting.retain(|(redirect, until)| {
            let of = (redirect.submit, redirect.poll.claim.token);
            let by = match redirect.by {
                By::Run { .. } if held.contains(&of) => By::Run { has_room: false },
                by => by,
            };
            let answer = match kill.relay(redirect.submit) {
                Ok(relay) => relay.poll_or_ring(&redirect.poll, by, bell),
                Err(answer) => answer,
            };
            let is_due = !answer.is_empty() || *until <= now;
            if !is_due {
                held.push(of);
            }
            if is_due {
                let number = redirect.number;
                answers.push(Redirected { number, answer });
            }
            !is_due
        });
        if !answers.is_empty() {
            self.busy_until = Some(now + BUSY);
        }
        answers
    }
}
