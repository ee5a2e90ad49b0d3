//! What is known of a run while it goes on. No clock, no terminal.

use std::time::Duration;

use crate::text;

/// Width of the bar.
const BAR: usize = 24;

/// Something that happened to a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A try began.
    Started,
    /// A try ended.
    Ended {
        /// Name of the task.
        task: String,
        /// How it ended.
        outcome: Outcome,
    },
}

/// How a try ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Well.
    Succeeded,
    /// Badly; text such as `exit status 3`.
    Failed(String),
    /// Badly, and the task will be tried again.
    WillRetry(String),
}

/// Counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Tasks of the workflow.
    pub total: usize,
    /// Tasks that succeeded, those of earlier runs included.
    pub succeeded: usize,
    /// Tasks that failed for good.
    pub failed: usize,
    /// Tries that are running.
    pub running: usize,
}

impl State {
    /// Takes note of an event. Returns a line worth showing at once, if there is one.
    pub fn note(&mut self, event: &Event) -> Option<String> {
        match event {
            Event::Started => {
                self.running += 1;
                None
            }
            Event::Ended { task, outcome } => {
                self.running = self.running.saturating_sub(1);
                match outcome {
                    Outcome::Succeeded => {
                        self.succeeded += 1;
                        None
                    }
                    Outcome::Failed(how) => {
                        self.failed += 1;
                        Some(format!("failed: {task} ({how})"))
                    }
                    Outcome::WillRetry(how) => Some(format!("will be tried again: {task} ({how})")),
                }
            }
        }
    }

    /// The bar and the state, for a terminal.
    pub fn bar(&self, elapsed: Duration) -> String {
        let filled = (self.succeeded * BAR)
            .checked_div(self.total)
            .unwrap_or(BAR)
            .min(BAR);
        format!(
            "[{}{}] {}",
            "#".repeat(filled),
            "-".repeat(BAR - filled),
            self.line(elapsed)
        )
    }

    /// `3 running, 1 failed, 12 s`.
    fn tail(&self, elapsed: Duration) -> String {
        let mut tail = format!("{} running", self.running);
        if self.failed > 0 {
            tail.push_str(&format!(", {} failed", self.failed));
        }
        format!("{tail}, {}", text::duration(elapsed))
    }

    /// The whole state in one line, for places without a terminal.
    pub fn line(&self, elapsed: Duration) -> String {
        format!(
            "{} of {} tasks done, {}",
            self.succeeded,
            self.total,
            self.tail(elapsed)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(task: &str, outcome: Outcome) -> Event {
        Event::Ended {
            task: task.into(),
            outcome,
        }
    }

    #[test]
    fn counts_follow_events() {
        let mut state = State {
            total: 4,
            succeeded: 1,
            ..State::default()
        };
        assert_eq!(state.note(&Event::Started), None);
        assert_eq!(state.note(&Event::Started), None);
        assert_eq!(
            state.line(Duration::from_secs(5)),
            "1 of 4 tasks done, 2 running, 5.0 s"
        );
        assert_eq!(state.note(&ended("a", Outcome::Succeeded)), None);
        let retry = state.note(&ended("b", Outcome::WillRetry("exit status 3".into())));
        assert_eq!(retry.as_deref(), Some("will be tried again: b (exit status 3)"));
        state.note(&Event::Started);
        let line = state.note(&ended("b", Outcome::Failed("signal 9 (SIGKILL)".into())));
        assert_eq!(line.as_deref(), Some("failed: b (signal 9 (SIGKILL))"));
        assert_eq!(
            state,
            State {
                total: 4,
                succeeded: 2,
                failed: 1,
                running: 0
            }
        );
        assert_eq!(
            state.line(Duration::from_secs(75)),
            "2 of 4 tasks done, 0 running, 1 failed, 1 min 15 s"
        );
    }
}
