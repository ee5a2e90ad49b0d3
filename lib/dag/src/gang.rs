//! Tasks over several hosts: the options `-N`, `--ranks`, `--ranks-per-node`, `--exclusive` and `--on`.
//!
//! The requests of such a task are for each of its ranks: a process of an MPI program, or its share of a
//! host.

use std::fmt;

use pmc_hosts::{HostsError, parse_hosts};
use thiserror::Error;

use crate::words::quote;

/// Most hosts of a task.
pub const MAX_NODES: u32 = 100_000;

/// Most ranks of a task.
pub const MAX_RANKS: u32 = 10_000_000;

/// Number of a [`Gang`] among those of a DAG, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GangId(pub u32);

impl GangId {
    /// Returns the number as an index into arrays over all gangs.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// What a task over several hosts needs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Gang {
    /// Its ranks and hosts.
    pub layout: Layout,
    /// It gets whole hosts.
    pub exclusive: bool,
    /// It gets only some of these hosts; empty for any.
    pub on: Vec<String>,
}

/// How the ranks of a task are spread over hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// Over as few hosts as have room, as many on each as fit.
    Packed {
        /// All ranks.
        ranks: u32,
    },
    /// Evenly: the first `ranks % nodes` hosts have one more.
    Spread {
        /// Hosts.
        nodes: u32,
        /// All ranks; at least one for each host.
        ranks: u32,
    },
    /// The same number on each host; the last one may have fewer.
    Filled {
        /// All ranks.
        ranks: u32,
        /// Ranks of each host but the last one.
        per_node: u32,
    },
}

impl Layout {
    /// All ranks.
    #[must_use]
    pub fn ranks(self) -> u32 {
        match self {
            Self::Packed { ranks } | Self::Spread { ranks, .. } | Self::Filled { ranks, .. } => ranks,
        }
    }

    /// Number of hosts; `None` if it depends on what fits.
    #[must_use]
    pub fn nodes(self) -> Option<u32> {
        match self {
            Self::Packed { .. } => None,
            Self::Spread { nodes, .. } => Some(nodes),
            Self::Filled { ranks, per_node } => Some(ranks.div_ceil(per_node.max(1))),
        }
    }

    /// Ranks of a host, counted from 0; `None` if they depend on what fits. The first host has the most.
    #[must_use]
    pub fn ranks_of(self, host: u32) -> Option<u32> {
        match self {
            Self::Packed { .. } => None,
            Self::Spread { nodes, ranks } => {
                let nodes = nodes.max(1);
                Some(ranks / nodes + u32::from(host < ranks % nodes))
            }
            Self::Filled { ranks, per_node } => {
                Some(per_node.min(ranks.saturating_sub(host.saturating_mul(per_node))))
            }
        }
    }
}

/// The options as they are written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct GangOptions {
    /// `-N/--nodes`.
    pub nodes: Option<u32>,
    /// `--ranks`.
    pub ranks: Option<u32>,
    /// `--ranks-per-node`.
    pub per_node: Option<u32>,
    /// `--exclusive`.
    pub exclusive: bool,
    /// `--on`: an expression for hosts.
    pub on: Option<String>,
}

/// Why options do not go together.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each message says it")]
pub enum GangError {
    #[error("--nodes must be from 1 to {MAX_NODES}")]
    Nodes,
    #[error("--ranks and --ranks-per-node must be from 1 to {MAX_RANKS}, and so must all ranks together")]
    Ranks,
    #[error("it has fewer ranks than nodes: {ranks} ranks on {nodes} nodes")]
    EmptyNodes { nodes: u32, ranks: u32 },
    #[error("{ranks} ranks with {per_node} on each node are not {nodes} nodes")]
    Contradiction { nodes: u32, ranks: u32, per_node: u32 },
    #[error("--on: {0}")]
    On(HostsError),
    #[error("it needs {nodes} nodes, and --on names {named}")]
    TooFewNamed { nodes: u32, named: usize },
}

impl GangOptions {
    /// Returns what these options ask for; `None` without any. Without numbers, it is one rank on one host.
    ///
    /// # Errors
    /// They contradict each other.
    pub fn gang(&self) -> Result<Option<Gang>, GangError> {
        if *self == Self::default() {
            return Ok(None);
        }
        let is_count = |most: u32| move |count: &u32| (1..=most).contains(count);
        if self.nodes.is_some_and(|nodes| !is_count(MAX_NODES)(&nodes)) {
            return Err(GangError::Nodes);
        }
        if [self.ranks, self.per_node]
            .iter()
            .flatten()
            .any(|count| !is_count(MAX_RANKS)(count))
        {
            return Err(GangError::Ranks);
        }
        let layout = match (self.nodes, self.ranks, self.per_node) {
            (nodes, None, per_node) => {
                let nodes = nodes.unwrap_or(1);
                let ranks = nodes.checked_mul(per_node.unwrap_or(1));
                let ranks = ranks.filter(is_count(MAX_RANKS)).ok_or(GangError::Ranks)?;
                Layout::Spread { nodes, ranks }
            }
            (None, Some(ranks), None) => Layout::Packed { ranks },
            (Some(nodes), Some(ranks), None) if ranks < nodes => {
                return Err(GangError::EmptyNodes { nodes, ranks });
            }
            (Some(nodes), Some(ranks), None) => Layout::Spread { nodes, ranks },
            (nodes, Some(ranks), Some(per_node)) => {
                let needed = ranks.div_ceil(per_node);
                match nodes.unwrap_or(needed) {
                    nodes if nodes == needed && nodes <= MAX_NODES => Layout::Filled { ranks, per_node },
                    nodes => {
                        return Err(GangError::Contradiction {
                            nodes,
                            ranks,
                            per_node,
                        });
                    }
                }
            }
        };
        let on = match &self.on {
            None => Vec::new(),
            Some(text) => parse_hosts(text, MAX_NODES as usize).map_err(GangError::On)?,
        };
        match layout.nodes() {
            Some(nodes) if !on.is_empty() && on.len() < nodes as usize => {
                let named = on.len();
                return Err(GangError::TooFewNamed { nodes, named });
            }
            _ => {}
        }
        let exclusive = self.exclusive;
        Ok(Some(Gang {
            layout,
            exclusive,
            on,
        }))
    }
}

/// Writes the options as they stand in a TASK line, each with a blank behind it.
impl fmt::Display for GangOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers = [
            ("-N", self.nodes),
            ("--ranks", self.ranks),
            ("--ranks-per-node", self.per_node),
        ];
        for (option, number) in numbers {
            if let Some(number) = number {
                write!(f, "{option} {number} ")?;
            }
        }
        if self.exclusive {
            f.write_str("--exclusive ")?;
        }
        match &self.on {
            Some(on) => write!(f, "--on {} ", String::from_utf8_lossy(&quote(on.as_bytes()))),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn options(nodes: Option<u32>, ranks: Option<u32>, per_node: Option<u32>) -> GangOptions {
        GangOptions {
            nodes,
            ranks,
            per_node,
            ..GangOptions::default()
        }
    }

    /// Ranks of each host.
    fn shares(options: &GangOptions) -> Vec<u32> {
        let layout = options.gang().unwrap().unwrap().layout;
        let nodes = layout.nodes().unwrap();
        (0..nodes).map(|host| layout.ranks_of(host).unwrap()).collect()
    }

    #[test]
    fn numbers_say_which_host_has_how_many_ranks() {
        assert_eq!(options(None, None, None).gang(), Ok(None));
        assert_eq!(shares(&options(Some(3), None, None)), [1, 1, 1]);
        assert_eq!(shares(&options(Some(3), Some(8), None)), [3, 3, 2]);
        assert_eq!(shares(&options(Some(2), None, Some(4))), [4, 4]);
        assert_eq!(shares(&options(None, Some(9), Some(4))), [4, 4, 1]);
        assert_eq!(shares(&options(Some(3), Some(9), Some(4))), [4, 4, 1]);
        assert_eq!(shares(&options(None, None, Some(4))), [4]);
        let packed = options(None, Some(9), None).gang().unwrap().unwrap().layout;
        assert_eq!(
            (packed.ranks(), packed.nodes(), packed.ranks_of(0)),
            (9, None, None)
        );
        let whole = GangOptions {
            exclusive: true,
            ..GangOptions::default()
        };
        assert_eq!(shares(&whole), [1]);
    }

    #[test]
    fn contradictions_are_refused() {
        let refused =
            |nodes, ranks, per_node| options(nodes, ranks, per_node).gang().unwrap_err().to_string();
        assert_eq!(
            refused(Some(4), Some(3), None),
            "it has fewer ranks than nodes: 3 ranks on 4 nodes"
        );
        for nodes in [2, 4] {
            assert_eq!(
                refused(Some(nodes), Some(9), Some(4)),
                format!("9 ranks with 4 on each node are not {nodes} nodes")
            );
        }
        assert_eq!(refused(Some(0), None, None), "--nodes must be from 1 to 100000");
        for (nodes, ranks, per_node) in [
            (None, Some(0), None),
            (None, None, Some(0)),
            (Some(100_000), None, Some(1000)),
            (None, Some(u32::MAX), Some(1)),
        ] {
            assert!(refused(nodes, ranks, per_node).starts_with("--ranks and --ranks-per-node"));
        }
        let on = |text: &str| {
            let on = Some(text.to_owned());
            GangOptions {
                on,
                ..options(Some(3), None, None)
            }
            .gang()
        };
        assert_eq!(on("n[1-3]").unwrap().unwrap().on, ["n1", "n2", "n3"]);
        assert_eq!(
            on("n[1-2]").unwrap_err().to_string(),
            "it needs 3 nodes, and --on names 2"
        );
        assert_eq!(
            on("n1,n1,n2").unwrap_err().to_string(),
            "--on: it names the host n1 twice"
        );
        assert!(on("n[").is_err());
    }

    proptest! {
        #[test]
        fn all_ranks_have_a_host(
            nodes in prop::option::of(1_u32..40),
            ranks in prop::option::of(1_u32..200),
            per_node in prop::option::of(1_u32..20),
        ) {
            let options = options(nodes, ranks, per_node);
            if let Ok(Some(Gang { layout, .. })) = options.gang()
                && let Some(hosts) = layout.nodes()
            {
                let shares = shares(&options);
                prop_assert_eq!(shares.iter().sum::<u32>(), layout.ranks());
                prop_assert!(shares.is_sorted_by(|a, b| a >= b) && shares.iter().all(|ranks| *ranks > 0));
                prop_assert!(nodes.is_none_or(|nodes| nodes == hosts));
                prop_assert!(ranks.is_none_or(|ranks| ranks == layout.ranks()));
                prop_assert!(per_node.is_none_or(|per_node| shares.iter().all(|ranks| *ranks <= per_node)));
            }
        }
    }
}
