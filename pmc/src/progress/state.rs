//! Counts of a run in progress. Uses no clock and no terminal.

use std::time::Duration;

use crate::text;

/// Width of the bar in characters.
const BAR_WIDTH: usize = 24;

/// Start or end of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// An attempt started.
    Started,
    /// An attempt was evicted, and runs again.
    Evicted {
        /// Name of the task.
        task: String,
        /// What has happened to it, for instance `lost with its host`.
        how: &'static str,
    },
    /// Something that the user should know.
    Notice(String),
    /// An attempt ended.
    Ended {
        /// Name of the task.
        task: String,
        /// How it ended.
        outcome: Outcome,
    },
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It succeeded.
    Succeeded,
    /// The task failed, for instance with `exit status 3`.
    Failed(String),
    /// The attempt failed, and the task will be retried.
    WillRetry(String),
}

/// Counts of tasks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Tasks of the workflow.
    pub total: usize,
    /// Tasks that succeeded, those of earlier runs included.
    pub succeeded: usize,
    /// Tasks that failed for good.
    pub failed: usize,
    /// Running attempts.
    pub running: usize,
}

impl State {
    /// Counts an event. Returns a line to show at once, if any.
    pub fn note(&mut self, event: &Event) -> Option<String> {
        match event {
            Event::Started => {
                self.running += 1;
                None
            }
            Event::Evicted { task, how } => {
                self.running = self.running.saturating_sub(1);
                Some(format!("{how}, runs again: {task}"))
            }
            Event::Notice(text) => Some(format!("warning: {text}")),
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
                    Outcome::WillRetry(how) => Some(format!("will be retried: {task} ({how})")),
                }
            }
        }
    }

    /// Renders the bar and the counts, for a terminal.
    pub fn bar(&self, elapsed: Duration) -> String {
        let filled = (self.succeeded * BAR_WIDTH)
            .checked_div(self.total)
            .unwrap_or(BAR_WIDTH)
            .min(BAR_WIDTH);
        format!(
            "[{}{}] {}",
            "#".repeat(filled),
            "-".repeat(BAR_WIDTH - filled),
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

    /// Renders the counts in one line.
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
        let lost = state.note(&Event::Evicted {
            task: "a".into(),
            how: "lost with its host",
        });
        assert_eq!(lost.as_deref(), Some("lost with its host, runs again: a"));
        assert_eq!((state.running, state.failed), (1, 0));
        assert_eq!(state.note(&Event::Started), None);
        assert_eq!(state.note(&ended("a", Outcome::Succeeded)), None);
        let retry = state.note(&ended("b", Outcome::WillRetry("exit status 3".into())));
        assert_eq!(retry.as_deref(), Some("will be retried: b (exit status 3)"));
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
