//! Why a run ended before its work was done: one line in `NAME.dag.ended`, which the executor writes and
//! views read. A run that did all it could has no such file, nor has one that was killed.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

/// Maximum bytes of the file.
pub const MAX_SIZE: u64 = 64 << 10;

/// Why a run ended before its work was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunEnd {
    /// It was asked to start no more tasks, and those that ran have ended.
    Drained,
    /// It got SIGTERM, and the tasks that ran have ended in time: the batch system has ended its job.
    Terminated,
    /// Its wall time was over.
    WallTime,
    /// A signal with this number stopped it.
    Signal(i32),
    /// An error did; its message.
    Error(String),
}

impl RunEnd {
    /// Returns the path of the file for a DAG.
    #[must_use]
    pub fn path(dag: &Path) -> PathBuf {
        let mut path = OsString::from(dag);
        path.push(".ended");
        path.into()
    }

    /// Returns the line of the file. A message in several lines becomes one.
    #[must_use]
    pub fn line(&self) -> String {
        match self {
            Self::Drained => "drained\n".to_owned(),
            Self::Terminated => "terminated\n".to_owned(),
            Self::WallTime => "wall-time\n".to_owned(),
            Self::Signal(signal) => format!("signal {signal}\n"),
            Self::Error(message) => {
                let words: Vec<&str> = message.split_whitespace().collect();
                format!("error {}\n", words.join(" "))
            }
        }
    }

    /// Reads the line; `None` if it is incomplete, or of another version.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let line = text.strip_suffix('\n')?;
        match line.split_once(' ') {
            None if line == "drained" => Some(Self::Drained),
            None if line == "terminated" => Some(Self::Terminated),
            None if line == "wall-time" => Some(Self::WallTime),
            Some(("signal", number)) => number.parse().ok().map(Self::Signal),
            Some(("error", message)) => Some(Self::Error(message.to_owned())),
            _ => None,
        }
    }

    /// Returns a word for programs.
    #[must_use]
    pub fn key(&self) -> &'static str {
        match self {
            Self::Drained => "drained",
            Self::Terminated => "terminated",
            Self::WallTime => "wall_time",
            Self::Signal(_) => "signal",
            Self::Error(_) => "error",
        }
    }
}

/// What the run did, as words after its name.
impl fmt::Display for RunEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Drained => f.write_str("was drained"),
            Self::Terminated => f.write_str("was ended by SIGTERM"),
            Self::WallTime => f.write_str("reached its wall time"),
            Self::Signal(signal) => write!(f, "was stopped by signal {signal}"),
            Self::Error(_) => f.write_str("ended with an error"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_run_is_read_as_it_was_written() {
        let ends = [
            RunEnd::Drained,
            RunEnd::Terminated,
            RunEnd::WallTime,
            RunEnd::Signal(15),
            RunEnd::Error("Unable to start x: it is missing".to_owned()),
        ];
        for end in ends {
            assert_eq!(RunEnd::parse(&end.line()), Some(end.clone()), "{end}");
        }
        assert_eq!(RunEnd::Error("one\n\ttwo".to_owned()).line(), "error one two\n");
    }

    #[test]
    fn what_is_not_the_end_of_a_run_is_refused() {
        for text in ["", "drained", "drained too\n", "signal x\n", "error\n", "a\nb\n"] {
            assert_eq!(RunEnd::parse(text), None, "{text:?}");
        }
    }
}
