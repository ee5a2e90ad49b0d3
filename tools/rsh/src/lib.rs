//! `pmc-rsh HOST COMMAND…`: runs a command on another host of the task in which it runs.
//!
//! Launchers of MPI programs call it in place of `ssh`, with its options. The agents of the two hosts carry
//! the command and its streams: see [`pmc_wire::command`]. The command gets the environment and the directory
//! of the task, not those of this process.

mod arguments;
mod session;

use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;

use pmc_wire::command::{self, VARIABLE};

pub use arguments::{ABOUT, OPTIONS, RshOption};
use arguments::{Arguments, ArgumentsError};
use session::{Ended, Session};

/// Exit code if no command has run, or its end is unknown: that of `ssh`.
const FAILURE: u8 = 255;

/// Added to the number of a signal that has ended the command: what shells do.
const SIGNAL: u8 = 128;

/// Why the command has not run to its end.
#[derive(Debug, thiserror::Error)]
enum RshError {
    #[error(transparent)]
    Arguments(#[from] ArgumentsError),
    #[error(
        "this is no process of a task over several nodes ({VARIABLE} is not set): such a task has the option \
         --nodes or --ranks, and its run has agents"
    )]
    NoTask,
    #[error("the agent of this host does not answer: {}", pmc_dag::reason(.0))]
    NoAgent(std::io::Error),
    #[error("{0}")]
    Refused(String),
    #[error("the connection to {0} was cut")]
    Cut(String),
    #[error("{}", pmc_dag::reason(.0))]
    System(#[from] std::io::Error),
}

/// The program.
#[must_use]
pub fn main() -> ExitCode {
    let first = std::env::args_os().nth(1);
    let answer = match first.as_ref().and_then(|word| word.to_str()) {
        Some("--help") => Some(arguments::help()),
        Some("--version") => Some(format!("pmc-rsh {}\n", env!("CARGO_PKG_VERSION"))),
        _ => None,
    };
    if let Some(text) = answer {
        // Who does not read it needs no answer.
        let _ = std::io::stdout().write_all(text.as_bytes());
        return ExitCode::SUCCESS;
    }
    match run(std::env::args_os().skip(1), std::env::var(VARIABLE).ok()) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "pmc-rsh: {error}");
            ExitCode::from(FAILURE)
        }
    }
}

/// Runs the command. Returns its exit code.
fn run(arguments: impl Iterator<Item = OsString>, token: Option<String>) -> Result<u8, RshError> {
    let arguments = Arguments::parse(arguments)?;
    let token = token.ok_or(RshError::NoTask)?;
    let agent = command::connect(&token).map_err(RshError::NoAgent)?;
    let host = arguments.host.clone();
    let session = Session::begin(agent, &arguments.call(token))?;
    match session.run()? {
        Ended::Status(status) => Ok(exit_code(status)),
        Ended::Refused(why) => Err(RshError::Refused(why)),
        Ended::Cut => Err(RshError::Cut(host)),
    }
}

/// Returns the exit code for a wait status.
fn exit_code(status: i32) -> u8 {
    let byte = |number: i32| u8::try_from(number & 0xff).unwrap_or(FAILURE);
    match status & 0x7f {
        0 => byte(status >> 8),
        signal => SIGNAL.saturating_add(byte(signal)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_names_all_options() {
        let help = arguments::help();
        for line in [
            "  -n          The command reads nothing\n",
            "  -l USER     User\n",
        ] {
            assert!(help.contains(line), "{help}");
        }
    }

    #[test]
    fn exit_codes_are_those_of_a_shell() {
        for (status, code) in [(0, 0), (7 << 8, 7), (9, 137), (15, 143)] {
            assert_eq!(exit_code(status), code);
        }
    }

    #[test]
    fn outside_of_a_task_nothing_runs() {
        let words = ["n2", "true"].map(OsString::from);
        let ended = run(words.into_iter(), None);
        assert!(matches!(ended, Err(RshError::NoTask)));
        let words = ["n2", "true"].map(OsString::from);
        let ended = run(words.into_iter(), Some("0".repeat(32)));
        assert!(matches!(ended, Err(RshError::NoAgent(_))));
    }
}
