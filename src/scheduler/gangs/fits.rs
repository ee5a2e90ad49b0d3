//! How many ranks of the gangs that wait fit on each host.
//!
//! So the answer that a gang does not fit looks at no host but those that have changed. Which hosts a gang
//! gets is chosen in `choice`, once it fits.

use pmc_dag::Layout;
use rustc_hash::FxHashMap;

use crate::scheduler::hosts::Room;
use crate::scheduler::queue::ShapeId;
use crate::scheduler::run::Master;

/// Most shapes and rooms that are followed.
const MAX_FOLLOWED: usize = 192;

/// What is followed, by shape and by what of a host counts.
#[derive(Debug, Default)]
pub(super) struct Fits(FxHashMap<(ShapeId, Room), Fit>);

/// The ranks of one shape of gangs that fit.
#[derive(Debug)]
struct Fit {
    needs: Needs,
    /// By host.
    ranks: Vec<u32>,
    /// Sum over the hosts.
    sum: u64,
    /// Hosts with the most ranks that one of them needs, and with the fewest.
    with_most: usize,
    with_least: usize,
}

/// What must fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Needs {
    /// All ranks, somewhere.
    Ranks(u64),
    /// The most ranks of a host on some hosts, and the fewest on all of them.
    Hosts {
        most: u32,
        with_most: usize,
        least: u32,
        all: usize,
    },
    /// More hosts than it may have.
    Impossible,
}

impl Needs {
    /// What the ranks of a layout need on at most so many hosts.
    fn of(layout: Layout, most_hosts: usize) -> Self {
        let Some(nodes) = layout.nodes() else {
            return match most_hosts {
                1 => Self::Hosts {
                    most: layout.ranks(),
                    with_most: 1,
                    least: layout.ranks(),
                    all: 1,
                },
                _ => Self::Ranks(layout.ranks().into()),
            };
        };
        let ranks_of = |host| layout.ranks_of(host).unwrap_or(0);
        let (most, least) = (ranks_of(0), ranks_of(nodes.saturating_sub(1)));
        let all = nodes as usize;
        if all > most_hosts {
            return Self::Impossible;
        }
        let with_most = match layout {
            Layout::Spread { nodes, ranks } if ranks % nodes.max(1) > 0 => (ranks % nodes.max(1)) as usize,
            Layout::Filled { .. } if least < most => all - 1,
            _ => all,
        };
        Self::Hosts {
            most,
            with_most,
            least,
            all,
        }
    }
}

impl Fit {
    fn new(needs: Needs) -> Self {
        Self {
            needs,
            ranks: Vec::new(),
            sum: 0,
            with_most: 0,
            with_least: 0,
        }
    }

    fn set(&mut self, host: u32, ranks: u32) {
        let host = host as usize;
        if self.ranks.len() <= host {
            self.ranks.resize(host + 1, 0);
        }
        let before = std::mem::replace(&mut self.ranks[host], ranks);
        self.sum = self.sum - u64::from(before) + u64::from(ranks);
        if let Needs::Hosts { most, least, .. } = self.needs {
            let count = |known: usize, needed: u32| {
                known + usize::from(ranks >= needed) - usize::from(before >= needed)
            };
            self.with_most = count(self.with_most, most);
            self.with_least = count(self.with_least, least);
        }
    }

    /// True if all that must fit does.
    fn suffices(&self) -> bool {
        match self.needs {
            Needs::Ranks(ranks) => self.sum >= ranks,
            Needs::Hosts { with_most, all, .. } => self.with_most >= with_most && self.with_least >= all,
            Needs::Impossible => false,
        }
    }
}

impl Fits {
    /// Forgets all, because something else than what is free has changed.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

impl Master {
    /// True if the first gang of a shape fits. The first question is linear in the hosts, the next ones in
    /// those that have changed since then.
    pub(super) fn fits(&mut self, shape: ShapeId, room: Room) -> bool {
        let changed = self.hosts.take_changed();
        let mut fits = std::mem::take(&mut self.gangs.fits);
        if fits.0.len() >= MAX_FOLLOWED && !fits.0.contains_key(&(shape, room)) {
            fits.clear();
        }
        for ((shape, room), fit) in &mut fits.0 {
            for host in &changed {
                fit.set(*host, self.ranks_of_shape(*shape, *room, *host));
            }
        }
        let fit = fits.0.entry((shape, room)).or_insert_with(|| {
            let layout = self
                .queue
                .shape(shape)
                .gang
                .map(|gang| self.gangs.kind(gang).layout);
            let needs = layout.map(|layout| Needs::of(layout, self.most_gang_hosts()));
            let mut fit = Fit::new(needs.unwrap_or(Needs::Impossible));
            for host in 0..self.hosts.all().len() as u32 {
                fit.set(host, self.ranks_of_shape(shape, room, host));
            }
            fit
        });
        let suffices = fit.suffices();
        self.gangs.fits = fits;
        suffices
    }

    /// How many ranks of a shape fit on a host.
    fn ranks_of_shape(&self, shape: ShapeId, room: Room, host: u32) -> u32 {
        let kind = self.queue.shape(shape);
        let Some(gang) = kind.gang.map(|gang| self.gangs.kind(gang)) else {
            return 0;
        };
        let is_named = || gang.on.contains(&self.hosts.get(host).name);
        if self.queue.avoided_by(shape).contains(&host) || !(gang.on.is_empty() || is_named()) {
            return 0;
        }
        self.ranks_that_fit(host, gang, kind.request, Some(room))
    }

    /// Checks that what is followed agrees with the hosts.
    #[cfg(test)]
    pub(in crate::scheduler) fn check_fits(&mut self) -> Result<(), String> {
        let followed: Vec<(ShapeId, Room)> = self.gangs.fits.0.keys().copied().collect();
        // What shapes without tasks avoid may have changed: it is looked at when they get one.
        let asked = |(shape, _): &(ShapeId, Room)| self.queue.first(*shape).is_some();
        let followed: Vec<(ShapeId, Room)> = followed.into_iter().filter(asked).collect();
        for (shape, room) in followed {
            let suffices = self.fits(shape, room);
            let kind = self.queue.shape(shape);
            let Some(gang) = kind.gang.map(|gang| self.gangs.kind(gang)) else {
                continue;
            };
            let avoided = self.queue.avoided_by(shape);
            let candidates = self.candidates(gang, kind.request, avoided, Some(room));
            let chosen = super::choice::spread(gang.layout, &candidates, self.most_gang_hosts());
            if suffices != chosen.is_some() {
                return Err(format!(
                    "{shape:?} fits into {room:?} or not: {suffices}, {chosen:?}"
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::scheduler::gangs::choice::{Candidate, spread};

    fn layout() -> impl Strategy<Value = Layout> {
        let number = 1_u32..8;
        prop_oneof![
            number.clone().prop_map(|ranks| Layout::Packed { ranks }),
            (number.clone(), number.clone()).prop_map(|(nodes, more)| Layout::Spread {
                nodes,
                ranks: nodes + more - 1
            }),
            (number.clone(), number).prop_map(|(ranks, per_node)| Layout::Filled { ranks, per_node }),
        ]
    }

    proptest! {
        #[test]
        fn what_is_counted_says_whether_hosts_are_found(
            layout in layout(),
            most_hosts in prop_oneof![Just(1), Just(usize::MAX)],
            changes in prop::collection::vec((0_u32..8, 0_u32..9), 0..40),
        ) {
            let mut fit = Fit::new(Needs::of(layout, most_hosts));
            let mut ranks = vec![0; 8];
            for (host, fits) in changes {
                fit.set(host, fits);
                ranks[host as usize] = fits;
                let mut candidates: Vec<Candidate> = (0..)
                    .zip(&ranks)
                    .filter(|(_, fit)| **fit > 0)
                    .map(|(host, fit)| Candidate { host, fit: *fit })
                    .collect();
                candidates.sort_by_key(|candidate| std::cmp::Reverse(candidate.fit));
                let found = spread(layout, &candidates, most_hosts).is_some();
                prop_assert_eq!(fit.suffices(), found, "{:?} on {:?}", layout, ranks);
            }
        }
    }
}
