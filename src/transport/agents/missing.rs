//! What the user learns of agents that do not come.

use std::fmt;

/// Agents that have not come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    pub(super) agents: usize,
    pub(super) seconds: u64,
    /// Hosts and what their launchers said last.
    pub(super) words: Vec<(Option<String>, String)>,
    /// Their launchers have ended.
    pub(super) exited: bool,
    /// The number of agents with which the run begins nevertheless, if the start waited for more.
    pub(super) begins_with: Option<usize>,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.agents {
            1 => f.write_str("1 agent did not come")?,
            agents => write!(f, "{agents} agents did not come")?,
        }
        if self.exited {
            f.write_str(": what should start them has ended")?;
        } else {
            write!(f, " within {} s (--join-timeout)", self.seconds)?;
        }
        for (host, words) in &self.words {
            match host {
                Some(host) => write!(f, "; {host}")?,
                None => f.write_str("; its launcher")?,
            }
            f.write_str(&said(words))?;
        }
        match self.begins_with {
            None => Ok(()),
            Some(1) => f.write_str(". The run begins with the one that is there (--start-with)"),
            Some(there) => write!(
                f,
                ". The run begins with the {there} that are there (--start-with)"
            ),
        }
    }
}

/// What a launcher has said, as the end of a sentence.
pub(super) fn said(words: &str) -> String {
    match words {
        "" => " said nothing".to_owned(),
        words => format!(" said last: {words}"),
    }
}

/// Maximum hosts that a message names.
pub(super) const MAX_NAMED: usize = 10;
