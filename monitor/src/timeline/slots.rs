//! Assigns attempts to slots of their hosts.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::events::Micros;
use crate::history::{Attempt, History, NEVER};
use crate::resources::NO_HOST;

/// Slot of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Index in [`History::attempts`].
    pub attempt: usize,
    /// Index in the list of hosts.
    pub host: usize,
    /// Slot of the host, from 0.
    pub slot: usize,
}

/// Returns the slots of all attempts in the order of their starts, and the names of the hosts. The logs have
/// no slots: each attempt gets the first free one.
#[must_use]
pub fn slots(history: &History, now: Micros) -> (Vec<Slot>, Vec<String>) {
    let mut hosts: Vec<String> = history.hosts.all().iter().map(|host| host.name.clone()).collect();
    let unknown = hosts.len();
    if history.attempts.iter().any(|attempt| attempt.host == NO_HOST) {
        hosts.push("unknown host".to_owned());
    }
    let mut count = vec![0; hosts.len()];
    let mut busy: Vec<BinaryHeap<Reverse<(Micros, usize)>>> =
        (0..hosts.len()).map(|_| BinaryHeap::new()).collect();
    let mut free: Vec<BinaryHeap<Reverse<usize>>> = (0..hosts.len()).map(|_| BinaryHeap::new()).collect();
    let mut order: Vec<usize> = (0..history.attempts.len()).collect();
    order.sort_by_key(|number| history.attempts[*number].start);
    let assign = |index: usize| {
        let attempt = &history.attempts[index];
        let host = if attempt.host == NO_HOST {
            unknown
        } else {
            usize::from(attempt.host)
        };
        while let Some(Reverse((until, slot))) = busy[host].peek().copied()
            && until <= attempt.start
        {
            busy[host].pop();
            free[host].push(Reverse(slot));
        }
        let slot = free[host].pop().map_or_else(
            || {
                count[host] += 1;
                count[host] - 1
            },
            |Reverse(slot)| slot,
        );
        busy[host].push(Reverse((end_of(attempt, now), slot)));
        Slot {
            attempt: index,
            host,
            slot,
        }
    };
    (order.into_iter().map(assign).collect(), hosts)
}

/// Returns the end of an attempt; `now` while it runs.
pub(super) fn end_of(attempt: &Attempt, now: Micros) -> Micros {
    let end = if attempt.end == NEVER { now } else { attempt.end };
    end.max(attempt.start)
}
