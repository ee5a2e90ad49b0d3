//! What a proxy of `pmc-launch` and the PMIx server of its host say to each other: over the standard streams
//! of the server (`pmc pmix-ranks`), in frames of [`crate::command`].
//!
//! The server is a process of its own, so that the PMIx library takes nothing else down with it.

use serde::{Deserialize, Serialize};

/// First argument of `pmc` for the server. It is for proxies only.
pub const COMMAND: &str = "pmix-ranks";

/// Bytes of a fence in one frame, at most.
pub const MAX_PART: usize = 1 << 20;

/// What the proxy says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToServer {
    /// First of all.
    Start(Start),
    /// What all hosts have given to a fence, in the order of hosts. The last part lets ranks go on.
    Fence(Part),
}

/// The launch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// Name of the launch: the same on all hosts, and another one for each launch.
    pub name: String,
    /// Names of the hosts, in their order.
    pub hosts: Vec<String>,
    /// Number of this host.
    pub node: u32,
    /// Number of the host of each rank.
    pub host_of: Vec<u32>,
    /// The ranks of this host, and the numbers of their programs.
    pub programs: Vec<(u32, u32)>,
}

/// A part of the bytes of a fence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Up to [`MAX_PART`] bytes.
    #[serde(with = "serde_bytes")]
    pub bytes: Vec<u8>,
    /// No more comes.
    pub is_last: bool,
}

impl Part {
    /// Splits bytes into parts, at least one.
    pub fn all_of(bytes: &[u8]) -> impl Iterator<Item = Self> + '_ {
        let count = bytes.len().div_ceil(MAX_PART).max(1);
        (0..count).map(move |number| {
            let begin = number * MAX_PART;
            let end = (begin + MAX_PART).min(bytes.len());
            Self {
                bytes: bytes.get(begin..end).unwrap_or_default().to_vec(),
                is_last: number + 1 == count,
            }
        })
    }
}

/// What the server says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromServer {
    /// It is there: variables of each rank of this host, as `NAME=VALUE`.
    Ready(Vec<(u32, Vec<serde_bytes::ByteBuf>)>),
    /// It cannot serve the ranks.
    Failed(String),
    /// A rank has begun.
    Begun(u32),
    /// A rank has said that it ends.
    Finalized(u32),
    /// All ranks of this host are at a fence: what they have given.
    Fence(Part),
    /// A rank ends the program.
    Abort {
        /// Who.
        rank: u32,
        /// Exit code of the program.
        code: i32,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_the_same_after_they_were_split() {
        for length in [0, 1, MAX_PART, MAX_PART + 1, 3 * MAX_PART] {
            let bytes: Vec<u8> = (0..length).map(|at| at as u8).collect();
            let parts: Vec<Part> = Part::all_of(&bytes).collect();
            assert!(parts.iter().all(|part| part.bytes.len() <= MAX_PART));
            let last = parts.iter().position(|part| part.is_last);
            assert_eq!(last, Some(parts.len() - 1), "only the last one is the last");
            assert_eq!(
                parts.into_iter().flat_map(|part| part.bytes).collect::<Vec<u8>>(),
                bytes
            );
        }
    }
}
