//! Requests of tools that wait for the answer of a worker.

use std::collections::BTreeMap;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use crate::control::Reply;
use crate::protocol::{Rank, SubmitId};

/// A request is forgotten if its worker does not answer within this time.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// Requests by their numbers. `A` is what the answer needs besides the attempt.
#[derive(Debug)]
pub(super) struct AskedRequests<A> {
    last_number: u64,
    asked: BTreeMap<u64, (Instant, Asked<A>)>,
}

/// A request to a worker.
#[derive(Debug)]
pub(super) struct Asked<A> {
    pub(super) worker: Rank,
    pub(super) attempt: SubmitId,
    pub(super) about: A,
    pub(super) answer: SyncSender<Reply>,
}

impl<A> Default for AskedRequests<A> {
    fn default() -> Self {
        Self {
            last_number: 0,
            asked: BTreeMap::new(),
        }
    }
}

impl<A> AskedRequests<A> {
    /// Notes a request. Returns its number.
    pub(super) fn add(&mut self, asked: Asked<A>) -> u64 {
        let now = Instant::now();
        self.asked.retain(|_, (at, _)| now.duration_since(*at) < MAX_WAIT);
        self.last_number += 1;
        self.asked.insert(self.last_number, (now, asked));
        self.last_number
    }

    /// Returns whether a request was added after this moment and waits.
    pub(super) fn has_since(&self, moment: Instant) -> bool {
        self.asked.values().any(|(at, _)| *at > moment)
    }

    /// Removes the request with this number, unless it is forgotten.
    pub(super) fn take(&mut self, number: u64) -> Option<Asked<A>> {
        self.asked.remove(&number).map(|(_, asked)| asked)
    }
}
