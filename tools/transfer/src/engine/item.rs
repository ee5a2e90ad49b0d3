//! The entries that are not done yet, and the queue of a round.

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
    pub(super) fn has(self, work: &Work) -> bool {
        matches!(
            (self, work),
            (Self::Make, Work::Mkdir(_))
                | (Self::Transfer, Work::Transfer(_))
                | (Self::Remove, Work::Remove { .. })
        )
    }
}

/// An entry that is not done.
pub(super) struct Item<'a> {
    pub(super) entry: usize,
    pub(super) work: &'a Work,
    /// Sources worth trying, by index; the first is next. For other work than transfers a single 0.
    pub(super) open: VecDeque<usize>,
    /// How many of `open` were tried in this round.
    pub(super) tried: usize,
    pub(super) attempts: u32,
    /// The failure to report, and the source it is about.
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
            open: (0..sources).collect(),
            tried: 0,
            attempts: 0,
            error: None,
            source: 0,
        }
    }

    pub(super) fn pair(&self) -> Option<Pair<'a>> {
        match self.work {
            Work::Transfer(transfer) => {
                let source = transfer.sources.get(*self.open.front()?)?;
                Some(Pair {
                    transfer,
                    source,
                    attempt: self.attempts.max(1),
                })
            }
            _ => None,
        }
    }

    /// The remote hosts that the next attempt needs, as protocol and host.
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

    /// Whether the other can be done in one call with this: the same protocols, sites and hosts.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        fn alike(one: &Location, other: &Location) -> bool {
            one.url.scheme() == other.url.scheme()
                && one.url.host() == other.url.host()
                && one.site == other.site
                && one.image == other.image
        }
        match (self.work, other.work) {
            (Work::Transfer(_), Work::Transfer(_)) => match (self.pair(), other.pair()) {
                (Some(one), Some(other)) => {
                    alike(one.source, other.source)
                        && alike(one.destination(), other.destination())
                        && one.attempt == other.attempt
                }
                _ => false,
            },
            (
                Work::Remove { target, recursive },
                Work::Remove {
                    target: place,
                    recursive: deep,
                },
            ) => recursive == deep && alike(target, place),
            _ => false,
        }
    }

    pub(super) fn what(&self) -> String {
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
    /// Threads that hold an entry which may come back.
    pub(super) busy: usize,
    /// Entries for the next round.
    pub(super) later: Vec<Item<'a>>,
    /// Attempts with remote handlers in this round that worked, and that failed.
    pub(super) remote: (usize, usize),
}

impl Queue<'_> {
    /// Whether so many remote transfers fail that the rest is not worth the time.
    pub(super) fn hopeless(&self) -> bool {
        let (completed, failed) = self.remote;
        completed + failed > 10 && failed * 10 > (completed + failed) * 8
    }
}
