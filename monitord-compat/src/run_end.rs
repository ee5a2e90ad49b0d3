//! How a run ended: `NAME.dag.end`, a line of JSON, which the executor writes and `pmc supervise` and views
//! read. A run that was killed has no such file.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Maximum bytes of the file.
pub const MAX_SIZE: u64 = 64 << 10;

/// Maximum characters of a message.
const MAX_MESSAGE: usize = 4096;

/// What the system says when a file system, or what a user may have of it, is full.
const FULL_DISK: [&str; 2] = ["No space left on device", "Disk quota exceeded"];

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndOfRun {
    /// Why.
    #[serde(flatten)]
    pub end: RunEnd,
    /// Tasks that are done, in this run or before.
    pub done: usize,
    /// Tasks that are not.
    pub left: usize,
    /// Attempts that have saved themselves.
    #[serde(default)]
    pub saved: u64,
    /// Hosts of agents that were there and are not any more.
    pub lost_nodes: Vec<String>,
    /// How long it took.
    pub seconds: u64,
}

/// Why a run ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "end", rename_all = "kebab-case")]
pub enum RunEnd {
    /// All tasks are done.
    Success,
    /// Nothing was left that could run, and tasks are not done.
    Failed,
    /// The end of a task ended it (`--abort-on`).
    TaskAbort,
    /// It was asked to start no more tasks, and those that ran have ended.
    Drained {
        /// Who asked.
        by: DrainedBy,
    },
    /// Its wall time was over.
    #[serde(rename = "time")]
    WallTime,
    /// What was left would not have ended before its wall time, so that it did not start.
    HeldBack,
    /// Nodes were lost, and nothing that was left fitted on the others, or no agent has come.
    Stranded {
        /// The message of the run.
        message: String,
    },
    /// A signal stopped it.
    #[serde(rename = "stopped")]
    Signal {
        /// Number of the signal.
        signal: i32,
    },
    /// An error did.
    Error {
        /// Its message.
        message: String,
    },
}

/// Who has asked a run to drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DrainedBy {
    /// A user: `pmc drain`.
    User,
    /// The batch system, before the end of the time (SIGUSR1).
    Time,
    /// The batch system, at the end (SIGTERM).
    Term,
    /// The site, by its file.
    Site,
}

impl EndOfRun {
    /// Returns the line of the file.
    #[must_use]
    pub fn line(&self) -> String {
        // Numbers and texts have a form in JSON.
        serde_json::to_string(self).unwrap_or_default() + "\n"
    }

    /// Reads the line; `None` if it is incomplete, or of another version.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text.strip_suffix('\n')?).ok()
    }

    /// Reads the file of a DAG.
    #[must_use]
    pub fn of(dag: &Path) -> Option<Self> {
        // That of another user is not followed, and a run may be at work.
        Self::parse(&pmc_files::read_to_string(&RunEnd::path(dag), MAX_SIZE).ok()?)
    }
}

impl RunEnd {
    /// Returns the path of the file for a DAG.
    #[must_use]
    pub fn path(dag: &Path) -> PathBuf {
        pmc_files::with_suffix(dag, ".end")
    }

    /// The end by an error. A message in several lines becomes one.
    #[must_use]
    pub fn error(message: &str) -> Self {
        let message = one_line(message);
        Self::Error { message }
    }

    /// The end of a run that nothing that is left fits. A message in several lines becomes one.
    #[must_use]
    pub fn stranded(message: &str) -> Self {
        let message = one_line(message);
        Self::Stranded { message }
    }

    /// Returns whether it ended before its work was done.
    #[must_use]
    pub fn is_early(&self) -> bool {
        !matches!(self, Self::Success | Self::Failed | Self::TaskAbort)
    }

    /// Returns whether it ended the tasks that ran.
    #[must_use]
    pub fn ends_tasks(&self) -> bool {
        !matches!(
            self,
            Self::Drained { .. } | Self::HeldBack | Self::Success | Self::Failed
        )
    }

    /// Returns whether it ended because a file system was full.
    #[must_use]
    pub fn is_full_disk(&self) -> bool {
        let is_full = |message: &String| FULL_DISK.iter().any(|reason| message.contains(reason));
        matches!(self, Self::Error { message } if is_full(message))
    }

    /// Returns the message of the run, if it has one.
    #[must_use]
    pub fn message(&self) -> Option<&str> {
        match self {
            Self::Error { message } | Self::Stranded { message } => Some(message),
            _ => None,
        }
    }

    /// Returns a word for programs.
    #[must_use]
    pub fn key(&self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Failed => "failed",
            Self::TaskAbort => "task_abort",
            Self::Drained { by: DrainedBy::Term } => "terminated",
            Self::Drained { .. } => "drained",
            Self::WallTime => "wall_time",
            Self::HeldBack => "held_back",
            Self::Stranded { .. } => "stranded",
            Self::Signal { .. } => "signal",
            Self::Error { .. } => "error",
        }
    }
}

fn one_line(message: &str) -> String {
    let words: Vec<&str> = message.split_whitespace().collect();
    words.join(" ").chars().take(MAX_MESSAGE).collect()
}

/// What the run did, as words after its name.
impl fmt::Display for RunEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Success => f.write_str("succeeded"),
            Self::Failed => f.write_str("failed"),
            Self::TaskAbort => f.write_str("was ended by a task"),
            Self::Drained { by: DrainedBy::Term } => f.write_str("was ended by SIGTERM"),
            Self::Drained { .. } => f.write_str("was drained"),
            Self::WallTime => f.write_str("reached its wall time"),
            Self::HeldBack => f.write_str("had too little time for what is left"),
            Self::Stranded { .. } => f.write_str("lost its nodes"),
            Self::Signal { signal } => write!(f, "was stopped by signal {signal}"),
            Self::Error { .. } => f.write_str("ended with an error"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends() -> Vec<RunEnd> {
        vec![
            RunEnd::Success,
            RunEnd::Failed,
            RunEnd::TaskAbort,
            RunEnd::Drained { by: DrainedBy::Site },
            RunEnd::WallTime,
            RunEnd::HeldBack,
            RunEnd::stranded("one\n\ttwo"),
            RunEnd::Signal { signal: 15 },
            RunEnd::error("Unable to start \"x\": it is missing"),
        ]
    }

    #[test]
    fn the_end_of_a_run_is_read_as_it_was_written() {
        for end in ends() {
            let all = EndOfRun {
                end: end.clone(),
                done: 3,
                left: 4,
                saved: 5,
                lost_nodes: vec!["n1".to_owned()],
                seconds: 17,
            };
            assert_eq!(EndOfRun::parse(&all.line()), Some(all.clone()), "{end}");
            // Torn at each byte.
            let line = all.line();
            for length in 0..line.len() {
                let torn = line.get(..length);
                assert_eq!(torn.and_then(EndOfRun::parse), None);
            }
        }
    }

    #[test]
    fn the_file_has_these_bytes() {
        let all = EndOfRun {
            end: RunEnd::Drained { by: DrainedBy::Time },
            done: 1,
            left: 2,
            saved: 0,
            lost_nodes: Vec::new(),
            seconds: 3,
        };
        let line = "{\"end\":\"drained\",\"by\":\"time\",\"done\":1,\"left\":2,\"saved\":0,\"lost_nodes\":[],\"seconds\":3}\n";
        assert_eq!(all.line(), line);
        let words: Vec<String> = ends()
            .iter()
            .map(|end| {
                serde_json::to_value(end).unwrap()["end"]
                    .as_str()
                    .unwrap()
                    .to_owned()
            })
            .collect();
        let expected = [
            "success",
            "failed",
            "task-abort",
            "drained",
            "time",
            "held-back",
            "stranded",
            "stopped",
            "error",
        ];
        assert_eq!(words, expected);
    }

    #[test]
    fn what_is_not_the_end_of_a_run_is_refused() {
        for text in [
            "",
            "{}\n",
            "drained\n",
            "{\"end\":\"exploded\",\"done\":1,\"left\":2,\"lost_nodes\":[],\"seconds\":3}\n",
        ] {
            assert_eq!(EndOfRun::parse(text), None, "{text:?}");
        }
    }
}
