//! Open entries, and the queue of a round.

use std::collections::VecDeque;

use crate::error::TransferError;
use crate::protocol::Pair;
use crate::spec::{Location, Work};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Make,
    Transfer,
    Remove,
}

impl Phase {
    pub(super) fn includes(self, work: &Work) -> bool {
        matches!(
            (self, work),
            (Self::Make, Work::Mkdir(_))
                | (Self::Transfer, Work::Transfer(_))
                | (Self::Remove, Work::Remove { .. })
        )
    }
}

/// An entry that is not done yet.
pub(super) struct Item<'a> {
    pub(super) entry: usize,
    pub(super) work: &'a Work,
    /// Indices of the remaining sources, next first. A single 0 for other work than transfers.
    pub(super) sources: VecDeque<usize>,
    /// Number of `sources` attempted in this round.
    pub(super) attempted: usize,
    pub(super) attempts: u32,
    /// The failure to report; `source` is its source.
    pub(super) error: Option<TransferError>,
    pub(super) source: usize,
}

impl<'a> Item<'a> {
    pub(super) fn new(entry: usize, work: &'a Work) -> Self {
        let sources = match work {
            Work::Transfer(transfer) => transfer.sources.len(),
            _ => 1,
        };
        Self {
            entry,
            work,
            sources: (0..sources).collect(),
            attempted: 0,
            attempts: 0,
            error: None,
            source: 0,
        }
    }

    pub(super) fn pair(&self) -> Option<Pair<'a>> {
        match self.work {
            Work::Transfer(transfer) => {
                let source = transfer.sources.get(*self.sources.front()?)?;
                Some(Pair {
                    transfer,
                    source,
                    attempt: self.attempts.max(1),
                })
            }
            _ => None,
        }
    }

    /// Returns the remote hosts of the next attempt, as protocol and host.
    pub(super) fn hosts(&self) -> Vec<String> {
        let host = |place: &Location| {
            let url = &place.url;
            (!url.is_local()).then(|| format!("{}://{}", url.scheme(), url.host_shown()))
        };
        let places = match self.work {
            Work::Transfer(transfer) => [self.pair().map(|pair| pair.source), Some(&transfer.destination)],
            Work::Mkdir(place) | Work::Remove { target: place, .. } => [Some(place), None],
        };
        places.into_iter().flatten().filter_map(host).collect()
    }

    /// Returns whether one call can do both: same protocols, sites and hosts.
    pub(super) fn can_join(&self, other: &Self) -> bool {
        fn is_similar(one: &Location, other: &Location) -> bool {
            one.url.scheme() == other.url.scheme()
                && one.url.host() == other.url.host()
                && one.site == other.site
                && one.image == other.image
        }
        match (self.work, other.work) {
            (Work::Transfer(_), Work::Transfer(_)) => match (self.pair(), other.pair()) {
                (Some(one), Some(other)) => {
                    is_similar(one.source, other.source)
                        && is_similar(one.destination(), other.destination())
                        && one.attempt == other.attempt
                }
                _ => false,
            },
            (
                Work::Remove { target, recursive },
                Work::Remove {
                    target: place,
                    recursive: other_recursive,
                },
            ) => recursive == other_recursive && is_similar(target, place),
            _ => false,
        }
    }

    pub(super) fn description(&self) -> String {
        match self.work {
            Work::Transfer(transfer) => {
                let source = transfer
                    .sources
                    .get(self.source)
                    .map_or_else(String::new, |place| place.url.shown());
                format!("{source} -> {}", transfer.destination.url.shown())
            }
            Work::Mkdir(place) => format!("mkdir {}", place.url.shown()),
            Work::Remove { target, .. } => format!("remove {}", target.url.shown()),
        }
    }
}

/// The entries of one round, shared by its threads.
pub(super) struct Queue<'a> {
    pub(super) ready: VecDeque<Item<'a>>,
    /// Threads with an entry that may return to the queue.
    pub(super) busy: usize,
    /// Entries for the next round.
    pub(super) later: Vec<Item<'a>>,
    /// Successful attempts with remote handlers in this round.
    pub(super) remote_successes: usize,
    /// Failed attempts with remote handlers in this round.
    pub(super) remote_failures: usize,
}

impl Queue<'_> {
    /// Returns whether more than 80 % of over 10 remote attempts failed, so the round ends.
    pub(super) fn mostly_fails(&self) -> bool {
        let attempts = self.remote_successes + self.remote_failures;
        attempts > 10 && self.remote_failures * 10 > attempts * 8
    }
}
