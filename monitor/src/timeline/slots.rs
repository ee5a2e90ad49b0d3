//! Which slot of its host a try was in.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::events::Micros;
use crate::history::{History, NEVER, Try};
use crate::resources::NO_HOST;

/// Where a try ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Place in [`History::tries`].
    pub try_number: usize,
    /// Place in the list of hosts.
    pub host: usize,
    /// Slot of the host, from 0.
    pub slot: usize,
}

/// The slots of all tries in the order of their begins, and the names of the hosts. A slot is the first that was free:
/// the logs tell hosts, not slots.
#[must_use]
pub fn slots(history: &History, now: Micros) -> (Vec<Slot>, Vec<String>) {
    let mut hosts: Vec<String> = history.hosts.all().iter().map(|host| host.name.clone()).collect();
    let unknown = hosts.len();
    if history.tries.iter().any(|one| one.host == NO_HOST) {
        hosts.push("unknown host".to_owned());
    }
    let mut count = vec![0; hosts.len()];
    let mut busy: Vec<BinaryHeap<Reverse<(Micros, usize)>>> =
        (0..hosts.len()).map(|_| BinaryHeap::new()).collect();
    let mut free: Vec<BinaryHeap<Reverse<usize>>> = (0..hosts.len()).map(|_| BinaryHeap::new()).collect();
    let mut order: Vec<usize> = (0..history.tries.len()).collect();
    order.sort_by_key(|number| history.tries[*number].start);
    let place = |try_number: usize| {
        let one = &history.tries[try_number];
        let host = if one.host == NO_HOST {
            unknown
        } else {
            usize::from(one.host)
        };
        while let Some(Reverse((until, slot))) = busy[host].peek().copied()
            && until <= one.start
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
        busy[host].push(Reverse((end_of(one, now), slot)));
        Slot {
            try_number,
            host,
            slot,
        }
    };
    (order.into_iter().map(place).collect(), hosts)
}

/// End of a try; of one that runs, now.
pub(super) fn end_of(one: &Try, now: Micros) -> Micros {
    let end = if one.end == NEVER { now } else { one.end };
    end.max(one.start)
}
