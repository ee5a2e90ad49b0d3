//! Gangs: attempts that hold several hosts at once.
//!
//! The host on which the command of a gang runs is its lead, the others are members. Members join first
//! ([`ToWorker::Join`](super::ToWorker::Join)); then the lead gets the attempt, with the addresses of all
//! ([`GangStart`]). After its end, the members leave.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{Place, SubmitId};

/// What the processes of one attempt of a gang show to agents, on all of its hosts. Nobody else knows it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GangToken(pub u128);

/// Hexadecimal digits of a token.
const DIGITS: usize = 32;

impl fmt::Display for GangToken {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:032x}", self.0)
    }
}

impl fmt::Debug for GangToken {
    /// Logs do not show it.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("GangToken")
    }
}

/// Text that is no token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is no token of a gang")]
pub struct NoToken;

impl FromStr for GangToken {
    type Err = NoToken;

    fn from_str(text: &str) -> Result<Self, NoToken> {
        let is_token = text.len() == DIGITS && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = is_token.then(|| u128::from_str_radix(text, 16).ok()).flatten();
        number.map(Self).ok_or(NoToken)
    }
}

/// What a member of a gang holds. It lets processes of the gang run commands on its host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Membership {
    /// Number of the attempt.
    pub submit: SubmitId,
    /// Token of the attempt.
    pub token: GangToken,
    /// Name of the task.
    #[serde(with = "serde_bytes")]
    pub task: Vec<u8>,
    /// What it holds of this host.
    pub part: Part,
    /// Set if the task is of a sub-workflow.
    pub place: Option<Box<Place>>,
}

/// What a gang holds of one host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Ranks of the program there.
    pub ranks: u32,
    /// CPUs.
    pub cpus: u32,
    /// Memory in MB; 0 if the task requests none.
    pub memory_mb: u64,
    /// Numbers of its CPUs, if it has a block of CPUs.
    pub cpu_set: Vec<u32>,
    /// Numbers of its GPUs, counted from 0.
    pub gpu_set: Vec<u32>,
}

/// What the lead of a gang needs to know beyond its [`Assignment`](super::Assignment).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GangStart {
    /// Token of the attempt.
    pub token: GangToken,
    /// All hosts, the lead first. Those after it have joined.
    pub hosts: Vec<GangHost>,
    /// The gang has its hosts for itself.
    pub exclusive: bool,
}

impl GangStart {
    /// What the lead says to the next master. Its part has this number of CPUs.
    #[must_use]
    pub fn earlier(&self, cpus: u32) -> EarlierGang {
        let (lead, members) = self.hosts.split_first().unzip();
        EarlierGang {
            members: members
                .into_iter()
                .flatten()
                .map(|host| host.name.clone())
                .collect(),
            ranks: lead.map_or(0, |lead| lead.ranks),
            cpus,
        }
    }
}

/// A host of a gang.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GangHost {
    /// Its name.
    pub name: String,
    /// Ranks of the program there.
    pub ranks: u32,
    /// Where its agent takes commands, as it has said in [`ToMaster::Joined`](super::ToMaster::Joined). Empty
    /// for the lead, which knows its own.
    pub addresses: Vec<String>,
}

/// What a member says to the master that follows the one of which it has joined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EarlierMember {
    /// Number of the attempt.
    pub submit: SubmitId,
    /// Name of the task.
    #[serde(with = "serde_bytes")]
    pub task: Vec<u8>,
    /// The DAG file of its sub-workflow, if it is in one.
    #[serde(with = "serde_bytes")]
    pub dag: Option<Vec<u8>>,
    /// What it holds.
    pub part: Part,
}

/// What the lead says to the next master about its gang.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EarlierGang {
    /// Names of the other hosts.
    pub members: Vec<String>,
    /// Ranks on the lead.
    pub ranks: u32,
    /// CPUs of the lead's part.
    pub cpus: u32,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn tokens_round_trip(number: u128) {
            let token = GangToken(number);
            let text = token.to_string();
            prop_assert_eq!(text.len(), DIGITS);
            prop_assert_eq!(text.parse(), Ok(token));
            let shown = format!("{token:?}");
            prop_assert!(!shown.contains(&text));
        }

        #[test]
        fn other_texts_are_no_tokens(text in ".{0,40}") {
            let parsed = text.parse::<GangToken>();
            prop_assert_eq!(parsed.is_ok(), text.len() == DIGITS && text.bytes().all(|b| b.is_ascii_hexdigit()));
        }
    }
}
