//! Ending of a program.

use std::fmt;

/// Ending of a program or task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ending {
    /// Exit with this status.
    Exit(i32),
    /// Killed by the signal with this number.
    Signal(i32),
    /// The program could not be started.
    NotStarted,
}

impl Ending {
    /// Decodes a raw wait status; negative if nothing was started.
    #[must_use]
    pub fn from_wait_status(status: i32) -> Self {
        if status < 0 {
            Ending::NotStarted
        } else if status & 0x7f != 0 {
            Ending::Signal(status & 0x7f)
        } else {
            Ending::Exit((status >> 8) & 0xff)
        }
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Ending::Exit(status) => write!(f, "exit status {status}"),
            Ending::Signal(number) => match nix::sys::signal::Signal::try_from(number) {
                Ok(signal) => write!(f, "signal {number}, {}", signal.as_str()),
                Err(_) => write!(f, "signal {number}"),
            },
            Ending::NotStarted => f.write_str("could not be started"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_statuses() {
        assert_eq!(Ending::from_wait_status(768), Ending::Exit(3));
        assert_eq!(Ending::from_wait_status(9).to_string(), "signal 9, SIGKILL");
        assert_eq!(Ending::from_wait_status(-127), Ending::NotStarted);
    }
}
