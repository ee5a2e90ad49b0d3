//! Why an attempt ended, if the executor knows more than the wait status says.
//!
//! The logs of a run have a line for it before the lines about the end: [`crate::dagman_out::reason`] and
//! [`crate::jobstate_log::reason`]. Pegasus' monitoring does not know these lines and leaves them out.

use std::fmt;
use std::io;
use std::time::Duration;

use pmc_status::memory;
use serde::{Deserialize, Serialize};

/// Why an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Reason {
    /// Its time limit was over.
    TimeLimit {
        /// The limit.
        limit: Duration,
    },
    /// There was no more memory, or it exceeded its request.
    OutOfMemory {
        /// Peak of its resident memory in MiB; 0 if it is unknown.
        used_mib: u64,
        /// What it had requested, in MiB; 0 without a request.
        requested_mib: u64,
    },
    /// The files for its output could not be opened, so that it did not start.
    OutputFile {
        /// Number of the error; 0 if it is unknown.
        errno: i32,
    },
    /// It could not be started for another cause.
    NotStarted {
        /// Number of the error; 0 if it is unknown.
        errno: i32,
    },
    /// It succeeded, but the data that it forwards could not be written.
    NotForwarded,
    /// It was lost with its worker, and its task runs again.
    Evicted,
    /// It was lost with its worker, like others of its task before, and the task has failed for that.
    Lost {
        /// Number of these attempts.
        attempts: u32,
    },
    /// The run ended before it.
    CutOff,
    /// It has saved itself, and its task runs again.
    Saved,
    /// Its master was lost, and the next one goes on with it, as another attempt.
    TakenOver,
}

impl Reason {
    /// Short name, for instance `time_limit`. Names do not change.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Reason::TimeLimit { .. } => "time_limit",
            Reason::OutOfMemory { .. } => "out_of_memory",
            Reason::OutputFile { .. } => "output_file",
            Reason::NotStarted { .. } => "not_started",
            Reason::NotForwarded => "not_forwarded",
            Reason::Evicted => "evicted",
            Reason::Lost { .. } => "lost",
            Reason::CutOff => "cut_off",
            Reason::Saved => "saved",
            Reason::TakenOver => "taken_over",
        }
    }

    /// Returns the name with its numbers, for the logs: `time_limit 1500`.
    #[must_use]
    pub fn encode(self) -> String {
        let name = self.name();
        match self {
            Reason::TimeLimit { limit } => format!("{name} {}", limit.as_millis()),
            Reason::OutOfMemory {
                used_mib,
                requested_mib,
            } => format!("{name} {used_mib} {requested_mib}"),
            Reason::OutputFile { errno } | Reason::NotStarted { errno } => format!("{name} {errno}"),
            Reason::Lost { attempts } => format!("{name} {attempts}"),
            Reason::NotForwarded | Reason::Evicted | Reason::CutOff | Reason::Saved | Reason::TakenOver => {
                name.to_owned()
            }
        }
    }

    /// Reads what [`Reason::encode`] has written. More words behind it are left out. `None` for a name that
    /// is not known.
    #[must_use]
    pub fn decode(text: &str) -> Option<Self> {
        let mut words = text.split_ascii_whitespace();
        let name = words.next()?;
        let mut number = || words.next()?.parse::<u64>().ok();
        let reason = match name {
            "time_limit" => Reason::TimeLimit {
                limit: Duration::from_millis(number()?),
            },
            "out_of_memory" => Reason::OutOfMemory {
                used_mib: number()?,
                requested_mib: number()?,
            },
            "output_file" => Reason::OutputFile {
                errno: i32::try_from(number()?).ok()?,
            },
            "not_started" => Reason::NotStarted {
                errno: i32::try_from(number()?).ok()?,
            },
            "not_forwarded" => Reason::NotForwarded,
            "evicted" => Reason::Evicted,
            "lost" => Reason::Lost {
                attempts: u32::try_from(number()?).ok()?,
            },
            "cut_off" => Reason::CutOff,
            "saved" => Reason::Saved,
            "taken_over" => Reason::TakenOver,
            _ => return None,
        };
        Some(reason)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Reason::TimeLimit { limit } => {
                write!(f, "time limit: it ran longer than {} s", limit.as_secs_f64())
            }
            Reason::OutOfMemory {
                used_mib,
                requested_mib,
            } => out_of_memory(f, used_mib, requested_mib),
            Reason::OutputFile { errno } => {
                write!(f, "the file for its output could not be opened{}", error(errno))
            }
            Reason::NotStarted { errno } => write!(f, "it could not be started{}", error(errno)),
            Reason::NotForwarded => f.write_str("the data that it forwards could not be written"),
            Reason::Evicted => {
                f.write_str("lost with its worker, or ended by the batch system; the task runs again")
            }
            Reason::Lost { attempts } => {
                write!(
                    f,
                    "lost with its worker, as {attempts} of its attempts were (--crash-limit)"
                )
            }
            Reason::CutOff => f.write_str("the run ended before it"),
            Reason::Saved => f.write_str("it has saved itself; the task runs again"),
            Reason::TakenOver => f.write_str("the next master goes on with it"),
        }
    }
}

fn out_of_memory(f: &mut fmt::Formatter<'_>, used_mib: u64, requested_mib: u64) -> fmt::Result {
    f.write_str("out of memory: it ")?;
    if used_mib > 0 {
        write!(f, "used {} and ", memory(used_mib))?;
    }
    match requested_mib {
        0 => f.write_str("had requested none"),
        _ => write!(f, "had requested {}", memory(requested_mib)),
    }
}

/// Returns the text of an error with a colon before it.
fn error(errno: i32) -> String {
    if errno == 0 {
        return String::new();
    }
    let text = io::Error::from_raw_os_error(errno).to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    format!(": {text}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_read_as_they_were_written() {
        for (reason, text) in [
            (
                Reason::TimeLimit {
                    limit: Duration::from_millis(1500),
                },
                "time limit: it ran longer than 1.5 s",
            ),
            (
                Reason::OutOfMemory {
                    used_mib: 95,
                    requested_mib: 100,
                },
                "out of memory: it used 95 MiB and had requested 100 MiB",
            ),
            (
                Reason::OutOfMemory {
                    used_mib: 0,
                    requested_mib: 0,
                },
                "out of memory: it had requested none",
            ),
            (
                Reason::OutputFile { errno: 28 },
                "the file for its output could not be opened: No space left on device",
            ),
            (Reason::NotStarted { errno: 0 }, "it could not be started"),
            (
                Reason::NotForwarded,
                "the data that it forwards could not be written",
            ),
            (
                Reason::Evicted,
                "lost with its worker, or ended by the batch system; the task runs again",
            ),
            (
                Reason::Lost { attempts: 3 },
                "lost with its worker, as 3 of its attempts were (--crash-limit)",
            ),
            (Reason::CutOff, "the run ended before it"),
            (Reason::Saved, "it has saved itself; the task runs again"),
            (Reason::TakenOver, "the next master goes on with it"),
        ] {
            assert_eq!(
                Reason::decode(&format!("{} later", reason.encode())),
                Some(reason)
            );
            assert_eq!(reason.to_string(), text);
        }
        for other in [
            "",
            "time_limit",
            "time_limit -1",
            "out_of_memory 1",
            "other 1",
            "lost x",
        ] {
            assert_eq!(Reason::decode(other), None, "{other}");
        }
    }
}
