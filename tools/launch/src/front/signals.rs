//! Signals to the front end, and what they mean for the ranks.

use std::io;
use std::sync::mpsc::Sender;

use signal_hook::consts::{SIGHUP, SIGINT, SIGKILL, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

use super::{Event, spawn};

/// Signals that are handled.
const HANDLED: [i32; 5] = [SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2];

/// What follows a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The ranks get this signal.
    Pass(i32),
    /// This program ends at once; the proxies then kill the ranks.
    Leave,
}

/// Interrupts so far.
#[derive(Debug, Default)]
pub(super) struct Interrupts(u32);

impl Interrupts {
    /// What a signal means: the first interrupt ends the ranks, the second one kills them, the third one ends
    /// this program. A request to end counts as an interrupt.
    pub(super) fn next(&mut self, signal: i32) -> Step {
        if signal == SIGUSR1 || signal == SIGUSR2 {
            return Step::Pass(signal);
        }
        self.0 += 1;
        match self.0 {
            1 => Step::Pass(SIGTERM),
            2 => Step::Pass(SIGKILL),
            _ => Step::Leave,
        }
    }
}

/// Turns signals into events.
pub(super) fn listen(events: &Sender<Event>) -> io::Result<()> {
    let (mut signals, events) = (Signals::new(HANDLED)?, events.clone());
    let pass = move || {
        for signal in signals.forever() {
            if events.send(Event::Signal(signal)).is_err() {
                return;
            }
        }
    };
    spawn("signals", pass).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interrupts_become_stronger() {
        let mut interrupts = Interrupts::default();
        let steps = [SIGUSR1, SIGINT, SIGUSR2, SIGINT, SIGINT].map(|signal| interrupts.next(signal));
        assert_eq!(
            steps,
            [
                Step::Pass(SIGUSR1),
                Step::Pass(SIGTERM),
                Step::Pass(SIGUSR2),
                Step::Pass(SIGKILL),
                Step::Leave
            ]
        );
    }
}
